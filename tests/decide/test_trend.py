from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.decide.ladder_verdict import TargetAnswer, judge_ladder
from sweeper.decide.target import NO_THEORY, THEORY
from sweeper.decide.trend import Trend, fit_trend, judge_joint_target, judge_target
from sweeper.records import from_json, to_json
from sweeper.report.sentences_transfer import worded_target, worded_trend
from sweeper.stats import curve as module
from sweeper.stats.curve import fit_curves
from sweeper.stats.ladder import LadderRule, SizeCurve
from tests.golden import Golden
from tests.stats.curves import BASE, Valley

WIDTHS = (32, 64, 128, 256)


@pytest.fixture(autouse=True)
def _fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRAWS", 400)


def curves(optima: Sequence[float], noise: float = 0.0, number: int = 0) -> list[SizeCurve]:
    return [
        Valley(optimum=at, noise=noise, number=10 * number + i).curve(replace(BASE, width=w))
        for i, (w, at) in enumerate(zip(WIDTHS, optima, strict=False))
    ]


def of(optima: Sequence[float], target: int = 1024, **changes: float) -> Trend:
    found = fit_trend(
        "width",
        curves(optima, noise=changes.get("noise", 0.0)),
        changes.get("eta", 0.0),
        target,
        THEORY,
    )
    assert found is not None
    return found


@settings(max_examples=15)
@given(st.floats(-0.6, 0.6), st.floats(-0.2, 0.2))
def test_a_power_law_is_found(slope: float, start: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DRAWS", 100)
        found = of([start + slope * i for i in range(4)])
    assert found.sizes == WIDTHS and found.target == 1024
    assert found.slope.value == pytest.approx(slope, abs=1e-6)
    # Each optimum has an error of 0.02, so that a drift which fades is not ruled out.
    assert found.predicted_log2.low <= start + 5 * slope <= found.predicted_log2.high
    assert found.off_log2.value == pytest.approx(found.predicted_log2.value)


def test_what_a_correction_saves_has_an_interval(golden: Golden) -> None:
    found = of([0.0, -0.4, -0.8, -1.2])
    assert found.warranted
    golden.says(worded_trend(found).reason)
    off = found.off_log2.value
    assert -2.1 < off < -1.5
    assert 0 < found.gain.low < found.gain.value < found.gain.high
    assert found.gain.value == pytest.approx(0.05 * off**2, rel=0.1)
    assert found.loss_gap.low < 0.05 * 2**2 < found.loss_gap.high


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
    found = of([0.0, -1.0])
    assert not found.warranted
    golden.says(worded_trend(found).reason)
    assert fit_trend("width", curves([0.0]), 0.0, 64, THEORY) is None
    assert fit_trend("width", [], 0.0, 64, THEORY) is None


def test_bounds_and_curves_without_noise_are_left_out() -> None:
    ladder = curves([0.0, -0.2, -0.4, 9.0])
    found = fit_trend("width", ladder, 0.0, 1024, THEORY)
    assert found is not None and found.sizes == (32, 64, 128)
    dead = SizeCurve(size=replace(BASE, width=256), losses={0.0: (math.inf, math.inf)})
    # Its runs still told of the noise that the curves share.
    without, alone = (
        fit_trend("width", some, 0.0, 1024, THEORY) for some in ([*ladder[:3], dead], ladder[:3])
    )
    assert without == alone and without is not None and without.sizes == found.sizes
    single = [
        SizeCurve(size=c.size, losses={e: v[:1] for e, v in c.losses.items()}) for c in ladder
    ]
    assert fit_trend("width", single, 0.0, 1024, THEORY) is None


def test_it_is_strict_json_and_read_back() -> None:
    found = of([0.0, -0.2, -0.4])
    record = json.loads(json.dumps(to_json(found), allow_nan=False))
    assert record["sizes"] == [32, 64, 128] and record["predicted_log2"]["value"] < 0
    assert from_json(Trend, record) == found
    unbounded = replace(found, gain=replace(found.gain, high=math.inf))
    assert from_json(Trend, to_json(unbounded)) == unbounded


def test_intervals_hold_the_target() -> None:
    held = 0
    for number in range(24):
        ladder = curves([0.0, -0.15, -0.3, -0.45], 0.01, number)
        found = fit_trend("width", ladder, 0.0, 1024, THEORY)
        assert found is not None
        held += found.predicted_log2.low <= -0.75 <= found.predicted_log2.high
    assert held >= 22


def judged(optima: Sequence[float], target: int, noise: float = 0.0, **rule: Any) -> TargetAnswer:
    ladder = curves(optima, noise)
    thresholds = LadderRule(widths=WIDTHS, **rule)
    verdict = judge_ladder("width", ladder, 0.0, ladder[0].size, thresholds)
    answer, _ = judge_target(verdict, fit_curves(ladder, 0.0), 0.0, target, thresholds, THEORY)
    return worded_target(answer)


def test_a_target_beyond_the_ladder_holds_where_its_whole_intervals_do(golden: Golden) -> None:
    found = judged([0.0, 0.01, 0.0, 0.01], 1024)
    assert found.answer == "holds" and not found.todo
    golden.says(found.sentence)
    assert max(-found.off_log2.low, found.off_log2.high) < 1 and found.loss_gap.high < 0.03
    # The loss gap bounds it too: half an octave costs 0.0125 nats.
    assert judged([0.0, 0.01, 0.0, 0.01], 1024, max_loss_gap=1e-5).answer == "cannot say yet"


def test_a_drift_within_the_ladder_s_thresholds_does_not_hold_far_beyond_it(golden: Golden) -> None:
    found = judged([0.0, -0.2, -0.4, -0.6], 4096, max_loss_gap=0.02)
    assert found.answer != "holds"
    golden.says(found.sentence)
    assert found.off_log2.low < -1.4 < found.off_log2.high  # 7 doublings of 0.2


def test_what_would_tell_is_another_width_before_more_seeds(golden: Golden) -> None:
    found = judged([0.0, 0.1, -0.1], 4096, noise=0.01)
    assert found.answer == "cannot say yet"
    assert found.settle[0].startswith("transfer.widths=[32,64,128,256")
    # Another width costs 18 runs; four times the seeds of three widths would be 162.
    assert found.advice.code == "longer_ladder" and found.advice.runs == {256: 18}
    golden.says(found.todo)
    # Where no cheap width is left below the target, the errors must fall.
    near = judged([0.0, 0.1, -0.1, 0.1], 512, noise=0.02)
    assert near.answer == "holds" or near.settle == ("transfer.seeds=8",) or not near.settle


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
        name: found.off_log2.high - found.off_log2.low
        for name, prior in (("theory", THEORY), ("none", NO_THEORY))
        if (found := fit_trend("depth", ladder, 0.0, 128, prior)) is not None
    }
    assert widths["none"] > widths["theory"]
