"""Train a pack to its end and say what came of every trial."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch

from sweeper.training.pack import Pack, PackRun, quiet_attention
from sweeper.trial import Result

CURVE_POINTS = 100
"""A result keeps its loss curve as at most this many averages."""

DIVERGED = 2.0
"""A run that ends above this multiple of its first loss has diverged, finite or not."""

Progress = Callable[[float], None]
"""Called now and then with the share of the pack that is done."""


def train(
    pack: Pack, *, device: str = "cpu", compiled: bool = False, progress: Progress | None = None
) -> list[Result]:
    """Train all trials of `pack` together; one result each, in their order.

    A trial has diverged, and its objective is +inf, when its loss was ever not finite or ends at
    more than DIVERGED times what it was before the first step. Losses stay on
    the device and are looked at some fifty times a run, so that no step waits for the host.
    """
    with quiet_attention():
        return _train(pack, device, compiled, progress)


def _train(pack: Pack, device: str, compiled: bool, progress: Progress | None) -> list[Result]:
    start = time.perf_counter()
    run = PackRun(pack, device, compiled=compiled)
    steps = run.recipe.train.steps
    stretch = max(1, steps // 50)
    rows: list[torch.Tensor] = []
    for step in range(steps):
        rows.append(run.step())
        if (step + 1) % stretch == 0:
            if not torch.isfinite(rows[-1]).any():
                break
            if progress is not None:
                progress((step + 1) / steps)
    heldout = run.heldout().double().cpu().numpy()
    losses = torch.stack(rows).double().cpu().numpy()
    seconds = (time.perf_counter() - start) / len(pack.trials)
    return [
        _result(run, index, losses[:, index], float(heldout[index]), seconds)
        for index in range(len(pack.trials))
    ]


def _result(run: PackRun, index: int, losses: np.ndarray, heldout: float, seconds: float) -> Result:
    objective = float(losses[-run.recipe.train.window() :].mean())
    finite = bool(np.isfinite(losses).all()) and objective <= DIVERGED * float(losses[0])
    return Result(
        trial=run.pack.trials[index],
        status="complete" if finite else "diverged",
        objective=objective if finite else math.inf,
        heldout=heldout if finite and math.isfinite(heldout) else math.inf,
        curve=tuple(curve(losses)),
        seconds=seconds,
        steps=len(losses),
        finished_at=time.time(),
    )


def curve(losses: np.ndarray) -> list[float]:
    """`losses` averaged over at most CURVE_POINTS equal stretches; not finite becomes +inf."""
    pieces = np.array_split(losses, min(CURVE_POINTS, len(losses)))
    means = (float(piece.mean()) for piece in pieces)
    return [round(mean, 5) if math.isfinite(mean) else math.inf for mean in means]
