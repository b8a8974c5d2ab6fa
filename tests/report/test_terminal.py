"""What verbs end with, over made-up studies: one screen, nothing broken, and told once."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from sweeper.files import take_damaged
from sweeper.report import console
from sweeper.report.next import Next
from sweeper.report.output import Output
from sweeper.report.sections import Commands, Item, Sentence, Verbatim
from sweeper.table import Column, Table
from sweeper.verbs.requests import TransferRequest
from tests.report import samples

LADDER = ("transfer.widths=[64,128,256,512]", "metric=step (?P<step>\\d+): loss (?P<loss>\\S+)")
NEXT = Next(
    TransferRequest(study="a-study-with-a-name", to_width=4096, validate=True, overrides=LADDER),
    "to find out whether it holds at the target",
)
PLACES = {name: Path(f"/data/experiments/runs/a-study/{name}.json") for name in ("report", "plan")}


def judged() -> list[Item]:
    return console.verdicts(samples.validated(samples.validation("fails")).axes)


def shown(items: Sequence[Item], width: int, *, verbose: bool = False) -> list[str]:
    """The lines of a terminal, each without its trailing blanks."""
    take_damaged()  # those of other tests
    text = io.StringIO()
    paper = Console(file=text, width=width, force_terminal=True, color_system=None)
    output = Output(people=paper, verbose=verbose)
    output.show(*items)
    output.notes(["a note of the study"])
    output.end("An answer that is a sentence of some length, as they are.", PLACES, {}, NEXT)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_what_decides_stands_before_what_does_not() -> None:
    lines = shown(judged(), 80)
    head = next(line for line in lines if "optimum" in line)
    assert head.index("shift") < head.index("loss gap") < head.index("answer")
    assert "range" not in " ".join(lines) and "Not shown" not in " ".join(lines)


def test_a_command_that_is_broken_is_still_one_command() -> None:
    lines = shown([], 80)
    at = lines.index("Next, to find out whether it holds at the target:")
    typed = " ".join(line.strip().removesuffix("\\") for line in lines[at + 1 :])
    assert " ".join(typed.split()) == " ".join(str(NEXT).split())


def test_no_row_of_a_long_table_is_hidden() -> None:
    table = Table("many", [Column("row", left=True), Column("loss")])
    for row in range(60):
        table.add(f"row {row}", float(row), note=f"note {row}")
    lines = shown([table], 80)
    assert sum(line.startswith(" row ") and "loss" not in line for line in lines) == 60
    assert sum(line.startswith("- row ") for line in lines) == 60
    assert not [line for line in lines if "Not shown" in line]


def test_no_column_is_dropped_however_narrow_the_terminal_is() -> None:
    names = [f"a long name {number}" for number in range(9)]
    table = Table("wide", [Column(name) for name in names])
    for row in range(2):
        table.add(*(100.0 * row + column for column in range(9)), note=f"note {row}")
    for width in (40, 60, 80, 200):
        text = "\n".join(shown([table], width))
        assert all(name in text for name in names)
        assert all(f"{100 * row + column}" in text.split() for row in (0, 1) for column in range(9))
        assert text.count("note 1") == 1 and "Not shown" not in text
        rows = [line for line in text.splitlines() if line.startswith(" a long") or "100" in line]
        assert max(map(len, rows)) <= width


def test_names_command_no_terminal_and_hide_nothing() -> None:
    evil = "\x1b]0;title\x07\x9b2J\u200b\u202e\U000e0041"
    table = Table(evil, [Column(evil, left=True)])
    table.add(evil, note=evil)
    items = [table, Sentence(evil), Verbatim(evil), Commands(evil, [[evil]], note=evil)]
    text = "".join(shown(items, 200, verbose=True))
    assert (
        not any(letter in text for letter in "\x1b\x07\x9b\u200b\u202e\U000e0041")
        and "title" in text
    )
