import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.errors import SHELL, ConfigError
from sweeper.evidence.runs.condition import rows_where, where_equal
from sweeper.expression import CONDITIONS
from tests.refusals import raises_config_error

FRAME = pandas.DataFrame(
    {
        "loss": [3.0, 3.5, np.nan, np.inf],
        "seed": [0, 1, 2, 3],
        "optimizer": ["adam", "muon", None, "adam"],
        "model.width": [64, 128, 256, 512],
        "a b": [1, 2, 3, 4],
        "c`d": [1, 2, 3, 4],
        "momentum": [0.9, "0.95", "1e-3", "none"],
        "ours": [True, False, True, False],
        "day": pandas.to_datetime(["2026-01-01", "2026-02-01", "2026-03-01", None]),
        "count": pandas.array([1, None, 3, 4], dtype="Int64"),
        "class": [1, 1, 2, 2],
        "data": pandas.array(["web", None, "code", "web"], dtype="string"),
    }
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("loss < 3.2", [0]),
        ("3 < loss <= 1e999", [1, 3]),
        ("loss == 3.0 or seed == 3", [0, 3]),
        ("(seed > 0) and not (loss < 4)", [2, 3]),
        ("not (seed > 0 and optimizer == 'adam')", [0, 1, 2]),
        ('optimizer == "muon"', [1]),
        ("optimizer != 'muon'", [0, 2, 3]),
        ("optimizer in ['muon', 'lion']", [1]),
        ("optimizer not in ['muon']", [0, 2, 3]),
        ("seed in [1, -3, 3]", [1, 3]),
        ("optimizer == None", [2]),
        ("optimizer != None", [0, 1, 3]),
        ("model.width >= 256", [2, 3]),
        ("`model.width` >= 256", [2, 3]),
        ("`a b` == 2", [1]),
        ("`c``d` == 2", [1]),
        ("`class` == 1", [0, 1]),
        ("momentum == 0.001", [2]),
        ("momentum > 0.5", [0, 1]),
        ("ours == True", [0, 2]),
        ("not ours == True", [1, 3]),
        ("day > '2026-01-15'", [1, 2]),
        ("count >= 3", [2, 3]),
        ("count != 3", [0, 1, 3]),
        ("data != 'web'", [1, 2]),
        ("seed > -1", [0, 1, 2, 3]),
        ("seed < 99999999999999999999999", [0, 1, 2, 3]),
        ("optimizer == 'a & b | ~c'", []),
    ],
)
def test_a_condition_takes_rows(text: str, rows: list[int]) -> None:
    assert np.flatnonzero(rows_where(FRAME, text)).tolist() == rows


ATTACKS = [
    *("@sys.modules['os'].system('touch pwned')", "__import__('os').system('touch pwned')"),
    *("loss.__class__.__mro__", "loss.sum() > 1", "(lambda: 1)()", "loss[0] > 1"),
    *("loss < open('pwned', 'w')", "(x := 1) == 1", "loss == 10 ** 10 ** 10"),
    *("loss < 4; import os", "loss == 'a' * 999999999", "await loss", "loss == {1: 2}"),
    *("loss == ...", "seed in seed", "seed in [seed]", "seed in [not 1]", "seed in (0, 1)"),
    *("seed in 3", "optimizer in 'adam'"),
    *("seed < loss", "ours", "not ours", "loss < 4 & seed == 0", "optimizer is None", "loss == 1j"),
    *("3", "'a' == 'a'", "seed ==", "loss == b'a'"),
    *("nothing > 3", "loss = 3", "seed == '0'", "optimizer < 3", "loss < None", "optimizer < seed"),
    *("day > 'soon'", "`a b == 2", "", "loss < 4 \x00", "# loss < 4", "`touch pwned`"),
    *("(" * 5000 + "loss < 4" + ")" * 5000, "not " * 4000 + "ours", "~" * 15000 + "ours"),
    *("loss < " + "-" * 15000 + "1", "loss" + ".a" * 9000 + " > 1", "1 < " * 4000 + "loss"),
    *("loss < 1" + "0" * 15000, "ours or " * 30000 + "ours"),
]


@pytest.mark.parametrize("text", ATTACKS, ids=range(len(ATTACKS)))
def test_all_else_is_one_message_and_runs_nothing(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with raises_config_error("where", ANY) as caught:
        rows_where(FRAME, text)
    assert len(str(caught.value)) < 2 * CONDITIONS.longest
    assert not [*tmp_path.iterdir()]


WORDS = (
    "loss seed optimizer ours `a b` 'adam' 3 1e999 -2 == != < in is not and or & | ~ ( ) [ ] , "
    "None True . : = lambda @ # '"
)
TEXTS = st.lists(st.sampled_from(WORDS.split()), max_size=14).map(" ".join)


@given(st.text(max_size=60) | TEXTS)
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    with suppress(ConfigError):
        mask = rows_where(FRAME, text)
        assert mask.dtype == bool and mask.shape == (len(FRAME),)


HOSTILE = (
    *("a` == 1 or @sys.modules['os'].system('touch pwned') or `b", "a`; touch pwned; `b", "it's"),
    *("$(touch pwned)", 'say "so"', "\x1b[31mred", "two\nlines", r"back\nslash", "==", "class"),
    *("größe", "#", ""),
)
NAMES = st.text(min_size=1, max_size=20) | st.sampled_from(HOSTILE)
NUMBERS = st.integers(-(2**62), 2**62) | st.floats(allow_nan=False)
CELLS = st.text(max_size=20) | NUMBERS | st.booleans() | st.none()


@given(NAMES, NAMES, st.lists(CELLS, min_size=1, max_size=4))
def test_a_proposed_filter_takes_the_rows_of_its_values(
    name: str, other: str, cells: list[Any]
) -> None:
    """Whatever columns and cells are called: through a shell, and back."""
    frame = pandas.DataFrame({name: pandas.Series(cells, dtype=object)})
    frame[other] = frame[name]
    value = cells[0]
    line = SHELL.keyword(where_equal({name: value, other: value}))
    assert line.isprintable()
    flag, text = shlex.split(line)
    assert flag == "--where"
    met = rows_where(frame, text)
    assert met[0]
    for cell, taken in zip(cells, met, strict=True):
        if taken and isinstance(value, str):
            assert cell == value


def test_a_text_without_quotes_is_shown_with_them() -> None:
    with raises_config_error("where", "optimizer == muon") as caught:
        rows_where(FRAME, "optimizer == muon")
    assert """where='optimizer == "muon"'""" in str(caught.value)
    with raises_config_error("where", "sed == 1") as caught:
        rows_where(FRAME, "sed == 1")
    assert "did you mean seed?" in str(caught.value)


def test_a_table_of_many_columns_is_not_listed_whole() -> None:
    wide = pandas.DataFrame(np.zeros((1, 50_000)), columns=[f"c{n}" for n in range(50_000)])
    with raises_config_error("where", "d == 1") as caught:
        rows_where(wide, "d == 1")
    assert len(str(caught.value)) < 1000 and "and 49849 more" in str(caught.value)
