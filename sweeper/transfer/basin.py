"""How wide the basin around an optimum is: the learning rates that lose next to nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeper.transfer.estimate import Estimate

SHARE = 0.01
"""A learning rate is in the basin when its loss is within this share of the least."""

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Basin:
    """The ends of the basin as far as it was measured, and its width, all in log2 eta.

    Where the curve ends within the basin the width is the least that it can be, and its interval
    reaches +inf; beside a point that diverged it reaches that point.
    """

    low_log2: float
    high_log2: float
    width_log2: Estimate


UNKNOWN_BASIN = Basin(
    low_log2=math.nan,
    high_log2=math.nan,
    width_log2=Estimate(value=math.nan, low=-math.inf, high=math.inf),
)


def basin(etas: Array, rows: Array, places: Array, heights: Array) -> Basin:
    """The basin of the first of `rows`, and its interval from the others, bootstrap draws.

    `rows` [draw, eta] are mean losses with their minima `heights` at `places` [draw].
    """
    limits = SHARE * np.abs(heights)
    right, far_right = _end(etas, rows, places, heights, limits)
    left, far_left = _end(-etas[::-1], rows[:, ::-1], -places, heights, limits)
    least, most = right + left, far_right + far_left
    width = Estimate(
        value=float(least[0]),
        low=Estimate.of(float(least[0]), least[1:]).low,
        high=Estimate.of(float(most[0]), most[1:]).high,
    )
    return Basin(low_log2=-float(left[0]), high_log2=float(right[0]), width_log2=width)


def _end(
    etas: Array, rows: Array, places: Array, heights: Array, limits: Array
) -> tuple[Array, Array]:
    """Where each row rises beyond its limit to the right of its minimum: at least, and at most.

    Between points the root of what lies above the minimum is straight: exact for a parabola.
    """
    x, root = places.copy(), np.zeros_like(places)
    least, most = places.copy(), np.full_like(places, math.inf)
    within, target = np.ones(len(rows), dtype=bool), np.sqrt(limits)
    for eta, losses in zip(etas, rows.T, strict=True):
        here = np.sqrt(np.maximum(losses - heights, 0.0))
        seen = within & (eta > places + 1e-9)
        ends = seen & (here > target)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(np.isfinite(here), (target - root) / (here - root), 0.0)
            reached = x + share * (eta - x)
        least[ends] = reached[ends]
        most[ends] = np.where(np.isfinite(here), least, eta)[ends]
        within &= ~ends
        going = seen & ~ends
        x[going], root[going] = eta, here[going]
    least[within] = x[within]
    return least, most
