"""`search=random`: points drawn without replacement from the grid over all hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Annotated

import numpy as np

from sweeper.search.strategy import (
    Conclusion,
    History,
    Phase,
    StrategySettings,
    best_of_one_phase,
    best_result,
    chosen_axes,
    missing_points,
)
from sweeper.stats.line import SPACING
from sweeper.trial import ONE_OR_MORE, Log2Hps, Point, Space, defaults


@dataclass(frozen=True, kw_only=True)
class RandomGridStrategy(StrategySettings):
    """`runs` points of the grid with spacing `step` in log2 over `axes` (null: all).

    A grid of fewer points is taken whole. The order of the draw does not depend on `runs`: a
    longer search continues a shorter one.
    """

    runs: Annotated[int, ONE_OR_MORE] = 345
    step: Annotated[float, SPACING] = 1.0
    seed: int = 0
    axes: tuple[str, ...] | None = None

    def plan(self, space: Space) -> list[Phase]:
        """One phase, of `runs` trials or all points of the grid."""
        return [Phase(name="random", trials=min(self.runs, self._size(space)))]

    def _size(self, space: Space) -> int:
        return prod(len(grid) for grid in self._grids(space).values())

    def _grids(self, space: Space) -> dict[str, list[float]]:
        return {name: space[name].grid(self.step) for name in chosen_axes(space, self.axes)}

    def _draws(self, space: Space) -> Iterator[Log2Hps]:
        grids = self._grids(space)
        sizes = tuple(len(grid) for grid in grids.values())
        for places in _drawn(self.seed, sizes, min(self.runs, prod(sizes))):
            values = (grid[place] for grid, place in zip(grids.values(), places, strict=True))
            yield Log2Hps({**defaults(space), **dict(zip(grids, values, strict=True))})

    def propose(self, space: Space, history: History) -> list[Point]:
        """All points without a result: none depends on the result of another."""
        return missing_points(self._draws(space), [0], "random", history)

    def conclude(self, space: Space, history: History) -> Conclusion:
        """The best point, and the expected best of every shorter search."""
        best = best_result(history)
        grids = self._grids(space) if math.isfinite(best.objective) else {}
        at_end = [
            f"{name}: the best point lies at the end of its grid, 2^{best.trial.log2_hps[name]:g}; "
            f"widen parameterization.space.{name}"
            for name, grid in grids.items()
            if best.trial.log2_hps[name] in (grid[0], grid[-1])
            and len(grid) > 1
            and not space[name].choices
        ]
        size = self._size(space)
        whole = f"the grid has {size} points, and all are taken: search.runs is {self.runs}"
        return best_of_one_phase(history, "random", [*[whole] * (size < self.runs), *at_end])


LISTED = 10**4
"""Points of the largest grid that is listed and shuffled; of a larger one points are drawn."""


@cache
def _drawn(seed: int, sizes: tuple[int, ...], count: int) -> tuple[tuple[int, ...], ...]:
    """`count` cells of a grid of `sizes`, each once, as Optuna's samplers draw them."""
    from optuna import create_study
    from optuna.distributions import IntDistribution
    from optuna.samplers import GridSampler

    from sweeper.search.optuna.mapping import quiet

    seed %= 2**32
    cells: dict[tuple[int, ...], None] = {}
    if prod(sizes) > LISTED:  # `RandomSampler`'s numbers, all at once: asked, 20,000 take seconds
        uniform, ends = np.random.RandomState(seed).uniform, np.array(sizes) - 1
        rows = np.zeros((count, len(sizes)), int)
        while len(cells) < count:  # a cell that was drawn before is drawn anew
            high = ends[ends > 0]  # for an only value no number is drawn
            drawn = np.floor(uniform(-0.5, high + 0.5, (count, len(high))) + 0.5)
            rows[:, ends > 0] = drawn.clip(0, high)
            cells |= dict.fromkeys(map(tuple, rows.tolist()))
        return tuple(cells)[:count]
    grid = {str(i): range(size) for i, size in enumerate(sizes)}
    ranges = {name: IntDistribution(0, len(values) - 1) for name, values in grid.items()}
    with quiet():
        study = create_study(sampler=GridSampler(grid, seed=seed))
        while len(cells) < count:  # a cell that was drawn before is drawn anew
            cells[tuple(study.ask(dict(ranges)).params.values())] = None
    return tuple(cells)
