"""The optimum of a measured learning-rate curve, with intervals from its own noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sweeper.transfer.ladder import SizeCurve

DRAWS = 2000
"""Bootstrap draws behind every interval."""
NEAR = 1.0
"""The parabola is fitted to points within this distance, in log2, of the lowest one."""

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value with a 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, draws: Array) -> Estimate:
        """`value` with the 2.5 and 97.5 percentiles of its bootstrap draws."""
        # The nearest draw, not between two: one of them may be infinite.
        low, high = np.percentile(draws, [2.5, 97.5], method="nearest")
        return cls(value=value, low=min(float(low), value), high=max(float(high), value))


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What one curve says: its optimum (log2 eta), least loss and regret, and bootstrap draws.

    `regret` is the loss in nats by training at the transferred eta instead of the optimum.
    `at_end` tells that the lowest point is the first or last of the curve, so that the optimum
    is only a bound; `noise` is the standard deviation of a run in nats, NaN with one seed.
    """

    curve: SizeCurve
    optimum: Estimate
    loss: Estimate
    regret: Estimate
    at_end: bool
    noise: float
    optimum_draws: Array
    mean_draws: Array

    def cost(self, eta: float, draws: Array | None = None) -> Estimate:
        """Loss in nats of training at `eta` (log2), on the grid or between, above the least.

        `draws` [DRAWS] of eta carry its own uncertainty into the interval.
        """
        etas = np.array(sorted(self.curve.losses))
        means = np.array([np.mean(self.curve.losses[float(value)]) for value in etas])
        where = np.full(DRAWS, eta) if draws is None else draws
        rows = [_above(etas, row, float(x)) for row, x in zip(self.mean_draws, where, strict=True)]
        return Estimate.of(_above(etas, means, eta), np.array(rows))


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
    optimum, loss = _vertex(etas, means)
    noise = _noise(etas, runs, best)
    spread = 0.0 if math.isnan(noise) else noise / math.sqrt(runs.shape[1])
    # Seeded by the size: a fit repeats exactly, and two sizes' draws are independent.
    generator = np.random.default_rng([curve.size.width, curve.size.depth])
    draws = means + generator.normal(0.0, 1.0, (DRAWS, len(etas))) * spread
    vertices = np.array([_vertex(etas, row) for row in draws])
    found = Fit(
        curve=curve,
        optimum=Estimate.of(optimum, vertices[:, 0]),
        loss=Estimate.of(loss, vertices[:, 1]),
        regret=Estimate(value=0.0, low=0.0, high=0.0),
        at_end=best in (0, len(etas) - 1),
        noise=noise,
        optimum_draws=vertices[:, 0],
        mean_draws=draws,
    )
    return replace(found, regret=found.cost(transferred))


def _fitted(etas: Array, means: Array) -> tuple[Array, int] | None:
    """Coefficients of a least-squares parabola near the lowest point, and that point's index.

    None where fewer than three points are finite, the lowest is at an end, or it opens downwards.
    """
    best = int(np.argmin(means))
    near = np.isfinite(means) & (np.abs(etas - etas[best]) <= NEAR + 1e-9)
    if near.sum() < 3 or best in (0, len(etas) - 1):
        return None
    coefficients = np.polyfit(etas[near] - etas[best], means[near], 2)
    return (coefficients, best) if coefficients[0] > 0 else None


def _vertex(etas: Array, means: Array) -> tuple[float, float]:
    """Place and height of the minimum: the parabola's, kept between the neighbours; or the lowest.

    Where no parabola can be fitted, the lowest point itself is the answer.
    """
    fitted = _fitted(etas, means)
    if fitted is None:
        best = int(np.argmin(means))
        return float(etas[best]), float(means[best])
    (a, b, _), best = fitted
    left, right = etas[best - 1] - etas[best], etas[best + 1] - etas[best]
    vertex = float(np.clip(-b / (2 * a), left, right))
    return float(etas[best]) + vertex, float(np.polyval(fitted[0], vertex))


def _parabola(etas: Array, means: Array, eta: float) -> float:
    """The fitted parabola at `eta` where it was fitted; +inf elsewhere."""
    fitted = _fitted(etas, means)
    if fitted is None or abs(eta - etas[fitted[1]]) > NEAR:
        return math.inf
    return float(np.polyval(fitted[0], eta - etas[fitted[1]]))


def _above(etas: Array, means: Array, eta: float) -> float:
    """How far the curve lies above its minimum at `eta`, straight between its points; >= 0."""
    left, right = np.searchsorted(etas, [eta - 1e-9, eta + 1e-9])
    if left < right:
        value = float(means[left])
    elif not 0 < left < len(etas) or not np.isfinite(means[left - 1 : left + 1]).all():
        value = math.inf
    else:
        value = float(np.interp(eta, etas, means))
        value = min(value, _parabola(etas, means, eta))
    return max(0.0, value - _vertex(etas, means)[1])


def _noise(etas: Array, runs: Array, best: int) -> float:
    """Standard deviation of one run around its (eta, seed) means, from points near the lowest."""
    near = np.isfinite(runs).all(axis=1) & (np.abs(etas - etas[best]) <= 2 * NEAR + 1e-9)
    part = runs[near]
    rows, columns = part.shape
    freedom = (rows - 1) * (columns - 1)
    if freedom < 1:
        return math.nan
    residual = part - part.mean(1, keepdims=True) - part.mean(0, keepdims=True) + part.mean()
    return float(np.sqrt((residual**2).sum() / freedom))
