"""The noise of a curve's runs: against hand-computed values, and recovered where it is made up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sweeper.transfer.noise import KERNELS, MODELS, RISES, Noise, covariance, model_weights
from sweeper.transfer.smooth import deviation, smooth_rows, smoother

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


def test_a_smoother_keeps_parabolas_and_averages_noise() -> None:
    matrix = smoother(X, 0.05, 0.01**2 * np.eye(len(X)))
    parabola = 3 - 0.2 * X + 0.05 * X**2
    np.testing.assert_allclose(matrix @ parabola, parabola)
    assert 0.2 < matrix[4, 4] < 0.6  # of the least-squares parabola it is 0.255
    exact = smoother(X, 0.05, 1e-16 * np.eye(len(X)))
    np.testing.assert_allclose(exact @ np.exp(0.3 * X), np.exp(0.3 * X), atol=1e-4)
    assert (smoother(X[:3], 0.05, np.eye(3)) == np.eye(3)).all()


def test_smoothed_rows_err_as_the_theory_of_linear_estimates_says() -> None:
    """Their covariance is that of curves given the losses: (P^-1 + N^-1)^-1, P vague in x^0..2."""
    noise, known = 0.01**2 * np.eye(len(X)), np.ones(len(X), dtype=bool)
    generator, means = np.random.default_rng(4), 0.05 * X**2
    noises = 0.01 * generator.normal(size=(20000, len(X)))
    rows = smooth_rows(generator, X, means, known, noise, noises)
    vander = np.vander(X, 3)
    prior = deviation(X, 0.05) + 1e4 * vander @ vander.T
    posterior = prior - prior @ np.linalg.solve(prior + noise, prior)
    np.testing.assert_allclose(rows[0], means, atol=1e-9)
    np.testing.assert_allclose(np.cov(rows[1:].T), posterior, atol=4e-6)
