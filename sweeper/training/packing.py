"""How many trials to train as one: measured on the device at hand."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from sweeper.training.pack import Pack, PackRun, quiet_attention

WORTH = 0.95
"""A larger pack must cost at most this share of the smaller one's time per trial."""


def step_seconds(pack: Pack, device: str, *, steps: int = 3) -> float:
    """Seconds of one step of `pack`: the fastest of `steps`, after one that is not counted."""
    run, times = PackRun(pack, device), []
    try:
        with quiet_attention():
            for _ in range(steps + 1):
                start = time.perf_counter()
                run.step()
                if run.device.type == "cuda":
                    torch.cuda.synchronize(run.device)
                times.append(time.perf_counter() - start)
    finally:
        run.program.release()
    return min(times[1:])


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The best pack size found and its seconds per trial and step.

    `open` tells that a larger pack might be better still, had there been more trials to try.
    """

    size: int
    seconds: float
    open: bool

    def serves(self, trials: int) -> bool:
        """Whether measuring with so many trials would try no larger pack."""
        return not self.open or trials < 2 * self.size


def measure(pack: Pack, device: str) -> Measured:
    """The pack size with the least time per trial, sizes doubling from 1 as long as it pays.

    Running out of memory ends the search, not the work. Packs are timed without compiling
    them: a compiled pack gains from size at least as much, and each size costs a compilation.
    """
    best, size = Measured(size=1, seconds=math.inf, open=False), 1
    while size <= len(pack.trials):
        part = Pack(trials=pack.trials[:size], corpus=pack.corpus)
        try:
            share = step_seconds(part, device) / size
        except torch.OutOfMemoryError:
            return replace(best, open=False)
        if share > best.seconds * WORTH:
            return replace(best, open=False)
        best, size = Measured(size=size, seconds=share, open=True), size * 2
    return best


def split(trials: Sequence[object], size: int) -> list[slice]:
    """Slices of at most `size`, as equal as they can be."""
    count = -(-len(trials) // size)
    edges = [round(i * len(trials) / count) for i in range(count + 1)] if count else [0]
    return [slice(a, b) for a, b in pairwise(edges)]
