"""Parabolas near the lowest points of learning-rate curves, many curves at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sweeper.transfer.noise import Array

Index = NDArray[np.intp]

FIT_RADIUS = 1.0
"""A parabola is fitted to the points within this distance, in log2, of the lowest one."""

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
"""Its multiples, modulo 1, spread evenly over [0, 1) for any number of draws."""

SAME_ETA = 1e-9
"""Values of log2 eta that differ by less are the same grid point."""


@dataclass(frozen=True, eq=False)
class Valleys:
    """Rows of curves floor + curvature h(u), u the distance to the row's vertex in log2.

    h is u^2 + skew u^3 near the vertex, times `steeps` to its right; see `rise`.
    """

    vertices: Array
    floors: Array
    curvatures: Array
    skews: Array
    steeps: Array

    def losses(self, x: Array) -> Array:
        """Every row's at the distances `x` [row, point]."""
        shapes = rise(x - self.vertices[:, None], self.skews[:, None], self.steeps[:, None])
        return self.floors[:, None] + self.curvatures[:, None] * shapes


@dataclass(frozen=True, eq=False)
class Parabolas:
    """Rows of losses [row, eta] at ascending `etas` (log2), +inf where runs diverged.

    All rows are finite at the same points. `lowest` is the index of each row's lowest point.
    `coefficients` [3, row] are those of the least-squares parabola near it, in the distance from
    it, beside the row's `cubic` [row], and `vertices` [row] are their minima; NaN where fewer than
    three points are finite, the lowest point is at an end, or the parabola opens downwards. To the
    right of its minimum a row rises `steep` [row] times as far as that.
    """

    etas: Array
    losses: Array
    lowest: Index
    coefficients: Array
    cubic: Array
    vertices: Array
    steep: Array

    @classmethod
    def through(cls, etas: Array, losses: Array, cubic: Array) -> Parabolas:
        """Fit every row near its lowest point.

        Only near it: further out real curves are no parabolas, and points there would bend the
        fit. Rows with the same lowest point share their design matrix, so one call fits them all.
        """
        lowest: Index = losses.argmin(axis=1)
        coefficients = np.full((3, len(losses)), math.nan)
        for index in set(lowest.tolist()) - {0, len(etas) - 1}:
            distances, rows = etas - etas[index], lowest == index
            near = np.isfinite(losses[0]) & (np.abs(distances) <= radius(etas, index, FIT_RADIUS))
            if near.sum() >= 3:
                near_losses = losses[np.ix_(rows, near)]
                near_losses = near_losses - np.outer(cubic[rows], distances[near] ** 3)
                coefficients[:, rows] = np.polyfit(distances[near], near_losses.T, 2)
        coefficients[:, coefficients[0] <= 0] = math.nan
        a, b, _ = coefficients
        # Where the derivative, 3 cubic x^2 + 2 a x + b, vanishes and the second one is positive.
        vertices = -b / (a + np.sqrt(np.maximum(a * a - 3 * cubic * b, 0.0)))
        return cls(etas, losses, lowest, coefficients, cubic, vertices, np.ones(len(losses)))

    def with_valleys(self, rows: Index, valleys: Valleys, origin: float) -> Parabolas:
        """With `valleys`, whose vertices are distances from `origin`, in place of some rows."""
        v = valleys.vertices + origin - self.etas[self.lowest[rows]]
        c, k = valleys.curvatures, valleys.curvatures * valleys.skews
        coefficients, cubic, vertices, steep = (
            old.copy() for old in (self.coefficients, self.cubic, self.vertices, self.steep)
        )
        coefficients[:, rows] = c - 3 * k * v, (3 * k * v - 2 * c) * v, (c - k * v) * v**2
        coefficients[2, rows] += valleys.floors
        cubic[rows], vertices[rows], steep[rows] = k, v, valleys.steeps
        return replace(self, coefficients=coefficients, cubic=cubic, vertices=vertices, steep=steep)

    @cached_property
    def minima(self) -> tuple[Array, Array, Array]:
        """Every row's safe optimum (log2 eta), its loss there, and its free optimum.

        Both optima lie between the neighbours of the lowest point: a vertex further away would
        contradict what was measured there. The safe one also keeps off a neighbour that
        diverged. Without a parabola the safe optimum is the lowest point itself; the free ones
        spread over the whole range between its neighbours, since no point excludes any of it.
        """
        (a, b, c), etas, lowest = self.coefficients, self.etas, self.lowest
        neighbours = [np.clip(lowest + side, 0, len(etas) - 1) for side in (-1, 1)]
        left, right = (etas[index] - etas[lowest] for index in neighbours)
        vertex = self.vertices
        fitted, at_end = np.isfinite(vertex), (left == 0) | (right == 0)
        spread = left + (right - left) * (GOLDEN_RATIO * np.arange(len(lowest)) % 1)
        free = np.where(fitted, np.clip(vertex, left, right), np.where(at_end, 0.0, spread))
        finite = np.isfinite(self.losses[0])
        low, high = (
            np.where(finite[index], end, 0.0)
            for index, end in zip(neighbours, (left, right), strict=True)
        )
        safe = np.where(fitted, np.clip(vertex, low, high), 0.0)
        loss = np.where(
            fitted, ((self.cubic * safe + a) * safe + b) * safe + c, self.losses.min(axis=1)
        )
        return etas[lowest] + safe, loss, etas[lowest] + free

    def loss_gaps(self, at: Array) -> tuple[Array, Array]:
        """Bounds, lower and upper, on every row's loss at its eta of `at` above its minimum.

        Between two finite points the loss is the chord, or the parabola where that is lower, and
        both bounds agree. Beside a point that diverged and past the ends, the loss of the last
        point is the lower bound and the upper one is +inf. No bound is below 0.
        """
        etas, losses, last = self.etas, self.losses, len(self.etas) - 1
        above = np.searchsorted(etas, at - SAME_ETA)
        on_grid = np.abs(etas[np.minimum(above, last)] - at) <= SAME_ETA
        i, j = np.clip(above - ~on_grid, 0, last), np.minimum(above, last)
        left, right = (np.take_along_axis(losses, k[:, None], 1)[:, 0] for k in (i, j))
        low, high = np.minimum(left, right), np.maximum(left, right)
        high[(i == j) & ~on_grid] = math.inf
        inner = (i < j) & np.isfinite(high)
        progress = (at - etas[i])[inner] / (etas[j] - etas[i])[inner]
        chord = (1 - progress) * left[inner] + progress * right[inner]
        low[inner] = high[inner] = np.fmin(chord, self._values(at)[inner])
        least = self.minima[1]
        return np.maximum(0.0, low - least), np.maximum(0.0, high - least)

    def _values(self, at: Array) -> Array:
        """Every row's parabola at its eta; NaN beyond the points that it was fitted to."""
        a, b, c = self.coefficients
        x = at - self.etas[self.lowest]
        near = np.abs(x) <= radius(self.etas, self.lowest, FIT_RADIUS)
        values = ((self.cubic * x + a) * x + b) * x + c
        optima, least, _ = self.minima
        values = np.where(at > optima, least + self.steep * (values - least), values)
        return np.where(near, values, math.nan)


def rise(u: Array, skews: Array, ratios: Array) -> Array:
    """u^2 + k u^3 + ..., times the ratio where u is positive.

    It is 2 (e^(q u) - 1 - q u) / q^2 with q = 3 k, and no skew k may be 0.
    """
    q = 3 * skews
    valley = 2 * (np.expm1(q * u) - q * u) / q**2
    risen: Array = np.where(u > 0, ratios, 1.0) * valley
    return risen


def radius(etas: Array, lowest: Index | int, distance: float) -> Array:
    """`distance` from the lowest point, or that of its neighbours where the grid is coarser."""
    left, right = (etas[np.clip(lowest + side, 0, len(etas) - 1)] for side in (-1, 1))
    spacing = np.maximum(etas[lowest] - left, right - etas[lowest])
    found: Array = np.maximum(distance, spacing) + SAME_ETA
    return found
