"""A small run of scripts/bench/verdict.py: wrong answers are rare, intervals hold the truth."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sweeper.verdict import curve as module
from sweeper.verdict.ladder import LadderRule
from tests.scripts import load_script
from tests.verdict.curves import BASE

BENCH = load_script("bench/verdict.py")
SCENARIOS = {scenario.name: scenario for scenario in BENCH.SCENARIOS}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if index % 3 == 0 else pytest.mark.long)
        for index, name in enumerate(sorted(SCENARIOS))
    ],
)
def test_wrong_answers_are_rare_and_intervals_hold(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DRAWS", 300)
    tally = BENCH.run(SCENARIOS[name], 12, seed=1)
    assert sum(tally.answers["transfers"].values()) == 12 == sum(tally.answers["failures"].values())
    assert tally.rate("failures", "holds") == 0 and tally.rate("transfers", "fails") <= 0.09
    assert tally.rate("failures", "fails") >= 0.2
    for what in ("optimum", "shift", "loss gap", "loss", "basin"):
        assert tally.coverage(what) >= 0.83, what
    assert tally.trends["hurt"] <= 2


def test_the_truth_is_what_the_formulas_say() -> None:
    size = BASE
    shape = {"floor": 3.0, "curvature": 0.05, "cliff": 1.0, "size": size}
    flat = BENCH.Valley(optimum=0.5, skew=0.0, **shape)
    assert flat.loss(0.0) == pytest.approx(3.0125) and flat.loss(1.6) == math.inf
    assert flat.within() == pytest.approx(2 * math.sqrt(0.03 / 0.05), abs=1e-5)
    steep = BENCH.Valley(optimum=0.5, skew=0.5, **shape)
    assert steep.loss(0.5) == 3.0 and steep.loss(1.2) > flat.loss(1.2)
    assert steep.loss(0.501) - 3 == pytest.approx(0.05e-6, rel=1e-2)


@pytest.mark.parametrize(
    ("moved", "expected"), [(0.0, True), (0.77, True), (0.78, False), (-0.78, False)]
)
def test_truth_is_split_at_the_thresholds(moved: float, expected: bool) -> None:
    """A loss gap of 0.03 nats is reached at a shift of 0.775."""
    valleys = tuple(
        BENCH.Valley(
            size=replace(BASE, width=width),
            optimum=at,
            floor=3.0,
            curvature=0.05,
            skew=0.0,
            cliff=math.inf,
        )
        for width, at in ((32, 0.0), (64, moved))
    )
    truth = BENCH.Truth(valleys=valleys, slope=moved, target=0.0)
    assert truth.transfers(LadderRule(widths=(32, 64))) is expected


def test_ladders_repeat_with_their_seed() -> None:
    scenario, rule = BENCH.SCENARIOS[1], LadderRule(widths=(32,))

    def curves() -> object:
        generator = np.random.default_rng(3)
        return BENCH.measure(scenario, BENCH.draw(scenario, generator), rule, generator)

    assert curves() == curves()
