"""How many trials to train as one: measured on the device at hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import torch

from sweeper.training.pack import Pack, PackRun, quiet_attention

WORTH = 0.95
"""A larger pack must cost at most this share of the smaller one's time per trial."""


def step_seconds(pack: Pack, device: str, *, compiled: bool = False, steps: int = 3) -> float:
    """Seconds of one step of `pack`: the fastest of `steps`, after one that is not counted."""
    run, times = PackRun(pack, device, compiled=compiled), []
    for _ in range(steps + 1):
        start = time.perf_counter()
        run.step()
        if run.device.type == "cuda":
            torch.cuda.synchronize(run.device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def choose_size(pack: Pack, device: str, *, compiled: bool = False) -> tuple[int, float]:
    """The pack size with the least time per trial, and that time per step in seconds.

    Sizes double from 1 as long as it pays; running out of memory ends the search, not the work.
    """
    best, best_time, size = 1, float("inf"), 1
    while size <= len(pack.trials):
        part = Pack(trials=pack.trials[:size], corpus=pack.corpus)
        try:
            with quiet_attention():
                share = step_seconds(part, device, compiled=compiled) / size
        except torch.OutOfMemoryError:
            break
        if share > best_time * WORTH:
            break
        best, best_time, size = size, share, size * 2
    return best, best_time


def split(trials: Sequence[object], size: int) -> list[slice]:
    """Slices of at most `size`, as equal as they can be."""
    count = -(-len(trials) // size)
    edges = [round(i * len(trials) / count) for i in range(count + 1)] if count else [0]
    return [slice(a, b) for a, b in pairwise(edges)]
