"""The ridge of rate and batch: which rate goes with a batch that is not the best, and its cost.

Below the best batch of a size its best rate falls with the batch, above it hardly rises: no line
tells both. What rows of one batch show, from the best of their size, is alike over sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweeper.stats.estimate import Array, Estimate
from sweeper.stats.surface import SurfaceRuns

ROW_REACH = 1.0
"""Octaves around a row's lowest loss in which runs tell of its best rate."""
WIDTH = 0.6
"""Octaves of batch over which rows tell of each other."""
FAR, POINTS = 6.0, 49
"""Octaves of batch to both sides that are tabulated, and at how many points."""
AGAIN = 200
"""Times that sizes are drawn again."""


@dataclass(frozen=True, eq=False)
class Ridge:
    """By octaves of batch from the best, `offsets` [point]: octaves of rate, and loss above least.

    `rates` and `costs` [1 + AGAIN, point] are as fitted, then of sizes drawn again. `scatter` is
    how far a row is off, in octaves.
    """

    offsets: Array
    rates: Array
    costs: Array
    scatter: float

    @classmethod
    def of(
        cls, cells: Sequence[SurfaceRuns], optima: Sequence[Array], least: Sequence[float]
    ) -> Ridge:
        """The ridge of sizes with these optima [rate and batch, log2] and least losses."""
        rows = [
            _rows(cell, optimum, loss)
            for cell, optimum, loss in zip(cells, optima, least, strict=True)
        ]
        offsets = np.linspace(-FAR, FAR, POINTS)
        generator = np.random.default_rng([len(cells), AGAIN])
        taken = [np.arange(len(rows))]
        # Whole sizes are drawn: all rows of one are measured from its optimum, and share its error.
        taken += [generator.integers(0, len(rows), len(rows)) for _ in range(AGAIN)]
        smooth = [_smooth(offsets, np.concatenate([rows[i] for i in each])) for each in taken]
        rates, costs = (np.array([one[k] for one in smooth]) for k in (0, 1))
        every = np.concatenate(rows)
        off = every[:, 1] - np.interp(every[:, 0], offsets, rates[0])
        # Near the best, rows lie on the ridge by construction and hardly scatter.
        away = np.abs(every[:, 0]) > 0.25
        # Half of the rows lie within 0.67 deviations of a normal scatter.
        scatter = float(np.median(np.abs(off[away]))) / 0.6745 if away.any() else 0.0
        return cls(offsets=offsets, rates=rates, costs=costs, scatter=scatter)

    def rate(self, offsets: Array, generator: np.random.Generator | None = None) -> Array:
        """Octaves of rate at each of `offsets` [draw], by another drawing of the sizes each.

        With a generator rows scatter, as far from the best as they do.
        """
        rates = self._drawn(self.rates, offsets)
        if generator is None:
            return rates
        # The rate at the best batch is the best rate: there nothing scatters.
        share = np.minimum(1.0, np.abs(offsets))
        return rates + self.scatter * share * generator.normal(size=len(rates))

    def cost(self, offsets: Array) -> Array:
        """The loss above the least at each of `offsets` [draw]."""
        return self._drawn(self.costs, offsets)

    def slope(self, side: int) -> Estimate:
        """Octaves of rate an octave of batch, within two below (-1) or above (1) the best."""
        at = np.array([0.0, 2.0 * side])
        ends = np.array([np.interp(at, self.offsets, row) for row in self.rates])
        slopes = (ends[:, 1] - ends[:, 0]) / (2.0 * side)
        return Estimate.from_draws(float(slopes[0]), slopes[1:])

    def _drawn(self, table: Array, offsets: Array) -> Array:
        """A table's row by turns, the fitted one first, at the offset of each draw."""
        # Beyond its ends the table goes on as its last piece does.
        place = (np.asarray(offsets, dtype=float) + FAR) / (2 * FAR) * (POINTS - 1)
        left = np.clip(place.astype(int), 0, POINTS - 2)
        row, share = np.arange(len(place)) % len(table), place - left
        values: Array = (1 - share) * table[row, left] + share * table[row, left + 1]
        return values


def _rows(cell: SurfaceRuns, optimum: Array, least: float) -> Array:
    """Of each batch whose best rate lies inside its rates: offset, octaves of rate, loss above."""
    found = [(0.0, 0.0, 0.0)]  # the best itself
    for batch in np.unique(cell.x[:, 1]):
        here = (cell.x[:, 1] == batch) & np.isfinite(cell.losses)
        rates, of = np.unique(cell.x[here, 0], return_inverse=True)
        if len(rates) < 3:
            continue
        means = np.bincount(of, cell.losses[here]) / np.bincount(of)
        lowest = int(means.argmin())
        if lowest in (0, len(rates) - 1):
            continue
        reach = max(ROW_REACH, *np.diff(rates[lowest - 1 : lowest + 2]))
        near = np.abs(rates - rates[lowest]) <= reach + 1e-9
        a, b, c = np.polyfit(rates[near] - rates[lowest], means[near], 2)
        # No valley, or one whose bottom, at -b / (2 a), lies outside of the runs that tell of it.
        if a <= 0 or abs(b) > 2 * a * reach:
            continue
        best = rates[lowest] - b / (2 * a)
        found.append((batch - optimum[1], best - optimum[0], c - b * b / (4 * a) - least))
    return np.array(found)


def _smooth(offsets: Array, rows: Array) -> tuple[Array, Array]:
    """Lines through the rows near each offset: octaves of rate and loss, both 0 at the best."""
    away = rows[None, :, 0] - offsets[:, None]
    # Beyond the rows the nearest ones tell.
    width = np.maximum(WIDTH, np.sort(np.abs(away), axis=1)[:, min(5, len(rows) - 1)])[:, None]
    weights = np.exp(-0.5 * (away / width) ** 2)
    total = weights.sum(axis=1)
    middle = (weights * away).sum(axis=1) / total
    spread = (weights * (away - middle[:, None]) ** 2).sum(axis=1) + 1e-6 * total
    told = []
    for values in (rows[:, 1], rows[:, 2]):
        mean = weights @ values / total
        slope = (weights * (away - middle[:, None])) @ values / spread
        fitted = mean - slope * middle
        # Smoothing leaves a little at the best, where both are 0 by definition.
        told.append(fitted - np.interp(0.0, offsets, fitted))
    return told[0], np.maximum(told[1], 0.0)
