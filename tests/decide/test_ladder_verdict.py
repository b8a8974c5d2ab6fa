import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from sweeper.decide.ladder_verdict import Verdict, advise, chances, judge_ladder, missed_optimum
from sweeper.report.sentences_transfer import advice_text, missed_text, worded
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import LadderRule, LadderSize, SizeCurve
from tests.golden import Golden
from tests.stats.curves import BASE, LARGE, Valley, fewer_draws, fit_curve, table  # noqa: F401

RULE = LadderRule(widths=(32, 256))


def judged(base: SizeCurve, large: SizeCurve, rule: LadderRule = RULE) -> Verdict:
    return worded(judge_ladder("width", [base, large], 0.0, BASE, rule))


def of(base: Valley, large: Valley, rule: LadderRule = RULE) -> Verdict:
    return judged(base.curve(BASE, rule), large.curve(LARGE, rule), rule)


def test_runs_that_failed_decide_nothing_and_are_no_divergence(golden: Golden) -> None:
    base, large = (Valley(optimum=at, noise=0.001, number=at) for at in (0, 3))
    failing = of(base, large)
    assert failing.answer == "fails"
    curves = base.curve(BASE, RULE), large.curve(LARGE, RULE)
    result = judged(curves[0], replace(curves[1], failed=2))
    assert result.answer == "cannot say yet"
    golden.says(result.todo)
    golden.says(result.sizes[1].reason)
    gone = judged(curves[0], SizeCurve(size=LARGE, failed=9))
    assert gone.sizes[1].answer == "cannot say yet" and "diverged" not in gone.sizes[1].reason
    at_base = judged(replace(curves[0], failed=1), curves[1])
    golden.says(at_base.sizes[1].reason)


def test_seeds_that_change_nothing_decide_nothing(golden: Golden) -> None:
    def same(curve: SizeCurve) -> SizeCurve:
        return replace(curve, losses={eta: (runs[0],) * 2 for eta, runs in curve.losses.items()})

    base, large = (Valley(optimum=0.1, noise=0.001, number=at) for at in (0, 1))
    result = judged(same(base.curve(BASE, RULE)), same(large.curve(LARGE, RULE)))
    assert result.answer == "cannot say yet"
    golden.says(result.sizes[1].reason)
    assert result.seed_advice is None
    golden.says(result.todo)


def test_holds_with_what_was_measured_beside_it() -> None:
    result = of(Valley(optimum=0.2), Valley(optimum=0.4, floor=2.0))
    assert result.seed_advice is None
    base, large = result.sizes
    assert result.answer == "holds" and result.todo == "" and result.note == ""
    assert base.shift_log2 == Estimate(value=0, low=0, high=0)
    assert large.shift_log2.value == pytest.approx(0.2)
    assert large.loss_gap.value == pytest.approx(0.002)
    assert large.regret.value == pytest.approx(0.05 * 0.4**2)
    assert large.loss.value == pytest.approx(2.0)


DEAD, END = Valley(edge=-100.0), Valley(optimum=-9.0, curvature=1e-4)
FLAT = Valley(curvature=0.004, noise=0.004)
BY_CODE = {
    "loses": (Valley(), Valley(optimum=0.9, curvature=0.2)),
    "shifts": (Valley(curvature=0.001), Valley(optimum=1.5, curvature=0.001)),
    "diverges_at_base_optimum": (Valley(), Valley(edge=-0.8)),
    "diverged": (Valley(), DEAD),
    "base_diverged": (DEAD, Valley()),
    # Measured at 0, and diverged at 0.5: the base's optimum lies between.
    "not_measured": (Valley(optimum=0.2, noise=1e-4), Valley(optimum=0.1, edge=0.3, noise=1e-4)),
    "may_shift": (FLAT, replace(FLAT, optimum=0.8, number=1)),
    "edge": (END, END),
}


def test_a_size_has_its_answer_its_reason_and_what_would_settle_it(golden: Golden) -> None:
    lines, sizes = [], {}
    for code, (base, large) in BY_CODE.items():
        verdict = of(base, large)
        size = sizes[code] = verdict.sizes[1]
        assert size.code == code
        advice = f". {verdict.todo}" * bool(verdict.todo)
        lines.append(f"{code}, {size.answer} ({verdict.answer}): {size.reason}{advice}")
        assert verdict.seed_advice is None or code == "may_shift"
    golden.says("\n".join(lines))
    gap = sizes["loses"].loss_gap
    assert gap.value == pytest.approx(0.162, abs=1e-4)
    assert 0.14 < gap.low < 0.162  # the doubt about where the base's optimum lies
    assert math.isnan(sizes["diverged"].optimum_log2.value)
    flat = sizes["may_shift"]
    assert flat.loss_gap.high < 0.03 and flat.shift_log2.low < 1 < flat.shift_log2.high
    assert of(DEAD, DEAD).answer == "fails"


@pytest.mark.parametrize("shift", [0.2, 1.5])
def test_losses_below_zero_are_judged_as_those_above(shift: float) -> None:
    """A log density's loss may be negative: the threshold is a share of its size."""
    answers = {
        floor: of(Valley(floor=floor, noise=0.001), Valley(floor=floor, optimum=shift, noise=0.001))
        for floor in (2.0, -2.0)
    }
    assert answers[2.0].answer == ("holds" if shift < 1 else "fails")
    assert [size.reason for size in answers[2.0].sizes] == [s.reason for s in answers[-2.0].sizes]


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize(
    ("optimum", "etas", "code"), [(0, (2, 3, 4, 5), "edge"), (5, (0, 1, 2, 3), "loses")]
)
def test_a_bound_on_the_base_s_side_is_no_shift(
    side: int, optimum: int, etas: Sequence[int], code: str
) -> None:
    """Lowest at the near end of its grid, a size may not have moved; at the far end it loses."""

    def losses(best: int, at: Sequence[int]) -> dict[float, float | tuple[float, ...]]:
        random = np.random.default_rng(len(at))
        return {
            side * float(eta): tuple(3 + 0.004 * (eta - best) ** 2 + random.normal(0, 0.001, 3))
            for eta in at
        }

    verdict = judged(table(losses(0, range(-3, 4))), table(losses(optimum, etas), LARGE))
    assert verdict.sizes[1].at_end
    assert verdict.sizes[1].code == code


def test_a_larger_model_that_is_worse_is_noted_though_its_eta_stays(golden: Golden) -> None:
    rule = LadderRule(widths=(32, 256), seeds=3)
    result = of(Valley(noise=0.001), Valley(floor=3.2, noise=0.001, number=1), rule)
    assert result.answer == "holds"
    golden.says(result.note)
    for floor in (2.8, 3.001):
        large = Valley(floor=floor, noise=0.001, number=1)
        assert of(Valley(noise=0.001), large, rule).note == ""
    smaller = Valley(floor=3.2, noise=0.001, number=1).curve(replace(BASE, width=16), rule)
    assert judged(Valley(noise=0.001).curve(BASE, rule), smaller, rule).note == ""
    # A larger batch may well lose.
    base, batched = Valley(noise=0.001), replace(BASE, batch_size=64)
    curves = base.curve(BASE, rule), Valley(floor=3.2, noise=0.001, number=1).curve(batched, rule)
    assert judge_ladder("batch_size", curves, 0.0, BASE, rule).worse is None


def test_nothing_holds_over_a_plan_that_misses_the_base_optimum(golden: Golden) -> None:
    result = of(Valley(optimum=1.5), Valley(optimum=1.5))
    assert result.answer == "cannot say yet" and result.seed_advice is None
    golden.says(result.todo)
    base, large = result.sizes
    message = "at the base itself, eta=2^0 loses 0.1125 nats against the optimum 2^1.50"
    assert base.reason == message and large.answer == "holds"
    curves = Valley(optimum=1.5).curve(), Valley(optimum=1.5).curve(LARGE)
    assert judge_ladder("width", curves, 1.5, BASE, RULE).answer == "holds"
    of_eta_emb = replace(RULE, hyperparameter="eta_emb")
    result = worded(judge_ladder("width", curves, 0.0, BASE, of_eta_emb))
    assert "transfer.eta" not in result.todo
    golden.says(result.todo)
    assert of(Valley(optimum=1.5), Valley(optimum=-1.5)).answer == "fails"


@pytest.mark.parametrize("shift", [1.5, 1.8])
def test_a_cliff_beside_every_optimum_hides_no_shift(shift: float) -> None:
    rule = replace(RULE, seeds=3, step=1.0)
    for number in range(6):
        at = 0.14 * number - 0.4
        base, large = (
            Valley(optimum=at + moved, edge=0.1, curvature=0.01, noise=2e-3, number=2 * number + k)
            for k, moved in enumerate((0.0, shift))
        )
        result = of(base, large, rule)
        interval = result.sizes[1].shift_log2
        assert result.answer != "holds" and interval.low <= shift <= interval.high


def test_a_base_optimum_past_the_other_curve_is_open() -> None:
    """Only the base's curve was extended so far; at the other size that eta was never tried."""
    base, large = (Valley(optimum=at, curvature=0.03, noise=1e-4) for at in (2.6, 1.7))
    result = of(base, large).sizes[1]
    assert result.answer == "cannot say yet" and result.loss_gap.high == math.inf
    assert math.isfinite(result.loss_gap.value)
    gone = of(base, Valley(optimum=0.9, noise=1e-4)).sizes[1]
    assert gone.answer == "fails"  # what was measured suffices


def test_a_doubt_past_an_end_names_the_run_that_ends_it_and_those_that_tell() -> None:
    """The base's optimum lies within the other curve: what its interval allows past it decides."""
    rule, signs, diverged = replace(RULE, step=1.0), (1, -1, 1, -1, 1, -1), (1.0, math.inf)

    def losses(best: float) -> dict[float, float | tuple[float, ...]]:
        valley = [3 + 0.05 * (eta - best) ** 2 for eta in range(-4, 2)]
        noisy = [(v + 0.004 * s, v - 0.004 * s) for v, s in zip(valley, signs, strict=True)]
        return dict(zip(map(float, range(-4, 2)), noisy, strict=True))

    def of_large(base: float, large: float, *others: tuple[float, float]) -> Verdict:
        curve = {**{eta: loss for eta, loss in losses(large).items() if eta < 1}, **dict(others)}
        return judged(table(losses(base)), table(curve, LARGE), rule)

    # Of a doubt that reaches 0.14 past it little is left, of one of 0.29 too much.
    assert of_large(-0.2, -0.3, diverged).answer == "holds"
    ended = of_large(-0.05, -0.3, diverged)
    (past,) = ended.sizes[1].past
    found = ended.sizes[1].code, past.last, past.diverged
    assert found == ("not_measured", 0.0, 1.0)
    assert ended.advice.etas == {LARGE: [0.5]} and ended.settle == ("transfer.step=0.5",)
    assert of_large(-0.05, -0.3, (0.5, 3.032), diverged).answer == "holds"
    # Nor does a loss beyond any noise fail a size where the base's optimum may lie below it.
    lost = {**{eta: runs for eta, runs in losses(-0.8).items() if eta < 0}, 0.0: math.inf}
    for base, answer in ((-0.05, "cannot say yet"), (0.05, "fails")):
        apart = judged(table(losses(base)), table(lost, LARGE), rule).sizes[1]
        found = apart.answer, apart.loss_gap.low > rule.allowed_gap(apart.loss.value)
        assert found == (answer, answer == "fails")
    short = of_large(-0.05, -0.8)
    assert short.advice.etas == {LARGE: [0.25]} and short.settle == ("transfer.span=3",)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_one_seed_a_point_settles_nothing(shift: float) -> None:
    rule = LadderRule(widths=(32, 256), seeds=1)
    gross = of(Valley(noise=0.01), Valley(optimum=3.0, noise=0.01, number=1), rule)
    assert (gross.answer, gross.sizes[1].code) == ("fails", "gross")
    result = of(Valley(noise=0.01), Valley(optimum=shift, noise=0.01, number=1), rule)
    assert result.answer == "cannot say yet" and "transfer.seeds=2" in result.todo
    large = result.sizes[1]
    for estimate in (large.optimum_log2, large.shift_log2, large.loss):
        assert math.isfinite(estimate.value)
        assert (estimate.low, estimate.high) == (-math.inf, math.inf)
    for estimate in (large.loss_gap, large.regret):
        assert (estimate.low, estimate.high) == (0.0, math.inf)
    # One seed does not tell that a larger model is worse.
    assert of(Valley(noise=0.01), Valley(floor=3.01, noise=0.01, number=1), rule).note == ""


def test_without_an_interval_at_the_base_there_is_none_for_what_is_measured_from_it() -> None:
    base = table({-0.5: math.inf, 0.0: 3.0, 0.5: math.inf}, BASE)
    large = judged(base, Valley(optimum=0.1, noise=0.001).curve(LARGE)).sizes[1]
    assert (large.shift_log2.low, large.shift_log2.high) == (-math.inf, math.inf)
    assert (large.loss_gap.low, large.loss_gap.high) == (0.0, math.inf)
    assert math.isfinite(large.loss.low) and math.isfinite(large.optimum_log2.high)


def test_too_few_finite_points_settle_nothing(golden: Golden) -> None:
    lonely = table({-0.5: math.inf, 0.0: 3.0, 0.5: math.inf}, LARGE)
    result = judged(Valley(noise=0.001).curve(), lonely)
    assert result.sizes[1].answer == "cannot say yet"
    golden.says(result.sizes[1].reason)
    # More seeds would never tell: the noise is read off points near each other.
    assert result.seed_advice is None
    golden.says(result.todo)
    base = table({-0.5: math.inf, 0.0: 3.0, 0.5: math.inf}, BASE)
    result = judged(base, Valley(optimum=1.9).curve(LARGE))
    assert [size.answer for size in result.sizes] == ["cannot say yet"] * 2


def test_an_estimate_near_its_threshold_takes_the_seeds_that_settle_half_of_such() -> None:
    """Shift 1, where the threshold is: by (h / d)^2 it would take any number of seeds."""
    rule = LadderRule(widths=(32, 256), max_loss_gap=0.5)
    pairs = ([Valley(optimum=i, noise=0.004, number=2 * n + i) for i in (0, 1)] for n in range(12))
    counts = [result.seed_advice.seeds for pair in pairs if (result := of(*pair, rule)).seed_advice]
    assert len(counts) >= 4 and max(counts) == 19  # 9.5 times 2


def test_what_seeds_would_not_settle_is_told_without_a_number_to_type(golden: Golden) -> None:
    doubtful = of(Valley(noise=0.3, number=4), Valley(noise=0.3, number=5))
    assert doubtful.answer == "cannot say yet" and doubtful.seed_advice is None
    golden.says(doubtful.todo)
    assert "transfer.seeds" not in doubtful.todo and "train.steps" in doubtful.todo
    assert doubtful.settle == ("train.steps=400", "transfer.step=0.25")


def test_advice_names_the_overrides_that_settle_and_counts_in_words(golden: Golden) -> None:
    base = LadderSize(width=32, depth=2, batch_size=8, steps=300)
    noisy = [Valley(noise=0.3, number=i).curve(base, RULE) for i in (4, 5)]
    noisy[1] = replace(noisy[1], size=replace(base, width=256))
    result = worded(judge_ladder("width", noisy, 0.0, base, RULE))
    assert result.settle == ("train.steps=1200", "transfer.step=0.25")
    # A command that takes neither: nothing is advised that would change nothing.
    fixed = worded(judge_ladder("width", noisy, 0.0, base, RULE, fixed=("steps", "batch_size")))
    assert fixed.settle == ("transfer.step=0.25",)
    assert "raise train.objective_window, or lower transfer.step" in fixed.todo
    some = worded(judge_ladder("width", noisy, 0.0, base, RULE, fixed=("batch_size",)))
    assert "raise train.steps or train.objective_window, or lower" in some.todo
    first = judged(Valley(noise=1e-3).curve(), Valley(noise=1e-3).curve(LARGE), RULE)
    sizes = [replace(first.sizes[1], loss_gap=Estimate(value=0.0, low=0.0, high=0.031))]
    golden.says(advice_text(advise("width", sizes, 1, RULE)))


@pytest.mark.parametrize(("value", "half"), [(0.0, 1.45), (0.8, 0.5), (1.0, 0.4), (1.3, 0.6)])
def test_the_seeds_that_are_advised_settle_half_of_such_sizes(value: float, half: float) -> None:
    """By simulation: where the shift lies, and what all the seeds show of it."""
    rule = LadderRule(widths=(32, 256), seeds=4)
    size = judged(Valley(noise=1e-3).curve(), Valley(noise=1e-3).curve(LARGE), RULE).sizes[1]
    shift = Estimate(value=value, low=value - half, high=value + half)
    gap = Estimate(value=0.0, low=0.0, high=0.0)
    advice = advise("width", [replace(size, shift_log2=shift, loss_gap=gap)], 1, rule)
    times = advice.seeds.seeds / rule.seeds
    now, then = half / 1.96, half / 1.96 / times**0.5
    drawn = np.abs(value + np.random.default_rng(0).normal(0, (now**2 - then**2) ** 0.5, 40_000))
    settled = (drawn + 1.96 * then <= 1) | (drawn - 1.96 * then > 1)
    assert 0.49 <= settled.mean() <= 0.6


def test_what_is_missing_is_told_in_numbers_that_agree(golden: Golden) -> None:
    pairs = ([Valley(noise=0.03, number=2 * i + j) for j in (0, 1)] for i in range(20))
    base, large, result = next(
        (*pair, result)
        for pair in pairs
        if (result := of(*pair)).seed_advice is not None
        and abs(result.sizes[1].loss_gap.value) < 0.01 * result.sizes[1].loss.value
    )
    assert result.answer == "cannot say yet" and result.seed_advice is not None
    (at,) = [size for size in result.sizes if size.answer == "cannot say yet"]
    advice, extra = result.seed_advice, result.seed_advice.seeds - RULE.seeds
    assert advice.sizes == {"width 256": advice.seeds} and at.size == LARGE
    points = len(base.curve().losses) + len(large.curve(LARGE).losses)
    assert advice.runs == extra * points
    assert result.settle == (f"transfer.seeds={advice.seeds}",)
    golden.says(result.todo)
    enough, fewer = (sum(chances(at, RULE, (advice.seeds - n) / RULE.seeds)) for n in (0, 1))
    assert enough >= 0.5 and (fewer < 0.5 or advice.seeds == RULE.seeds + 1)


def test_the_worst_size_decides() -> None:
    def answer(optima: Sequence[float]) -> str:
        curves = [
            Valley(optimum=at, noise=0.001, number=i).curve(replace(BASE, width=32 * 2**i))
            for i, at in enumerate(optima)
        ]
        return judge_ladder("width", curves, 0.0, BASE, RULE).answer

    assert answer([0.0, 0.1, 0.1]) == "holds"
    assert answer([0.0, 0.1, 2.5]) == answer([0.0, 2.5, 0.1]) == "fails"


def missed(curve: SizeCurve, transferred: float, rule: LadderRule = RULE) -> object:
    return missed_optimum(fit_curve(curve, transferred), transferred, rule)


def test_an_optimum_is_missed_beyond_the_loss_gap_allowed() -> None:
    """0.05 (x - 1)^2 passes 1 % of 3 nats where x is 0.775 away."""
    curve = Valley(optimum=1.0, noise=1e-5).curve()
    assert missed(curve, 0.24) is None
    result = missed_optimum(fit_curve(curve, 0.0), 0.0, RULE)
    assert result is not None and result.optimum_log2 == pytest.approx(1.0, abs=1e-3)
    assert result.loss == pytest.approx(0.05, abs=1e-4)
    assert missed(curve, 0.0, LadderRule(widths=(32,), max_loss_gap=0.02)) is None


def test_noise_one_seed_and_a_curve_that_ends_too_early_show_nothing() -> None:
    assert missed(Valley(optimum=1.0, noise=0.3).curve(), 0.0) is None
    first = Valley(optimum=1.0).curve(rule=LadderRule(widths=(32,), seeds=1))
    assert missed(first, 0.0) is None
    assert missed(Valley(optimum=9.0, curvature=1e-4).curve(), 0.0) is None
    assert missed_optimum(None, 0.0, RULE) is None


def test_a_transferred_eta_that_diverges_is_missed(golden: Golden) -> None:
    losses = {-1.0: (3.1, 3.101), -0.5: (3.0, 3.002), 0.0: (3.1, 3.1), 0.5: math.inf}
    result = missed_optimum(fit_curve(table(losses), 0.5), 0.5, RULE)
    golden.says(missed_text(result))
