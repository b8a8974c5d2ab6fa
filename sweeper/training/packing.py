"""How many trials to train as one: measured on the device at hand."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from sweeper.control import UNCONTROLLED, Control
from sweeper.training.device_errors import forget_frames, free_unused, is_out_of_memory
from sweeper.training.pack import Pack, PackRun
from sweeper.training.precision import quiet_attention

MAX_TIME_RATIO = 0.95
"""A larger pack must take at most this fraction of the smaller one's time per trial."""


def step_seconds(
    pack: Pack, device: str, *, steps: int = 3, control: Control = UNCONTROLLED
) -> float:
    """Seconds of one step of `pack`: the fastest of `steps`.

    The first is not counted: it warms up allocators and, on a GPU, loads kernels.
    """
    run, times = PackRun(pack, device), []
    try:
        with quiet_attention():
            for _ in range(steps + 1):
                control.leave_if_asked()
                start = time.perf_counter()
                run.step()
                # A step is only queued when it returns.
                if run.device.type == "cuda":
                    torch.cuda.synchronize(run.device)
                times.append(time.perf_counter() - start)
    finally:
        run.program.release()
    return min(times[1:])


@dataclass(frozen=True, kw_only=True)
class MeasuredSize:
    """The pack size with the least time per trial, and its seconds per trial and step.

    `limited_by_trials` tells that a larger pack might be better still: there were too few trials
    to try one.
    """

    size: int
    seconds: float
    limited_by_trials: bool

    def covers(self, trials: int) -> bool:
        """Whether measuring with so many trials would try no larger pack."""
        return not self.limited_by_trials or trials <= self.size


def measure_pack_size(pack: Pack, device: str, control: Control = UNCONTROLLED) -> MeasuredSize:
    """The pack size with the least time per trial; sizes double, up to all, as long as it pays.

    Running out of memory ends the search, not the work. Packs are timed without compiling
    them: a compiled pack gains from size at least as much, and each size costs a compilation.
    """
    best, size = MeasuredSize(size=1, seconds=math.inf, limited_by_trials=False), 1
    count = len(pack.trials)
    while size <= count:
        part = Pack(trials=pack.trials[:size], corpus=pack.corpus)
        try:
            seconds = step_seconds(part, device, control=control) / size
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            forget_frames(error)
            free_unused(torch.device(device))
            return replace(best, limited_by_trials=False)
        # What is less than double is all of them: nine trials need not become five and four.
        ratio = MAX_TIME_RATIO if size >= 2 * best.size else 1.0
        if seconds > best.seconds * ratio:
            return replace(best, limited_by_trials=False)
        best = MeasuredSize(size=size, seconds=seconds, limited_by_trials=True)
        size = 2 * size if size == count else min(2 * size, count)
    return best


def split(trials: Sequence[object], size: int) -> list[slice]:
    """Slices of at most `size`, as equal as they can be."""
    count = -(-len(trials) // size)
    edges = [round(i * len(trials) / count) for i in range(count + 1)] if count else [0]
    return [slice(a, b) for a, b in pairwise(edges)]
