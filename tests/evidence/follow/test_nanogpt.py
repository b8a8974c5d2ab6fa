"""Curves that nobody here made: training logs of many seeds, from modded-nanogpt's records.

Read where they are: a folder of logs of one record, such as
`records/track_1_short/2024-12-04_ValueEmbed` of github.com/KellerJordan/modded-nanogpt.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sweeper.evidence.follow.decision import Watch
from sweeper.evidence.predict.band import Course, Curves, fit_band
from sweeper.evidence.predict.decision import Loss, Prediction
from sweeper.evidence.runs.log import RunLog
from sweeper.stats.power_law import Array
from sweeper.trial import curve
from tests.evidence.made import prediction

LOGS = Path(os.environ.get("SWEEPER_NANOGPT_LOGS", "../shared/data/modded_nanogpt"))
METRIC = r"^step:(?P<step>\d+)/\d+ train_loss:(?P<loss>\S+)"
LADDER, WINDOW = 8, 0.05


@pytest.fixture(scope="module")
def losses() -> Array:
    """Training losses [runs, steps]."""
    paths = sorted(LOGS.glob("*.txt"))
    if len(paths) < 2 * LADDER:
        pytest.skip(f"{LOGS} has no logs")
    rows = [[p.loss for p in RunLog(metric=METRIC, place=path).read(ended=True)] for path in paths]
    usual = max(map(len, rows))
    return np.array([row for row in rows if len(row) == usual])


def known(losses: Array) -> Prediction:
    """The band of some of the runs, one size, and the mean of their ends."""
    steps = losses.shape[1]
    ends = losses[:, -round(WINDOW * steps) :].mean(1)
    zeros = np.zeros(len(losses))
    curves = [curve(row) for row in losses]
    course = Course(
        steps=steps,
        warmup=0.05,
        window=WINDOW,
        schedule="trapezoid",
        lr=np.minimum(1, (1 - np.arange(steps) / steps) / 0.42).tolist(),
    )
    ladder = Curves(zeros, zeros, zeros.astype(int), curves, [steps] * len(losses), ends)
    band = fit_band(ladder, course, 0.0, 0.0)
    spread = 2.5 * float(np.log(ends).std(ddof=1))
    middle = math.log(float(ends.mean()))
    low, high = math.exp(middle - spread), math.exp(middle + spread)
    return replace(
        prediction(), band=band, prediction=Loss(loss=math.exp(middle), low=low, high=high)
    )


def test_other_seeds_are_on_course_and_their_ends_are_forecast(losses: Array) -> None:
    made, alarms, inside = known(losses[:LADDER]), 0, []
    others = losses[LADDER:]
    for row in others:
        watch = Watch(made)
        forecasts = [watch.update(step, loss).forecast for step, loss in enumerate(row.tolist())]
        alarms += watch.seen.off
        half = forecasts[len(row) // 2]
        inside.append(half.low <= row[-round(WINDOW * len(row)) :].mean() <= half.high)
    assert alarms <= 1
    assert np.mean(inside) >= 0.85


def test_a_hundredth_more_loss_is_seen(losses: Array) -> None:
    made = known(losses[:LADDER])
    for row in losses[LADDER : LADDER + 5]:
        watch, third = Watch(made), len(row) // 3
        for step, loss in enumerate((row * (1 + 0.01 * (np.arange(len(row)) >= third))).tolist()):
            watch.update(step, loss)
        assert watch.seen.state == "above"
        assert abs(watch.seen.since - third) < 0.05 * len(row)
