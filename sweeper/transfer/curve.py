"""The optimum of a measured learning-rate curve, with intervals from its own noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
        low, high = np.percentile(draws, [2.5, 97.5])
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
    draws = means + np.random.default_rng(0).normal(0.0, 1.0, (DRAWS, len(etas))) * spread
    vertices = np.array([_vertex(etas, row) for row in draws])
    index = int(np.argmin(np.abs(etas - transferred)))
    regret = max(0.0, float(means[index]) - loss)
    return Fit(
        curve=curve,
        optimum=Estimate.of(optimum, vertices[:, 0]),
        loss=Estimate.of(loss, vertices[:, 1]),
        regret=Estimate.of(regret, np.maximum(0.0, draws[:, index] - vertices[:, 1])),
        at_end=best in (0, len(etas) - 1),
        noise=noise,
        optimum_draws=vertices[:, 0],
    )


def _vertex(etas: Array, means: Array) -> tuple[float, float]:
    """Place and height of the minimum: a least-squares parabola near the lowest point.

    The vertex is kept between the lowest point's neighbours; where fewer than three points are
    finite, or the parabola opens downwards, the lowest point itself is the answer.
    """
    best = int(np.argmin(means))
    lowest = float(etas[best]), float(means[best])
    near = np.isfinite(means) & (np.abs(etas - etas[best]) <= NEAR + 1e-9)
    if near.sum() < 3 or best in (0, len(etas) - 1):
        return lowest
    x = etas[near] - etas[best]
    a, b, c = np.polyfit(x, means[near], 2)
    if a <= 0:
        return lowest
    left, right = etas[best - 1] - etas[best], etas[best + 1] - etas[best]
    vertex = float(np.clip(-b / (2 * a), left, right))
    return float(etas[best]) + vertex, float(a * vertex**2 + b * vertex + c)


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
