"""The optimum of a measured learning-rate curve, with intervals from its own noise."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sweeper.transfer.basin import Basin, basin
from sweeper.transfer.estimate import Estimate
from sweeper.transfer.ladder import SizeCurve
from sweeper.transfer.parabola import NEAR, Parabolas, reach

DRAWS = 2000
"""Bootstrap draws behind every interval."""

BIAS = 0.04
"""Standard error in log2 of any optimum beside its noise: curves are no exact parabolas.

A slope that is half as steep again on one side moves the fit by so much. Two sizes' curves are
alike, so that their shift is free of it."""

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What one curve says: its optimum (log2 eta), least loss and basin, and bootstrap draws.

    `loss` is that of a mean over seeds, its interval that of the mean over all seeds there are.
    `regret` is the loss in nats by training at the transferred eta instead of the optimum.
    `at_end` tells that the lowest point is the first or last of the curve, so that the optimum
    is only a bound; `noise` is the standard deviation of a run in nats, NaN where there are too
    few seeds or finite points to tell: all intervals but the basin's are then infinite.
    `optimum_draws` keep off a point that diverged, as a plan must; `place_draws` say where the
    optimum may be, up to that point.
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
    parabolas: Parabolas

    def cost(self, eta: float, draws: Array | None = None) -> Estimate:
        """Loss in nats of training at `eta` (log2), on the grid or between, above the least.

        `draws` [DRAWS] of eta carry its own uncertainty into the interval. Where the curve was
        not measured, the value is the least that it can be and the interval reaches +inf.
        """
        where = np.full(len(self.optimum_draws), eta) if draws is None else draws
        lows, highs = self.parabolas.above(np.append(eta, where))
        low, high = (Estimate.of(float(side[0]), side[1:]) for side in (lows, highs))
        found = Estimate(value=low.value, low=low.low, high=high.high)
        return found.unsure(0.0) if self.unsure and math.isfinite(low.value) else found

    @property
    def unsure(self) -> bool:
        """Whether the noise is unknown, so that there are no intervals."""
        return math.isnan(self.noise)


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
    parabolas = Parabolas.through(etas, np.vstack([means, draws]))
    places, heights, free = parabolas.minima
    loss_draws = heights[1:] + _offsets(generator, near, noise)
    found = Fit(
        curve=curve,
        optimum=Estimate.of(float(places[0]), free[1:] + generator.normal(0.0, BIAS, DRAWS)),
        loss=Estimate.of(float(heights[0]), loss_draws),
        regret=Estimate(value=0.0, low=0.0, high=0.0),
        basin=basin(etas, parabolas.rows, places, heights),
        at_end=best in (0, len(etas) - 1),
        noise=noise,
        optimum_draws=places[1:],
        place_draws=free[1:],
        parabolas=parabolas,
    )
    if found.unsure:
        found = replace(found, optimum=found.optimum.unsure(), loss=found.loss.unsure())
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


def _near(etas: Array, runs: Array, best: int) -> Array:
    """The points near the lowest, all of whose runs are finite [eta, seed]."""
    close = np.abs(etas - etas[best]) <= reach(etas, best, 2 * NEAR)
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
