from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.records import to_json
from sweeper.verdict import curve as module
from sweeper.verdict.judge import judge_ladder
from sweeper.verdict.ladder import LadderRule, SizeCurve
from sweeper.verdict.trend import Trend, fit_trend, limit_by_trend
from tests.verdict.curves import BASE, Valley

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
        curves(optima, noise=changes.get("noise", 0.0)), changes.get("eta", 0.0), target
    )
    assert found is not None
    return found


@settings(max_examples=15)
@given(st.floats(-0.6, 0.6), st.floats(-0.2, 0.2))
def test_a_power_law_is_found_exactly(slope: float, start: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DRAWS", 100)
        found = of([start + slope * i for i in range(4)])
    assert found.widths == WIDTHS and found.target == 1024
    assert found.slope.value == pytest.approx(slope, abs=1e-6)
    assert found.predicted_log2.value == pytest.approx(start + 5 * slope, abs=1e-5)
    assert found.predicted_log2.low < found.predicted_log2.value < found.predicted_log2.high


def test_what_a_correction_saves_is_read_off_the_widest_curve() -> None:
    found = of([0.0, -0.2, -0.4, -0.6])
    assert found.warranted and "moves with the width" in found.reason
    assert found.gain.value == pytest.approx(0.05 * 1.0**2, abs=0.003)  # 2^-1 where 2^0 is planned


def test_no_correction_where_the_optimum_stays_or_nothing_is_sure() -> None:
    assert "may be level" in of([0.1, 0.1, 0.1, 0.1]).reason
    assert not of([0.1, -0.05, 0.1, 0.0]).warranted
    assert not of([0.0, -0.2, -0.4, -0.6], noise=0.1).warranted
    sure = of([0.5, 0.2, -0.1, -0.4], eta=-1.0)  # the plan has what the trend predicts
    assert not sure.warranted and "within the prediction's interval" in sure.reason


@pytest.mark.parametrize(
    ("slope", "target", "eta", "limited"),
    [(-0.2, 4096, 0.0, True), (-0.2, 256, 0.0, False), (-0.05, 512, 0.0, False)],
)
def test_a_verdict_that_holds_is_limited_where_the_trend_says_otherwise_beyond(
    slope: float, target: int, eta: float, limited: bool
) -> None:
    ladder, rule = curves([slope * i for i in range(4)]), LadderRule(widths=WIDTHS)
    verdict = judge_ladder("width", ladder, eta, ladder[0].size, rule)
    found = limit_by_trend(verdict, fit_trend(ladder, eta, target), rule)
    assert verdict.answer == found.answer == "holds"
    assert found.up_to == ("width 256" if limited else "")
    assert limited or found == verdict
    if limited:  # 7 doublings of 0.2, and 0.05 x^2 nats
        assert "at width 4096" in found.note and "off by 1.40 in log2" in found.note
        assert "transfer.correct=true" in found.note


def test_a_failure_and_a_verdict_without_a_trend_stay() -> None:
    ladder, rule = curves([0.0, -0.6, -1.2, -1.8]), LadderRule(widths=WIDTHS)
    verdict = judge_ladder("width", ladder, 0.0, ladder[0].size, rule)
    trend = fit_trend(ladder, 0.0, 4096)
    assert trend is not None and trend.warranted and verdict.answer == "fails"
    assert limit_by_trend(verdict, trend, rule) == limit_by_trend(verdict, None, rule) == verdict


def test_optima_that_scatter_widen_the_interval() -> None:
    straight, bent = of([0.0, -0.2, -0.4, -0.6]), of([0.0, -0.6, 0.0, -0.6])
    assert bent.predicted_log2.high - bent.predicted_log2.low > 2 * (
        straight.predicted_log2.high - straight.predicted_log2.low
    )


def test_a_further_target_is_less_sure() -> None:
    near, far = (of([0.0, -0.2, -0.4, -0.6], target) for target in (512, 8192))
    assert (
        far.predicted_log2.high - far.predicted_log2.low
        > near.predicted_log2.high - near.predicted_log2.low
    )


def test_two_widths_cannot_show_a_trend_and_one_has_none() -> None:
    found = of([0.0, -1.0])
    assert not found.warranted and found.reason == "2 widths cannot show a trend; it takes 3"
    assert fit_trend(curves([0.0]), 0.0, 64) is None and fit_trend([], 0.0, 64) is None


def test_bounds_and_curves_without_noise_are_left_out() -> None:
    ladder = curves([0.0, -0.2, -0.4, 9.0])
    found = fit_trend(ladder, 0.0, 1024)
    assert found is not None and found.widths == (32, 64, 128)
    dead = SizeCurve(size=replace(BASE, width=256), losses={0.0: (math.inf, math.inf)})
    # Its runs still told of the noise that the curves share.
    without, alone = (fit_trend(one, 0.0, 1024) for one in ([*ladder[:3], dead], ladder[:3]))
    assert without == alone and without is not None and without.widths == found.widths
    single = [
        SizeCurve(size=c.size, losses={e: v[:1] for e, v in c.losses.items()}) for c in ladder
    ]
    assert fit_trend(single, 0.0, 1024) is None


def test_it_is_strict_json() -> None:
    record = json.loads(json.dumps(to_json(of([0.0, -0.2, -0.4])), allow_nan=False))
    assert record["widths"] == [32, 64, 128] and record["predicted_log2"]["value"] < 0


def test_intervals_hold_the_target() -> None:
    held = 0
    for number in range(40):
        found = fit_trend(curves([0.0, -0.15, -0.3, -0.45], 0.01, number), 0.0, 1024)
        assert found is not None
        held += found.predicted_log2.low <= -0.75 <= found.predicted_log2.high
    assert held >= 36
