"""Curves with a kink: from the optimum on, one side is steeper than the other.

Such a curve is floor + c h(u), u the distance to the vertex: h is a skewed parabola, `rise`,
times the ratio to the right. A smoother would round the
kink off, and misplace the optimum by more than its error. Ratio and skew are common to a ladder,
the vertex is a curve's own; a grid over all three has their likelihood, with floor and curvature
integrated out. So the losses say how likely a kink is, and the bootstrap draws as many kinked
curves: where they cannot tell, the intervals hold both kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sweeper.transfer.ladder import Size
from sweeper.transfer.noise import Array
from sweeper.transfer.parabolas import Index, Valleys, rise
from sweeper.transfer.smooth import SKEW, Points, Shape, Smoother, deviation, invertible

RATIOS = 2.0 ** np.array([-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5])
SMOOTH = 3
"""The index of the ratio 1: no kink, and the draws are the smoother's."""
PRIOR = np.array([0.06, 0.06, 0.06, 0.64, 0.06, 0.06, 0.06])
SKEWS = np.array([-0.5, -0.4, -0.3, -0.2, -0.1, 1e-3, 0.1, 0.2, 0.3, 0.4, 0.5])
"""In place of 0, where h would be 0 / 0, nearly 0: else a kink and a skew together would fit a
parabola better than no kink does."""
COARSE, FINE = 41, 201
"""Vertices over the range of a curve's points: the likelihood is interpolated between them."""
MIN_POINTS = 5
"""With fewer near the lowest one, two sides cannot be told apart."""


@dataclass(frozen=True, eq=False)
class Kinked:
    """What one curve says of every ratio, skew and vertex."""

    points: Points
    shape: Shape

    @cached_property
    def white(self) -> Array:
        """The inverse root [point, point] of the covariance of noise and what no model holds."""
        curvature = Smoother(self.points, self.shape).curvature
        total = self.points.noise + deviation(self.points.x, curvature)
        inverse: Array = np.linalg.inv(np.linalg.cholesky(invertible(total)))
        return inverse

    def vertices(self, count: int) -> Array:
        """As many vertices, over the range of the points."""
        return np.linspace(self.points.x.min(), self.points.x.max(), count)

    def columns(self, vertices: Array, skews: Array, ratios: Array) -> Array:
        """What a mean curvature of 1 adds to the losses [..., point], whitened."""
        u = self.points.x - vertices[..., None]
        sides = rise(u, skews[..., None], ratios[..., None])
        columns: Array = 2 / (1 + ratios[..., None]) * sides @ self.white.T
        return columns

    @cached_property
    def log_likelihood(self) -> Array:
        """[ratio, skew, vertex] at `FINE` vertices."""
        grid = np.meshgrid(RATIOS, SKEWS, self.vertices(COARSE), indexing="ij")
        columns, variance = self.columns(*grid[::-1]), self.shape.spread**2
        floor = self.white.sum(axis=1)
        floor /= np.linalg.norm(floor)
        columns -= (columns @ floor)[..., None] * floor
        means = self.white @ self.points.means
        rest = means - (means @ floor) * floor - self.shape.curvature * columns
        open_ = 1 + variance * (columns**2).sum(axis=-1)
        fit = variance * (columns * rest).sum(axis=-1) ** 2 / open_
        return _interpolated(-((rest**2).sum(axis=-1) - fit + np.log(open_)) / 2)

    def valleys(self, ratios: Index, skews: Index, uniform: Array, normal: Array) -> Valleys:
        """A likely valley a row, by the indices of its ratio and skew.

        `uniform` [row] in [0, 1) and `normal` [2, row] are the chances that it is drawn with.
        """
        likely = np.exp(self.log_likelihood - self.log_likelihood.max(axis=-1, keepdims=True))
        total = likely.cumsum(axis=-1)[ratios, skews]
        chosen = (total < uniform[:, None] * total[:, -1:]).sum(axis=1)
        vertices = self.vertices(FINE)[chosen]
        steeps, ks = RATIOS[ratios], SKEWS[skews]
        columns, floor = self.columns(vertices, ks, steeps), self.white.sum(axis=1)
        means, precision = self.white @ self.points.means, self.shape.spread**-2
        # Least squares of floor and curvature together: the normal equations of two unknowns.
        one, both, two = floor @ floor, columns @ floor, (columns**2).sum(axis=1) + precision
        sums = floor @ means, columns @ means + precision * self.shape.curvature
        determinant = one * two - both**2
        curvatures = (one * sums[1] - both * sums[0]) / determinant
        curvatures += normal[0] * np.sqrt(one / determinant)
        curvatures = np.maximum(curvatures, 1e-3 * self.shape.curvature)
        floors = (sums[0] - both * curvatures) / one + normal[1] / np.sqrt(one)
        return Valleys(vertices, floors, 2 / (1 + steeps) * curvatures, ks, steeps)


@dataclass(frozen=True, eq=False)
class Kinks:
    """The probability [ratio, skew] of what the `curves` of a ladder have in common."""

    curves: Mapping[Size, Kinked]
    weights: Array

    @classmethod
    def of(cls, ladder: Mapping[Size, Points], shape: Shape) -> Kinks:
        """Of the curves whose lowest point is at no end."""
        inner = {
            size: Kinked(points, shape)
            for size, points in ladder.items()
            if shape.curvature > 0
            and len(points.x) >= MIN_POINTS
            and points.x.min() < 0 < points.x.max()
        }
        total = np.log(PRIOR)[:, None] - (SKEWS / SKEW) ** 2 / 2
        for curve in inner.values():
            most = curve.log_likelihood.max()
            total += np.log(np.exp(curve.log_likelihood - most).mean(axis=-1) + 1e-300)
        weights = np.exp(total - total.max())
        return cls(inner, weights / weights.sum())

    def rows(
        self, size: Size, generator: np.random.Generator, count: int
    ) -> tuple[Index, Valleys] | None:
        """Which of 1 + `count` rows have a kink, and their valleys; row 0 is the likeliest one.

        None where no row has one.
        """
        if size not in self.curves:
            return None
        # The same draws of ratio and skew for all curves of a ladder.
        flat = np.random.default_rng(1).choice(
            self.weights.size, size=1 + count, p=self.weights.ravel()
        )
        ratio = self.weights.sum(axis=1).argmax()
        flat[0] = ratio * len(SKEWS) + self.weights[ratio].argmax()
        ratios, skews = np.divmod(flat, len(SKEWS))
        uniform, normal = generator.random(1 + count), generator.normal(size=(2, 1 + count))
        uniform[0], normal[:, 0] = 0.5, 0.0
        rows = np.flatnonzero(ratios != SMOOTH)
        if not len(rows):
            return None
        chances = uniform[rows], normal[:, rows]
        return rows, self.curves[size].valleys(ratios[rows], skews[rows], *chances)


def _interpolated(values: Array) -> Array:
    """At `FINE` places from `COARSE` ones, by the parabola through the nearest three."""
    places = np.linspace(0, COARSE - 1, FINE)
    middle = np.clip(np.rint(places).astype(int), 1, COARSE - 2)
    t = places - middle
    left, at, right = (values[..., middle + side] for side in (-1, 0, 1))
    found: Array = at + t * (right - left) / 2 + t**2 * (left + right - 2 * at) / 2
    return found
