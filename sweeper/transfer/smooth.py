"""A smoother of a noisy curve, and its error: neighbouring points tell of each other.

Near its lowest point a curve is taken for a parabola plus a deviation g, a Gaussian process that
vanishes with the curvature. The best linear estimate A y of the curve from the losses y leaves any
parabola as it is; its error is (A - 1) g + A noise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sweeper.transfer.noise import Array

Mask = NDArray[np.bool_]

SKEW, QUARTIC, WIGGLE = 0.25, 0.06, 0.1
"""Standard deviations of g's parts in curvatures: x^3, x^4, and a function smooth over 1 in log2.

A loss that rises exponentially, as c e^(k x), has a cubic part of c k / 3 and a quartic one of
c k^2 / 12; k is up to about 0.6 in measured curves."""


def deviation(x: Array, curvature: float) -> Array:
    """The covariance [point, point] of g at the distances `x` in log2."""
    cubic, quartic = np.outer(x**3, x**3), np.outer(x**4, x**4)
    smooth = np.exp(-((x[:, None] - x) ** 2) / 2)
    parts = SKEW**2 * cubic + QUARTIC**2 * quartic + WIGGLE**2 * smooth
    covariance: Array = curvature**2 * parts
    return covariance


def smoother(x: Array, curvature: float, noise: Array) -> Array:
    """A [point, point] for losses whose noise has the covariance `noise`; up to three: 1."""
    parabola = np.vander(x, 3)
    if len(x) <= 3:
        return np.eye(len(x))
    prior = deviation(x, curvature)
    total = prior + noise
    scale = np.trace(total) / len(x)
    inverse = np.linalg.inv(total + 1e-9 * scale * np.eye(len(x)))
    fit = np.linalg.solve(parabola.T @ inverse @ parabola, parabola.T @ inverse)
    rest = np.eye(len(x)) - parabola @ fit
    matrix: Array = parabola @ fit + prior @ inverse @ rest
    return matrix


def smooth_rows(
    generator: np.random.Generator,
    x: Array,
    means: Array,
    known: Mask,
    noise: Array,
    noises: Array,
) -> Array:
    """The smoothed `means` [point], then curves that are as likely [1 + draw, point].

    `x` are distances from the lowest point. Smoothed are the `known` points, whose means have the
    covariance `noise`; `noises` [draw, point] are draws of it. Other points stay as they are.
    """
    bend = _curvature(x[known], means[known])
    matrix = smoother(x[known], bend, noise)
    error = matrix - np.eye(len(matrix))
    smoothed, errors = means.copy(), noises.copy()
    smoothed[known] = matrix @ means[known]
    values, vectors = np.linalg.eigh(deviation(x[known], bend))
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T  # whatever the vectors' signs
    shapes = generator.normal(size=(len(noises), len(root))) @ root.T
    errors[:, known] = noises[:, known] @ matrix.T + shapes @ error.T
    rows: Array = np.vstack([smoothed, smoothed + errors])
    return rows


def _curvature(x: Array, losses: Array) -> float:
    """The least-squares parabola's second coefficient, at least 0 (nats)."""
    return max(0.0, float(np.polyfit(x, losses, 2)[0])) if len(x) > 2 else 0.0
