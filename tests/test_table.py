"""A table in every place: words stay whole, no column is lost, numbers are not rounded."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.measure import Measurement

from sweeper.errors import SHELL
from sweeper.report.page import fragment
from sweeper.report.sections import Report, Section
from sweeper.stats.estimate import UNKNOWN, Estimate
from sweeper.table import (
    BaseToTarget,
    Cell,
    Column,
    Table,
    _across,
    answer,
    csv_text,
    interval,
    listed,
    within,
)
from tests.golden import Golden

NAMES = ["hyperparameter", "value", "loss", "points", "range"]
COLUMNS = [
    Column("hyperparameter", left=True),
    Column("value"),
    Column("loss"),
    Column("points"),
    Column("range"),
]


def printed(table: Table, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table, crop=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def table(*rows: tuple[str, ...]) -> Table:
    made = Table("What was found, in a title longer than it", COLUMNS)
    for row in rows:
        made.add(*row)
    return made


ROW = ("alpha_residual_attn_ratio", "0.0001221", "2.2500", "17", "2^-11..2^4")


def test_a_terminal_shows_all_columns_but_secondary_ones() -> None:
    made = replace(table(ROW), columns=[*COLUMNS[:4], replace(COLUMNS[4], secondary=True)])
    for width in range(10, 90):
        parts = made.parts(width)
        heads = [[column.name for column in part.columns] for part in parts]
        assert [name for head in heads for name in head[1:]] == NAMES[1:4]
        assert {head[0] for head in heads} == {NAMES[0]} and [p.title for p in parts[1:]] == (
            [""] * (len(parts) - 1)
        )
    # Where not even two fit, the first column's cells stand above the others.
    assert printed(made.parts(20)[0], 20).splitlines()[1].split() == NAMES[1:2]


WORD = st.text("abcdefgh_.0123456789", min_size=1, max_size=30)


@settings(max_examples=40)
@given(st.lists(st.tuples(*[WORD] * 5), min_size=1, max_size=4), st.integers(10, 200))
def test_no_word_is_ever_broken(rows: list[tuple[str, ...]], width: int) -> None:
    lines = [line.split() for line in printed(table(*rows), width).splitlines()]
    for row in rows:
        assert any(line[:5] == list(row) for line in lines) or (
            [[row[0]], list(row[1:])] in map(list, pairwise(lines))
        )


@given(
    st.lists(st.tuples(*[st.text("ab 漢\n\t\x1b", max_size=9)] * 5), max_size=3), st.integers(1, 5)
)
def test_a_table_is_as_wide_as_rich_measures_it(rows: list[tuple[str, ...]], most: int) -> None:
    made, plain = table(*rows), Console(file=io.StringIO(), width=4000)
    measured = Measurement.get(plain, plain.options, made._rich(range(most))).maximum
    assert _across(made._widths(), range(most)) == measured


def mixed() -> Table:
    made = Table(
        "Mixed",
        [
            Column("name", left=True),
            Column("shift", unit="log2", form="+.2f"),
            Column("share", form=".1%"),
            Column("lr", form=".3g"),
            Column("answer", left=True),
        ],
        legend=["A legend."],
        remarks=["a remark"],
    )
    estimate_known = Estimate(value=1 / 3, low=0.25, high=0.5)
    made.add("<a>", estimate_known, 0.25, BaseToTarget(base=0.5, target=1 / 8), answer("holds"))
    why = {"note": "every run diverged", "subject": "width 64"}
    made.add(Cell("b", "b", link="b.html"), UNKNOWN, math.inf, None, answer("fails"), **why)
    return made


def test_on_a_terminal() -> None:
    rows = [line.split() for line in printed(mixed(), 100).splitlines() if line.strip()]
    assert ["<a>", "+0.33", "±0.17", "25.0", "%", "0.125", "holds"] in rows
    assert ["b", "-", "diverged", "fails"] in rows


def test_on_the_page(golden: Golden) -> None:
    rendered = fragment(Report(title="", sections=[Section("", [mixed()])]), "t", SHELL)
    text = " ".join(re.sub("<[^>]*>", " ", rendered).split())
    golden.says(text)
    golden.says(rendered)
    assert text.endswith("A legend. a remark")


def test_as_csv_and_frame() -> None:
    first, second = csv.DictReader(io.StringIO(csv_text(mixed().records())))
    assert float(first["shift"]) == 1 / 3 and float(first["shift high"]) == 0.5
    assert (first["lr"], first["lr base"], first["answer"]) == ("0.125", "0.5", "holds")
    assert (second["name"], second["shift"], second["lr"]) == ("b", "nan", "")
    frame = mixed().to_frame()
    assert frame["shift low"][0] == 0.25 and list(frame["answer"]) == ["holds", "fails"]


def test_no_text_of_a_csv_is_a_formula() -> None:
    formulas = ("=cmd|'/c calc'!A0", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1")
    table = Table("", [Column("=a"), Column("b")])
    for formula in (*formulas, "-1.5", "+2", "b=1", "", None, -3.0):
        table.add(formula, 1)
    name, *cells = (
        row[0] for row in csv.reader(io.StringIO(csv_text(table.records()), newline=""))
    )
    assert name == "'=a" and cells[:6] == [*[f"'{each}" for each in formulas[:5]], "'\n=1"]
    assert cells[6:] == ["-1.5", "+2", "b=1", "", "", "-3.0"]


@pytest.mark.parametrize(
    ("estimate", "form", "text", "ends"),
    [
        (Estimate(value=0.5, low=0.25, high=0.6), ".2f", "0.50 ±0.25", "0.25 to 0.60"),
        (Estimate(value=0.5, low=0.4, high=1.0), "+.2f", "+0.50 ±0.50", "+0.40 to +1.00"),
        (Estimate(value=0.5, low=0.4, high=0.6), ".0%", "50 % ±10 %", "40 to 60 %"),
        (Estimate(value=-0.001, low=-0.1, high=0.1), "+z.2f", "+0.00 ±0.10", "-0.10 to +0.10"),
        (UNKNOWN, ".2f", "-", ""),
        (Estimate(value=0.5, low=-math.inf, high=math.inf), "+.2f", "+0.50", "no interval"),
        (Estimate(value=0.5, low=0.0, high=math.inf), ".2f", "0.50", "at least 0.00"),
        (Estimate(value=0.5, low=0.2, high=math.inf), ".2f", "≥0.50", "at least 0.20"),
        (Estimate(value=0.5, low=-math.inf, high=0.9), ".2f", "0.50", "at most 0.90"),
    ],
)
def test_intervals(estimate: Estimate, form: str, text: str, ends: str) -> None:
    assert (within(estimate, form), interval(estimate, form)[1]) == (text, ends)


def test_names_are_listed_as_people_do_and_none_are_nothing() -> None:
    assert [listed([*"abc"[:n]]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert listed([*"abc"], most=2) == "a, b and 1 more"
