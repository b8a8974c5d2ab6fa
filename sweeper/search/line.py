"""A line over one hyperparameter on an iteratively refined grid (u-muP paper, F.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sweeper.errors import ConfigError
from sweeper.search.strategy import History, LineResult
from sweeper.trial import Axis, Log2Hps

Evaluate = Callable[[float], float | None]
"""Mean objective at a log2 value; None when it is not known yet."""

FINEST = 2.0**-6
"""Refinement stops at this spacing in log2: finer differences are noise."""


MOST = 10**4
"""More points than this on one line is a slip of the pen."""


@dataclass(frozen=True, kw_only=True)
class LineRule:
    """How a line is laid: first spacing `step`, at most `points`, halved around the optimum.

    Each round halves the spacing and puts new points within `reach` old spacings of the
    optimum. An optimum at the end of the line extends it by one first spacing at a time, at most
    `extend` points a side, which do not count as `points`. A line without any finite loss has
    no optimum: it is left as it is.
    """

    step: float = 1.0
    points: int = 9
    reach: int = 2
    extend: int = 4

    def __post_init__(self) -> None:
        """Refuse a line that cannot be laid."""
        if not FINEST <= self.step <= 16:
            raise ConfigError("step", self.step, f"a spacing in log2 from {FINEST:g} to 16")
        for key, least in (("points", 1), ("reach", 1), ("extend", 0)):
            if not least <= getattr(self, key) <= MOST:
                raise ConfigError(key, getattr(self, key), f"from {least} to {MOST}")


@dataclass(frozen=True)
class LineState:
    """A line replayed against what is known: all values laid so far and those still missing.

    `extended` counts the known values by which the first grid was extended.
    """

    known: dict[float, float]
    missing: list[float]
    extended: int


def along(history: History, base: Log2Hps, name: str, seeds: Sequence[int]) -> Evaluate:
    """The mean objective over `seeds` as a function of `name` alone, the rest as in `base`."""

    def evaluate(value: float) -> float | None:
        return history.mean(Log2Hps({**base, name: value}), seeds)

    return evaluate


def replay(rule: LineRule, axis: Axis, evaluate: Evaluate) -> LineState:
    """Lay the line as far as `evaluate` allows; pure, so a resumed search lays it the same."""
    known: dict[float, float] = {}
    extended = 0

    def ask(values: list[float]) -> list[float]:
        missing = []
        for value in values:
            found = evaluate(value)
            if found is None:
                missing.append(value)
            else:
                known[value] = found
        return missing

    grid = _first_grid(rule, axis)
    missing = ask(grid)
    spacing, left = rule.step, rule.points - len(grid)
    while not missing and math.isfinite(min(known.values())):
        beyond = _beyond(known, rule, grid)
        if beyond is not None:
            missing = ask([beyond])
            extended += not missing
            continue
        spacing /= 2
        fresh = [] if spacing < FINEST else _midpoints(known, spacing, rule.reach)[:left]
        if not fresh:
            break
        left -= len(fresh)
        missing = ask(fresh)
    return LineState(known, missing, extended)


def _first_grid(rule: LineRule, axis: Axis) -> list[float]:
    """The first round: the whole grid, or if that is too many points those nearest the default."""
    grid = axis.grid(rule.step)
    return sorted(sorted(grid, key=lambda v: abs(v - axis.default))[: rule.points])


def optimum(known: dict[float, float]) -> float:
    """The value with the least loss; of equals the middle one."""
    best = min(known.values())
    ties = sorted(value for value, loss in known.items() if loss == best)
    return ties[(len(ties) - 1) // 2]


def _beyond(known: dict[float, float], rule: LineRule, grid: list[float]) -> float | None:
    """The next value past the end that the optimum lies at, or None; `grid` is the first one."""
    best, step, room = optimum(known), rule.step, rule.extend * rule.step + 1e-9
    if len(known) < 2:
        return None
    if best == min(known) and grid[0] - (best - step) <= room:
        return best - step
    if best == max(known) and (best + step) - grid[-1] <= room:
        return best + step
    return None


def _midpoints(known: dict[float, float], spacing: float, reach: int) -> list[float]:
    """Untried values on the finer grid near the optimum, nearest first."""
    best = optimum(known)
    offsets = [sign * k * spacing for k in range(1, 2 * reach) for sign in (-1, 1)]
    low, high = min(known), max(known)
    candidates = [best + offset for offset in offsets if low < best + offset < high]
    return [value for value in candidates if all(abs(value - k) > 1e-9 for k in known)]


def line_result(name: str, state: LineState, history: History, base: Log2Hps) -> LineResult | None:
    """What a replayed line of `name` from `base` found; None while nothing of it is known."""
    if not state.known:
        return None
    best = optimum(state.known)
    return LineResult(
        name=name,
        points_log2=tuple(sorted(state.known.items())),
        optimum_log2=best,
        objective=state.known[best],
        extended=state.extended,
        stopped_log2=tuple(
            v for v in sorted(state.known) if history.stopped(Log2Hps({**base, name: v}))
        ),
    )


def line_notes(lines: Sequence[LineResult]) -> Iterator[str]:
    """Sentences about ends of lines: extended grids, and optima still at an end."""
    for line in lines:
        values = [value for value, _ in line.points_log2]
        if line.extended:
            yield (
                f"{line.name}: the optimum lay at the end of the grid, which was extended by "
                f"{line.extended} to 2^{min(values):g}..2^{max(values):g}"
            )
        at_end = line.optimum_log2 in (min(values), max(values)) and len(values) > 1
        if at_end and math.isfinite(line.objective):
            place = f"2^{line.optimum_log2:g}"
            yield f"{line.name}: the optimum {place} is still at the end of the grid"
