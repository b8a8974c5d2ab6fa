import math
from dataclasses import replace

import numpy as np
import pytest

from sweeper.stats.noise import KERNELS, MODELS, RISES, Array, Noise, covariance, model_weights
from sweeper.stats.shapes import CurveShape, Points, Smoother

X = np.arange(-4, 5) / 2


def noise_of(rise: float, kernel: int, number: int, seeds: int = 2) -> Noise:
    generator = np.random.default_rng([number, kernel])
    root = np.linalg.cholesky(covariance(X, rise, KERNELS[kernel]))
    runs = 3 + X[:, None] ** 2 + 0.01 * root @ generator.normal(size=(len(X), seeds))
    return Noise.measure(X, runs + generator.normal(size=seeds))


def test_white_noise_is_estimated_from_the_residuals_of_a_two_way_table() -> None:
    runs = np.array([[3.0, 3.1], [2.0, 2.4], [2.5, 2.5], [4.0, 4.3]])
    result = Noise.measure(X[2:6], runs)
    residual = runs - runs.mean(1, keepdims=True) - runs.mean(0, keepdims=True) + runs.mean()
    variance = (residual**2).sum() / 3
    assert result.freedom == 3 and result.variance[0] == pytest.approx(variance)
    assert result.deviation == pytest.approx(math.sqrt(variance))


@pytest.mark.parametrize(("rise", "kernel"), [(0.0, 0), (1.0, 0), (0.0, 4), (0.0, 9), (1.5, 4)])
def test_a_ladder_s_curves_tell_rise_and_kernel(rise: float, kernel: int) -> None:
    weights = model_weights([noise_of(rise, kernel, number) for number in range(80)])
    assert weights.sum() == pytest.approx(1)
    best = MODELS[int(weights.argmax())]
    assert best == (rise, KERNELS[kernel]) and rise in RISES


def test_draws_have_the_covariance_of_their_model() -> None:
    result, weights = noise_of(1.0, 1, 0, seeds=200), np.zeros(len(MODELS))
    weights[[i for i, model in enumerate(MODELS) if model == (1.0, KERNELS[1])]] = 1.0
    draws = result.draws(np.random.default_rng(2), X, weights, 20000)
    np.testing.assert_allclose(np.cov(draws.T), result.covariance(X, weights), atol=1e-4)
    np.testing.assert_allclose(np.sqrt(result.covariance(X, weights)[4, 4]), 0.01, rtol=0.1)


def test_the_levels_of_a_ladder_are_pooled_by_their_degrees_of_freedom() -> None:
    first, *others = (noise_of(0.0, 0, number) for number in range(3))
    result = first.pooled([first, *others])
    level = (others[0].variance + others[1].variance) / 2
    assert result.freedom == 8 + 12
    np.testing.assert_allclose(result.variance, (8 * first.variance + 12 * level) / 20)
    assert first.pooled([first]) is first
    assert first.pooled([first, others[0]]).freedom == 8 + 8  # no more than there are


SHAPE = CurveShape(curvature=0.05, spread=0.02)


def curve_of(means: Array, noise: float = 0.01) -> Points:
    return Points(X, means, noise**2 * np.eye(len(X)))


def rows_of(points: Points, shape: CurveShape, noises: Array, seed: int = 4) -> Array:
    generator, common = np.random.default_rng(seed), np.random.default_rng(0)
    at, normal = np.arange(len(points.x)), common.normal(size=len(noises))
    return Smoother(points, shape).rows(generator, noises, normal, points.x, at)


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


@pytest.mark.parametrize("step", [1, 2])
def test_rows_err_as_a_process_given_the_losses_says(step: int) -> None:
    """By the joint covariance, any line being nearly free; every second place is no point."""
    generator, shape = np.random.default_rng(4), replace(SHAPE, skew_deviation=0.0)
    at, count = np.arange(0, len(X), step), 20000
    points = Points(X[at], 0.05 * X[at] ** 2, 1e-4 * np.eye(len(at)))
    smoother, noises = Smoother(points, shape), 0.01 * generator.normal(size=(count, len(at)))
    rows = smoother.rows(generator, noises, np.zeros(count), X, at)
    prior = smoother.prior(X) + 1e4 * np.vander(X, 2) @ np.vander(X, 2).T
    shared = prior[:, at]
    posterior = prior - shared @ np.linalg.solve(prior[np.ix_(at, at)] + points.noise, shared.T)
    np.testing.assert_allclose(rows[0], 0.05 * X**2, atol=1e-9)
    np.testing.assert_allclose(np.cov(rows[1:].T), posterior, atol=6e-6)


def test_an_error_of_the_common_skew_is_the_same_in_all_curves() -> None:
    """Without noise of its own, what is left of two curves' draws is one and the same cubic."""
    shape = CurveShape(curvature=0.05, spread=0.0, skew_deviation=0.1)
    points = curve_of(0.05 * X**2, 10.0)  # nothing is learned
    rows = [rows_of(points, shape, np.zeros((4000, len(X))), seed) for seed in (1, 2)]
    cubics = [np.polyfit(X, first[1:].T, 3)[0] for first in rows]
    assert np.corrcoef(*cubics)[0, 1] > 0.7  # a curve's own is half as large: 1 / (1 + 0.5^2)
    assert cubics[0].std() == pytest.approx(0.05 * math.hypot(0.1, 0.05), rel=0.1)


def test_a_ladder_tells_the_shape_that_its_curves_share() -> None:
    generator = np.random.default_rng(3)
    curves = [
        curve_of(0.05 * (X - at) ** 2 + 0.05 * 0.2 * X**3 + generator.normal(0, 1e-3, len(X)), 1e-3)
        for at in (-0.1, 0.0, 0.1, 0.2)
    ]
    result = CurveShape.of(curves)
    assert result.curvature == pytest.approx(0.05, rel=0.05)
    assert result.spread == pytest.approx(0.05 * math.hypot(0.4, 0.2), rel=0.1)
    assert result.skew == pytest.approx(0.2, abs=0.06)
    # Four curves' own, and what they leave of 0.25 before.
    assert result.skew_deviation == pytest.approx(0.05 / 2, rel=0.3)
    assert CurveShape.of([]) == CurveShape(0.0, 0.0)


def rises_of(losses: Array) -> Array:
    """The weight of every rise, by single losses [curves, 8] of a known noise."""
    x = np.arange(-3.0, 5.0)
    noises = [Noise.of_level(0.006, 10**6, x[: len(row)], row, 1) for row in losses]
    weights = model_weights(noises, levels_known=True)
    return np.asarray(weights.reshape(len(RISES), -1).sum(axis=1))


def test_a_known_noise_rises_no_more_than_the_losses_show() -> None:
    """And what no cubic fits is no evidence of a rise: it may be the curve's shape."""
    x, random = np.arange(-3.0, 5.0), np.random.default_rng(0)
    valley, normal = 0.02 * x**2, random.normal(size=(2, 4, 8))
    assert rises_of(valley + 0.006 * normal[0])[-1] < 0.01
    spread = 0.006 * 2.0 ** (1.5 * np.clip(x, 0, 4))
    assert rises_of(valley + spread * normal[1])[-1] == pytest.approx(0.25)
    for untold in (np.tile(valley + 0.002 * x**4, (4, 1)), valley[None, :3]):
        assert rises_of(untold) == pytest.approx(np.full(4, 0.25))
