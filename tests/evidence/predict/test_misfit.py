"""What runs lie off a law together: its covariance, how it is found, and runs that went wrong."""

from __future__ import annotations

import numpy as np
import pytest

from sweeper.evidence.predict.misfit import REACH, LawMisfit, LawPoints, doubted, likely
from sweeper.stats.estimate import Array

SIZES, HORIZONS = (a.ravel() for a in np.meshgrid(np.linspace(0, 6, 8), np.linspace(2, 8, 8)))
COUNT = len(SIZES)
POINTS = LawPoints(SIZES, HORIZONS, np.arange(COUNT), np.arange(COUNT))
ALONE = np.ones(COUNT)
PLANE = np.stack([np.ones(COUNT), SIZES, HORIZONS])
NOTHING_KNOWN = np.zeros(3)


def found(off: Array) -> LawMisfit:
    return likely(POINTS, off, PLANE, NOTHING_KNOWN, ALONE)[0][1]


def test_a_covariance_is_what_its_parts_say_and_is_whitened() -> None:
    """By hand, at two points; and W C W' = 1."""
    misfit = LawMisfit(noise=0.01, smooth=2.0, size=1.0, tilt=0.5)
    two = POINTS.only(np.array([0, 8]))
    shared = misfit.between(two, two)[0, 1]
    by_hand = 0.01**2 * (4 * np.exp(-0.5 * (6 / 7) ** 2 / REACH**2) + 1)
    assert shared == pytest.approx(by_hand)
    whiten = misfit.whitening(POINTS, ALONE)
    whole = misfit.between(POINTS, POINTS) + np.diag(misfit.noise_at(POINTS) ** 2)
    np.testing.assert_allclose(whiten @ whole @ whiten.T, np.eye(COUNT), atol=1e-8)
    assert misfit.noise_at(POINTS).max() > misfit.noise_at(POINTS).min() == 0.01


def test_noise_alone_is_noise_alone_and_a_smooth_misfit_is_seen() -> None:
    random, smooth = np.random.default_rng(0), list[float]()
    for _ in range(10):
        misfit = found(0.01 * random.standard_normal(COUNT))
        smooth.append(misfit.shared / misfit.noise)
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


def test_a_run_that_the_others_contradict_counts_less() -> None:
    off = 0.01 * np.random.default_rng(2).standard_normal(COUNT)
    off[20] += 0.3
    doubt = doubted(off, LawMisfit(noise=0.01).whitening(POINTS, ALONE), ALONE)
    assert int(doubt.argmax()) == 20 and doubt[20] > 8
    assert (np.delete(doubt, 20) < 2).all()
