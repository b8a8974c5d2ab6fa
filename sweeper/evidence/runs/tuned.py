"""Which runs, of several hyperparameters, are those at the best of their cell."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TriedRun:
    """A run among those of its `cell`, a size and a horizon; its `loss` is inf where it diverged.

    `rate` is its learning rate, or the logarithm, and `rest` what else was varied there.
    """

    cell: Hashable
    rate: float
    rest: Hashable
    loss: float


@dataclass(frozen=True, kw_only=True)
class TunedRuns:
    """Places of runs: those that are `kept`, and those `off` their cell's best.

    `at_end` are those of a cell whose best rate lies at an end of those that were run there. Where
    that is so of every cell that was run at several they are kept, and so many are `untuned`.
    """

    kept: Sequence[int]
    off: Sequence[int]
    at_end: Mapping[Hashable, Sequence[int]]
    untuned: int = 0


def tuned(runs: Sequence[TriedRun]) -> TunedRuns:
    """Each cell at its best: the lowest mean loss among the points with most seeds.

    Where other cells' optima are bracketed by rates on either side, one that is not says nothing
    of its cell: a ladder may be half trained.
    """
    cells: dict[Hashable, dict[Hashable, list[int]]] = {}
    tried: dict[Hashable, list[tuple[float, Hashable]]] = {}
    for place, run in enumerate(runs):
        # One that diverged bounds a curve, though no law can be fitted to it.
        tried.setdefault(run.cell, []).append((run.rate, run.rest))
        if math.isfinite(run.loss):
            points = cells.setdefault(run.cell, {})
            points.setdefault((run.rate, run.rest), []).append(place)
    bests: dict[Hashable, list[int]] = {}
    sides: dict[Hashable, tuple[bool, bool]] = {}
    off: list[int] = []
    for cell, points in cells.items():
        # The mean of fewer seeds is low by luck more easily: only points with most of them compete.
        seeds = max(map(len, points.values()))
        full = [places for places in points.values() if len(places) == seeds]
        best = min(full, key=lambda places: sum(runs[place].loss for place in places) / len(places))
        bests[cell], first = best, runs[best[0]]
        off += [place for places in points.values() if places is not best for place in places]
        rates = [rate for rate, rest in tried[cell] if rest == first.rest]
        sides[cell] = min(rates) < first.rate, max(rates) > first.rate
    bracketed = any(map(all, sides.values()))
    at_ends = {c for c, of in sides.items() if any(of) and not all(of)}
    open_cells = at_ends if bracketed else set[Hashable]()
    return TunedRuns(
        kept=[place for cell, best in bests.items() if cell not in open_cells for place in best],
        off=off,
        at_end={cell: bests[cell] for cell in bests if cell in open_cells},
        untuned=len(at_ends - open_cells),
    )
