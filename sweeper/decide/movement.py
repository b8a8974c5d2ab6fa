"""The best cells of a grid over learning rate and weight decay, and how they go with the size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sweeper.records import NOT_WRITTEN
from sweeper.runs.cells import DecayCell
from sweeper.runs.grid import Grid
from sweeper.stats.estimate import UNKNOWN, Array, Estimate
from sweeper.stats.ladder import JOINT_AXIS, LadderSize


@dataclass(frozen=True, kw_only=True)
class SizeOptimum:
    """The best cell of one size: log2 of learning rate and decay, with what the steps leave open.

    `decay` is UNKNOWN where none was varied, `ends` says at which ends of the grid it lies.
    """

    size: LadderSize
    eta: Estimate
    decay: Estimate = UNKNOWN
    loss: float = math.nan
    ends: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Movement:
    """How an optimum goes with the size: octaves a doubling.

    It `moves`, is `still` as far as the grid's steps show, is `open`, with a best cell at an end,
    or `drifts` as optima do whose losses are not there. A record has the `answer` in words.
    """

    name: str
    slope: Estimate
    answer: str = ""
    code: Literal["", "moves", "still", "open", "drifts"] = field(
        default="", compare=False, metadata=NOT_WRITTEN
    )


@dataclass(frozen=True, kw_only=True)
class EdgeColumns:
    """Columns of one size's grid whose best cell is their last (`side` 1) or first value (-1).

    Each column has one value of the hyperparameter beside `along`; `count` of `columns` are such,
    and `level` is the innermost of their best values.
    """

    size: LadderSize
    along: Literal["eta", "decay"]
    side: int
    level: float
    count: int
    columns: int


def edge_columns(grid: Grid, size: LadderSize) -> list[EdgeColumns]:
    """In how many columns of a grid over two the best value is the first or last one."""
    cells, edges = [cell for cell in grid.cells if cell.size == size], list[EdgeColumns]()
    ways: tuple[tuple[str, Literal["eta", "decay"]], ...] = (("decay", "eta"), ("eta", "decay"))
    for of, along in ways:
        columns: dict[float, list[DecayCell]] = {}
        for cell in cells:
            columns.setdefault(getattr(cell, of), []).append(cell)
        at: dict[int, list[float]] = {1: [], -1: []}
        for column in columns.values():
            values = sorted(getattr(cell, along) for cell in column)
            best = getattr(min(column, key=lambda cell: cell.loss), along)
            # Of a single value nothing is told: it is first and last.
            if len(values) > 1 and best in (values[0], values[-1]):
                at[1 if best == values[-1] else -1].append(best)
        for side, bests in at.items():
            # A decay of 0 is no end: there is nothing below it.
            inner = [value for value in bests if value > 0 or along == "eta"]
            if inner:
                edges.append(
                    EdgeColumns(
                        size=size,
                        along=along,
                        side=side,
                        # Beyond the innermost of the best values lies what is beyond all of them.
                        level=min(inner) if side > 0 else max(inner),
                        count=len(inner),
                        columns=len(columns),
                    )
                )
    return edges


def movements(grid: Grid) -> tuple[tuple[Movement, ...], tuple[SizeOptimum, ...]]:
    """Every size's best cell, and whether rate, decay, product or ratio goes with the size.

    A best cell is known to half a step on each side. A line through intervals [y - h, y + h] has a
    slope between sum w (y - sign(w) h) and sum w (y + sign(w) h), w its least-squares weights.
    """
    optima = []
    for size in sorted({cell.size for cell in grid.cells}):
        cells = [cell for cell in grid.cells if cell.size == size]
        # A cell that diverged says nothing of where the best lies; its values still span the grid.
        finite = [cell for cell in cells if math.isfinite(cell.loss)]
        if not finite:
            continue
        best = min(finite, key=lambda cell: cell.loss)
        estimates, ends = {}, []
        for name in ("eta", "decay"):
            # 0 has no logarithm: it is a value, but no end and no place on the line.
            values = sorted({getattr(cell, name) for cell in cells if getattr(cell, name) > 0})
            here = getattr(best, name)
            estimates[name] = _best_of(values, here)
            if here in values and here in (values[0], values[-1]):
                ends.append(f"{name} {'last' if here == values[-1] else 'first'}")
        optima.append(SizeOptimum(size=size, loss=best.loss, ends=tuple(ends), **estimates))
    # Where the best decay is 0, no line over log decay goes through the size.
    usable = [optimum for optimum in optima if math.isfinite(optimum.decay.value)]
    if len(usable) < 2 or grid.axis == JOINT_AXIS:
        return (), tuple(optima)
    x = np.log2([float(getattr(optimum.size, grid.axis)) for optimum in usable])
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    eta, decay = ([getattr(best, key) for best in usable] for key in ("eta", "decay"))
    combined = {
        "the learning rate": [(e.value, e.low, e.high) for e in eta],
        "the weight decay": [(d.value, d.low, d.high) for d in decay],
        "their product": [
            (e.value + d.value, e.low + d.low, e.high + d.high)
            for e, d in zip(eta, decay, strict=True)
        ],
        # Extremes go together: eta high and decay low is the largest ratio.
        "their ratio": [
            (e.value - d.value, e.low - d.high, e.high - d.low)
            for e, d in zip(eta, decay, strict=True)
        ],
    }
    moved = []
    for name, values in combined.items():
        y, low, high = np.array(values).T
        slope = Estimate(
            value=float(weights @ y),
            # An open end (infinite) leaves the slope open on that side, by the weight's sign.
            low=_sum(np.where(weights > 0, weights * low, weights * high)),
            high=_sum(np.where(weights > 0, weights * high, weights * low)),
        )
        code: Literal["moves", "still", "open"] = "open"
        if slope.low > 0 or slope.high < 0:
            code = "moves"
        elif math.isfinite(slope.low) and math.isfinite(slope.high):
            code = "still"
        moved.append(Movement(name=name, slope=slope, code=code))
    return tuple(moved), tuple(optima)


def _sum(values: Array) -> float:
    # 0 times an infinite end, or infinities of both signs, tell nothing of the sum.
    return float(np.sum(values)) if not np.isnan(values).any() else math.nan


def _best_of(values: Sequence[float], best: float) -> Estimate:
    """Log2 of the best of a grid's values, to half a step on each side; open at an end."""
    if best not in values:  # a decay of 0
        return UNKNOWN
    logs, at = np.log2(values), values.index(best)
    low = (logs[at] + logs[at - 1]) / 2 if at else -math.inf
    high = (logs[at] + logs[at + 1]) / 2 if at + 1 < len(values) else math.inf
    return Estimate(value=float(logs[at]), low=float(low), high=float(high))
