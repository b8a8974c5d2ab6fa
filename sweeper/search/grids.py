"""Grids over pairs of hyperparameters, and how strongly these are coupled."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Annotated, Literal

from sweeper.errors import ConfigError
from sweeper.records import Bounds
from sweeper.search.line_search import SearchLine, line_notes
from sweeper.search.strategy import (
    Conclusion,
    History,
    LineResult,
    PairGrid,
    Phase,
    StrategySettings,
    best_result,
    chosen_axes,
    missing_points,
    phase_ends,
    pruned_notes,
)
from sweeper.stats.line import SPACING, LineRule, line_optimum
from sweeper.trial import ONE_OR_MORE, Axis, Log2Hps, Point, Space, defaults, hps_key

Rows = Sequence[Sequence[float]]
"""Losses in nats: one row for each value of the first hyperparameter, +inf where it diverged."""


def row_optima(values: Sequence[float], rows: Rows) -> list[float | None]:
    """The value of every row's least loss, of equals the middle; None without a finite loss."""
    lines = [dict(zip(values, row, strict=True)) for row in rows]
    return [line_optimum(line) if math.isfinite(min(line.values())) else None for line in lines]


def transfer_error(rows: Rows) -> float:
    """Mean loss by taking a row's, or column's, optimum from another one (nats, at least 0).

    u-muP paper, F.1 and the captions of Figures 10 and 11: the loss of row r at the argmin of
    row q, above the least loss of row r, averaged over all r and q that differ; likewise with
    rows and columns exchanged, and the mean of the two. 0 when no optimum depends on the other
    hyperparameter. It measures the flatness of the optimum too (the paper's own remark).

    The paper does not say what a diverged trial counts: here, the largest finite loss of the
    grid. A row without a finite loss has no optimum and is left out. NaN when fewer than two
    rows, or than two columns, have one.
    """
    finite = [loss for row in rows for loss in row if math.isfinite(loss)]
    if not finite:
        return math.nan
    columns = list(zip(*rows, strict=True))
    return (_row_transfer_error(rows, max(finite)) + _row_transfer_error(columns, max(finite))) / 2


def _row_transfer_error(rows: Rows, max_loss: float) -> float:
    usable = [row for row in rows if math.isfinite(min(row))]
    # By the column's index, so that the optimum of row j can be looked up in row i.
    columns = [column for column in row_optima(range(len(rows[0])), usable) if column is not None]
    errors = [
        min(row[int(column)], max_loss) - min(row)
        for i, row in enumerate(usable)
        for j, column in enumerate(columns)
        if i != j
    ]
    return sum(errors) / len(errors) if errors else math.nan


Pair = tuple[str, str]
"""The names of two hyperparameters."""
LONGER = {"eta": "search.eta.points or search.eta.extend"}
"""What lets the line over eta go on within its range."""


@dataclass(frozen=True, kw_only=True)
class PairsStrategy(StrategySettings):
    """A log2 grid over every pair of hyperparameters, the others held (u-muP paper, F.1).

    First a line over eta, all else at its default; without it (`eta` None) eta stays at its
    default too. Then the grids around that point: on either axis `points` values, `step` apart
    in log2, within the range; without a `step` (None) evenly over all of it. `pairs` are all
    those of `axes` (None: of every hyperparameter with a range), those with eta alone, or the
    pairs listed. Every point has `seeds` trials. One that was stopped early counts as diverged,
    which makes the transfer errors coarser.
    """

    pairs: Literal["all", "eta"] | tuple[tuple[str, ...], ...] = "all"
    axes: tuple[str, ...] | None = None
    points: Annotated[int, Bounds(least=2)] = 5
    step: Annotated[float | None, SPACING] = 1.0
    seeds: Annotated[int, ONE_OR_MORE] = 1
    eta: LineRule | None = field(default_factory=LineRule)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.pairs, str):
            return
        if not self.pairs or any(len(set(p)) != 2 or len(p) != 2 for p in self.pairs):
            allowed = "all, eta, or pairs of hyperparameters, as in [[eta,alpha_attn]]"
            raise ConfigError("pairs", [list(pair) for pair in self.pairs], allowed)

    def plan(self, space: Space) -> list[Phase]:
        """The line, and the grids; points that grids share are trained once."""
        grids = {
            hps_key(hps) for pair in self._checked_pairs(space) for hps in self._cells(space, pair)
        }
        phases = [Phase(name="grids", trials=len(grids) * self.seeds)]
        if self.eta is not None:
            phases.insert(0, Phase(name="eta", trials=self.eta.points * self.seeds))
        return phases

    def propose(self, space: Space, history: History) -> list[Point]:
        """The line's missing points, then those of all grids at once."""
        line = self._line(space, history)
        if line is not None and line.missing:
            return missing_points(line.missing, line.seeds, "eta", history)
        if line is not None and math.isinf(min(line.state.losses.values())):
            return []
        centre = self._centre(space, line)
        cells = [
            hps for pair in self._pairs(space) for hps in self._cells(space, pair, centre["eta"])
        ]
        return missing_points(cells, range(self.seeds), "grids", history)

    def may_follow(self, space: Space, history: History) -> list[Point]:
        """What the line may ask for: the grids are laid around its optimum, and asked for whole."""
        line = self._line(space, history)
        return missing_points(line.following(), line.seeds, "eta", history) if line else []

    def _line(self, space: Space, history: History) -> SearchLine | None:
        if self.eta is None:
            return None
        seeds = range(self.seeds)
        return SearchLine(self.eta, space["eta"], history, defaults(space), "eta", seeds)

    def _centre(self, space: Space, line: SearchLine | None) -> Log2Hps:
        losses = line.state.losses if line is not None else {}
        return Log2Hps({**defaults(space), **({"eta": line_optimum(losses)} if losses else {})})

    def _pairs(self, space: Space) -> list[Pair]:
        """The pairs to sweep; ConfigError for a name that the space lacks."""
        if not isinstance(self.pairs, str):
            for pair in self.pairs:
                chosen_axes(space, pair, key="pairs")
                _check_ranges(space, pair, "pairs")
            return [(pair[0], pair[1]) for pair in self.pairs]
        names = chosen_axes(space, self.axes)
        _check_ranges(space, self.axes or (), "axes")
        ranged = [n for n in names if space[n].low < space[n].high and not space[n].choices]
        every = list(combinations(ranged, 2))
        return every if self.pairs == "all" else [pair for pair in every if "eta" in pair]

    def _checked_pairs(self, space: Space) -> list[Pair]:
        pairs = self._pairs(space)
        if not pairs:
            allowed = "names of two hyperparameters or more that have a range"
            if self.pairs == "eta":
                allowed += ", eta among them"
            axes = None if self.axes is None else list(self.axes)
            raise ConfigError("axes", axes, allowed)
        return pairs

    def _values(self, space: Space, name: str, eta: float) -> list[float]:
        """One axis of a grid, ascending, around the optimum of eta's line even past its range."""
        axis = space[name]
        if name == "eta" and self.eta is not None:
            half = (axis.high - axis.low) / 2
            radius = half if self.step is None else self.points // 2 * self.step
            # Within what an `Axis` may span.
            axis = Axis(low=max(-60.0, eta - radius), high=min(60.0, eta + radius), default=eta)
        if self.step is None:
            spacing = (axis.high - axis.low) / (self.points - 1)
            return sorted({axis.low + i * spacing for i in range(self.points)})
        return _nearest_values(axis, self.step, self.points)

    def _cells(self, space: Space, pair: Pair, eta: float | None = None) -> list[Log2Hps]:
        eta = space["eta"].default if eta is None else eta
        values = [self._values(space, name, eta) for name in pair]
        centre = {**defaults(space), "eta": eta}
        return [Log2Hps(centre | dict(zip(pair, cell, strict=True))) for cell in product(*values)]

    def conclude(self, space: Space, history: History) -> Conclusion:
        """The best point of all, the grids that are whole, and their transfer errors."""
        of_eta = self._line(space, history)
        line = of_eta.result() if of_eta is not None else None
        centre = self._centre(space, of_eta)
        grids = [self._grid(space, history, pair, centre) for pair in self._pairs(space)]
        whole = tuple(grid for grid in grids if grid is not None)
        best, objective = self._best(history)
        return Conclusion(
            best_log2=Log2Hps({**defaults(space), **best}),
            objective=objective,
            seeds=self.seeds,
            runs=len(history.results),
            lines=() if line is None else (line,),
            pairs=whole,
            notes=(*self._notes(line, space, whole, objective), *pruned_notes(history)),
            phase_ends=phase_ends(history),
        )

    def _grid(self, space: Space, history: History, pair: Pair, centre: Log2Hps) -> PairGrid | None:
        """One grid, or None while it is not whole."""
        cells = self._cells(space, pair, centre["eta"])
        means = [history.mean(hps, range(self.seeds)) for hps in cells]
        losses = [mean for mean in means if mean is not None]
        if len(losses) < len(means):
            return None
        first, second = (tuple(self._values(space, name, centre["eta"])) for name in pair)
        size = len(second)
        rows = tuple(tuple(losses[i * size : (i + 1) * size]) for i in range(len(first)))
        error = transfer_error(rows)
        return PairGrid(names=pair, values_log2=(first, second), losses=rows, transfer_error=error)

    def _best(self, history: History) -> tuple[Log2Hps, float]:
        """The point of least mean over its seeds; while none has all of them, the best trial."""
        means = []
        for result in history.results:
            mean = history.mean(result.trial.log2_hps, range(self.seeds))
            if mean is not None and math.isfinite(mean):
                means.append((mean, result.trial.log2_hps))
        if means:
            mean, hps = min(means, key=lambda pair: pair[0])
            return hps, mean
        best = best_result(history)
        return best.trial.log2_hps, best.objective

    def _notes(
        self, line: LineResult | None, space: Space, grids: Sequence[PairGrid], objective: float
    ) -> Iterator[str]:
        yield from line_notes([] if line is None else [line], space, LONGER)
        if math.isinf(objective):
            yield "every point diverged or failed: lower parameterization.space.eta"
        measured = [grid for grid in grids if not math.isnan(grid.transfer_error)]
        if measured:
            worst = max(measured, key=lambda grid: grid.transfer_error)
            mean = sum(grid.transfer_error for grid in measured) / len(measured)
            yield (
                f"transfer error {mean:.4f} nats, the mean over {len(measured)} pairs; "
                f"the largest is {worst.transfer_error:.4f} of {' and '.join(worst.names)}. "
                "A flat optimum makes it small too"
            )
        losses = [loss for grid in grids for row in grid.losses for loss in row]
        if diverged := sum(not math.isfinite(loss) for loss in losses):
            yield (
                f"{diverged} of {len(losses)} points of the grids diverged; in a transfer error "
                "they count as their grid's largest finite loss"
            )


def _check_ranges(space: Space, names: Sequence[str], key: str) -> None:
    """ConfigError for a list of choices: a coupling of optima is one of numbers."""
    for name in names:
        if space[name].choices:
            raise ConfigError(key, name, "hyperparameters with a range, not choices")


def _nearest_values(axis: Axis, step: float, points: int) -> list[float]:
    """The `points` values nearest to the default among those `step` apart from it in the range.

    Of a range that holds none of them, its own grid's.
    """
    # In steps from the default: the first and the last value in the range, and the nearest one
    # (0 where the range holds the default).
    low, high = axis.low - axis.default, axis.high - axis.default
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    nearest = min(max(0, first), last)
    steps = range(max(first, nearest - points), min(last, nearest + points) + 1)
    values = [axis.default + k * step for k in steps] or axis.grid(step)
    return sorted(sorted(values, key=lambda value: abs(value - axis.default))[:points])
