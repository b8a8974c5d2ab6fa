"""`search=random`: points drawn without replacement from the grid over all hyperparameters."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Annotated

from sweeper.records import Bounded
from sweeper.search.line import SPACING
from sweeper.search.prune import PrunerKind
from sweeper.search.strategy import (
    FRESH_SEEDS,
    Conclusion,
    FreshSeedCount,
    History,
    Phase,
    Point,
    Until,
    best_result,
    chosen_axes,
    expected_best,
    missing_points,
    pruned_notes,
)
from sweeper.trial import ONE_OR_MORE, Log2Hps, Space, defaults


@dataclass(frozen=True, kw_only=True)
class RandomGrid(Bounded):
    """`runs` points of the grid with spacing `step` in log2 over `axes` (null: all).

    A grid of fewer points is taken whole. The order of the draw does not depend on `runs`: a
    longer search continues a shorter one.
    """

    runs: Annotated[int, ONE_OR_MORE] = 345
    step: Annotated[float, SPACING] = 1.0
    seed: int = 0
    axes: tuple[str, ...] | None = None
    fresh_seeds: FreshSeedCount = FRESH_SEEDS
    until: Until = "planned"
    prune: PrunerKind = "none"

    def plan(self, space: Space) -> list[Phase]:
        """One phase, of `runs` trials or all points of the grid."""
        return [Phase(name="random", trials=min(self.runs, self._size(space)))]

    def _size(self, space: Space) -> int:
        """Points of the grid."""
        return prod(len(grid) for grid in self._grids(space).values())

    def _grids(self, space: Space) -> dict[str, list[float]]:
        return {name: space[name].grid(self.step) for name in chosen_axes(space, self.axes)}

    def _draws(self, space: Space) -> Iterator[Log2Hps]:
        """All of the search's points, in order; at most those of the grid."""
        grids, generator = self._grids(space), random.Random(f"sweeper {self.seed}")
        size, drawn = self._size(space), set[int]()
        # Drawn anew where it was drawn before: a grid of ten axes is too large for a shuffled list.
        while len(drawn) < min(self.runs, size):
            index = generator.randrange(size)
            if index in drawn:
                continue
            drawn.add(index)
            hps = dict(defaults(space))
            for name, grid in grids.items():
                # The index is a number in mixed radix: a digit for each axis.
                index, digit = divmod(index, len(grid))
                hps[name] = grid[digit]
            yield Log2Hps(hps)

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
        if (size := self._size(space)) < self.runs:
            whole = [f"the grid has {size} points, and all are taken: search.runs is {self.runs}"]
        else:
            whole = []
        objectives = [result.objective for result in history.results]
        return Conclusion(
            best_log2=best.trial.log2_hps,
            objective=best.objective,
            seeds=1,
            runs=len(objectives),
            notes=(*whole, *at_end, *pruned_notes(history)),
            best_loss_curve=expected_best(objectives),
            phase_ends={"random": len(objectives)},
        )
