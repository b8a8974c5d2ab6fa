"""`search=grid2d`: learning rate and weight decay together, until every neighbour is worse."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from sweeper.errors import ConfigError
from sweeper.search.prune import Kind
from sweeper.search.strategy import (
    Conclusion,
    History,
    Phase,
    Point,
    identity,
    pruned_notes,
    running_best,
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
    It may leave the ranges by `extend` in log2. Every point has `seeds` runs. A neighbour that
    was stopped early is not known to be worse: a best point with one is not accepted.
    """

    axes: tuple[str, ...] = ("eta", "weight_decay")
    step: float = 2.0
    extend: int = 4
    seeds: int = 1
    prune: Kind = "none"

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
        runs = len(self._grid(space)) * self.seeds
        return [
            Phase(name="grid", runs=runs),
            Phase(name="neighbours", runs=len(NEIGHBOURS) * self.seeds),
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
        return space[self.axes[0]], space[self.axes[1]]

    def _grid(self, space: Space) -> list[Cell]:
        first, second = self._pair(space)
        return list(product(first.grid(self.step), second.grid(self.step)))

    def _log2_hps(self, space: Space, cell: Cell) -> Log2Hps:
        return Log2Hps({**defaults(space), **dict(zip(self.axes, cell, strict=True))})

    def _value(self, space: Space, history: History, cell: Cell) -> float | None:
        return history.mean(self._log2_hps(space, cell), range(self.seeds))

    def _known(self, space: Space, history: History) -> dict[Cell, float]:
        """Every point of the two axes, with all of its seeds, the rest at its default."""
        cells = {tuple(r.trial.log2_hps[name] for name in self.axes) for r in history.results}
        found = {(a, b): self._value(space, history, (a, b)) for a, b in sorted(cells)}
        return {cell: value for cell, value in found.items() if value is not None}

    def _around(self, space: Space, cell: Cell) -> Iterator[Cell]:
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
        best = _best(self._known(space, history))
        if best is None:
            return []
        return self._points(space, history, list(self._around(space, best)), "neighbours")

    def _points(
        self, space: Space, history: History, cells: Sequence[Cell], phase: str
    ) -> list[Point]:
        points = (
            Point(log2_hps=self._log2_hps(space, cell), seed=seed, phase=phase)
            for cell in cells
            for seed in range(self.seeds)
        )
        return [point for point in points if point not in history]

    def accepted(self, space: Space, history: History, cell: Cell) -> bool:
        """Whether all six neighbours of `cell` are known and worse, none of them stopped early."""
        known = self._known(space, history)
        stopped = {identity(r.trial.log2_hps) for r in history.results if r.status == "pruned"}
        if any(identity(self._log2_hps(space, c)) in stopped for c in self._around(space, cell)):
            return False
        around = [known.get(neighbour) for neighbour in self._around(space, cell)]
        worse = [value is not None and value > known[cell] for value in around]
        return len(worse) == len(NEIGHBOURS) and all(worse)

    def conclude(self, space: Space, history: History) -> Conclusion:
        """The best point, and whether its neighbours accept it."""
        known = self._known(space, history)
        best, runs = _best(known), [r.objective for r in history.results]
        ends: dict[str, int] = {}
        for index, result in enumerate(history.results):
            ends[result.trial.phase] = index + 1
        return Conclusion(
            best_log2=defaults(space) if best is None else self._log2_hps(space, best),
            objective=math.inf if best is None else known[best],
            seeds=self.seeds,
            runs=len(runs),
            notes=(self._note(space, history, best), *pruned_notes(history)),
            cost_curve=running_best(runs),
            phase_ends=ends,
        )

    def _note(self, space: Space, history: History, best: Cell | None) -> str:
        if best is None:
            return "every point diverged or failed: lower parameterization.space.eta"
        words = " and ".join(
            f"{name} 2^{value:g}" for name, value in zip(self.axes, best, strict=True)
        )
        if self.accepted(space, history, best):
            return f"accepted: all six neighbours of {words} are worse"
        return f"not accepted: not all six neighbours of {words} are known to be worse"


def _best(known: dict[Cell, float]) -> Cell | None:
    """The cell with the least finite loss, the first of equals; None when there is none."""
    finite = {cell: value for cell, value in known.items() if math.isfinite(value)}
    return min(finite, key=lambda cell: (finite[cell], cell)) if finite else None
