import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from sweeper.decide.ladder_verdict import Advice, TargetAnswer, judge_ladder
from sweeper.decide.settle import (
    AT_FIRST,
    JudgedLadder,
    Run,
    Settling,
    SizeGrid,
    default_budget,
    grids_of,
)
from sweeper.report.sentences_transfer import ladder_end
from sweeper.report.trials import ladder_table
from sweeper.stats.curve import fit_curves
from sweeper.stats.ladder import LadderRule, LadderSize, SizeCurve
from sweeper.stats.rounds import CONFIDENCE, LOOKS
from tests.refusals import raises_config_error
from tests.stats.curves import BASE

SIZES = [replace(BASE, width=width) for width in (32, 64, 128, 256)]
RULE = LadderRule(widths=tuple(size.width for size in SIZES))
FIXED = len(SIZES) * RULE.points_per_line() * RULE.seeds
Losses = Callable[[LadderSize, float, int], float]


def losses(
    drift: float = 0.0, *, curvature: float = 0.06, noise: float = 0.004, edge: float = math.inf
) -> Losses:
    """Parabolas whose optimum drifts by so much a doubling; +inf from `edge` past it on."""
    measured = dict[Run, float]()

    def loss(size: LadderSize, eta: float, seed: int) -> float:
        u = eta - drift * math.log2(size.width / 32)
        if u > edge:
            return math.inf
        place = [size.width, round(1000 * eta) + 10**6, seed]
        measured.setdefault((size, eta, seed), np.random.default_rng(place).normal(0, noise))
        return 3 + curvature * u * u + measured[size, eta, seed] + 0.01 * seed

    return loss


KNOWN: dict[str, list[JudgedLadder]] = {}
"""By what was judged: after a kill every look is judged again, of the same curves."""


def judge(ladders: Mapping[str, Sequence[SizeCurve]], confidence: float) -> list[JudgedLadder]:
    asked = repr((ladders, confidence))
    if asked not in KNOWN:
        KNOWN[asked] = judged(ladders["width"], confidence)
    return KNOWN[asked]


def judged(curves: Sequence[SizeCurve], confidence: float) -> list[JudgedLadder]:
    fits = fit_curves(curves, 0.0)
    base = fits[BASE]
    planned = base.optimum.value if base else 0.0  # as a plan takes it
    verdict = judge_ladder("width", curves, planned, BASE, RULE, confidence=confidence)
    return [JudgedLadder(verdict=verdict, fits=fits)]


def settling(loss: Callable[[LadderSize, float, int], float | None], **more: object) -> Settling:
    options = {"judge": judge, **more}
    return Settling(RULE, {"width": SIZES}, BASE, loss, **options)  # type: ignore[arg-type]


def answer(ladder: Settling) -> str:
    return ladder.looks[-1].judged[0].verdict.answer


def test_a_clear_failure_needs_the_ends_alone() -> None:
    ladder = settling(losses(drift=-0.7))
    assert ladder.missing() == [] and answer(ladder) == "fails"
    assert {size.width for size in ladder.grids} == {32, 256}
    assert ladder.runs < FIXED / 2 and ladder.ending and ladder.ending.ended == "settled"


def test_a_transfer_holds_with_fewer_runs_than_the_fixed_design() -> None:
    ladder = settling(losses())
    assert ladder.missing() == [] and answer(ladder) == "holds"
    assert set(ladder.grids) == set(SIZES) and ladder.runs < 0.75 * FIXED


def test_a_budget_is_kept_and_so_is_the_number_of_looks() -> None:
    loss = losses(drift=0.3, noise=0.03)
    for budget in (20, 41, 90, None):
        ladder = settling(loss, budget=budget)
        ladder.missing()
        assert ladder.runs <= (budget or default_budget(RULE, BASE))
        assert len(ladder.looks) <= LOOKS and ladder.ending is not None
    with raises_config_error("budget", 19):
        settling(loss, budget=19)


def test_a_budget_of_time_ends_it_by_what_runs_took() -> None:
    ladder = settling(losses(drift=0.3, noise=0.03), affordable=lambda runs: len(runs) + 5)
    ladder.missing()
    assert ladder.ending and ladder.ending.ended == "budget" and ladder.runs <= 25
    assert "the hours are spent, which have room for about 2" in ladder_end(ladder.ending)


def test_what_no_affordable_number_of_runs_would_settle_is_said() -> None:
    ladder = settling(losses(drift=0.2, noise=0.03))
    ladder.missing()
    assert ladder.ending and ladder.ending.ended == "hopeless"
    assert ladder.runs < default_budget(RULE, BASE) < ladder.ending.needed
    assert f"about {ladder.ending.needed - ladder.runs} more" in ladder_end(ladder.ending)


@pytest.mark.parametrize(("drift", "failed"), [(0.0, 1.0), (0.7, -2.0)])
def test_runs_that_failed_end_it(drift: float, failed: float) -> None:
    truth = losses(drift)

    def loss(size: LadderSize, eta: float, seed: int) -> float:
        return math.nan if (size.width, eta, seed) == (256, failed, 0) else truth(size, eta, seed)

    ladder = settling(loss)
    ladder.missing()
    # A line goes on past a failed run as past one that diverged.
    assert (max(ladder.grids[SIZES[-1]].etas) > 2) == (drift > 0)
    assert ladder.ending and ladder.ending.ended == "stuck" and "mend" in ladder_end(ladder.ending)


def test_points_lie_beside_an_edge_and_beyond_an_end() -> None:
    near_edge = settling(losses(edge=0.3, noise=0.012))
    near_edge.missing()
    assert {-0.5, 0.5} <= set(near_edge.grids[BASE].etas) and answer(near_edge) != "fails"
    far = settling(losses(drift=1.2))
    far.missing()
    assert answer(far) == "fails" and max(far.grids[SIZES[-1]].etas) > RULE.span


def there(truth: Losses, sizes: Sequence[LadderSize], seeds: int = 2) -> dict[Run, float]:
    runs = itertools.product(sizes, (-2.0, -1.0, 0.0, 1.0, 2.0), range(seeds))
    return {run: truth(*run) for run in runs}


def test_the_runs_of_a_ladder_that_was_trained_are_the_first_look() -> None:
    truth = losses()
    measured = there(truth, SIZES, seeds=6)
    ladder = settling(lambda *run: measured.get(run), before=grids_of(measured, RULE))
    assert ladder.missing() == [] and answer(ladder) == "holds" and len(ladder.looks) == 1
    assert ladder.runs == 120 and ladder.looks[-1].confidence == AT_FIRST
    message = "Settled with 120 runs, all of which were there, looked at 1 time"
    assert ladder_end(ladder.ending) == message
    assert {first.size for first in ladder.looks[0].judged[0].verdict.sizes} == set(SIZES)


def test_of_runs_that_were_there_the_end_is_trained_first_and_nothing_else() -> None:
    measured = there(losses(), SIZES[:3], seeds=6)
    ladder = settling(lambda *run: measured.get(run), before=grids_of(measured, RULE))
    assert {size for size, *_ in ladder.missing()} == {SIZES[-1]}
    assert len(ladder.missing()) == 10 and len(ladder.looks) == 1
    # Without the base nothing can be judged: it comes first.
    del measured[BASE, 0.0, 1], measured[BASE, 1.0, 0]
    ladder = settling(lambda *run: measured.get(run), before=grids_of(measured, RULE))
    missing = ladder.missing()
    assert {(BASE, 0.0, 1), (BASE, 1.0, 0)} < {*missing} and ladder.looks == []
    assert {size for size, *_ in missing} == {BASE, SIZES[-1]}


@pytest.mark.parametrize(("seeds", "of"), [(0, 0), (4, 3)])
def test_after_a_kill_at_any_run_it_goes_on_as_if_nothing_had_been(seeds: int, of: int) -> None:
    """Also from runs that were there before: of some sizes, with so many seeds."""
    truth = losses(drift=0.2, noise=0.02 if of else 0.006)
    before = there(truth, SIZES[:of], seeds)
    measured, arguments = dict(before), grids_of(before, RULE)
    assert {grid.seeds for grid in arguments.values()} == ({seeds} if of else set())
    whole = settling(truth, before=arguments)
    whole.missing()
    generator = np.random.default_rng(0)
    while missing := (
        again := settling(lambda *run: measured.get(run), before=arguments)
    ).missing():
        # Of what is asked for some runs end, and the driver is killed.
        for index in generator.permutation(len(missing))[: 1 + 2 * len(missing) // 3]:
            measured[missing[index]] = truth(*missing[index])
    assert again.ending == whole.ending and again.grids == whole.grids
    assert len(before) < len(measured) and again.runs <= again.budget
    assert {*measured} <= again.asked | {*before}
    assert of or {*measured} == {run for size, grid in whole.grids.items() for run in grid.of(size)}
    assert len(again.looks) <= LOOKS and again.looks[-1].confidence == CONFIDENCE


def test_a_curve_of_what_was_there_has_as_many_seeds_at_each_point() -> None:
    measured = there(losses(), SIZES[:1], seeds=6)
    measured |= {(BASE, eta, seed): 3.0 for eta in (-0.5, 0.5) for seed in (0, 1)}
    assert grids_of(measured, RULE) == {BASE: SizeGrid((-2.0, -1.0, 0.0, 1.0, 2.0), 6)}
    measured |= {(BASE, eta / 2, seed): 3.0 for eta in range(-8, 9) for seed in (0, 1)}
    assert grids_of(measured, RULE)[BASE].seeds == 2  # 34 runs at 2 seeds, 30 at 6
    one_seed = {run: 3.0 for run in measured if run[2] == 0}
    few = {run: 3.0 for run in measured if run[1] in (0.0, 1.0)}
    assert grids_of(one_seed, RULE) == grids_of(few, RULE) == {}


def test_the_ladder_so_far_has_every_size() -> None:
    measured = dict[Run, float]()
    ladder = settling(lambda *run: measured.get(run))
    missing = ladder.missing()
    assert {size for size, *_ in missing} == {BASE, SIZES[-1]}
    for run in missing[:12]:  # all of the base's, and two of the end's
        measured[run] = 3.0 + run[1] ** 2
    ladder.missing()
    so_far = ladder.so_far()
    assert {point.size for point in so_far.points} == {BASE, SIZES[-1]}
    assert so_far.later == tuple(SIZES[1:3])
    assert sum(len(point.losses) for point in so_far.points) == ladder.finished == 12
    table = ladder_table(so_far)
    assert [row.values[0] for row in table.rows] == ["32", "64", "128", "256"]


def aimed(advice: Advice, holds_at: int = 0) -> Settling:
    """A ladder whose sizes hold, of a target that is open up to so many sizes (0: for ever)."""

    def judge_target(
        ladders: Mapping[str, Sequence[SizeCurve]], confidence: float
    ) -> list[JudgedLadder]:
        (ladder,) = judge(ladders, confidence)
        target = TargetAnswer(
            axis="width",
            size=4096,
            answer="holds" if len(ladders["width"]) == holds_at else "cannot say yet",
            advice=advice,
        )
        return [replace(ladder, verdict=replace(ladder.verdict, target=target))]

    ladder = settling(losses(), judge=judge_target)
    ladder.missing()
    return ladder


WIDER = (32, 64, 128, 256, 512)


def test_another_width_where_the_answer_at_the_target_rests_on_it() -> None:
    ladder = aimed(Advice(axis="width", code="longer_ladder", ladder=WIDER), holds_at=5)
    assert ladder.ending and ladder.ending.ended == "settled"
    assert sorted(size.width for size in ladder.grids) == [*WIDER]


def test_it_ends_with_its_sizes_where_nothing_affordable_tells_of_the_target() -> None:
    alone = aimed(Advice(axis="width", code="correct")).runs  # what the sizes alone take
    none = aimed(Advice(axis="width", code="less_noise"))
    narrower = aimed(Advice(axis="width", code="narrower", ladder=WIDER))
    for ladder in (none, narrower):
        assert ladder.ending and ladder.ending.ended == "stuck" and ladder.runs == alone
        target = ladder.looks[-1].judged[0].verdict.target
        assert ladder.looks[-1].judged[0].verdict.answer == "holds" and target is not None
        assert ladder.ending.advice == target.advice
        assert ("not tell" in ladder_end(ladder.ending)) == (ladder is narrower)
    # Four times the runs do not fit into the budget after a round or two of seeds.
    seeds = aimed(Advice(axis="width", code="more_seeds", settings={"seeds": "12"}))
    assert seeds.ending and seeds.ending.ended == "hopeless" and seeds.ending.likely > 0
    assert seeds.runs < seeds.budget / 2
    sizes = tuple(32 * 2**n for n in range(24))
    far = aimed(Advice(axis="width", code="longer_ladder", ladder=sizes))
    assert far.ending and far.ending.ended == "hopeless" and far.runs == alone
