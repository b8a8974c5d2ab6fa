import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.decide.ladder_verdict import TargetAnswer, judge_ladder
from sweeper.decide.target import NO_THEORY, THEORY
from sweeper.decide.trend import (
    FittedExponents,
    Trend,
    exponents_of,
    fit_exponents,
    fit_trend,
    judge_joint_target,
    judge_target,
)
from sweeper.laws.law import Scale
from sweeper.records import to_json
from sweeper.report.sentences_transfer import exponent_text, worded_target, worded_trend
from sweeper.stats import curve as module
from sweeper.stats.curve import BIAS, fit_curves
from sweeper.stats.ladder import LadderRule, LadderSize, SizeCurve
from tests.golden import Golden
from tests.stats.curves import BASE, Valley, fewer_draws  # noqa: F401

WIDTHS = (32, 64, 128, 256)


def curves(optima: Sequence[float], noise: float = 0.0, number: int = 0) -> list[SizeCurve]:
    return [
        Valley(optimum=at, noise=noise, number=10 * number + i).curve(replace(BASE, width=w))
        for i, (w, at) in enumerate(zip(WIDTHS, optima, strict=False))
    ]


def of(optima: Sequence[float], target: int = 1024, **changes: float) -> Trend:
    ladder = curves(optima, noise=changes.get("noise", 0.0))
    return fit_trend("width", ladder, changes.get("eta", 0.0), target, THEORY)


@settings(max_examples=5)
@given(st.floats(-0.6, 0.6), st.floats(-0.2, 0.2))
def test_a_power_law_is_found(slope: float, start: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DRAWS", 100)
        result = of([start + slope * i for i in range(4)])
    assert result.sizes == WIDTHS and result.target == 1024
    assert result.slope.value == pytest.approx(slope, abs=1e-6)
    # Each optimum has an error of 0.02, so that a drift which fades is not ruled out.
    assert result.predicted_log2.low <= start + 5 * slope <= result.predicted_log2.high
    assert result.off_log2.value == pytest.approx(result.predicted_log2.value)


def test_what_a_correction_saves_has_an_interval(golden: Golden) -> None:
    result = of([0.0, -0.4, -0.8, -1.2])
    assert result.warranted
    golden.says(worded_trend(result).reason)
    off = result.off_log2.value
    assert -2.1 < off < -1.5
    assert 0 < result.gain.low < result.gain.value < result.gain.high
    assert result.gain.value == pytest.approx(0.05 * off**2, rel=0.1)
    assert result.loss_gap.low < 0.05 * 2**2 < result.loss_gap.high


def test_no_correction_where_the_optimum_stays_or_nothing_is_sure(golden: Golden) -> None:
    golden.says(worded_trend(of([0.1, 0.1, 0.1, 0.1], eta=0.1)).reason)
    assert not of([0.1, -0.1, 0.1, 0.0]).warranted
    assert not of([0.0, -0.2, -0.4, -0.6], noise=0.1).warranted
    assert not of([0.5, 0.2, -0.1, -0.4], eta=-0.9).warranted  # what the trend predicts


def test_optima_that_scatter_widen_the_interval() -> None:
    straight, bent = of([0.0, -0.2, -0.4, -0.6]), of([0.0, -0.6, 0.0, -0.6])
    assert bent.predicted_log2.high - bent.predicted_log2.low > 2 * (
        straight.predicted_log2.high - straight.predicted_log2.low
    )
    assert straight.back_test is not None and straight.back_test.reproduced


def test_two_widths_warrant_no_correction_and_one_has_no_trend(golden: Golden) -> None:
    result = of([0.0, -1.0])
    assert not result.warranted
    golden.says(worded_trend(result).reason)
    assert fit_trend("width", curves([0.0]), 0.0, 64, THEORY) is None
    assert fit_trend("width", [], 0.0, 64, THEORY) is None


def test_bounds_and_curves_without_noise_are_left_out() -> None:
    ladder = curves([0.0, -0.2, -0.4, 9.0])
    result = fit_trend("width", ladder, 0.0, 1024, THEORY)
    assert result is not None and result.sizes == (32, 64, 128)
    dead = SizeCurve(size=replace(BASE, width=256), losses={0.0: (math.inf, math.inf)})
    # Its runs still told of the noise that the curves share.
    without, alone = (
        fit_trend("width", some, 0.0, 1024, THEORY) for some in ([*ladder[:3], dead], ladder[:3])
    )
    assert without == alone and without is not None and without.sizes == result.sizes
    single = [
        SizeCurve(size=c.size, losses={e: v[:1] for e, v in c.losses.items()}) for c in ladder
    ]
    assert fit_trend("width", single, 0.0, 1024, THEORY) is None


def judged(optima: Sequence[float], target: int, noise: float = 0.0, **rule: Any) -> TargetAnswer:
    ladder = curves(optima, noise)
    thresholds = LadderRule(widths=WIDTHS, **rule)
    verdict = judge_ladder("width", ladder, 0.0, ladder[0].size, thresholds)
    answer, _ = judge_target(verdict, fit_curves(ladder, 0.0), 0.0, target, thresholds, THEORY)
    return worded_target(answer)


def test_a_target_beyond_the_ladder_holds_where_its_whole_intervals_do(golden: Golden) -> None:
    result = judged([0.0, 0.01, 0.0, 0.01], 1024)
    assert result.answer == "holds" and not result.todo
    golden.says(result.sentence)
    assert max(-result.off_log2.low, result.off_log2.high) < 1 and result.loss_gap.high < 0.03
    # The loss gap bounds it too: half an octave costs 0.0125 nats.
    assert judged([0.0, 0.01, 0.0, 0.01], 1024, max_loss_gap=1e-5).answer == "cannot say yet"


def test_a_drift_within_the_ladder_s_thresholds_does_not_hold_far_beyond_it(golden: Golden) -> None:
    result = judged([0.0, -0.2, -0.4, -0.6], 4096, max_loss_gap=0.02)
    assert result.answer != "holds"
    golden.says(result.sentence)
    assert result.off_log2.low < -1.4 < result.off_log2.high  # 7 doublings of 0.2


def test_what_would_tell_is_another_width_before_more_seeds(golden: Golden) -> None:
    result = judged([0.0, 0.1, -0.1], 4096, noise=0.01)
    assert result.answer == "cannot say yet"
    assert result.settle[0].startswith("transfer.widths=[32,64,128,256")
    # Another width costs 18 runs; four times the seeds of three widths would be 162.
    assert result.advice.code == "longer_ladder" and result.advice.runs == {256: 18}
    golden.says(result.todo)
    # Where no width is left below the target, the errors must fall: by four times the seeds.
    near, nearer = (
        judged([0.0, 0.1, -0.1, 0.1], 1024, noise, max_loss_gap=0.004) for noise in (0.01, 0.005)
    )
    assert near.advice.code == "more_seeds" and near.settle == ("transfer.seeds=8",)
    assert near.advice.runs == dict.fromkeys(WIDTHS, 54) and nearer.advice.code == "less_noise"


def test_a_correction_that_would_hold_is_advised_and_judged_where_it_is_made() -> None:
    drift = [-0.5, -0.25, 0.0, 0.25]  # the plan's eta is right at the third width
    ladder = curves(drift)
    rule = LadderRule(widths=WIDTHS, max_loss_gap=0.05)
    verdict = replace(judge_ladder("width", ladder, 0.0, ladder[0].size, rule), answer="holds")
    fits = fit_curves(ladder, 0.0)
    plain, trend = judge_target(verdict, fits, 0.0, 1024, rule, THEORY)
    assert trend is not None and trend.warranted
    if plain.answer != "holds":
        assert plain.settle == ("transfer.correct=true",)
    corrected, _ = judge_target(verdict, fits, 0.0, 1024, replace(rule, correct=True), THEORY)
    assert corrected.answer == "holds" and abs(corrected.off_log2.value) < 1e-9


def test_a_target_within_the_ladder_has_the_answer_of_the_sizes_that_reach_it(
    golden: Golden,
) -> None:
    drifting = [0.0, 0.05, 0.1, 2.5]
    assert judged(drifting, 128).answer == "holds"
    assert judged(drifting, 100).answer == "holds"
    assert judged(drifting, 200).answer == judged(drifting, 256).answer == "fails"
    golden.says(judged(drifting, 128).sentence)
    beyond = judged(drifting, 4096)
    assert beyond.answer == "fails"
    golden.says(beyond.sentence)


def test_nothing_holds_beyond_two_widths_or_without_a_width_that_is_predicted(
    golden: Golden,
) -> None:
    assert judged([0.0, 0.0], 128).answer == "cannot say yet"
    bent = judged([0.0, 0.0, 0.0, 0.9], 512, max_shift=9.0, max_loss_gap=9.0)
    assert bent.answer == "cannot say yet"
    golden.says(bent.sentence)


def test_a_ladder_over_several_sizes_extrapolates_nothing(golden: Golden) -> None:
    sizes = [BASE, replace(BASE, width=64, depth=4)]
    ladder = [Valley(number=i).curve(size) for i, size in enumerate(sizes)]
    verdict = judge_ladder("size", ladder, 0.0, BASE, LadderRule(widths=WIDTHS))
    assert verdict.answer == "holds"
    assert judge_joint_target(verdict, replace(BASE, width=48, depth=4)).answer == "holds"
    beyond = worded_target(judge_joint_target(verdict, replace(BASE, width=128, depth=4)))
    assert beyond.answer == "cannot say yet"
    golden.says(beyond.sentence)


def test_a_drift_over_depth_has_no_theory_on_its_side() -> None:
    ladder = [
        Valley(noise=0.01, number=i).curve(replace(BASE, depth=depth))
        for i, depth in enumerate((2, 4, 8, 16))
    ]
    widths = {
        name: result.off_log2.high - result.off_log2.low
        for name, prior in (("theory", THEORY), ("none", NO_THEORY))
        if (result := fit_trend("depth", ladder, 0.0, 128, prior)) is not None
    }
    assert widths["none"] > widths["theory"]


# Exponents: recovered, with intervals that hold as often as they say.

STEPS = [(8, steps) for steps in (100, 200, 400, 800)]
BATCHES = [(batch, 200) for batch in (4, 8, 16, 32)]
TRUTH = {"tokens at a fixed batch": -0.3, "batch at fixed tokens": 0.5}
TRUTH["batch at fixed steps"] = 0.2
CROSS = [*STEPS, *(one for one in BATCHES if one not in STEPS)]


def scales(sizes: list[tuple[int, int]]) -> list[Scale]:
    return [
        Scale(width=32, depth=2, batch=batch, steps=steps, tokens=64 * batch * steps)
        for batch, steps in sizes
    ]


def optima(sizes: list[Scale], batch: float, tokens: float) -> np.ndarray:
    return np.array([1 + batch * np.log2(s.batch) + tokens * np.log2(s.tokens) for s in sizes])


def made(
    sizes: list[tuple[int, int]], seed: int, batch: float = 0.5, tokens: float = -0.3
) -> FittedExponents | None:
    generator, ladder = np.random.default_rng(seed), scales(sizes)
    noise = generator.uniform(0.05, 0.2, (len(ladder), 1))
    result = optima(ladder, batch, tokens) + noise[:, 0] * generator.normal(size=len(ladder))
    draws = result[:, None] + noise * generator.normal(size=(len(ladder), 500))
    return exponents_of(ladder, result, draws)


def test_whole_curves_recover_the_exponents() -> None:
    """Through curves, their extension and their own noise: the bias of a curve's shape is drawn."""
    ladder, rule = scales(CROSS), LadderRule(widths=(32,), seeds=4, span=3.0)
    hits, values = [], []
    for number in range(4):
        off = np.random.default_rng([number, 1]).normal(0, BIAS, len(ladder))
        where = optima(ladder, 0.5, -0.3) - optima(ladder, 0.5, -0.3)[0] + off
        curves = [
            Valley(optimum=float(optimum), noise=0.005, number=100 * number + i).curve(
                LadderSize(width=32, depth=2, batch_size=scale.batch, steps=scale.steps), rule
            )
            for i, (scale, optimum) in enumerate(zip(ladder, where, strict=True))
        ]
        fitted = fit_exponents(list(zip(ladder, curves, strict=True)), 0.0)
        assert fitted is not None and fitted.sizes == len(CROSS)
        measured = {first.direction: first.measured for first in fitted.exponents}
        assert measured.keys() == TRUTH.keys()
        hits += [first.low <= TRUTH[name] <= first.high for name, first in measured.items()]
        values.append([first.value for first in measured.values()])
    assert np.mean(hits) >= 0.8
    assert np.mean(values, axis=0) == pytest.approx([TRUTH[name] for name in measured], abs=0.05)


def test_too_few_sizes_or_none_that_differ() -> None:
    assert made(STEPS[:2], 0) is None and made([STEPS[0]] * 4, 0) is None
    assert made([(8, 100), (8, 200), (16, 100)], 0) is None  # two directions take four sizes
    assert fit_exponents([], 0.0) is None
    ends = [Valley(optimum=9.0).curve(LadderSize(width=32, depth=2, batch_size=b, steps=s))
            for b, s in STEPS]  # fmt: skip
    assert fit_exponents(list(zip(scales(STEPS), ends, strict=True)), 0.0) is None


def test_only_measured_directions_are_told() -> None:
    fitted = made(STEPS, 1)
    assert fitted is not None and fitted.tokens == (51200, 409600) and fitted.batches == (8, 8)
    assert fitted.log2_eta((1.0, 0.0)) is None and fitted.log2_eta((1.0, 1.0)) is None
    (first,) = fitted.exponents
    names = {published.law: published.inside for published in first.published}
    assert names.keys() == {"horizon", "joint", "Complete(d)P"}
    inside = [law for law, within in names.items() if within]
    assert exponent_text(first).startswith("tokens at a fixed batch: -0.") and ", ".join(
        f"{law} {exponent:+.2f}"
        for law, exponent in (("horizon", -0.32), ("joint", -0.3), ("Complete(d)P", -0.5))
        if law in inside
    ) in exponent_text(first)
    record = to_json(fitted)
    assert record["sizes"] == 4 and record["exponents"][0]["published"][0]["law"] == "horizon"
    # Twice as far is twice the change.
    once, twice = fitted.log2_eta((0.0, 1.0)), fitted.log2_eta((0.0, 2.0))
    assert once is not None and twice is not None
    assert (twice.low, twice.high) == pytest.approx((2 * once.low, 2 * once.high))
    steps_and_batch = made(BATCHES, 1)
    assert steps_and_batch is not None and steps_and_batch.log2_eta((2.0, 2.0)) is not None
