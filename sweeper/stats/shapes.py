"""The shapes of learning-rate curves: a smoother, a kink, how far a curve is off both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeper.stats.estimate import Array
from sweeper.stats.gp import Process, alike_near, normal_draws, positive
from sweeper.stats.ladder import LadderSize

Index = NDArray[np.intp]

FIT_RADIUS = 1.0
"""Beside a point that diverged a parabola is fitted to the points within this distance, in log2."""

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
"""Its multiples, modulo 1, spread evenly over [0, 1) for any number of draws."""

SAME_ETA = 1e-9
"""Values of log2 eta that differ by less are the same grid point."""


@dataclass(frozen=True, eq=False)
class Parabolas:
    """Rows of losses [row, eta] at ascending `etas` (log2), +inf where runs diverged.

    All rows are finite at the same points. `lowest` is the index of each row's lowest point.
    `coefficients` [3, row] are those of the parabola near it, in the distance from it, and
    `vertices` [row] are their minima; NaN where fewer than three points are finite, the lowest
    point is at an end, or the parabola opens downwards.
    """

    etas: Array
    losses: Array
    lowest: Index
    coefficients: Array
    vertices: Array

    @classmethod
    def through(cls, etas: Array, losses: Array) -> Parabolas:
        """Fit every row near its lowest point: through it and its neighbours.

        Beside a point that diverged, the fit is that of all points within `FIT_RADIUS`: nothing
        else tells how the row goes on. Rows with the same lowest point share their design matrix,
        so one call fits them all.
        """
        lowest: Index = losses.argmin(axis=1)
        finite = np.isfinite(losses[0])
        coefficients = np.full((3, len(losses)), math.nan)
        for index in set(lowest.tolist()) - {0, len(etas) - 1}:
            distances, rows = etas - etas[index], lowest == index
            inner = finite[index - 1] and finite[index + 1]
            reach = radius(etas, index, 0.0 if inner else FIT_RADIUS)
            near = finite & (np.abs(distances) <= reach)
            if near.sum() >= 3:
                fit = _parabola(tuple(distances[near].round(9)))
                coefficients[:, rows] = fit @ losses[np.ix_(rows, near)].T
        # One that opens downwards has a vertex that is the highest place.
        coefficients[:, coefficients[0] <= 0] = math.nan
        vertices = -coefficients[1] / (2 * coefficients[0])
        return cls(etas, losses, lowest, coefficients, vertices)

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
        to_left, to_right = (etas[index] - etas[lowest] for index in neighbours)
        vertex = self.vertices
        fitted, at_end = np.isfinite(vertex), (to_left == 0) | (to_right == 0)
        # Without a fit: at an end the point itself, else anywhere between neighbours.
        spread = to_left + (to_right - to_left) * (GOLDEN_RATIO * np.arange(len(lowest)) % 1)
        free = np.where(fitted, np.clip(vertex, to_left, to_right), np.where(at_end, 0.0, spread))
        finite = np.isfinite(self.losses[0])
        low, high = (
            np.where(finite[index], end, 0.0)
            for index, end in zip(neighbours, (to_left, to_right), strict=True)
        )
        safe = np.where(fitted, np.clip(vertex, low, high), 0.0)
        loss = np.where(fitted, (a * safe + b) * safe + c, self.losses.min(axis=1))
        return etas[lowest] + safe, loss, etas[lowest] + free

    def loss_gaps(self, at: Array) -> tuple[Array, Array]:
        """Bounds, lower and upper, on every row's loss at its eta of `at` above its minimum.

        Between two finite points the loss is the chord, or the parabola where that is lower; where
        rows are drawn densely, it is the parabola through a third one. Both bounds agree. Beside a
        point that diverged and past the ends, the loss of the last point is the lower bound and
        the upper one is +inf. No bound is below 0.
        """
        etas, losses, last = self.etas, self.losses, len(self.etas) - 1
        above = np.searchsorted(etas, at - SAME_ETA)
        on_grid = np.abs(etas[np.minimum(above, last)] - at) <= SAME_ETA
        i, j = np.clip(above - ~on_grid, 0, last), np.minimum(above, last)
        lower_loss, upper_loss = (np.take_along_axis(losses, k[:, None], 1)[:, 0] for k in (i, j))
        low, high = np.minimum(lower_loss, upper_loss), np.maximum(lower_loss, upper_loss)
        # Past the ends nothing bounds a loss from above.
        high[(i == j) & ~on_grid] = math.inf
        inner = (i < j) & np.isfinite(high)
        progress = (at - etas[i])[inner] / (etas[j] - etas[i])[inner]
        chord = (1 - progress) * lower_loss[inner] + progress * upper_loss[inner]
        # Newton's divided differences, with the point before the two.
        h, k = etas[j] - etas[i], np.maximum(i - 1, 0)
        before = np.take_along_axis(losses, k[:, None], 1)[:, 0]
        even = inner & (i > 0) & (h <= SPACING + SAME_ETA) & np.isfinite(before)
        even &= np.abs(etas[i] - etas[k] - h) <= SAME_ETA
        # The chord lies above a valley; the second difference of three evenly
        # spaced points says by how much. Where points are far apart, or one
        # diverged, the chord stays, on the careful side.
        bend = np.zeros(len(at))
        bend[even] = before[even] - 2 * lower_loss[even] + upper_loss[even]
        chord -= progress * (1 - progress) * bend[inner] / 2
        low[inner] = high[inner] = np.fmin(chord, self._values(at)[inner])
        least = self.minima[1]
        return np.maximum(0.0, low - least), np.maximum(0.0, high - least)

    def _values(self, at: Array) -> Array:
        a, b, c = self.coefficients
        x = at - self.etas[self.lowest]
        near = np.abs(x) <= radius(self.etas, self.lowest, 0.0)
        return np.where(near, (a * x + b) * x + c, math.nan)


@lru_cache(maxsize=256)
def _parabola(x: tuple[float, ...]) -> Array:
    return np.linalg.pinv(np.vander(np.array(x), 3))


def rise(u: Array, skews: Array, ratios: Array) -> Array:
    """u^2 + k u^3 + ..., times the ratio where u is positive.

    It is 2 (e^(q u) - 1 - q u) / q^2 with q = 3 k, and no skew k may be 0.
    """
    # e^(q u) = 1 + q u + (q u)^2 / 2 + (q u)^3 / 6 + ...: after the factor 2 / q^2 the square has
    # coefficient 1 and the cube q / 3. A loss that rises exponentially past its optimum has all
    # further orders with it; a cubic alone would turn down again on its flat side.
    q = 3 * skews
    valley = 2 * (np.expm1(q * u) - q * u) / q**2
    return np.where(u > 0, ratios, 1.0) * valley


def radius(etas: Array, lowest: Index | int, distance: float) -> Array:
    """`distance` from the lowest point, or that of its neighbours where the grid is coarser."""
    lower, upper = (etas[np.clip(lowest + side, 0, len(etas) - 1)] for side in (-1, 1))
    spacing = np.maximum(etas[lowest] - lower, upper - etas[lowest])
    return np.asarray(np.maximum(distance, spacing) + SAME_ETA)


SPACING = 1 / 8
"""Curves are drawn at points at most this far apart, in log2, between the measured ones."""


def dense(x: Array) -> tuple[Array, Index]:
    """Points between those of `x`, ascending, with them, and the indices of `x` among them."""
    counts = np.ceil((np.diff(x) - SAME_ETA) / SPACING).astype(int)
    parts = [
        np.linspace(lower, upper, count, endpoint=False)
        for lower, upper, count in zip(x[:-1], x[1:], counts, strict=True)
    ]
    return np.concatenate([*parts, x[-1:]]), np.append(0, counts.cumsum())


# A smoother of a noisy curve, and its error: neighbouring points tell of each other.
# Near its lowest point a curve is a line, a square c x^2, a skew c k x^3 and a Gaussian process g
# in proportion to c. The curves of a ladder are alike: each has its own c and k around common
# ones, which all of them tell together. The best linear estimate A y of a curve from its losses y,
# these given, leaves any line as it is; its error is (A - 1) of what the curve has of its own, and
# A noise. It is drawn between the measured points too: there no parabola is right, and least of all
# on a coarse grid. An error of the common k moves all optima alike, and hardly matters for a shift.


Mask = NDArray[np.bool_]

OWN_CURVATURE = 0.4
"""Standard deviation of a curve's own c around that of its ladder, which is 1."""

SKEW, OWN_SKEW = 0.25, 0.05
"""Standard deviations of k over ladders, and of a curve's own k around that of its ladder.

A loss that rises exponentially, as c e^(q x), has a cubic part of c q / 3 and a quartic one of
c q^2 / 12; q is up to about 0.6 in measured curves."""


class Misfit(NamedTuple):
    """Standard deviations of g's parts in curvatures: x^4, and a function smooth over `length`."""

    quartic: float
    wiggle: float
    length: float


MISFITS = (
    Misfit(0.06, 0.03, 1.0),
    Misfit(0.3, 0.03, 1.0),
    Misfit(0.1, 0.1, 0.5),
    Misfit(0.3, 0.3, 0.5),
    Misfit(0.3, 1.0, 0.5),
)
"""How far curves may be off a skewed parabola: the losses of a ladder tell how far they are.

An exponential's quartic is q^2 / 12 = 0.03 at q = 0.6: half of the first, so that forms that are
none have room. A flat bottom or a second minimum take the last ones. All were chosen on the ladders
of `scripts/bench/verdict.py`, and have no other source."""
MISFIT_PRIOR = np.array([0.5, 0.1, 0.15, 0.15, 0.1])


@dataclass(frozen=True, eq=False)
class Points:
    """Mean losses [point] at `x`, log2 from the lowest, all finite; `noise` is their covariance."""

    x: Array
    means: Array
    noise: Array

    @cached_property
    def curvature(self) -> tuple[float, float]:
        """The least-squares parabola's second coefficient (nats), and its variance."""
        if len(self.x) < 3:
            return 0.0, math.inf
        row = np.linalg.pinv(np.vander(self.x, 3))[0]
        return float(row @ self.means), float(row @ self.noise @ row)


@dataclass(frozen=True)
class CurveShape:
    """What the curves of a ladder share: c with the spread of a curve's own, k, and a misfit."""

    curvature: float
    spread: float
    skew: float = 0.0
    skew_deviation: float = SKEW
    misfit: Misfit = MISFITS[0]

    @classmethod
    def of(cls, ladder: Sequence[Points], misfit: Misfit = MISFITS[0]) -> CurveShape:
        """Given all curves of a ladder: the means, weighted by what each curve tells."""
        curvatures = [value for points in ladder if math.isfinite((value := points.curvature)[1])]
        if not curvatures:
            return cls(0.0, 0.0)
        values, variances = np.array(curvatures).T
        # Curvatures scatter in proportion to the common one, which is not known yet: the median,
        # which one curve of much noise hardly moves, stands in for it.
        level = max(0.0, float(np.median(values)))
        weights = 1 / (variances + (OWN_CURVATURE * level) ** 2 + np.finfo(float).tiny)
        curvature = max(0.0, float(values @ weights / weights.sum()))
        # What a curve has of its own, and how badly the common one is known.
        spread = math.sqrt((OWN_CURVATURE * curvature) ** 2 + 1 / weights.sum())
        shape = cls(curvature, spread, misfit=misfit)
        # The prior of k counts like a curve that says 0.
        precision, total = SKEW**-2, 0.0
        for information, score in (Smoother(points, shape).skew_evidence() for points in ladder):
            precision, total = precision + information, total + score
        return replace(shape, skew=total / precision, skew_deviation=precision**-0.5)


@dataclass(frozen=True, eq=False)
class Smoother:
    """The best linear estimate of a curve from its `points`, given its ladder's `shape`."""

    points: Points
    shape: CurveShape

    @cached_property
    def curvature(self) -> float:
        """The curve's own, shrunk towards its ladder's: what k and g are measured in."""
        value, variance = self.points.curvature
        own = self.shape.spread**2
        if not math.isfinite(variance) or own + variance == 0:
            return self.shape.curvature
        return max(0.0, (value * own + self.shape.curvature * variance) / (own + variance))

    def prior(self, x: Array) -> Array:
        """The covariance of what the curve has of its own at `x`, but for its line."""
        square = self.shape.spread * x**2
        return deviation(x, self.curvature, self.shape.misfit) + np.outer(square, square)

    def cubic(self, x: Array) -> Array:
        """What a k of 1 adds to the losses at `x`."""
        return self.curvature * x**3

    def _process(self, values: Array) -> Process:
        covariance = positive(self.prior(self.points.x) + self.points.noise)
        return Process(covariance, values, np.vander(self.points.x, 2))

    def skew_evidence(self) -> tuple[float, float]:
        """The information on k, and that times the estimate of k."""
        x = self.points.x
        # A line and a square go through three points: they tell nothing of a cube.
        if len(x) <= 3:
            return 0.0, 0.0
        rest = self.points.means - self.shape.curvature * x**2
        cubic, rest_white = self._process(np.column_stack([self.cubic(x), rest])).residuals.T
        return float(cubic @ cubic), float(cubic @ rest_white)

    def rows(
        self, generator: np.random.Generator, noises: Array, normal: Array, x: Array, at: Index
    ) -> Array:
        """The smoothed losses at `x`, then curves that are as likely [1 + draw, len(x)].

        `at` are the indices in `x` of the points, `noises` [draw, point] draws of their errors,
        and `normal` [draw] those of the error of the common skew.
        """
        shape, points, count = self.shape, self.points, len(noises)
        prior = self.prior(x)
        # Universal kriging: any line is as likely as another, and is left as it is.
        matrix = self._process(points.means).estimator(prior[:, at], np.vander(x, 2))
        usual = shape.curvature * x**2 + shape.skew * self.cubic(x)
        smoothed = usual + matrix @ (points.means - usual[at])
        own = normal_draws(generator, prior, count)
        own += shape.skew_deviation * normal[:, None] * self.cubic(x)
        # Matheron's rule: a drawn curve, less what its own noisy losses would say of it.
        errors = own - (own[:, at] + noises) @ matrix.T
        return np.vstack([smoothed, smoothed + errors])


def deviation(x: Array, curvature: float, misfit: Misfit = MISFITS[0]) -> Array:
    """The covariance [point, point] of g and a curve's own skew at the distances `x` in log2."""
    cubic, quartic = np.outer(x**3, x**3), np.outer(x**4, x**4)
    smooth = misfit.wiggle**2 * alike_near(x, x, misfit.length)
    parts = OWN_SKEW**2 * cubic + misfit.quartic**2 * quartic + smooth
    return curvature**2 * parts


# Curves with a kink: from the optimum on, one side is steeper than the other.
# Such a curve is floor + c h(u), u the distance to the vertex: h is a skewed parabola, `rise`,
# times the ratio to the right. A smoother would round the kink off, and misplace the optimum by
# more than its error. Ratio and skew are common to a ladder, the vertex is a curve's own; a grid
# over all three has their likelihood, with floor and curvature integrated out, for each of the
# `MISFITS`. So the losses say how likely a kink and a misfit are, and the bootstrap draws as many
# such curves: where they cannot tell, the intervals hold all kinds.
#
# The marginal likelihood of one curve. White losses are y = f 1 + a h + N(0, 1), f flat, the mean
# curvature a ~ N(m, s^2) its ladder's. What is orthogonal to 1 has no f: r = y - m h there has
# covariance 1 + s^2 h h', whose determinant is d = 1 + s^2 h'h (Sylvester) and whose inverse is
# 1 - s^2 h h' / d (Sherman and Morrison). So -2 log L = r'r - s^2 (h'r)^2 / d + log d + constant;
# the constant is the determinant of what whitened the losses, which only misfits differ in.
# Ratio and skew are shared: their log likelihoods add over the curves, each curve's averaged over
# its vertex, and the prior is added once.


RATIOS = 2.0 ** np.arange(-1.5, 1.75, 0.25)
SMOOTH = 6
"""The index of the ratio 1: no kink, and the draws are the smoother's."""
PRIOR = np.array([0.03] * 6 + [0.64] + [0.03] * 6)
"""Of the ratios: two ladders in three have no kink, and twelve ratios share the rest.

Chosen on the ladders of `scripts/bench/verdict.py`."""
SKEWS = np.array([-0.5, -0.4, -0.3, -0.2, -0.1, 1e-3, 0.1, 0.2, 0.3, 0.4, 0.5])
"""In place of 0, where h would be 0 / 0, nearly 0: else a kink and a skew together would fit a
parabola better than no kink does."""
COARSE, FINE = 41, 201
"""Vertices over the range of a curve's points: the likelihood is interpolated between them."""
ROUGH = 0.01
"""In curvatures, what a grid of vertices and ratios leaves of a curve without noise."""
MIN_POINTS = 3
"""With fewer near its lowest one a curve is a line."""
MIN_MISFIT = 4
"""With fewer at every size no losses tell a misfit, and the least is taken."""
MIN_SMOOTHED = 6
"""With fewer the smoother's curves are not drawn from: on a coarse grid a cubic turns down between
the points, where valleys with all orders do not."""


@dataclass(frozen=True, eq=False)
class Kinked:
    """What one curve says of every ratio, skew and vertex, given a misfit."""

    points: Points
    shape: CurveShape

    @cached_property
    def white(self) -> Array:
        """The inverse root [point, point] of the covariance of noise and what no model holds."""
        curvature = Smoother(self.points, self.shape).curvature
        total = self.points.noise + deviation(self.points.x, curvature, self.shape.misfit)
        total += (ROUGH * curvature) ** 2 * np.eye(len(total))
        # A Cholesky factor whitens as any root does, and its diagonal gives the determinant.
        return np.linalg.inv(np.linalg.cholesky(positive(total)))

    @cached_property
    def log_likelihood(self) -> Array:
        """[ratio, skew, vertex] at `FINE` vertices."""
        heights = _heights(tuple(self.points.x.round(9)))
        variance, mean = self.shape.spread**2, self.shape.curvature
        floor = self.white.sum(axis=1)
        # Integrating the floor out leaves one over the length of its column, white.
        level = np.log(np.diagonal(self.white)).sum() - np.log(np.linalg.norm(floor))
        floor /= np.linalg.norm(floor)
        flat = self.white - np.outer(floor, floor @ self.white)
        precision = flat.T @ flat
        weighted, losses = heights @ precision, self.points.means - self.points.means.min()
        squares, products = (weighted * heights).sum(axis=-1), weighted @ losses
        # r'r, s^2 (h'r)^2 / d and d of the comment above.
        rest = losses @ precision @ losses - 2 * mean * products + mean**2 * squares
        open_ = 1 + variance * squares
        fit = variance * (products - mean * squares) ** 2 / open_
        return _interpolated(level - (rest - fit + np.log(open_)) / 2)

    def valleys(
        self, ratios: Index, skews: Index, uniform: Array, normal: Array, at: Array
    ) -> Array:
        """A likely valley a row [row, at], floor + curvature h(u), by its ratio's and skew's index.

        `uniform` [row] in [0, 1) and `normal` [2, row] are the chances that it is drawn with.
        """
        likely = np.exp(self.log_likelihood - self.log_likelihood.max(axis=-1, keepdims=True))
        # The vertex by its cumulative likelihood, turned round.
        total = likely.cumsum(axis=-1)[ratios, skews]
        chosen = (total < uniform[:, None] * total[:, -1:]).sum(axis=1)
        x, steeps, ks = self.points.x, RATIOS[ratios, None], SKEWS[skews, None]
        vertices = np.linspace(x.min(), x.max(), FINE)[chosen, None]
        heights = rise(x - vertices, ks, steeps)
        # Curves of a ladder are alike in the mean curvature of both sides, whatever their ratio.
        columns = 2 / (1 + steeps) * heights @ self.white.T
        floor = self.white.sum(axis=1)
        means, precision = self.white @ self.points.means, self.shape.spread**-2
        # Least squares of floor and curvature together: the normal equations of two unknowns.
        floors_squared, both = floor @ floor, columns @ floor
        two = (columns**2).sum(axis=1) + precision
        sums = floor @ means, columns @ means + precision * self.shape.curvature
        determinant = floors_squared * two - both**2
        curvatures = (floors_squared * sums[1] - both * sums[0]) / determinant
        # The curvature by its own error, then the floor by what that leaves it.
        curvatures += normal[0] * np.sqrt(floors_squared / determinant)
        # A valley that is flat, or a hill, has no optimum.
        curvatures = np.maximum(curvatures, 1e-3 * self.shape.curvature)
        floors = (sums[0] - both * curvatures) / floors_squared
        floors += normal[1] / np.sqrt(floors_squared)
        heights = 2 / (1 + steeps) * curvatures[:, None] * rise(at - vertices, ks, steeps)
        losses: Array = floors[:, None] + heights
        return losses

    def around(
        self,
        valleys: Array,
        generator: np.random.Generator,
        noises: Array,
        drawn: Mask,
        x: Array,
        at: Index,
    ) -> Array:
        """Likely curves [row, len(x)] around `valleys` at `x`: with what the losses have beside.

        `noises` [row, point] are draws of the losses' errors; a row that is not `drawn` is the mean
        of such curves.
        """
        curvature = Smoother(self.points, self.shape).curvature
        prior = deviation(x, curvature, self.shape.misfit)
        matrix = prior[:, at] @ self.white.T @ self.white
        own = normal_draws(generator, prior, len(valleys)) * drawn[:, None]
        errors = own[:, at] + noises * drawn[:, None]
        return valleys + own + (self.points.means - valleys[:, at] - errors) @ matrix.T


@dataclass(frozen=True, eq=False)
class Forms:
    """The probability [misfit, ratio, skew] of what the curves of a ladder have in common."""

    shapes: tuple[CurveShape, ...]
    curves: Mapping[LadderSize, tuple[Kinked, ...]]
    weights: Array

    @classmethod
    def of(cls, ladder: Mapping[LadderSize, Points]) -> Forms:
        """What the points of a ladder's curves say together."""
        shapes = tuple(CurveShape.of(list(ladder.values()), misfit) for misfit in MISFITS)
        curves = {
            size: tuple(Kinked(points, shape) for shape in shapes)
            for size, points in ladder.items()
            if shapes[0].curvature > 0
            and len(points.x) >= MIN_POINTS
            and points.x.min() < 0 < points.x.max()
        }
        total = np.log(MISFIT_PRIOR)[:, None, None] + np.log(PRIOR)[:, None]
        # k ~ N(0, SKEW^2) over ladders.
        total = total - (SKEWS / SKEW) ** 2 / 2
        for kinks in curves.values():
            logs = np.array([kinked.log_likelihood for kinked in kinks])
            # Averaged over the vertex, a curve's own; all else is shared and adds up.
            total += np.log(np.exp(logs - logs.max()).mean(axis=-1) + 1e-300)
        if all(len(points.x) < MIN_MISFIT for points in ladder.values()):
            total[1:] = -math.inf
        weights = np.exp(total - total.max())
        return cls(shapes, curves, weights / weights.sum())

    def chosen(self, count: int) -> tuple[Index, Index, Index]:
        """Misfit, ratio, skew of 1 + `count` rows, the likeliest first, for a whole ladder."""
        # Its own generator: row by row all curves have one kind, which moves no shift.
        flat = np.random.default_rng(1).choice(
            self.weights.size, size=1 + count, p=self.weights.ravel()
        )
        misfit = self.weights.sum(axis=(1, 2)).argmax()
        ratio = self.weights[misfit].sum(axis=1).argmax()
        likeliest = misfit, ratio, self.weights[misfit, ratio].argmax()
        flat[0] = np.ravel_multi_index(likeliest, self.weights.shape)
        misfits, ratios, skews = np.unravel_index(flat, self.weights.shape)
        return misfits, ratios, skews

    def evenly(self, generator: np.random.Generator, count: int) -> Index:
        """Which of `count` drawn rows to take, as many, if kinds were more evenly likely before.

        Kinks are as likely as none then, ratio by ratio, and misfits have the root of their prior.
        An average over kinds holds the truth as often as it says, but too seldom that of the rare
        kinds which the losses cannot tell from a smooth curve.
        """
        misfits, ratios, _ = self.chosen(count)
        weights = (MISFIT_PRIOR[misfits] ** -0.5 / PRIOR[ratios])[1:]
        # Systematic resampling: one chance for all places, which adds less noise than one for each.
        places = (generator.random() + np.arange(count)) / count
        taken = np.searchsorted(weights.cumsum() / weights.sum(), places)
        return np.minimum(taken, count - 1)

    def rows(
        self,
        points: Points,
        size: LadderSize,
        generator: np.random.Generator,
        noises: Array,
        x: Array,
        at: Index,
    ) -> Array:
        """Likely curves at `x` [1 + draw, len(x)], the likeliest first.

        `at` are the indices in `x` of the points, and `noises` [draw, point] draws of their errors.
        """
        misfits, ratios, skews = self.chosen(len(noises))
        rows = np.empty((1 + len(noises), len(x)))
        # A curve whose lowest point is at an end shows no vertex that a kink could be at.
        smooth = np.ones(len(rows), dtype=bool)
        if size in self.curves:
            smooth = ratios == SMOOTH
            smooth[1:] &= len(points.x) >= MIN_SMOOTHED
        # The same draws of the skew's error for all curves of a ladder.
        errors = np.random.default_rng(0).normal(size=len(noises))
        uniform, normal = generator.random(len(rows)), generator.normal(size=(2, len(rows)))
        # Row 0 is the value: the middle of all that may be drawn.
        uniform[0], normal[:, 0] = 0.5, 0.0
        for index, shape in enumerate(self.shapes):
            mine = np.flatnonzero(smooth & (misfits == index))
            if len(mine):
                smoother, drawn = Smoother(points, shape), mine[mine > 0] - 1
                drawn_rows = smoother.rows(generator, noises[drawn], errors[drawn], x, at)
                # The smoother gives its own row first: out where row 0 is of another kind.
                rows[mine] = drawn_rows[len(drawn_rows) - len(mine) :]
            mine = np.flatnonzero(~smooth & (misfits == index))
            if len(mine):
                kinked = self.curves[size][index]
                valleys = kinked.valleys(
                    ratios[mine], skews[mine], uniform[mine], normal[:, mine], x
                )
                rows[mine] = kinked.around(valleys, generator, noises[mine - 1], mine > 0, x, at)
        return rows


@lru_cache(maxsize=32)
def _heights(x: tuple[float, ...]) -> Array:
    """What a mean curvature of 1 adds to the losses at `x` [ratio, skew, vertex, point].

    The vertices are `COARSE` ones over the range of `x`; a ladder's curves have few grids.
    """
    points = np.array(x)
    vertices = np.linspace(points.min(), points.max(), COARSE)
    ratios, skews, at = np.meshgrid(RATIOS, SKEWS, vertices, indexing="ij")
    ratios, skews, at = ratios[..., None], skews[..., None], at[..., None]
    return np.asarray(2 / (1 + ratios) * rise(points - at, skews, ratios))


def _interpolated(values: Array) -> Array:
    """Interpolates `COARSE` places at `FINE` ones, by parabolas through the nearest three."""
    places = np.linspace(0, COARSE - 1, FINE)
    middle = np.clip(np.rint(places).astype(int), 1, COARSE - 2)
    t = places - middle
    lower, at, upper = (values[..., middle + side] for side in (-1, 0, 1))
    return np.asarray(at + t * (upper - lower) / 2 + t**2 * (lower + upper - 2 * at) / 2)
