import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sweeper.decide.ladder_verdict import Verdict
from sweeper.files import take_damaged
from sweeper.plan.plan import PlannedParameter, TransferPlan, own_plan
from sweeper.records import from_json
from sweeper.report import console as show
from sweeper.report.next import Next
from sweeper.report.output import Output
from sweeper.report.sections import Commands, Item, Sentence, Shown, Verbatim
from sweeper.report.terminal import Terminal
from sweeper.search.strategy import Conclusion, LineResult
from sweeper.stats.curve import Basin
from sweeper.stats.estimate import UNKNOWN, Estimate
from sweeper.stats.ladder import Size
from sweeper.study.cost import Cost
from sweeper.table import Column, Table, number, power, short
from sweeper.trial import Axis
from sweeper.verbs.requests import TransferRequest
from tests.golden import Golden
from tests.report import samples

FOUND = Conclusion(
    best_log2={"eta": 1.5, "alpha": -2.0},
    objective=2.25,
    seeds=3,
    runs=17,
    lines=(
        LineResult(
            name="eta", points_log2=((-1.0, 3.0), (1.5, 2.25)), optimum_log2=1.5, objective=2.25
        ),
    ),
    notes=("alpha: still at the end of [its grid], 2^-2",),
)
SPACE = {"eta": Axis(low=-4, high=4), "alpha": Axis(low=-2, high=2)}
HOLDS = samples.validated(samples.validation()).axes[0].sizes[1]
NUMBERS_OF_SIZE = ("optimum_log2", "shift_log2", "loss", "regret", "loss_gap")
UNTOLD = replace(
    HOLDS,
    size=replace(HOLDS.size, width=128),
    answer="fails",
    reason="every run diverged",
    **dict.fromkeys(NUMBERS_OF_SIZE, UNKNOWN),  # type: ignore[arg-type]
)


@pytest.fixture
def paper() -> Console:
    return Console(file=io.StringIO(), width=110)


def read(paper: Console) -> str:
    assert isinstance(paper.file, io.StringIO)
    return paper.file.getvalue()


def put(paper: Console, items: Sequence[Item]) -> None:
    Terminal(paper, verbose=True).print(items)


def rows(paper: Console) -> list[list[str]]:
    return [line.split() for line in read(paper).splitlines() if line.strip()]


def test_numbers() -> None:
    values = (2.0, math.nan, math.inf, -math.inf)
    assert [*map(number, values)] == ["2.0000", "-", "diverged", "-inf"]
    assert (short(0.00012207), power(-8.0), power(0.5)) == ("0.0001221", "2^-8", "2^0.5")


def test_a_dry_run(paper: Console) -> None:
    costs = [
        (name, Cost(trials=n, flops=n * 1e9, seconds=n * 2.0)) for name, n in (("a", 9), ("b", 90))
    ]
    put(paper, show.dry_run("This would run", "phase", costs, "trials", "some facts"))
    assert ["a", "9", "9.00e+09", "18", "s"] in rows(paper)
    assert ["all", "99", "9.90e+10", "3", "min", "18", "s"] in rows(paper)
    assert read(paper).endswith("some facts\n")


class TestConclusion:
    def test_lines_best_and_notes(self, paper: Console, golden: Golden) -> None:
        put(paper, show.conclusion(FOUND, SPACE))
        result = "Training loss 2.2500 nats (mean of 3 seeds, the best of 17 trials: biased low)."
        assert show.conclusion_text(FOUND) == result
        fresh = "Training loss 2.2500 nats (mean of 3 fresh seeds, standard error 0.0200) after 17"
        assert show.conclusion_text(replace(FOUND, fresh_seeds=3, error=0.02)) == f"{fresh} trials."
        heldout = show.conclusion_text(replace(FOUND, heldout=True))
        assert heldout == result.replace("Training", "Held-out")
        golden.says(read(paper))

    def test_choices_are_words(self, paper: Console) -> None:
        kinds = ("adamw", "lion", 0.1)
        space = SPACE | {"kind": Axis(low=0, high=2, choices=kinds)}
        line = LineResult(
            name="kind",
            points_log2=((0.0, 3.0), (1.0, 2.25), (2.0, 9.0)),
            optimum_log2=1.0,
            objective=2.25,
            choices=kinds,
        )
        best = {"eta": 1.5, "alpha": -2.0, "kind": 1.0}
        put(paper, show.conclusion(replace(FOUND, lines=(line,), best_log2=best), space))
        assert ["kind", "lion", "2.2500", "0.7500", "3", "adamw,", "lion,", "0.1"] in rows(paper)
        assert ["kind", "lion", "adamw", "adamw,", "lion,", "0.1"] in rows(paper)

    def test_without_lines(self, paper: Console, golden: Golden) -> None:
        put(paper, show.conclusion(replace(FOUND, lines=(), seeds=1), SPACE))
        assert "(one seed, the best of 17" in show.conclusion_text(replace(FOUND, seeds=1))
        golden.says(read(paper))

    def test_what_was_not_searched_is_told_and_a_long_note_in_one_line(
        self, paper: Console
    ) -> None:
        conclusion = replace(FOUND, not_searched=("alpha",), notes=("word " * 60,))
        put(paper, show.conclusion(conclusion, SPACE))
        assert "- " + "word " * 60 in read(paper)
        assert ["alpha", "0.25", "(not", "searched)", "1", "0.25", "to", "4"] in rows(paper)


def parameter(name: str, *shape: int) -> PlannedParameter:
    record = samples.parameter(name, "hidden", [*shape] or [8, 8], [8, 8], 0.5)
    return from_json(PlannedParameter, record)


class TestPlan:
    def test_layers_that_are_alike_share_a_row(self) -> None:
        names = ["embedding.weight", *(f"layers.{i}.out.weight" for i in range(12)), "head.weight"]
        result = [name for name, _ in show.grouped([parameter(name) for name in names])]
        assert result == ["embedding.weight", "layers.0-11.out.weight", "head.weight"]
        other = [parameter("a.0.w"), parameter("a.1.w", 8, 4), parameter("b.0.w")]
        assert [name for name, _ in show.grouped(other)] == ["a.0.w", "a.1.w", "b.0.w"]

    def test_the_table(self, paper: Console, golden: Golden) -> None:
        """A role that grows nowhere does not read as untrained."""
        gate = replace(parameter("gate"), role="fixed")
        parameters = (parameter("layers.0.w"), parameter("layers.1.w"), gate)
        plan = from_json(TransferPlan, samples.plan())
        made = replace(plan, parameters=parameters, operations={})
        put(paper, show.plan(made))
        assert any(row[:2] == ["gate", "scalar-like"] for row in rows(paper))
        golden.says(read(paper))

    def test_a_command_without_a_depth_is_told_none(self, paper: Console, golden: Golden) -> None:
        own = own_plan(Size(width=8, depth=1), Size(width=64, depth=1), {"eta": 1.0}, {}, None)
        put(paper, show.plan(own, deep=False))
        golden.says(read(paper))


class TestVerdict:
    def test_that_fails(self, paper: Console, golden: Golden) -> None:
        sizes = (HOLDS, UNTOLD)
        failed = Verdict(axis="width", answer="fails", sizes=sizes, note="[mind] this")
        put(paper, show.verdicts([failed]))
        golden.says(read(paper))

    def test_one_seed_has_no_interval_and_the_base_nothing_to_be_compared_with(
        self, paper: Console, golden: Golden
    ) -> None:
        alone = {name: getattr(HOLDS, name).without_interval() for name in NUMBERS_OF_SIZE}
        base = replace(HOLDS, is_base=True, **alone)
        other = replace(HOLDS, size=replace(HOLDS.size, width=128), **alone)
        put(paper, show.verdicts([Verdict(axis="width", answer="holds", sizes=(base, other))]))
        golden.says(read(paper))

    def test_over_batch_size_the_rule_is_told_and_a_range_that_is_a_bound(
        self, paper: Console, golden: Golden
    ) -> None:
        width = Estimate(value=1.5, low=1.25, high=math.inf)
        basin = Basin(low_log2=0.0, high_log2=1.5, width_log2=width)
        size = replace(HOLDS, basin=basin)
        put(paper, show.verdicts([Verdict(axis="batch_size", answer="holds", sizes=(size,))]))
        golden.says(read(paper))


@pytest.mark.parametrize(
    ("shares", "expected"), [([None, None], ""), ([0.2, 0.5], ""), ([0.2, 0.6, 1.0], "2 of 3")]
)
def test_a_clip_that_is_active_in_most_steps_is_told(
    shares: list[float | None], expected: str
) -> None:
    results = [replace(samples.result(i), clipped=share) for i, share in enumerate(shares)]
    notes = show.clip_note(results)
    assert len(notes) == bool(expected) and all(f"steps of {expected} trials" in n for n in notes)


LADDER = ("transfer.widths=[64,128,256,512]", "metric=step (?P<step>\\d+): loss (?P<loss>\\S+)")
NEXT = Next(
    TransferRequest(study="a-study-with-a-name", to_width=4096, validate=True, overrides=LADDER),
    "to find out whether it holds at the target",
)
PLACES = {name: Path(f"/data/experiments/runs/a-study/{name}.json") for name in ("report", "plan")}


def shown(items: Sequence[Item], width: int, *, verbose: bool = False) -> list[str]:
    take_damaged()  # those of other tests
    text = io.StringIO()
    paper = Console(file=text, width=width, force_terminal=True, color_system=None)
    output = Output(people=paper, verbose=verbose)
    answer, notes = (
        "An answer that is a sentence of some length, as they are.",
        ["a note of the study"],
    )
    output.end(Shown(answer=answer, items=items, notes=notes, places=PLACES, next=[NEXT]))
    return [line.rstrip() for line in text.getvalue().splitlines()]


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
