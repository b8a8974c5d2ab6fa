"""What verbs end with, over made-up studies: one screen, nothing broken, and told once."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sweeper.check.judge import CheckRule
from sweeper.files import take_damaged
from sweeper.plan.explanation import Explained
from sweeper.plan.plan import TransferPlan
from sweeper.records import from_json, to_json
from sweeper.report import checks, console
from sweeper.report.next import Next
from sweeper.report.output import Output
from sweeper.report.sections import Commands, Item, Sentence, Verbatim
from sweeper.stats.estimate import Estimate
from sweeper.study.cost import Cost
from sweeper.table import Column, Table
from sweeper.verbs.requests import TransferRequest
from tests.report import samples, test_checks

LADDER = (
    *("transfer.widths=[64,128,256,512,1024]", "transfer.seeds=3", "transfer.step=0.5"),
    "metric=step (?P<step>\\d+): loss (?P<loss>\\S+)",
)
NEXT = Next(
    TransferRequest(
        study="a-study-with-a-long-name",
        to_width=4096,
        validate=True,
        overrides=LADDER,
        root=Path("/data/experiments/runs"),
    ),
    "to find out whether it holds at the target",
)
PLACES = {name: Path(f"/data/experiments/runs/a-study/{name}.json") for name in ("report", "plan")}
TODO = "train about 3 more seeds a point, 45 more runs on this ladder: transfer.seeds=6"


def plan() -> TransferPlan:
    return from_json(TransferPlan, to_json(samples.plan()))


def searched() -> list[Item]:
    notes = tuple(f"alpha_{i}: the optimum lay at the end, and the grid grew" for i in range(12))
    result = samples.searched(samples.search(notes=notes))
    return console.conclusion(result.conclusion, result.space)


def judged(answer: str, *, axes: int = 1) -> list[Item]:
    record = samples.validation(answer, depth=axes > 1)
    verdicts = [
        replace(verdict, limits="a shift of at most 1 in log2 and a loss gap of at most 1 %")
        for verdict in samples.validated(record).axes
    ]
    # As many again under other names of axes, as of batches and steps.
    more = [
        replace(verdicts[-1], axis=axis) for axis in ("batch_size", "steps")[: max(0, axes - 2)]
    ]
    longer = [replace(verdict, note="wider is worse " * 6, todo=TODO) for verdict in verdicts]
    command = Commands("The target's command:", [["python", "train.py", "--lr=0.1"]])
    return [
        *console.verdicts([*longer, *more]),
        *console.plan(plan()),
        command,
    ]


def by_law() -> list[Item]:
    (verdict,) = samples.validated(samples.validation()).axes
    return console.verdicts([replace(verdict, law="eta as steps^-0.3")])


def diverged() -> list[Item]:
    return console.verdicts(samples.validated(samples.diverged_validation()).axes)


def explained() -> list[Item]:
    planned = plan()
    rows = [Explained(parameter=p, a=0, b=0.5, c=1, why="sums") for p in planned.parameters]
    return console.explanation(planned, rows, verbose=False)


def checked(count: int = 1) -> list[Item]:
    result = test_checks.sample()
    long = [
        replace(m, name=f"model.blocks.transformer.{m.name}_{i}")
        for m in result.modules
        for i in "abcdefgh"
    ]
    many = [replace(result, modules=tuple(long)) for _ in range(count)]
    return checks.coordinates(many, CheckRule())


def dry() -> list[Item]:
    costs = [(f"phase {i}", Cost(trials=9, flops=1e12, seconds=60.0)) for i in range(30)]
    return console.dry_run("This would run", "phase", costs, "trials", "A fact of it. " * 20)


ENDINGS: dict[str, Callable[[], Sequence[Item]]] = {
    "search": searched,
    "holds": lambda: judged("holds"),
    "fails": lambda: judged("fails"),
    "cannot say": lambda: judged("cannot say yet"),
    "two axes": lambda: judged("holds", axes=2),
    "four axes": lambda: judged("cannot say yet", axes=4),
    "a law": by_law,
    "all diverged": diverged,
    "plan": lambda: console.plan(plan()),
    "explain": explained,
    "check": checked,
    "check, two axes": lambda: checked(2),
    "scales": lambda: [checks.scale_table(test_checks.SCALES)],
    "dry run": dry,
}


def shown(
    items: Sequence[Item], width: int, *, verbose: bool = False, folder: Path | None = None
) -> list[str]:
    """The lines of a terminal, each without its trailing blanks."""
    take_damaged()  # those of other tests
    text = io.StringIO()
    paper = Console(file=text, width=width, force_terminal=True, color_system=None)
    output = Output(people=paper, verbose=verbose)
    if folder is not None:
        output.within(folder)
    output.show(*items)
    output.notes(["a note of the study"])
    output.end("An answer that is a sentence of some length, as they are.", PLACES, {}, NEXT)
    return [line.rstrip() for line in text.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", ENDINGS)
def test_a_verb_ends_with_every_row_and_its_answer(name: str, width: int) -> None:
    items = ENDINGS[name]()
    lines = shown(items, width)
    # The regular expression is one word, which nothing may break.
    assert not [line for line in lines if len(line) > width]
    assert "An answer that is" in lines[-6] + lines[-7] + lines[-8]
    table = next(item for item in items if isinstance(item, Table))
    needed = {column.name for column in table.columns[1:] if column.importance is None}
    at, head = next((i, line) for i, line in enumerate(lines) if all(n in line for n in needed))
    end = at + 2 + len(table.rows) + len(table.section_ends)
    rows = [line for line in lines[at + 2 : end] if line]
    assert len(rows) >= len(table.rows), "none is hidden"
    if table.columns[0].name in head:
        whole = str(narrowed(table, width)).splitlines()
        assert collapsed(rows) <= collapsed(whole), "no cell is broken, or lacks its end"


def collapsed(lines: Sequence[str]) -> set[str]:
    return {" ".join(line.split()) for line in lines}


def narrowed(table: Table, width: int) -> Table:
    """The table with the columns alone that a terminal of this width shows."""
    gone = table.dropped(width)
    kept = [index for index, column in enumerate(table.columns) if column not in gone]
    rows = [replace(row, values=[row.values[index] for index in kept]) for row in table.rows]
    return replace(table, columns=[table.columns[index] for index in kept], rows=rows)


def test_what_decides_stands_before_what_does_not() -> None:
    lines = shown(judged("fails"), 80)
    head = next(line for line in lines if "optimum" in line)
    assert head.index("shift") < head.index("loss gap") < head.index("answer")
    assert "regret" not in head and "regret" in " ".join(lines), "it is said what is left out"


def test_all_is_said_under_verbose() -> None:
    lines = " ".join(shown(judged("fails"), 200, verbose=True))
    assert "regret: lost at the transferred value" in lines and "Not shown" not in lines
    verbose = " ".join(shown(searched(), 200, verbose=True))
    assert all(item.text in verbose for item in searched() if isinstance(item, Sentence))


def test_a_command_that_is_broken_is_still_one_command() -> None:
    lines = shown([], 80)
    at = lines.index("Next, to find out whether it holds at the target:")
    typed = " ".join(line.strip().removesuffix("\\") for line in lines[at + 1 :])
    assert " ".join(typed.split()) == " ".join(str(NEXT).split())


def test_names_that_are_too_long_stand_above_their_numbers() -> None:
    table = Table("", [Column("name", left=True), Column("x"), Column("y", left=True)])
    near = Estimate(value=1.0, low=0.5, high=1.5)
    names = [f"a.very.long.name.of.a.module.{i}" for i in range(3)]
    for name in names:
        table.add(name, near, "holds")
    lines = shown([table], 30)
    for name in names:
        assert lines[lines.index(f" {name}") + 1].split() == ["1", "±0.5", "holds"]


def test_no_row_of_a_long_table_is_hidden() -> None:
    table = Table("many", [Column("row", left=True), Column("loss")])
    for row in range(60):
        table.add(f"row {row}", float(row), note=f"note {row}")
    lines = shown([table], 80)
    assert sum(line.startswith(" row ") and "loss" not in line for line in lines) == 60
    assert sum(line.startswith("- row ") for line in lines) == 60
    assert not [line for line in lines if "Not shown" in line]


def test_verbose_drops_no_column_however_narrow_the_terminal_is() -> None:
    names = [f"a long name {number}" for number in range(9)]
    columns = [Column(name, importance=number or None) for number, name in enumerate(names)]
    table = Table("wide", columns)
    for row in range(2):
        table.add(*(100.0 * row + column for column in range(9)), note=f"note {row}")
    for width in (40, 60, 80, 200):
        text = "\n".join(shown([table], width, verbose=True))
        assert all(name in text for name in names)
        assert all(f"{100 * row + column}" in text.split() for row in (0, 1) for column in range(9))
        assert text.count("note 1") == 1 and "Not shown" not in text
        rows = [line for line in text.splitlines() if line.startswith(" a long") or "100" in line]
        assert max(map(len, rows)) <= width
    assert "Not shown" in "".join(shown([table], 80))


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
