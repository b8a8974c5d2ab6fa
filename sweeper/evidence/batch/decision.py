"""The critical batch: steps and examples for one loss, each bought by the other.

S steps of a batch B reach a loss where (S / S_min - 1) (E / E_min - 1) = 1, E = S B the examples
(arXiv:1812.06162, eq. 2.7). So S = S_min (1 + B_crit / B) with B_crit = E_min / S_min: at B_crit
twice the fewest steps are taken, and twice the fewest examples. It is fitted to log S by least
squares; the interval of B_crit is where an F test does not refuse it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sweeper.stats.estimate import UNKNOWN, Array, Estimate

FEWEST_BATCHES = 3
"""Batches, and one run more in all, from which two unknowns and a noise are told."""
BEYOND = 2.0**12
"""Up to so many times beyond the batches that were run B_crit is looked for."""
LEAST_ERROR = 0.01
"""Of the logarithm of steps: losses are logged now and then, and read off between."""
Code = Literal["critical", "at_least", "at_most", "too_few", "open"]


@dataclass(frozen=True, kw_only=True)
class CriticalBatch:
    """B_crit in examples a step with what `code` says of it.

    `at_least`, `at_most`: it lies beyond the batches that were run, and the interval is open there.
    `points` are batch and steps of every run.
    """

    code: Code
    loss: float
    batches: tuple[int, ...]
    runs: int
    batch: Estimate = UNKNOWN
    points: tuple[tuple[float, float], ...] = ()

    def steps_at(self, batches: Array, critical: float) -> Array:
        """The steps that `batches` take where B_crit is `critical`, through the runs' middle."""
        ran, steps = np.array(self.points).T
        least = np.exp(np.mean(np.log(steps) - np.log1p(critical / ran)))
        return np.asarray(least * (1 + critical / batches))


def critical_batch(batches: Array, steps: Array, loss: float) -> CriticalBatch:
    """B_crit from `steps` [run] that runs of `batches` [run] take to a loss."""
    from scipy.optimize import brentq, least_squares
    from scipy.stats import t

    levels = tuple(int(batch) for batch in np.unique(batches))
    if len(levels) < FEWEST_BATCHES or len(batches) <= FEWEST_BATCHES:
        return CriticalBatch(code="too_few", loss=loss, batches=levels, runs=len(batches))

    def off(log_critical: Array | float) -> Array:
        """Log S less its shape, and less what that is in the mean: log S_min."""
        rest = np.log(steps) - np.log1p(np.exp(log_critical) / batches)
        return np.asarray(rest - rest.mean())

    ends = math.log(levels[0] / BEYOND), math.log(levels[-1] * BEYOND)
    fit = least_squares(off, np.log(batches).mean(), bounds=ends)
    best, freedom = float(fit.x[0]), len(batches) - 2
    variance = max(2 * fit.cost / freedom, LEAST_ERROR**2)
    student = float(t.ppf(0.975, freedom))

    def refused(log_critical: float) -> float:
        """Above 0 where the runs are too far off; F(1, freedom) is Student's t squared."""
        return float((off(log_critical) ** 2).sum() - 2 * fit.cost - variance * student**2)

    # An interval that reaches an end is cut there by what was looked at, not by the runs.
    low_open, high_open = (refused(end) <= 0 for end in ends)
    low = ends[0] if low_open else brentq(refused, ends[0], best)
    high = ends[1] if high_open else brentq(refused, best, ends[1])
    code: Code = "critical"
    if low_open or high_open:
        code = "open" if low_open and high_open else "at_most" if low_open else "at_least"
    return CriticalBatch(
        code=code,
        loss=loss,
        batches=levels,
        runs=len(batches),
        batch=Estimate(
            value=math.exp(best),
            low=0.0 if low_open else math.exp(low),
            high=math.inf if high_open else math.exp(high),
        ),
        points=tuple(zip(batches.tolist(), steps.tolist(), strict=True)),
    )


def falling(losses: Array) -> Array:
    """The nearest sequence that never rises: a curve's noise taken out."""
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(losses, increasing=False).x)


def steps_to(steps: Array, losses: Array, loss: float) -> float:
    """The step at which a curve first reaches a loss, read off between steps; NaN if it does not.

    The curve is taken to fall: where it rises by its noise, stretches are averaged.
    """
    kept = np.isfinite(losses) & (steps > 0)
    if not kept.any():
        return math.nan
    logs, means = np.log(steps[kept]), falling(losses[kept])
    # Where the first logged loss lies below, nobody knows at which earlier step it was reached.
    if means[-1] > loss or means[0] < loss:
        return math.nan
    place = int(np.argmax(means <= loss))
    if place == 0:
        return float(steps[kept][0])
    share = (means[place - 1] - loss) / (means[place - 1] - means[place])
    return float(math.exp(logs[place - 1] + share * (logs[place] - logs[place - 1])))
