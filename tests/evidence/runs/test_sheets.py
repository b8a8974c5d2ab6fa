import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.errors import SHELL, BadInput
from sweeper.evidence.runs.grid import ladder_runs
from sweeper.evidence.runs.numbers import number_of
from sweeper.evidence.runs.read import read
from sweeper.evidence.runs.run import Runs, log2_of
from tests.evidence.runs.grids import grid
from tests.refusals import raises_config_error

ROWS = [
    (width, lr, seed, round(4 - 0.1 * i + 0.2 * (j - 1) ** 2 + 0.01 * j + 0.001 * seed, 4))
    for i, width in enumerate((256, 512, 1024))
    for j, lr in enumerate((0.0006, 0.0012, 0.0024))
    for seed in (0, 1)
]
HEAD = "width,lr,seed,loss\n"


def sheet(
    width: Callable[[int], object] = str,
    lr: Callable[[float], object] = repr,
    loss: Callable[[float], object] = repr,
    head: str = HEAD,
    separator: str = ",",
) -> str:
    cells = ((width(w), lr(eta), seed, loss(value)) for w, eta, seed, value in ROWS)
    rows = (separator.join(map(str, row)) for row in cells)
    return head.replace(",", separator) + "\n".join(rows) + "\n"


def comma(value: float) -> str:
    return repr(value).replace(".", ",")


def values(path: Path) -> np.ndarray:
    runs = ladder_runs(read(path))
    columns = [runs.columns[role] for role in ("width", "eta", "seed", "loss")]
    return np.array([runs.numbers(column) for column in columns]).T


CLEAN = {
    "semicolons": sheet(separator=";"),
    "brackets": sheet(head="width (d_model),lr,seed,val loss (nats)\n"),
}


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_table_has_its_numbers(name: str, tmp_path: Path) -> None:
    (path := tmp_path / "runs.csv").write_text(CLEAN[name], encoding="utf-8")
    np.testing.assert_allclose(values(path), ROWS, rtol=1e-12)


MEAN = f"average,,,{np.mean([row[3] for row in ROWS]):.4f}\n"
DIRTY = {
    "decimal commas": (sheet(lr=comma, loss=comma, separator=";"), "'0,0006'", "write 0.0006"),
    "points, which are decimal": (sheet(lambda w: f"{w:,}".replace(",", ".")), "whole number", ""),
    "one loss with a comma": (sheet().replace(",4.2\n", ',"4,165"\n'), "'loss'", "write 4.165"),
    "a footnote": (sheet().replace("\n512", "*\n512", 1), "row 6", "where="),
    "a word for a divergence": (sheet().replace("4.2\n", "F_OOM\n", 1), "'F_OOM' may", "write inf"),
    "a cell without end": (sheet().replace("4.2\n", f"{'x' * 10**6}\n", 1), "'loss'", "xxx"),
    "a name without end": (sheet(head=f"width,lr,seed,{'x' * 10**4}\n"), "10,000", "rename it"),
    "a printed frame": ("    lr  width  loss\n0  0.1     64  3.25\n", "as it is printed", "to_csv"),
    "one of Polars": ("shape: (1, 1)\n\u250c\u2510\n", "as it is printed", "to_csv"),
    "a table between lines": ("+----+------+\n| lr | loss |\n", "as it is printed", "to_csv"),
    "a title": ("Sweep of autumn\n" + sheet(), "Sweep of autumn", "name the columns"),
    "a padded title": ('"Sweep, by Jo",,,\n' + sheet(), "Sweep, by Jo", "delete what stands above"),
    "a header above": (sheet(head="of,this,run,result\n" + HEAD), "eta=COLUMN", "of, this"),
    "bars": (sheet(separator="|"), "width|lr|seed|loss", "=COLUMN"),
    "a mean below": (sheet() + MEAN, "'average'", "leaves such rows out"),
    "sums below": (
        sheet() + ",".join(f"{sum(column):.6g}" for column in zip(*ROWS, strict=True)),
        "sums",
        "delete it",
    ),
    "merged cells": (sheet().replace("\n256,", "\n,")[:-1], "nothing in 'width'", "where="),
    "a column a rate": ("width,0.1,0.2,0.4\n64,3,2,3\n", "loss=COLUMN", "0.1, 0.2"),
    "an encoding": ("gr\u00f6\u00dfe" + sheet(), "utf-8", "decode"),
}


@pytest.mark.parametrize("name", DIRTY)
def test_a_dirty_table_is_one_error_that_says_what_to_do(name: str, tmp_path: Path) -> None:
    text, *parts = DIRTY[name]
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="cp1252" if name == "an encoding" else "utf-8")
    with pytest.raises(BadInput) as caught:
        grid(path)
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message and len(message) < 2000


def test_what_is_proposed_leaves_the_rows_out(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(sheet(head=HEAD + "(neurons),,,(nats)\n") + MEAN)
    with pytest.raises(BadInput) as caught:
        grid(path)
    message = caught.value.spelled(SHELL)
    where = shlex.split(message[message.index("--where") :].split(" leaves")[0])[1]
    runs = ladder_runs(read(path, where=where))
    np.testing.assert_array_equal(runs.numbers("loss"), [row[3] for row in ROWS])


@pytest.mark.parametrize("where", ["loss < 4.0", "lr > 0.001"])
def test_a_condition_reads_no_comma_of_a_loss_as_thousands(where: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    quoted = sheet(
        lr=lambda eta: f'"{comma(eta)}"', loss=lambda value: f'"{comma(round(value, 3)):0<5}"'
    )
    path.write_text(quoted)
    with raises_config_error("where", where):
        read(path, where=where)
    path.write_text(sheet(lambda w: f'"{w:,}"'))
    assert len(read(path, where="width > 1000")) == 6


def test_a_unit_in_the_name_of_a_rate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(sheet(lr=lambda eta: f"{1e3 * eta:g}", head="width,peak lr (1e-3),seed,loss\n"))
    with raises_config_error("columns", "eta=peak lr (1e-3)"):
        log2_of(ladder_runs(read(path)), "peak lr (1e-3)")


def test_two_columns_that_brackets_tell_apart_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    head = "width,lr,seed,loss (train),loss (val)\n"
    path.write_text(sheet(loss=lambda value: f"{value - 1:.3f},{value}", head=head))
    with raises_config_error("columns"):
        ladder_runs(read(path))


@pytest.mark.parametrize(
    "cells",
    [
        pandas.date_range("2024-03-12", periods=4),
        pandas.to_timedelta([1, 2, 3, 4], "D"),
        pandas.array([True, False, True, True], dtype="boolean"),
        pandas.Series(["3,412", "3,401", [1], "3,377"]),
    ],
    ids=["dates", "durations", "truth", "a list among commas"],
)
def test_what_pandas_would_make_numbers_of_is_refused(cells: Any) -> None:
    runs = Runs(pandas.DataFrame({"loss": cells}), "", "", columns={"loss": "loss"})
    with pytest.raises(BadInput, match="which is no number"):
        runs.numbers("loss")


READ = {
    "1,024": 1024,
    "50,000,000": 5e7,
    "-1,024.5": -1024.5,
    "2^-8": 2.0**-8,
    "2**3.5": 2**3.5,
    "0.20M": 2e5,
    "128k": 128e3,
    "1.3 B": 1.3e9,
    "3.0e-04": 3e-4,
    " 7 ": 7,
    "inf": math.inf,
    "2^99999": math.inf,
    "0.2517B": 251_700_000,
    "1e-3M": 1000,
    "1e999999k": math.inf,
    "1e-999999999k": 0,
    3: 3,
}
NONE = (
    *("1,02", "a1b", "lion", "1_000", "2^", "M", "run-a", "d512", "12,34", "1 024", "3 %"),
    *("7 nats", "1e9999999999k", [1], True, "6x10^-4", "3.1 \u00b1 0.01"),
)


@pytest.mark.parametrize("cell", READ)
def test_a_number_is_read_as_it_is_meant(cell: object) -> None:
    assert number_of(cell) == READ[cell]


@pytest.mark.parametrize("cell", NONE)
def test_what_is_no_number_is_none(cell: object) -> None:
    assert number_of(cell) is None


@pytest.mark.parametrize("cell", [None, math.nan, pandas.NA, "", " ", "-", "n/a"])
def test_an_empty_cell_is_nan(cell: object) -> None:
    number = number_of(cell)
    assert number is not None and math.isnan(number)


@given(st.text(max_size=20))
def test_any_text_is_a_number_or_none(text: str) -> None:
    number = number_of(text)
    assert number is None or isinstance(number, float)


def test_all_faults_are_named_at_once_with_what_leaves_them_out() -> None:
    table = read({"n_embd": [1, "wide", 3, 4], "lr": [0.1, 0.2, "?", "??"]})
    with pytest.raises(BadInput) as caught:
        table.check_numbers(["n_embd", "lr"])
    message = str(caught.value)
    assert "'n_embd', row 2: 'wide'; " in message and "'lr', row 3: '?', row 4: '??', " in message
    condition = message[message.index("where='") + 7 : message.index("' leaves")]
    assert len(table.only(condition)) == 1
