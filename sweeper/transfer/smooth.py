"""A smoother of a noisy curve, and its error: neighbouring points tell of each other.

Near its lowest point a curve is a line, a square c x^2, a skew c k x^3 and a Gaussian process g in
proportion to c. The curves of a ladder are alike: each has its own c and k around common ones,
which all of them tell together. The best linear estimate A y of a curve from its losses y, these
given, leaves any line as it is; its error is (A - 1) of what the curve has of its own, and A noise.
An error of the common k moves all optima alike, so that it hardly matters for a shift.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sweeper.transfer.noise import Array

Mask = NDArray[np.bool_]

OWN_CURVATURE = 0.4
"""Standard deviation of a curve's own c around that of its ladder, which is 1."""

SKEW, OWN_SKEW = 0.25, 0.05
"""Standard deviations of k over ladders, and of a curve's own k around that of its ladder.

A loss that rises exponentially, as c e^(q x), has a cubic part of c q / 3 and a quartic one of
c q^2 / 12; q is up to about 0.6 in measured curves."""
QUARTIC, WIGGLE = 0.06, 0.03
"""Those of g's parts in curvatures: x^4, and a function smooth over 1 in log2."""


@dataclass(frozen=True, eq=False)
class Points:
    """The mean losses [point] of a curve at `x`, in log2 from its lowest point, all finite.

    `noise` [point, point] is the covariance of their errors.
    """

    x: Array
    means: Array
    noise: Array

    def curvature(self) -> tuple[float, float]:
        """The least-squares parabola's second coefficient (nats), and its variance."""
        if len(self.x) <= 3:
            return 0.0, math.inf
        row = np.linalg.pinv(np.vander(self.x, 3))[0]
        return float(row @ self.means), float(row @ self.noise @ row)


@dataclass(frozen=True)
class Shape:
    """What the curves of a ladder share: c with the spread of a curve's own, and k."""

    curvature: float
    spread: float
    skew: float = 0.0
    skew_deviation: float = SKEW

    @classmethod
    def of(cls, ladder: Sequence[Points]) -> Shape:
        """Given all curves of a ladder: the means, weighted by what each curve tells."""
        found = [one for points in ladder if math.isfinite((one := points.curvature())[1])]
        if not found:
            return cls(0.0, 0.0)
        values, variances = np.array(found).T
        level = max(0.0, float(np.median(values)))
        weights = 1 / (variances + (OWN_CURVATURE * level) ** 2 + np.finfo(float).tiny)
        curvature = max(0.0, float(values @ weights / weights.sum()))
        shape = cls(curvature, math.sqrt((OWN_CURVATURE * curvature) ** 2 + 1 / weights.sum()))
        precision, total = SKEW**-2, 0.0
        for information, score in (Smoother(points, shape).skew_evidence() for points in ladder):
            precision, total = precision + information, total + score
        return replace(shape, skew=total / precision, skew_deviation=precision**-0.5)


@dataclass(frozen=True, eq=False)
class Smoother:
    """The best linear estimate of a curve from its `points`, given its ladder's `shape`."""

    points: Points
    shape: Shape

    @cached_property
    def curvature(self) -> float:
        """The curve's own, shrunk towards its ladder's: what k and g are measured in."""
        value, variance = self.points.curvature()
        own = self.shape.spread**2
        if not math.isfinite(variance) or own + variance == 0:
            return self.shape.curvature
        return max(0.0, (value * own + self.shape.curvature * variance) / (own + variance))

    @property
    def prior(self) -> Array:
        """The covariance [point, point] of what the curve has of its own, but for its line."""
        square = self.shape.spread * self.points.x**2
        return deviation(self.points.x, self.curvature) + np.outer(square, square)

    @property
    def cubic(self) -> Array:
        """What a k of 1 adds to the losses."""
        return self.curvature * self.points.x**3

    @cached_property
    def residual(self) -> Array:
        """What of losses no line explains, weighted by the inverse of their covariance."""
        line = np.vander(self.points.x, 2)
        inverse = np.linalg.inv(invertible(self.prior + self.points.noise))
        weighted = line.T @ inverse
        rest: Array = np.eye(len(line)) - line @ np.linalg.solve(weighted @ line, weighted)
        return inverse @ rest

    @cached_property
    def matrix(self) -> Array:
        """A [point, point]; up to three points: 1."""
        identity = np.eye(len(self.points.x))
        if len(identity) <= 3:
            return identity
        matrix: Array = identity - self.points.noise @ self.residual
        return matrix

    def skew_evidence(self) -> tuple[float, float]:
        """The information on k, and that times the estimate of k."""
        if len(self.points.x) <= 3:
            return 0.0, 0.0
        weights = self.cubic @ self.residual
        rest = self.points.means - self.shape.curvature * self.points.x**2
        return float(weights @ self.cubic), float(weights @ rest)

    def rows(self, generator: np.random.Generator, noises: Array) -> Array:
        """The smoothed losses [point], then curves that are as likely [1 + draw, point].

        `noises` [draw, point] are draws of the losses' errors.
        """
        shape, error = self.shape, np.eye(len(self.matrix)) - self.matrix
        usual = shape.curvature * self.points.x**2 + shape.skew * self.cubic
        smoothed = self.matrix @ self.points.means + error @ usual
        values, vectors = np.linalg.eigh(self.prior)
        root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T  # whatever their signs
        own = generator.normal(size=noises.shape) @ root.T
        # The same draws of k for all curves of a ladder.
        skews = np.random.default_rng(0).normal(0.0, shape.skew_deviation, len(noises))
        errors = noises @ self.matrix.T + (own + skews[:, None] * self.cubic) @ error.T
        rows: Array = np.vstack([smoothed, smoothed + errors])
        return rows


def invertible(covariance: Array) -> Array:
    """The covariance [point, point], a billionth of its mean variance added to every one."""
    size = len(covariance)
    added: Array = covariance + 1e-9 * np.trace(covariance) / size * np.eye(size)
    return added


def deviation(x: Array, curvature: float) -> Array:
    """The covariance [point, point] of g and a curve's own skew at the distances `x` in log2."""
    cubic, quartic = np.outer(x**3, x**3), np.outer(x**4, x**4)
    smooth = np.exp(-((x[:, None] - x) ** 2) / 2)
    parts = OWN_SKEW**2 * cubic + QUARTIC**2 * quartic + WIGGLE**2 * smooth
    covariance: Array = curvature**2 * parts
    return covariance
