"""The shapes of learning-rate curves: parabolas near the lowest points, a smoother, a kink."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sweeper.verdict.ladder import LadderSize
from sweeper.verdict.noise import Array

Index = NDArray[np.intp]

FIT_RADIUS = 1.0
"""A parabola is fitted to the points within this distance, in log2, of the lowest one."""

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
"""Its multiples, modulo 1, spread evenly over [0, 1) for any number of draws."""

SAME_ETA = 1e-9
"""Values of log2 eta that differ by less are the same grid point."""


@dataclass(frozen=True, eq=False)
class Valleys:
    """Rows of curves floor + curvature h(u), u the distance to the row's vertex in log2.

    h is u^2 + skew u^3 near the vertex, times `steeps` to its right; see `rise`.
    """

    vertices: Array
    floors: Array
    curvatures: Array
    skews: Array
    steeps: Array

    def losses(self, x: Array) -> Array:
        """Every row's at the distances `x` [row, point]."""
        shapes = rise(x - self.vertices[:, None], self.skews[:, None], self.steeps[:, None])
        return self.floors[:, None] + self.curvatures[:, None] * shapes


@dataclass(frozen=True, eq=False)
class Parabolas:
    """Rows of losses [row, eta] at ascending `etas` (log2), +inf where runs diverged.

    All rows are finite at the same points. `lowest` is the index of each row's lowest point.
    `coefficients` [3, row] are those of the least-squares parabola near it, in the distance from
    it, beside the row's `cubic` [row], and `vertices` [row] are their minima; NaN where fewer than
    three points are finite, the lowest point is at an end, or the parabola opens downwards. To the
    right of its minimum a row rises `steep` [row] times as far as that.
    """

    etas: Array
    losses: Array
    lowest: Index
    coefficients: Array
    cubic: Array
    vertices: Array
    steep: Array

    @classmethod
    def through(cls, etas: Array, losses: Array, cubic: Array) -> Parabolas:
        """Fit every row near its lowest point.

        Only near it: further out real curves are no parabolas, and points there would bend the
        fit. Rows with the same lowest point share their design matrix, so one call fits them all.
        """
        lowest: Index = losses.argmin(axis=1)
        coefficients = np.full((3, len(losses)), math.nan)
        for index in set(lowest.tolist()) - {0, len(etas) - 1}:
            distances, rows = etas - etas[index], lowest == index
            near = np.isfinite(losses[0]) & (np.abs(distances) <= radius(etas, index, FIT_RADIUS))
            if near.sum() >= 3:
                near_losses = losses[np.ix_(rows, near)]
                near_losses = near_losses - np.outer(cubic[rows], distances[near] ** 3)
                coefficients[:, rows] = np.polyfit(distances[near], near_losses.T, 2)
        coefficients[:, coefficients[0] <= 0] = math.nan
        a, b, _ = coefficients
        # Where the derivative, 3 cubic x^2 + 2 a x + b, vanishes and the second one is positive.
        vertices = -b / (a + np.sqrt(np.maximum(a * a - 3 * cubic * b, 0.0)))
        return cls(etas, losses, lowest, coefficients, cubic, vertices, np.ones(len(losses)))

    def with_valleys(self, rows: Index, valleys: Valleys, origin: float) -> Parabolas:
        """With `valleys`, whose vertices are distances from `origin`, in place of some rows."""
        # A valley's floor + c (u^2 + k u^3), u = x - v, is re-centred on the row's lowest point,
        # x = 0 there: c k x^3 + (c - 3 c k v) x^2 + (3 c k v - 2 c) v x + (c - c k v) v^2 + floor.
        # That is the skewed exponential of `rise` to third order, which is enough near the
        # vertex; its own points, laid by `Valleys.losses`, have all orders.
        v = valleys.vertices + origin - self.etas[self.lowest[rows]]
        c, k = valleys.curvatures, valleys.curvatures * valleys.skews
        coefficients, cubic, vertices, steep = (
            old.copy() for old in (self.coefficients, self.cubic, self.vertices, self.steep)
        )
        coefficients[:, rows] = c - 3 * k * v, (3 * k * v - 2 * c) * v, (c - k * v) * v**2
        coefficients[2, rows] += valleys.floors
        cubic[rows], vertices[rows], steep[rows] = k, v, valleys.steeps
        return replace(self, coefficients=coefficients, cubic=cubic, vertices=vertices, steep=steep)

    @cached_property
    def minima(self) -> tuple[Array, Array, Array]:
        """Every row's safe optimum (log2 eta), its loss there, and its free optimum.

        Both optima lie between the neighbours of the lowest point: a vertex further away would
        contradict what was measured there. The safe one also keeps off a neighbour that
        diverged. Without a parabola the safe optimum is the lowest point itself; the free ones
        spread over the whole range between its neighbours, since no point excludes any of it.
        """
        (a, b, c), etas, lowest = self.coefficients, self.etas, self.lowest
        neighbours = [np.clip(lowest + side, 0, len(etas) - 1) for side in (-1, 1)]
        left, right = (etas[index] - etas[lowest] for index in neighbours)
        vertex = self.vertices
        fitted, at_end = np.isfinite(vertex), (left == 0) | (right == 0)
        spread = left + (right - left) * (GOLDEN_RATIO * np.arange(len(lowest)) % 1)
        free = np.where(fitted, np.clip(vertex, left, right), np.where(at_end, 0.0, spread))
        finite = np.isfinite(self.losses[0])
        low, high = (
            np.where(finite[index], end, 0.0)
            for index, end in zip(neighbours, (left, right), strict=True)
        )
        safe = np.where(fitted, np.clip(vertex, low, high), 0.0)
        loss = np.where(
            fitted, ((self.cubic * safe + a) * safe + b) * safe + c, self.losses.min(axis=1)
        )
        return etas[lowest] + safe, loss, etas[lowest] + free

    def loss_gaps(self, at: Array) -> tuple[Array, Array]:
        """Bounds, lower and upper, on every row's loss at its eta of `at` above its minimum.

        Between two finite points the loss is the chord, or the parabola where that is lower, and
        both bounds agree. Beside a point that diverged and past the ends, the loss of the last
        point is the lower bound and the upper one is +inf. No bound is below 0.
        """
        etas, losses, last = self.etas, self.losses, len(self.etas) - 1
        above = np.searchsorted(etas, at - SAME_ETA)
        on_grid = np.abs(etas[np.minimum(above, last)] - at) <= SAME_ETA
        i, j = np.clip(above - ~on_grid, 0, last), np.minimum(above, last)
        left, right = (np.take_along_axis(losses, k[:, None], 1)[:, 0] for k in (i, j))
        low, high = np.minimum(left, right), np.maximum(left, right)
        high[(i == j) & ~on_grid] = math.inf
        inner = (i < j) & np.isfinite(high)
        progress = (at - etas[i])[inner] / (etas[j] - etas[i])[inner]
        chord = (1 - progress) * left[inner] + progress * right[inner]
        low[inner] = high[inner] = np.fmin(chord, self._values(at)[inner])
        least = self.minima[1]
        return np.maximum(0.0, low - least), np.maximum(0.0, high - least)

    def _values(self, at: Array) -> Array:
        """Every row's parabola at its eta; NaN beyond the points that it was fitted to."""
        a, b, c = self.coefficients
        x = at - self.etas[self.lowest]
        near = np.abs(x) <= radius(self.etas, self.lowest, FIT_RADIUS)
        values = ((self.cubic * x + a) * x + b) * x + c
        optima, least, _ = self.minima
        values = np.where(at > optima, least + self.steep * (values - least), values)
        return np.where(near, values, math.nan)


def rise(u: Array, skews: Array, ratios: Array) -> Array:
    """u^2 + k u^3 + ..., times the ratio where u is positive.

    It is 2 (e^(q u) - 1 - q u) / q^2 with q = 3 k, and no skew k may be 0.
    """
    # e^(q u) = 1 + q u + (q u)^2 / 2 + (q u)^3 / 6 + ...: after the factor 2 / q^2 the square has
    # coefficient 1 and the cube q / 3. A loss that rises exponentially past its optimum has all
    # further orders with it; a cubic alone would turn down again on its flat side.
    q = 3 * skews
    valley = 2 * (np.expm1(q * u) - q * u) / q**2
    risen: Array = np.where(u > 0, ratios, 1.0) * valley
    return risen


def radius(etas: Array, lowest: Index | int, distance: float) -> Array:
    """`distance` from the lowest point, or that of its neighbours where the grid is coarser."""
    left, right = (etas[np.clip(lowest + side, 0, len(etas) - 1)] for side in (-1, 1))
    spacing = np.maximum(etas[lowest] - left, right - etas[lowest])
    found: Array = np.maximum(distance, spacing) + SAME_ETA
    return found


# A smoother of a noisy curve, and its error: neighbouring points tell of each other.
# Near its lowest point a curve is a line, a square c x^2, a skew c k x^3 and a Gaussian process g
# in proportion to c. The curves of a ladder are alike: each has its own c and k around common
# ones, which all of them tell together. The best linear estimate A y of a curve from its losses y,
# these given, leaves any line as it is; its error is (A - 1) of what the curve has of its own, and
# A noise. An error of the common k moves all optima alike, so that it hardly matters for a shift.


Mask = NDArray[np.bool_]

OWN_CURVATURE = 0.4
"""Standard deviation of a curve's own c around that of its ladder, which is 1."""

SKEW, OWN_SKEW = 0.25, 0.05
"""Standard deviations of k over ladders, and of a curve's own k around that of its ladder.

A loss that rises exponentially, as c e^(q x), has a cubic part of c q / 3 and a quartic one of
c q^2 / 12; q is up to about 0.6 in measured curves."""
QUARTIC, WIGGLE = 0.06, 0.03
"""Those of g's parts in curvatures: x^4, and a function smooth over 1 in log2.

An exponential's quartic is q^2 / 12 = 0.03 at q = 0.6: half of QUARTIC, so that forms that are none
have room. WIGGLE was chosen on the ladders of `scripts/bench/verdict.py`, and has no other source.
"""


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


# Curves with a kink: from the optimum on, one side is steeper than the other.
# Such a curve is floor + c h(u), u the distance to the vertex: h is a skewed parabola, `rise`,
# times the ratio to the right. A smoother would round the kink off, and misplace the optimum by
# more than its error. Ratio and skew are common to a ladder, the vertex is a curve's own; a grid
# over all three has their likelihood, with floor and curvature integrated out. So the losses say
# how likely a kink is, and the bootstrap draws as many kinked curves: where they cannot tell, the
# intervals hold both kinds.
#
# The marginal likelihood of one curve. White losses are y = f 1 + a h + N(0, 1), f flat, the mean
# curvature a ~ N(m, s^2) its ladder's. What is orthogonal to 1 has no f: r = y - m h there has
# covariance 1 + s^2 h h', whose determinant is d = 1 + s^2 h'h (Sylvester) and whose inverse is
# 1 - s^2 h h' / d (Sherman and Morrison). So -2 log L = r'r - s^2 (h'r)^2 / d + log d + constant.
# Ratio and skew are shared: their log likelihoods add over the curves, each curve's averaged over
# its vertex, and the prior is added once.


RATIOS = 2.0 ** np.array([-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5])
SMOOTH = 3
"""The index of the ratio 1: no kink, and the draws are the smoother's."""
PRIOR = np.array([0.06, 0.06, 0.06, 0.64, 0.06, 0.06, 0.06])
"""Of the ratios: two ladders in three have no kink, and six ratios share the rest.

Chosen on the ladders of `scripts/bench/verdict.py`: kinked ones are seen as such at odds of 10 to 1
against each, and smooth ones lose 2 to 3 % of right answers to the doubt."""
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

    curves: Mapping[LadderSize, Kinked]
    weights: Array

    @classmethod
    def of(cls, ladder: Mapping[LadderSize, Points], shape: Shape) -> Kinks:
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
        self, size: LadderSize, generator: np.random.Generator, count: int
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
