"""A line over one hyperparameter on an iteratively refined grid (u-muP paper, F.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from sweeper.records import Bounded, Bounds
from sweeper.trial import Axis

LineObjective = Callable[[float], float | None]
"""Mean objective at a log2 value; None while one of its seeds has no result."""

MIN_SPACING = 2.0**-6
"""Refinement stops at this spacing in log2: finer differences are noise."""
FLAT = 0.001
"""Losses that differ by less than this fraction, over a factor of 4 in eta, tell no optimum."""
FLAT_OCTAVES = 2.0
"""A line over so much that is as good as constant does not depend on eta."""
FLAT_RANGE, FLAT_MOST = 1e-4, 0.004
"""Constant: its range, over its middle, is at most FLAT_RANGE times the square of its octaves, and
at most FLAT_MOST. Of the 10,600 stretches of two octaves and more of the tables of step-law and
nanochat the nearest is at 3.9e-4, of whole lines at 0.017."""
NOISE_OCTAVES, NOISE_POINTS, NOISE_RANGE, NOISE_RATIO = 6.0, 9, 0.03, 1.25
"""Or neighbours differ as much as any two losses do: their mean squared difference over the
variance is 2 of noise; the highest of such stretches of the same tables is 0.95."""
MAX_LINE_POINTS = 10**4
SPACING = Bounds(
    least=MIN_SPACING, most=16, allowed=f"a spacing in log2 from {MIN_SPACING:g} to 16"
)


def points_from(least: int) -> Bounds:
    """The range of a number of points."""
    return Bounds(least=least, most=MAX_LINE_POINTS, allowed=f"from {least} to {MAX_LINE_POINTS}")


@dataclass(frozen=True, kw_only=True)
class LineRule(Bounded):
    """How a line is laid: first spacing `step`, at most `points`, halved around the optimum.

    Each round halves the spacing and puts new points within `reach` old spacings of the
    optimum. Fewer than `beyond` points beyond the optimum extend the line there by one first
    spacing at a time, at most `extend` points a side, which do not count as `points`. A line
    without any finite loss has no optimum: it is left as it is.
    """

    step: Annotated[float, SPACING] = 1.0
    points: Annotated[int, points_from(1)] = 9
    reach: Annotated[int, points_from(1)] = 2
    extend: Annotated[int, points_from(0)] = 4
    beyond: Annotated[int, points_from(1)] = 1

    def planned(self, axis: Axis) -> int:
        """How many points a line over `axis` has, without what extending it adds."""
        return len(axis.choices) or self.points


@dataclass(frozen=True)
class LineState:
    """A line replayed against the results so far.

    `losses` are by log2 value. `missing` are the values of the current round without a result.
    `extended` counts the values by which the first grid was extended.
    """

    losses: dict[float, float]
    missing: list[float]
    extended: int


def replay_line(rule: LineRule, axis: Axis, objective: LineObjective) -> LineState:
    """Lay the line as far as `objective` allows; pure, so a resumed search lays it the same."""
    losses: dict[float, float] = {}
    extended = 0
    # Beyond a wide grid of its own a line goes on by steps of the usual size.
    rule = replace(rule, step=min(axis.step or rule.step, rule.step))

    def take(values: list[float]) -> list[float]:
        """Add the losses at `values`; those without one."""
        pairs = [(value, objective(value)) for value in values]
        losses.update({value: loss for value, loss in pairs if loss is not None})
        return [value for value, loss in pairs if loss is None]

    if axis.choices:  # there is nothing between them, nor beyond
        missing = take(axis.grid(rule.step))
        return LineState(losses, missing, 0)
    # Round 0, the grid; where that is too many points, those nearest the default.
    nearest = sorted(axis.grid(rule.step), key=lambda value: abs(value - axis.default))
    grid = sorted(nearest[: rule.points])
    missing = take(grid)
    spacing, room = rule.step, rule.points - len(grid)
    while not missing and math.isfinite(min(losses.values())):
        # Extend before refining: an optimum at the end may lie anywhere beyond it. Each round asks
        # for its values at once and ends where one has no result: the next call comes as far anew.
        beyond = _next_extension(losses, rule, grid)
        if beyond is not None:
            missing = take([beyond])
            extended += not missing
            continue
        spacing /= 2
        new = [] if spacing < MIN_SPACING else _midpoints(losses, spacing, rule.reach)[:room]
        if not new:
            break
        room -= len(new)
        missing = take(new)
    return LineState(losses, missing, extended)


def depends_on_nothing(losses: Mapping[float, float], *, noisy: bool = True) -> bool | None:
    """Whether losses at log2 values are one loss, and noise if `noisy`; None where too few tell."""
    values = sorted(value for value, loss in losses.items() if math.isfinite(loss))
    if len(values) < 3 or (octaves := values[-1] - values[0]) < FLAT_OCTAVES - 1e-9:
        return None
    ordered = np.array([losses[value] for value in values])
    spread = float(np.ptp(ordered)) / max(abs(float(np.median(ordered))), 1e-300)
    if spread <= min(FLAT_RANGE * octaves**2, FLAT_MOST):
        return True
    few = octaves < NOISE_OCTAVES - 1e-9 or len(values) < NOISE_POINTS
    if not noisy or few or spread > NOISE_RANGE:
        return False
    ratio = float(np.mean(np.diff(ordered) ** 2) / np.var(ordered, ddof=1))
    return ratio >= NOISE_RATIO


def line_optimum(losses: dict[float, float]) -> float:
    """The value with the least loss; of equals the middle one."""
    least = min(losses.values())
    # Equal losses are those of a plateau, such as of a model that learns nothing: its middle does
    # not depend on the order of the trials. Of two middles the smaller.
    ties = sorted(value for value, loss in losses.items() if loss == least)
    return ties[(len(ties) - 1) // 2]


def _next_extension(losses: dict[float, float], rule: LineRule, grid: list[float]) -> float | None:
    best, room = line_optimum(losses), rule.extend * rule.step + 1e-9
    if len(losses) < 2:  # a single point is an optimum and both ends
        return None
    for end, side, first in ((min(losses), -1, grid[0]), (max(losses), 1, grid[-1])):
        further = end + side * rule.step
        near = sum((value - best) * side > 0 for value in losses) < rule.beyond
        # A point that diverged bounds the optimum: nothing is to be learned beyond it.
        if near and math.isfinite(losses[end]) and (further - first) * side <= room:
            return further
    return None


def _midpoints(losses: dict[float, float], spacing: float, reach: int) -> list[float]:
    best = line_optimum(losses)
    # `reach` old spacings are 2 * reach new ones; at the last of them lies a point of the old grid.
    offsets = [sign * k * spacing for k in range(1, 2 * reach) for sign in (-1, 1)]
    low, high = min(losses), max(losses)
    candidates = [best + offset for offset in offsets if low < best + offset < high]
    return [value for value in candidates if all(abs(value - tried) > 1e-9 for tried in losses)]
