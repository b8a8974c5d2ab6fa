"""The optimum of a measured learning-rate curve, with intervals from its own noise."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sweeper.transfer.basin import Basin, basin
from sweeper.transfer.estimate import Estimate
from sweeper.transfer.ladder import SizeCurve

DRAWS = 2000
"""Bootstrap draws behind every interval."""
NEAR = 1.0
"""The parabola is fitted to points within this distance, in log2, of the lowest one."""

GOLDEN = (math.sqrt(5) - 1) / 2
"""Its multiples, modulo 1, are spread evenly however many are taken."""

Array = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What one curve says: its optimum (log2 eta), least loss and basin, and bootstrap draws.

    `loss` is that of a mean over seeds, its interval that of the mean over all seeds there are.
    `regret` is the loss in nats by training at the transferred eta instead of the optimum.
    `at_end` tells that the lowest point is the first or last of the curve, so that the optimum
    is only a bound; `noise` is the standard deviation of a run in nats, NaN where there are too
    few seeds or finite points to tell. `optimum_draws` keep off a point that diverged, as a plan
    must; `place_draws` say where the optimum may be, up to that point.
    """

    curve: SizeCurve
    optimum: Estimate
    loss: Estimate
    regret: Estimate
    basin: Basin
    at_end: bool
    noise: float
    optimum_draws: Array
    place_draws: Array
    mean_draws: Array

    def cost(self, eta: float, draws: Array | None = None) -> Estimate:
        """Loss in nats of training at `eta` (log2), on the grid or between, above the least.

        `draws` [DRAWS] of eta carry its own uncertainty into the interval. Where the curve was
        not measured, the value is the least that it can be and the interval reaches +inf.
        """
        etas = np.array(sorted(self.curve.losses))
        means = np.array([np.mean(self.curve.losses[float(value)]) for value in etas])
        where = np.full(len(self.mean_draws), eta) if draws is None else draws
        lows, highs = _above(etas, np.vstack([means, self.mean_draws]), np.append(eta, where))
        low, high = (Estimate.of(float(side[0]), side[1:]) for side in (lows, highs))
        return Estimate(value=low.value, low=low.low, high=high.high)


def fit(curve: SizeCurve, transferred: float) -> Fit | None:
    """Fit a parabola around the lowest point; None when no point of the curve is finite.

    The noise of a point is estimated from the residuals of losses after removing the mean of
    every eta and of every seed (all points share their seeds, and a seed's common offset moves
    no optimum); the intervals come from refitting with noise drawn afresh.
    """
    etas = np.array(sorted(curve.losses))
    runs = np.array([curve.losses[float(eta)] for eta in etas])
    means = runs.mean(axis=1)
    if not np.isfinite(means).any():
        return None
    best = int(np.argmin(means))
    near = _near(etas, runs, best)
    noise, freedom = _noise(near)
    # Seeded by the size: a fit repeats exactly, and two sizes' draws are independent.
    generator = np.random.default_rng(list(astuple(curve.size)))
    draws = means + _disturbances(generator, runs.shape, noise, freedom)
    rows = np.vstack([means, draws])
    places, heights, free = _vertices(etas, rows)
    loss_draws = heights[1:] + _offsets(generator, near, noise)
    found = Fit(
        curve=curve,
        optimum=Estimate.of(float(places[0]), free[1:]),
        loss=Estimate.of(float(heights[0]), loss_draws),
        regret=Estimate(value=0.0, low=0.0, high=0.0),
        basin=basin(etas, rows, places, heights),
        at_end=best in (0, len(etas) - 1),
        noise=noise,
        optimum_draws=places[1:],
        place_draws=free[1:],
        mean_draws=draws,
    )
    return replace(found, regret=found.cost(transferred))


def _disturbances(
    generator: np.random.Generator, shape: tuple[int, int], noise: float, freedom: int
) -> Array:
    """What `noise` may add to the mean of every point, one row a draw; zeros if it is unknown.

    Each row has a noise of its own, for `noise` is an estimate of few degrees of freedom: taken
    together the rows are Student's t.
    """
    points, seeds = shape
    if math.isnan(noise):
        return np.zeros((DRAWS, points))
    spread = noise * np.sqrt(freedom / generator.chisquare(freedom, (DRAWS, 1)) / seeds)
    return generator.normal(0.0, 1.0, (DRAWS, points)) * spread


def _offsets(generator: np.random.Generator, near: Array, noise: float) -> Array:
    """What the choice of seeds may add to the loss of every draw: their common offset."""
    seeds = near.shape[1]
    if math.isnan(noise):
        return np.zeros(DRAWS)
    error = float(near.mean(0).std(ddof=1)) / math.sqrt(seeds)
    return error * generator.standard_t(seeds - 1, DRAWS)


def _reach(etas: Array, best: Index | int, distance: float) -> Array:
    """`distance` from the lowest point, or that of its neighbours where the grid is wider."""
    left, right = (etas[np.clip(best + side, 0, len(etas) - 1)] for side in (-1, 1))
    reach: Array = np.maximum(distance, np.maximum(etas[best] - left, right - etas[best])) + 1e-9
    return reach


def _fitted(etas: Array, rows: Array) -> tuple[Array, Index]:
    """Coefficients [3, row] of a parabola near the lowest point of every row, and its index.

    By least squares; NaN where fewer than three points are finite, the lowest is at an end, or it
    opens downwards. All rows are finite at the same points.
    """
    best: Index = rows.argmin(axis=1)
    found = np.full((3, len(rows)), math.nan)
    for index in set(best.tolist()) - {0, len(etas) - 1}:
        away, mine = etas - etas[index], best == index
        near = np.isfinite(rows[0]) & (np.abs(away) <= _reach(etas, index, NEAR))
        if near.sum() >= 3:
            found[:, mine] = np.polyfit(away[near], rows[np.ix_(mine, near)].T, 2)
    found[:, found[0] <= 0] = math.nan
    return found, best


def _vertices(etas: Array, rows: Array) -> tuple[Array, Array, Array]:
    """Place and height of every row's minimum: the parabola's, between the lowest's neighbours.

    The place is not sought on the side of a neighbour that diverged; the third array holds it
    without that rule. Where no parabola can be fitted, the lowest point itself is the answer,
    and in the third array the rows' places are spread between its neighbours.
    """
    (a, b, c), best = _fitted(etas, rows)
    sides = [np.clip(best + side, 0, len(etas) - 1) for side in (-1, 1)]
    finite = np.isfinite(rows[0])
    left, right = (etas[side] - etas[best] for side in sides)
    vertex = -b / (2 * a)
    known = np.isfinite(vertex)
    ends = (left == 0) | (right == 0)
    spread = np.where(ends, 0.0, left + (right - left) * (GOLDEN * np.arange(len(rows)) % 1))
    free = np.where(known, np.clip(vertex, left, right), spread)
    bounds = (
        np.where(finite[side], edge, 0.0) for side, edge in zip(sides, (left, right), strict=True)
    )
    place = np.where(known, np.clip(vertex, *bounds), 0.0)
    height = np.where(known, (a * place + b) * place + c, rows.min(axis=1))
    return etas[best] + place, height, etas[best] + free


def _parabolas(etas: Array, rows: Array, where: Array) -> Array:
    """Every row's parabola at its eta of `where`; NaN beyond the points that it was fitted to."""
    (a, b, c), best = _fitted(etas, rows)
    x = where - etas[best]
    return np.where(np.abs(x) <= _reach(etas, best, NEAR), (a * x + b) * x + c, math.nan)


def _above(etas: Array, rows: Array, where: Array) -> tuple[Array, Array]:
    """Bounds on how far every row lies above its minimum at its eta of `where`; >= 0.

    Between two finite points it is straight, or the parabola where that is lower. Beside a
    point that diverged and past the ends nothing is known but that it rises from the last point.
    """
    last = len(etas) - 1
    above = np.searchsorted(etas, where - 1e-9)
    exact = np.abs(etas[np.minimum(above, last)] - where) <= 1e-9
    i, j = np.clip(above - ~exact, 0, last), np.minimum(above, last)
    left, right = (np.take_along_axis(rows, side[:, None], 1)[:, 0] for side in (i, j))
    low, high = np.minimum(left, right), np.maximum(left, right)
    high[(i == j) & ~exact] = math.inf
    inner = (i < j) & np.isfinite(high)
    share = (where - etas[i])[inner] / (etas[j] - etas[i])[inner]
    straight = (1 - share) * left[inner] + share * right[inner]
    low[inner] = high[inner] = np.fmin(straight, _parabolas(etas, rows[inner], where[inner]))
    least = _vertices(etas, rows)[1]
    return np.maximum(0.0, low - least), np.maximum(0.0, high - least)


def _near(etas: Array, runs: Array, best: int) -> Array:
    """The points near the lowest, all of whose runs are finite [eta, seed]."""
    close = np.abs(etas - etas[best]) <= _reach(etas, best, 2 * NEAR)
    found: Array = runs[np.isfinite(runs).all(axis=1) & close]
    return found


def _noise(part: Array) -> tuple[float, int]:
    """Standard deviation of one run around its (eta, seed) means, and its degrees of freedom.

    NaN where the runs [eta, seed] are too few.
    """
    rows, columns = part.shape
    freedom = (rows - 1) * (columns - 1)
    if freedom < 1:
        return math.nan, 0
    residual = part - part.mean(1, keepdims=True) - part.mean(0, keepdims=True) + part.mean()
    return float(np.sqrt((residual**2).sum() / freedom)), freedom
