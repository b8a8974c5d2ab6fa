"""What became of a trial, from its losses: the same for every runner."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sweeper.train_settings import TrainSettings
from sweeper.trial import Status

CURVE_POINTS = 100
"""A result keeps its loss curve as at most this many averages."""
DIVERGENCE_RATIO = 2.0
"""A run that ends above this multiple of its first loss has diverged, finite or not."""


def judged(
    losses: NDArray[np.float64], heldout: float | None, stopped: str, train: TrainSettings
) -> tuple[Status, float, float]:
    """Status, objective and held-out loss of a run with `losses` [steps], from its first step.

    `stopped` is how it ended: complete, pruned or diverged. A run has diverged, and its objective
    is +inf, when a loss was not finite, or a complete one ends at more than DIVERGENCE_RATIO times
    its first loss. A held-out loss that is not finite becomes +inf; None, where none is
    measured, NaN.
    """
    objective = float(losses[-train.window() :].mean())
    finite = bool(np.isfinite(losses).all())
    status = stopped
    # A loss below zero, such as a log-density, is no scale to measure by.
    too_high = losses[0] > 0 and objective > DIVERGENCE_RATIO * float(losses[0])
    if not finite or (status == "complete" and too_high):
        return "diverged", math.inf, math.inf
    if heldout is None or status != "complete":
        return cast(Status, status), objective, math.nan if heldout is None else heldout
    heldout = heldout if math.isfinite(heldout) else math.inf
    if train.objective == "heldout":
        return "complete" if math.isfinite(heldout) else "diverged", heldout, heldout
    return "complete", objective, heldout


def curve(losses: NDArray[np.float64]) -> list[float]:
    """`losses` averaged over at most CURVE_POINTS equal stretches; not finite becomes +inf."""
    pieces = np.array_split(losses, min(CURVE_POINTS, len(losses)))
    means = (float(piece.mean()) for piece in pieces)
    return [round(mean, 5) if math.isfinite(mean) else math.inf for mean in means]
