"""`search=grid2d`: learning rate and weight decay together, until every neighbour is worse."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from sweeper.errors import ConfigError
from sweeper.search.cost import best_mean_curve
from sweeper.search.prune import PrunerKind
from sweeper.search.strategy import (
    Conclusion,
    History,
    Phase,
    Point,
    missing_points,
    phase_ends,
    pruned_notes,
)
from sweeper.trial import Axis, Log2Hps, Space, defaults

Cell = tuple[float, float]
"""(log2 of the first axis, log2 of the second)."""

NEIGHBOURS: tuple[Cell, ...] = ((1, 0), (0, 1), (-1, 0), (0, -1), (1, -1), (-1, 1))
"""lr 2, wd 2, lr/2, wd/2, lr 2 with wd/2, lr/2 with wd 2: where lr wd alone changes, and not."""


@dataclass(frozen=True, kw_only=True)
class Grid2D:
    """A log2 grid over two hyperparameters (arXiv:2304.02034, section II 1 E).

    A grid of spacing `step` over both ranges, then the six neighbours at a factor of 2 of the
    best point so far, which moves to a better neighbour until none is: that point is accepted.
    It may leave the ranges by `extend` in log2. Every point has `seeds` trials. A neighbour that
    was stopped early may not be worse: a best point with one is not accepted.
    """

    axes: tuple[str, ...] = ("eta", "weight_decay")
    step: float = 2.0
    extend: int = 4
    seeds: int = 1
    prune: PrunerKind = "none"

    def __post_init__(self) -> None:
        """Refuse what is no grid over two hyperparameters."""
        if len(set(self.axes)) != 2 or len(self.axes) != 2:
            raise ConfigError("axes", list(self.axes), "two hyperparameters")
        if self.step < 1 or not float(self.step).is_integer():
            raise ConfigError("step", self.step, "a whole number of factors of 2")
        for key, least in (("extend", 0), ("seeds", 1)):
            if getattr(self, key) < least:
                raise ConfigError(key, getattr(self, key), f"at least {least}")

    def plan(self, space: Space) -> list[Phase]:
        """The grid, and the neighbours of one point; walking to another one costs more."""
        return [
            Phase(name="grid", trials=len(self._grid(space)) * self.seeds),
            Phase(name="neighbours", trials=len(NEIGHBOURS) * self.seeds),
        ]

    def _pair(self, space: Space) -> tuple[Axis, Axis]:
        """The two axes; ConfigError says how to give a space one that it lacks."""
        for name in self.axes:
            if name not in space:
                allowed = (
                    f"hyperparameters of the space; "
                    f"'+parameterization.space.{name}={{low: -4, high: 4, default: 0}}' adds it"
                )
                raise ConfigError("axes", list(self.axes), allowed)
            if space[name].choices:
                raise ConfigError("axes", name, "hyperparameters with a range, not choices")
        return space[self.axes[0]], space[self.axes[1]]

    def _grid(self, space: Space) -> list[Cell]:
        first, second = self._pair(space)
        return list(product(first.grid(self.step), second.grid(self.step)))

    def _log2_hps(self, space: Space, cell: Cell) -> Log2Hps:
        return Log2Hps({**defaults(space), **dict(zip(self.axes, cell, strict=True))})

    def _objectives(self, space: Space, history: History) -> dict[Cell, float]:
        """The mean objective of every cell that has all of its seeds."""
        cells = {tuple(r.trial.log2_hps[name] for name in self.axes) for r in history.results}
        means = {
            (a, b): history.mean(self._log2_hps(space, (a, b)), range(self.seeds))
            for a, b in sorted(cells)
        }
        return {cell: mean for cell, mean in means.items() if mean is not None}

    def _neighbours(self, space: Space, cell: Cell) -> Iterator[Cell]:
        """The neighbours that lie within the ranges and their extension."""
        pair = self._pair(space)
        for step in NEIGHBOURS:
            moved = (cell[0] + step[0], cell[1] + step[1])
            inside = zip(moved, pair, strict=True)
            if all(a.low - self.extend <= v <= a.high + self.extend for v, a in inside):
                yield moved

    def propose(self, space: Space, history: History) -> list[Point]:
        """The grid's missing points, then those of the best point's neighbours."""
        points = self._points(space, history, self._grid(space), "grid")
        if points:
            return points
        best = _best_cell(self._objectives(space, history))
        if best is None:
            return []
        return self._points(space, history, list(self._neighbours(space, best)), "neighbours")

    def _points(
        self, space: Space, history: History, cells: Sequence[Cell], phase: str
    ) -> list[Point]:
        configurations = [self._log2_hps(space, cell) for cell in cells]
        return missing_points(configurations, range(self.seeds), phase, history)

    def accepted(self, space: Space, history: History, cell: Cell) -> bool:
        """Whether all six neighbours of `cell` are trained to their end and worse."""
        objectives, neighbours = self._objectives(space, history), self._neighbours(space, cell)
        worse = [
            neighbour in objectives
            and objectives[neighbour] > objectives[cell]
            and not history.stopped(self._log2_hps(space, neighbour))
            for neighbour in neighbours
        ]
        return len(worse) == len(NEIGHBOURS) and all(worse)

    def conclude(self, space: Space, history: History) -> Conclusion:
        """The best point, and whether its neighbours accept it."""
        objectives = self._objectives(space, history)
        best = _best_cell(objectives)
        return Conclusion(
            best_log2=defaults(space) if best is None else self._log2_hps(space, best),
            objective=math.inf if best is None else objectives[best],
            seeds=self.seeds,
            runs=len(history.results),
            notes=(self._note(space, history, best), *pruned_notes(history)),
            best_loss_curve=best_mean_curve(history.results, self.seeds),
            phase_ends=phase_ends(history),
        )

    def _note(self, space: Space, history: History, best: Cell | None) -> str:
        if best is None:
            return "every point diverged or failed: lower parameterization.space.eta"
        point = " and ".join(
            f"{name} 2^{value:g}" for name, value in zip(self.axes, best, strict=True)
        )
        if self.accepted(space, history, best):
            return f"accepted: all six neighbours of {point} are worse"
        return f"not accepted: not all six neighbours of {point} are known to be worse"


def _best_cell(objectives: dict[Cell, float]) -> Cell | None:
    """The cell with the least finite loss, the first of equals; None when there is none."""
    finite = {cell: value for cell, value in objectives.items() if math.isfinite(value)}
    return min(finite, key=lambda cell: (finite[cell], cell)) if finite else None
