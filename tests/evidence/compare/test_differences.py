"""Differences carried to another size, against the model's formulas by hand, and by its laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sweeper.evidence.compare import differences
from sweeper.evidence.compare.differences import (
    VariantLosses,
    carry,
    mixture_quantile,
    normal_draws,
)

SIZES = np.array([[27.0, 31.0], [28.3, 32.3], [29.6, 33.6]])
TARGET = np.array([[31.2, 35.2]])


def losses(gains: list[list[float]], counts: int = 1) -> VariantLosses:
    """A baseline, and variants so much better than it at each size."""
    base = np.array([3.5, 3.2, 2.95])[: len(gains[0])]
    means = np.array([base, *(base - np.array(gain) for gain in gains)])
    names = [f"v{i}" for i in range(len(means))]
    return VariantLosses(names, SIZES[: len(base)], means, np.full(means.shape, counts))


def test_it_is_the_gaussian_model_whose_formulas_are_its_head() -> None:
    """One draw of the prior, whose posterior is worked out with the losses' full covariance."""
    seen = losses([[0.02, 0.012, 0.013], [0.001, -0.004, 0.0]])
    model = differences._Model.of(seen, TARGET)
    draw = np.array([[math.log(0.01), math.log(0.0007), math.log(0.0025), 0.13, 0.08]])
    means, deviations, joint = model.posterior(draw)
    # By hand: y = level of the size (nearly any) + g_v + noise.
    n = np.concatenate([SIZES, TARGET]) - SIZES[-1]
    fading = 2.0 ** (-0.13 * n[:, 0] - 0.08 * n[:, 1])
    octaves = math.log(2) * differences.UNLIKE * n.sum(axis=1)
    from_start = n - n.min(axis=0)
    brown = sum(np.minimum.outer(x, x) for x in from_start.T)
    one = 0.01**2 * np.outer(fading, fading) * (1 + np.outer(octaves, octaves)) + 0.0007**2 * brown
    every = np.kron(np.eye(3), one[:3, :3]) + 0.0025**2 * np.eye(9)
    every += 1e4 * np.kron(np.ones((3, 3)), np.eye(3))
    cross = np.kron(np.eye(3), one[3, :3])
    contrast = np.array([[-1, 1, 0], [-1, 0, 1]])
    solved = np.linalg.solve(every, seen.means.reshape(-1) - 3.2)
    by_hand = contrast @ cross @ solved
    covariance = (
        contrast @ (np.eye(3) * one[3, 3] - cross @ np.linalg.solve(every, cross.T)) @ contrast.T
    )
    assert means[0, 0, 1:] == pytest.approx(by_hand, abs=1e-6)
    assert deviations[0, 0, 1:] ** 2 == pytest.approx(np.diag(covariance), rel=1e-3)
    assert joint[0, 1, 2] == pytest.approx(covariance[0, 1], rel=1e-3)


def test_the_likelihood_is_that_of_differences_within_sizes() -> None:
    """Of two variants their difference at every size is all that is told."""
    seen = losses([[0.02, 0.012, 0.013]])
    model = differences._Model.of(seen, TARGET)
    draw = np.array([[math.log(0.01), math.log(0.0007), math.log(0.0025), 0.1, 0.1]])
    kernel = model.kernels(draw)[0, :3, :3]
    gaps = stats.multivariate_normal(np.zeros(3), 2 * kernel + 2 * 0.0025**2 * np.eye(3))
    others = draw.copy()
    others[0, 0] = math.log(0.02)
    kernel = model.kernels(others)[0, :3, :3]
    wider = stats.multivariate_normal(np.zeros(3), 2 * kernel + 2 * 0.0025**2 * np.eye(3))
    by_hand = wider.logpdf([0.02, 0.012, 0.013]) - gaps.logpdf([0.02, 0.012, 0.013])
    found = model.likelihoods(np.concatenate([draw, others]))
    assert found[1] - found[0] == pytest.approx(by_hand, abs=1e-6)


def test_a_gain_fades_and_the_line_through_it_is_not_followed() -> None:
    carried = carry(losses([[0.022, 0.013, 0.011]]), np.concatenate([TARGET, SIZES]))
    there, last = carried.difference(1), carried.difference(1, place=3)
    assert last.value < there.value < 0
    # The line of the gains crosses zero before the target.
    assert carried.chance(1) > 0.95


def test_what_has_no_effect_is_not_called_however_many_there_are() -> None:
    generator, lucky = np.random.default_rng(0), 0
    for _ in range(6):
        gains = generator.normal(0, 0.003, (20, 3)).tolist()
        carried = carry(losses(gains), TARGET)
        lucky += max(carried.chance(v) for v in range(1, 21)) > 0.99
    assert lucky == 0


def test_differences_that_no_prior_foresees_are_carried_all_the_same() -> None:
    """Batches that are twice too large at one size and right at the next, as a grid over them."""
    generator = np.random.default_rng(1)
    carried = carry(losses(generator.normal(0, 0.05, (8, 3)).tolist()), TARGET)
    assert np.isfinite(carried.means).all() and len(carried.weights) > 10
    assert carried.difference(1).high - carried.difference(1).low > 0.04


def test_seeds_tell_the_noise() -> None:
    wide = losses([[0.004]], counts=8)
    told = VariantLosses(wide.names, wide.sizes, wide.means, wide.counts, 14 * 0.02**2, 14)
    sure = VariantLosses(wide.names, wide.sizes, wide.means, wide.counts, 14 * 0.0005**2, 14)
    assert carry(told, SIZES[:1]).chance(1) < 0.8 < 0.999 < carry(sure, SIZES[:1]).chance(1)


def test_variants_that_never_meet_are_refused() -> None:
    alone = VariantLosses(
        ["a", "b"], SIZES[:2], np.array([[3.0, np.nan], [np.nan, 2.9]]), np.eye(2)
    )
    with pytest.raises(ValueError, match="no two variants"):
        carry(alone, TARGET)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.floats(-0.03, 0.03), min_size=3, max_size=3),
    st.sampled_from([0.25, 3.0]),
    st.floats(-0.5, 0.5),
)
def test_laws(gain: list[float], times: float, moved: float) -> None:
    """Which of two is the baseline, a level for all, and the sizes' own levels do not matter."""
    seen = losses([gain])
    carried = carry(seen, TARGET)
    turned = carry(VariantLosses(seen.names, seen.sizes, seen.means[::-1], seen.counts), TARGET)
    assert carried.chance(1) + turned.chance(1) == pytest.approx(1, abs=1e-6)
    assert carried.difference(1).value == pytest.approx(-turned.difference(1).value, abs=1e-9)
    levels = seen.means + np.array([0, moved, 0])
    again = carry(VariantLosses(seen.names, seen.sizes, levels, seen.counts), TARGET)
    assert carried.difference(1).low == pytest.approx(again.difference(1).low, abs=1e-6)
    # Beyond losses in nats and bits, all are shares of the loss.
    large = VariantLosses(seen.names, seen.sizes, seen.means * 100, seen.counts)
    larger = VariantLosses(seen.names, seen.sizes, seen.means * 100 * times, seen.counts)
    ends = [carry(each, TARGET).difference(1).high for each in (large, larger)]
    assert ends[1] == pytest.approx(times * ends[0], rel=1e-6, abs=1e-6)


def test_quantiles_of_mixtures_and_draws() -> None:
    one = mixture_quantile(np.ones(1), np.zeros(1), np.ones(1), 0.975)
    assert one == pytest.approx(1.959964, abs=1e-5)
    weights, means, deviations = np.array([0.3, 0.7]), np.array([-1.0, 2.0]), np.array([0.5, 2.0])
    at = mixture_quantile(weights, means, deviations, 0.2)
    below = weights @ stats.norm.cdf(at, means, deviations)
    assert below == pytest.approx(0.2, abs=1e-5)
    draws = normal_draws(384, 5)
    assert np.abs(draws.mean(axis=0)).max() < 0.03
    assert np.abs(np.corrcoef(draws.T) - np.eye(5)).max() < 0.08
