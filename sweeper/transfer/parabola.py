"""Parabolas through the lowest points of many rows of losses at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

NEAR = 1.0
"""The parabola is fitted to points within this distance, in log2, of the lowest one."""
GOLDEN = (math.sqrt(5) - 1) / 2
"""Its multiples, modulo 1, are spread evenly however many are taken."""

Array = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Parabolas:
    """Rows of losses [row, eta] at ascending `etas` (log2), +inf where runs diverged.

    All rows are finite at the same points. `best` is the index of each row's lowest point and
    `coefficients` [3, row] the parabola near it, by least squares, around that point: NaN where
    fewer than three points are finite, the lowest is at an end, or it opens downwards.
    """

    etas: Array
    rows: Array
    best: Index
    coefficients: Array

    @classmethod
    def through(cls, etas: Array, rows: Array) -> Parabolas:
        """Fit every row."""
        best: Index = rows.argmin(axis=1)
        found = np.full((3, len(rows)), math.nan)
        for index in set(best.tolist()) - {0, len(etas) - 1}:
            away, mine = etas - etas[index], best == index
            near = np.isfinite(rows[0]) & (np.abs(away) <= reach(etas, index, NEAR))
            if near.sum() >= 3:
                found[:, mine] = np.polyfit(away[near], rows[np.ix_(mine, near)].T, 2)
        found[:, found[0] <= 0] = math.nan
        return cls(etas, rows, best, found)

    @cached_property
    def minima(self) -> tuple[Array, Array, Array]:
        """Place and height of every row's minimum, between the lowest point's neighbours.

        The place is not sought on the side of a neighbour that diverged; the third array holds
        it without that rule. Where no parabola can be fitted, the lowest point itself is the
        answer, and in the third array the places are spread between its neighbours.
        """
        (a, b, c), etas, best = self.coefficients, self.etas, self.best
        sides = [np.clip(best + side, 0, len(etas) - 1) for side in (-1, 1)]
        finite = np.isfinite(self.rows[0])
        left, right = (etas[side] - etas[best] for side in sides)
        vertex = -b / (2 * a)
        known, ends = np.isfinite(vertex), (left == 0) | (right == 0)
        spread = left + (right - left) * (GOLDEN * np.arange(len(best)) % 1)
        free = np.where(known, np.clip(vertex, left, right), np.where(ends, 0.0, spread))
        low, high = (np.where(finite[s], d, 0.0) for s, d in zip(sides, (left, right), strict=True))
        place = np.where(known, np.clip(vertex, low, high), 0.0)
        height = np.where(known, (a * place + b) * place + c, self.rows.min(axis=1))
        return etas[best] + place, height, etas[best] + free

    def above(self, where: Array) -> tuple[Array, Array]:
        """Bounds on how far every row lies above its minimum at its eta of `where`; >= 0.

        Between two finite points it is straight, or the parabola where that is lower. Beside a
        point that diverged and past the ends nothing is known but that it rises from the last
        point.
        """
        etas, rows, last = self.etas, self.rows, len(self.etas) - 1
        above = np.searchsorted(etas, where - 1e-9)
        exact = np.abs(etas[np.minimum(above, last)] - where) <= 1e-9
        i, j = np.clip(above - ~exact, 0, last), np.minimum(above, last)
        left, right = (np.take_along_axis(rows, side[:, None], 1)[:, 0] for side in (i, j))
        low, high = np.minimum(left, right), np.maximum(left, right)
        high[(i == j) & ~exact] = math.inf
        inner = (i < j) & np.isfinite(high)
        share = (where - etas[i])[inner] / (etas[j] - etas[i])[inner]
        straight = (1 - share) * left[inner] + share * right[inner]
        low[inner] = high[inner] = np.fmin(straight, self._at(where)[inner])
        least = self.minima[1]
        return np.maximum(0.0, low - least), np.maximum(0.0, high - least)

    def _at(self, where: Array) -> Array:
        """Every row's parabola at its eta; NaN beyond the points that it was fitted to."""
        a, b, c = self.coefficients
        x = where - self.etas[self.best]
        near = np.abs(x) <= reach(self.etas, self.best, NEAR)
        return np.where(near, (a * x + b) * x + c, math.nan)


def reach(etas: Array, best: Index | int, distance: float) -> Array:
    """`distance` from the lowest point, or that of its neighbours where the grid is wider."""
    left, right = (etas[np.clip(best + side, 0, len(etas) - 1)] for side in (-1, 1))
    found: Array = np.maximum(distance, np.maximum(etas[best] - left, right - etas[best])) + 1e-9
    return found
