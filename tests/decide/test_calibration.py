"""A small run of scripts/bench/verdict.py: wrong answers are rare, intervals hold the truth."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sweeper.stats import curve as module
from sweeper.stats.ladder import LadderRule
from tests.scripts import load_script
from tests.stats.curves import BASE

BENCH = load_script("bench/verdict.py")
SCENARIOS = {scenario.name: scenario for scenario in BENCH.SCENARIOS}


OFTEN = ("two minima",)
"""In every run; `test_cliff.py` has cliffs, `test_ladder_verdict.py` noise that is too large, and
`make test-long` has all."""
FINER_THAN_THE_GRID = ("a flat bottom", "two minima")
"""Their basins end where losses change within a step, which no curve through the points shows."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in OFTEN else pytest.mark.long)
        for name in sorted(SCENARIOS)
    ],
)
def test_wrong_answers_are_rare_and_intervals_hold(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DRAWS", 300)
    count = 5 if name in OFTEN else 12
    tally = BENCH.run(SCENARIOS[name], count, seed=1)
    assert all(sum(tally.answers[kind].values()) == count for kind in ("transfers", "failures"))
    assert tally.rate("failures", "holds") == 0 and tally.rate("transfers", "fails") <= 0.09
    assert tally.rate("failures", "fails") >= 0.2
    for what in ("optimum", "shift", "loss gap", "loss"):
        assert tally.coverage(what) >= 0.83, what
    assert tally.coverage("basin") >= 0.83 or name.startswith(FINER_THAN_THE_GRID)
    assert tally.trends["hurt"] <= 2


@pytest.mark.long
def test_a_coarse_grid_doubts_more_and_noise_is_not_all_of_it() -> None:
    """Reach of the optimum's interval, the median: at a step of 2 it is no longer the noise's."""
    reach = {}
    for name in ("parabolas", "parabolas, steps of 2"):
        quiet = replace(SCENARIOS[name], noise=BENCH.QUIET)
        reach[name] = float(np.median(BENCH.run(quiet, 2, seed=1).reaches))
    assert reach["parabolas"] < 0.12 < 0.3 < reach["parabolas, steps of 2"]


def test_the_truth_is_what_the_formulas_say() -> None:
    def valley(**changes: float) -> Any:
        shape = {"floor": 3.0, "curvature": 0.05, "cliff": 1.0, "skew": 0.0, "optimum": 0.5}
        return BENCH.Valley(size=BASE, **{**shape, **changes})

    flat, two = valley(), valley(second=-1.5, depth=0.5)
    assert flat.loss(0.0) == pytest.approx(3.0125) and flat.loss(1.6) == math.inf
    assert flat.within() == pytest.approx(2 * math.sqrt(0.03 / 0.05), abs=1e-5)
    assert valley(flat=0.5).loss(1.0) == pytest.approx(3 + 0.05 * 0.25 / 2)
    level, steep = valley(plateau=1.0), valley(skew=0.5)
    assert level.loss(-9.0) == pytest.approx(3.05) and level.loss(1.0) == flat.loss(1.0)
    assert two.loss(-1.0) == pytest.approx(3 + 0.05 * 2.25 / 2) and two.loss(0.0) == flat.loss(0.0)
    assert steep.loss(0.5) == 3.0 and steep.loss(1.2) > flat.loss(1.2)
    # A loss gap of 0.03 nats is reached at a shift of 0.775.
    for moved in (0.0, 0.77, 0.78, -0.78):
        valleys = tuple(
            replace(valley(optimum=at, cliff=math.inf), size=replace(BASE, width=width))
            for width, at in ((32, 0.0), (64, moved))
        )
        truth = BENCH.Truth(valleys=valleys, slope=moved, target=0.0)
        assert truth.transfers(LadderRule(widths=(32, 64))) is (abs(moved) < 0.775)
