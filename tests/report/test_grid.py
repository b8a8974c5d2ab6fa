import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from sweeper.report.table import Grid

NAMES = ["hyperparameter", "value", "loss", "points", "range"]


def printed(grid: Grid, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(grid, crop=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def grid(*rows: tuple[str, ...]) -> Grid:
    made = Grid("What was found, in a title longer than it", NAMES, spare=("range", "points"))
    for row in rows:
        made.add_row(*row)
    return made


ROW = ("alpha_residual_attn_ratio", "0.0001221", "2.2500", "17", "2^-11..2^4")


def test_on_a_wide_terminal_all_is_there() -> None:
    text = printed(grid(ROW), 80)
    assert all(word in text for word in (*NAMES, *ROW)) and "Too narrow" not in text
    assert text.startswith("What was found, in a title longer than it\n")


@pytest.mark.parametrize(
    ("width", "gone"), [(70, ["range"]), (58, ["range", "points"]), (20, ["range", "points"])]
)
def test_columns_go_by_importance_and_it_is_said(width: int, gone: list[str]) -> None:
    text = printed(grid(ROW), width)
    note = " ".join(text[text.index("Too narrow") :].split())
    assert note == f"Too narrow here for: {', '.join(gone)}."
    head = text.splitlines()[2]
    assert head.split() == [name for name in NAMES if name not in gone]


def test_sections_and_colors() -> None:
    made = Grid("", ["a", "b"])
    made.add_row("x", "[green]yes[/]")
    made.add_section()
    made.add_row("all", "2")
    lines = [line for line in printed(made, 40).splitlines() if line.strip()]
    assert [re.sub(r"\W+", " ", line).strip() for line in lines] == [
        "a b",
        "",
        "x yes",
        "all 2",
    ]


WORD = st.text("abcdefgh_.0123456789", min_size=1, max_size=30)


@settings(max_examples=40)
@given(st.lists(st.tuples(*[WORD] * 5), min_size=1, max_size=4), st.integers(10, 200))
def test_no_word_is_ever_broken(rows: list[tuple[str, ...]], width: int) -> None:
    lines = [line.split() for line in printed(grid(*rows), width).splitlines()]
    for row in rows:
        assert any(line == list(row[: len(line)]) and len(line) >= 3 for line in lines)
