from __future__ import annotations

import numpy as np
import pytest

from sweeper.evidence.predict.misfit import REACH, LossMisfit, RunPoints, likely
from sweeper.stats.estimate import Array

SIZES, HORIZONS = (a.ravel() for a in np.meshgrid(np.linspace(0, 6, 8), np.linspace(2, 8, 8)))
COUNT = len(SIZES)
POINTS = RunPoints(SIZES, HORIZONS, np.arange(COUNT), np.arange(COUNT))
ALONE = np.ones(COUNT)
PLANE = np.stack([np.ones(COUNT), SIZES, HORIZONS])


def found(off: Array) -> LossMisfit:
    return likely(POINTS, off, PLANE, ALONE)[0]


def test_a_covariance_is_what_its_parts_say() -> None:
    """By hand, at two points, in units of the noise's variance."""
    misfit = LossMisfit(noise=0.01, smooth=2.0, size=1.0, tilt=0.5)
    pair = np.array([0, 8])
    two = RunPoints(SIZES[pair], HORIZONS[pair], pair, pair)
    shared = misfit.between(two, two)[0, 1]
    by_hand = 4 * np.exp(-0.5 * (6 / 7) ** 2 / REACH**2) + 1
    assert shared == pytest.approx(by_hand)
    assert misfit.noise_at(POINTS).max() > misfit.noise_at(POINTS).min() == 1


def test_noise_alone_is_noise_alone_and_a_smooth_misfit_is_seen() -> None:
    random, smooth = np.random.default_rng(0), list[float]()
    for _ in range(10):
        misfit = found(0.01 * random.standard_normal(COUNT))
        smooth.append(misfit.shared)
        assert misfit.noise == pytest.approx(0.01, rel=0.3)
    assert np.median(smooth) == 0
    bent = 0.08 * np.sin(SIZES) * np.cos(0.7 * HORIZONS)
    assert found(bent + 0.01 * random.standard_normal(COUNT)).smooth >= 1.5


def test_what_a_size_is_off_all_its_horizons_are() -> None:
    random, seen = np.random.default_rng(1), 0
    for _ in range(10):
        of_size = np.tile(0.02 * random.standard_normal(8), 8)
        seen += found(of_size + 0.01 * random.standard_normal(COUNT)).size > 0
    assert seen >= 8
