"""The noise of a curve's runs: against hand-computed values, and recovered where it is made up."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sweeper.stats.noise import KERNELS, MODELS, RISES, Array, Noise, covariance, model_weights
from sweeper.stats.shapes import CurveShape, Points, Smoother, deviation

X = np.arange(-4, 5) / 2


def noise_of(rise: float, kernel: int, number: int, seeds: int = 2) -> Noise:
    generator = np.random.default_rng([number, kernel])
    root = np.linalg.cholesky(covariance(X, rise, KERNELS[kernel]))
    runs = 3 + X[:, None] ** 2 + 0.01 * root @ generator.normal(size=(len(X), seeds))
    return Noise.measure(X, runs + generator.normal(size=seeds))


def test_white_noise_is_estimated_from_the_residuals_of_a_two_way_table() -> None:
    runs = np.array([[3.0, 3.1], [2.0, 2.4], [2.5, 2.5], [4.0, 4.3]])
    found = Noise.measure(X[2:6], runs)
    residual = runs - runs.mean(1, keepdims=True) - runs.mean(0, keepdims=True) + runs.mean()
    variance = (residual**2).sum() / 3
    assert found.freedom == 3 and found.variance[0] == pytest.approx(variance)
    assert found.deviation == pytest.approx(math.sqrt(variance))


def test_an_offset_of_a_seed_and_the_curve_itself_change_nothing() -> None:
    runs = np.random.default_rng(1).normal(size=(9, 3))
    moved = runs + np.array([5.0, -2.0, 0.0]) + X[:, None] ** 3
    first, second = Noise.measure(X, runs), Noise.measure(X, moved)
    np.testing.assert_allclose(first.log_likelihood, second.log_likelihood)
    np.testing.assert_allclose(first.variance, second.variance)


@pytest.mark.parametrize(("rise", "kernel"), [(0.0, 0), (1.0, 0), (0.0, 4), (0.0, 9), (1.5, 4)])
def test_a_ladder_s_curves_tell_rise_and_kernel(rise: float, kernel: int) -> None:
    weights = model_weights([noise_of(rise, kernel, number) for number in range(80)])
    assert weights.sum() == pytest.approx(1)
    best = MODELS[int(weights.argmax())]
    assert best == (rise, KERNELS[kernel]) and rise in RISES


def test_draws_have_the_covariance_of_their_model() -> None:
    found, weights = noise_of(1.0, 1, 0, seeds=200), np.zeros(len(MODELS))
    weights[[i for i, model in enumerate(MODELS) if model == (1.0, KERNELS[1])]] = 1.0
    draws = found.draws(np.random.default_rng(2), X, weights, 20000)
    np.testing.assert_allclose(np.cov(draws.T), found.covariance(X, weights), atol=1e-4)
    np.testing.assert_allclose(np.sqrt(found.covariance(X, weights)[4, 4]), 0.01, rtol=0.1)


def test_the_levels_of_a_ladder_are_pooled_by_their_degrees_of_freedom() -> None:
    first, *others = (noise_of(0.0, 0, number) for number in range(3))
    found = first.pooled([first, *others])
    level = (others[0].variance + others[1].variance) / 2
    assert found.freedom == 8 + 12
    np.testing.assert_allclose(found.variance, (8 * first.variance + 12 * level) / 20)
    assert first.pooled([first]) is first
    assert first.pooled([first, others[0]]).freedom == 8 + 8  # no more than there are


SHAPE = CurveShape(curvature=0.05, spread=0.02)


def curve_of(means: Array, noise: float = 0.01) -> Points:
    return Points(X, means, noise**2 * np.eye(len(X)))


def rows_of(points: Points, shape: CurveShape, noises: Array, seed: int = 4) -> Array:
    """Drawn at the points themselves."""
    generator, normal = (
        np.random.default_rng(seed),
        np.random.default_rng(0).normal(size=len(noises)),
    )
    every = np.arange(len(points.x))
    return Smoother(points, shape).rows(generator, noises, normal, points.x, every)


def test_a_smoother_keeps_lines_and_averages_noise() -> None:
    none = np.zeros((0, len(X)))
    usual = rows_of(curve_of(0.05 * X**2), SHAPE, none)[0]
    with_line = rows_of(curve_of(0.05 * X**2 + 3 - 0.2 * X), SHAPE, none)[0]
    np.testing.assert_allclose(with_line - usual, 3 - 0.2 * X)
    bump = 1e-3 * np.eye(len(X))[4]
    moved = rows_of(curve_of(0.05 * X**2 + bump), SHAPE, none)[0] - usual
    assert 0.2e-3 < moved[4] < 0.6e-3  # of the least-squares parabola it is 0.255
    steep = np.exp(0.3 * X)
    np.testing.assert_allclose(rows_of(curve_of(steep, 1e-8), SHAPE, none)[0], steep, atol=1e-4)


def test_smoothed_rows_err_as_the_theory_of_linear_estimates_says() -> None:
    """Their covariance is that of curves given the losses: (P^-1 + N^-1)^-1, P vague in x^0..1."""
    generator, shape = np.random.default_rng(4), replace(SHAPE, skew_deviation=0.0)
    points = curve_of(0.05 * X**2)
    rows = rows_of(points, shape, 0.01 * generator.normal(size=(20000, len(X))), 5)
    line, noise = np.vander(X, 2), 0.01**2 * np.eye(len(X))
    square = np.outer(X**2, X**2)
    curvature = Smoother(points, shape).curvature
    prior = deviation(X, curvature) + SHAPE.spread**2 * square + 1e4 * line @ line.T
    posterior = prior - prior @ np.linalg.solve(prior + noise, prior)
    np.testing.assert_allclose(rows[0], 0.05 * X**2, atol=1e-9)
    np.testing.assert_allclose(np.cov(rows[1:].T), posterior, atol=4e-6)


def test_between_the_points_a_curve_is_as_uncertain_as_a_process_given_them() -> None:
    """Against the same covariance with the place between the points left out of the losses."""
    generator, shape = np.random.default_rng(4), replace(SHAPE, skew_deviation=0.0)
    points, x = Points(X[::2], 0.05 * X[::2] ** 2, 1e-4 * np.eye(5)), X
    smoother, noises = Smoother(points, shape), 0.01 * generator.normal(size=(20000, 5))
    at = np.arange(0, len(X), 2)
    rows = smoother.rows(generator, noises, np.zeros(20000), x, at)
    line = np.vander(x, 2)
    prior = smoother.prior(x) + 1e4 * line @ line.T
    shared = prior[:, at]
    posterior = prior - shared @ np.linalg.solve(prior[np.ix_(at, at)] + points.noise, shared.T)
    np.testing.assert_allclose(np.cov(rows[1:].T), posterior, atol=6e-6)


def test_an_error_of_the_common_skew_is_the_same_in_all_curves() -> None:
    """Without noise of its own, what is left of two curves' draws is one and the same cubic."""
    shape = CurveShape(curvature=0.05, spread=0.0, skew_deviation=0.1)
    points = curve_of(0.05 * X**2, 10.0)  # nothing is learned
    rows = [rows_of(points, shape, np.zeros((4000, len(X))), seed) for seed in (1, 2)]
    cubics = [np.polyfit(X, one[1:].T, 3)[0] for one in rows]
    assert np.corrcoef(*cubics)[0, 1] > 0.7  # a curve's own is half as large: 1 / (1 + 0.5^2)
    assert cubics[0].std() == pytest.approx(0.05 * math.hypot(0.1, 0.05), rel=0.1)


def test_a_ladder_tells_the_shape_that_its_curves_share() -> None:
    generator = np.random.default_rng(3)
    curves = [
        curve_of(0.05 * (X - at) ** 2 + 0.05 * 0.2 * X**3 + generator.normal(0, 1e-3, len(X)), 1e-3)
        for at in (-0.1, 0.0, 0.1, 0.2)
    ]
    found = CurveShape.of(curves)
    assert found.curvature == pytest.approx(0.05, rel=0.05)
    assert found.spread == pytest.approx(0.05 * math.hypot(0.4, 0.2), rel=0.1)
    assert found.skew == pytest.approx(0.2, abs=0.06)
    # Four curves' own, and what they leave of 0.25 before.
    assert found.skew_deviation == pytest.approx(0.05 / 2, rel=0.3)
    assert CurveShape.of([]) == CurveShape(0.0, 0.0)


def known(losses: Array, deviation: float) -> Noise:
    x = np.arange(-3.0, 5.0)
    return Noise.known(deviation, 10**6, x, losses, 1)


def rises_of(weights: Array) -> Array:
    shares: Array = weights.reshape(len(RISES), -1).sum(axis=1)
    return shares


def test_a_known_noise_rises_no_more_than_the_losses_show() -> None:
    """And what no cubic fits is no evidence of a rise: it may be the curve's shape."""
    x, random = np.arange(-3.0, 5.0), np.random.default_rng(0)
    valley = 0.02 * x**2
    even = [known(valley + 0.006 * random.normal(size=8), 0.006) for _ in range(4)]
    assert rises_of(model_weights(even, levels_known=True))[-1] < 0.01
    spread = 0.006 * 2.0 ** (1.5 * np.clip(x, 0, 4))
    rising = [known(valley + spread * random.normal(size=8), 0.006) for _ in range(4)]
    assert rises_of(model_weights(rising, levels_known=True))[-1] == pytest.approx(0.25)
    shaped = [known(valley + 0.002 * x**4, 0.006)] * 4
    assert rises_of(model_weights(shaped, levels_known=True)) == pytest.approx(np.full(4, 0.25))
    few = Noise.known(0.006, 10**6, x[:3], valley[:3], 1)
    assert rises_of(model_weights([few], levels_known=True)) == pytest.approx(np.full(4, 0.25))
