"""The critical batch: steps and examples for one loss, each bought by the other.

S steps of a batch B reach a loss where (S / S_min - 1) (E / E_min - 1) = 1, E = S B the examples
(arXiv:1812.06162, eq. 2.7). So S = S_min (1 + B_crit / B) with B_crit = E_min / S_min: at B_crit
twice the fewest steps are taken, and twice the fewest examples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sweeper.stats.estimate import Array, Estimate, quantile

FEWEST_BATCHES, FEWEST_RUNS = 3, 4
"""Batches, and runs in all, from which two unknowns and a noise are told."""
BEYOND = 2.0**12
"""Up to so many times beyond the batches that were run B_crit is looked for."""
POINTS = 4001
LEAST_ERROR = 0.01
"""Of the logarithm of steps: losses are logged now and then, and read off between."""
Code = Literal["critical", "at_least", "at_most", "too_few", "open"]


@dataclass(frozen=True, kw_only=True)
class CriticalBatch:
    """B_crit in examples a step with what `code` says of it, and the least steps and examples.

    `at_least`, `at_most`: it lies beyond the batches that were run, and the interval is open there.
    `error` is the standard deviation of a run's steps, as a fraction. `points` are batch and steps
    of every run.
    """

    code: Code
    loss: float
    batches: tuple[int, ...]
    runs: int
    batch: Estimate
    least_steps: Estimate
    least_examples: Estimate
    error: float = math.nan
    points: tuple[tuple[float, float], ...] = ()

    def steps_at(self, batches: Array, critical: float) -> Array:
        """The steps that `batches` take where B_crit is `critical`, through the runs' middle."""
        ran, steps = np.array(self.points).T
        least = np.exp(np.mean(np.log(steps) - np.log1p(critical / ran)))
        return np.asarray(least * (1 + critical / batches))


NOTHING = Estimate(value=math.nan, low=0.0, high=math.inf)


def critical_batch(batches: Array, steps: Array, loss: float) -> CriticalBatch:
    """B_crit from `steps` [run] that runs of `batches` [run] take to a loss, by a 95 % profile."""
    levels = tuple(int(batch) for batch in np.unique(batches))
    common = {"loss": loss, "batches": levels, "runs": len(batches)}
    if len(levels) < FEWEST_BATCHES or len(batches) < FEWEST_RUNS:
        return CriticalBatch(
            code="too_few",
            batch=NOTHING,
            least_steps=NOTHING,
            least_examples=NOTHING,
            **common,  # type: ignore[arg-type]
        )
    # Given B_crit, log S is log S_min and a known shape: the best S_min is a mean, and
    # a grid over B_crit alone holds the whole profile.
    ends = math.log(levels[0] / BEYOND), math.log(levels[-1] * BEYOND)
    logs = np.linspace(*ends, POINTS)
    shapes = np.log1p(np.exp(logs[:, None]) / batches)
    off = np.log(steps) - shapes
    level = off.mean(axis=1)
    rest = ((off - level[:, None]) ** 2).sum(axis=1)
    best, freedom = int(rest.argmin()), len(batches) - 2
    variance = max(rest[best] / freedom, LEAST_ERROR**2)
    # The F test of one parameter: F(1, freedom) is Student's t squared.
    inside = rest - rest[best] <= variance * quantile(freedom, 0.975) ** 2
    low_open, high_open = bool(inside[0]), bool(inside[-1])
    code: Code = "critical"
    # An interval that reaches an end of the grid is cut there by the grid, not by the runs.
    if low_open or high_open:
        code = "open" if low_open and high_open else "at_most" if low_open else "at_least"
    of = np.exp(logs[inside])
    batch = Estimate(
        value=math.exp(logs[best]),
        low=0.0 if low_open else float(of.min()),
        high=math.inf if high_open else float(of.max()),
    )
    fewest = np.exp(level)
    # At an end that is open steps or examples are as few as anything.
    # The profile is over B_crit; what the mean itself is off by comes on top.
    error = math.sqrt(variance / len(batches)) * quantile(freedom, 0.975)
    # As B_crit goes to infinity S_min goes to 0 and E_min stays, and the other way round.
    examples = fewest * np.exp(logs)
    return CriticalBatch(
        code=code,
        batch=batch,
        least_steps=_between(fewest, best, inside, error, falls=high_open),
        least_examples=_between(examples, best, inside, error, falls=low_open),
        error=math.sqrt(variance),
        points=tuple(zip(batches.tolist(), steps.tolist(), strict=True)),
        **common,  # type: ignore[arg-type]
    )


def _between(values: Array, best: int, inside: Array, error: float, *, falls: bool) -> Estimate:
    """A value along the profile: it `falls` to nothing where that end of the profile is open."""
    of = values[inside]
    low, high = float(of.min()) * math.exp(-error), float(of.max()) * math.exp(error)
    return Estimate(value=float(values[best]), low=0.0 if falls else low, high=high)


def steps_to(steps: Array, losses: Array, loss: float) -> float:
    """The step at which a curve first reaches a loss, read off between steps; NaN if it does not.

    The curve is taken to fall: where it rises by its noise, stretches are averaged.
    """
    kept = np.isfinite(losses) & (steps > 0)
    steps, falling = steps[kept], _falling(losses[kept])
    if not len(falling) or falling[-1] > loss:
        return math.nan
    place = int(np.argmax(falling <= loss))
    # Where the first logged loss lies below, nobody knows at which earlier step it was reached.
    if place == 0:
        return float(steps[0]) if falling[0] == loss else math.nan
    above, below = falling[place - 1], falling[place]
    share = (above - loss) / (above - below)
    logs = np.log(steps[place - 1 : place + 1])
    return float(math.exp(logs[0] + share * (logs[1] - logs[0])))


def _falling(losses: Array) -> Array:
    """The nearest sequence that never rises, by least squares: adjacent violators are pooled."""
    sums, counts = list[float](), list[int]()
    for loss in losses:
        sums.append(float(loss))
        counts.append(1)
        while len(sums) > 1 and sums[-2] / counts[-2] < sums[-1] / counts[-1]:
            sums[-2:] = [sums[-2] + sums[-1]]
            counts[-2:] = [counts[-2] + counts[-1]]
    return np.repeat(np.array(sums) / np.array(counts), counts)
