"""Whether compiling a step pays: eager steps are timed, and then the compiled ones.

A short batch of trials ends sooner than its compilation would. So one of a size that is not
compiled yet begins eagerly, and is compiled where that should save time over all trials that wait.
What it gains is measured: a batch that gains nothing goes back, and those after it know.

With t the seconds of an eager step, g the gain (eager over compiled) and n the steps that are left,
those of batches to come included, compiling saves n t (1 - 1/g) seconds. It pays where that is more
than it costs: what a search needs with graphs (`graph.py`), which t is of where there are such, is
less than with compiling where it is not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from sweeper.engine.batched import BatchedRun

TIMED_STEPS = (4, 12, 16, 24)
"""Eager steps are timed from the first to the second of these, compiled ones from the third to the
fourth; counted from where this attempt at the batch begins. Steps before are slower: they warm up
caches and allocators, or compile."""
EXPECTED_SECONDS = 40.0
"""What compiling a batch is taken to cost until it has been seen."""
EXPECTED_GAIN = {"cpu": 1.4}
"""How much faster a step is taken to become by compiling it, until it has been seen."""
EXPECTED_GAIN_GPU = 4.0
"""Measured on an H200 at width 64 (docs/benchmarks.md)."""
MIN_GAIN = 1.05
"""What is not so much faster compiled goes on eagerly."""
MARGIN_CPU = 4.0
"""On a CPU compiling must save so many times its cost: it takes the cores that other batches train
on, and equal runs are equal to the last bit only where none is compiled."""


@dataclass
class CompileRecord:
    """What compiling a program has been seen to cost, in seconds, and to gain; None if not yet.

    `per_slice` is the seconds of a compiled step, divided by the slices of its batch.
    """

    seconds: float | None = None
    gain: float | None = None
    per_slice: float | None = None


class CompileDecision:
    """When, if at all, a run with `compile=auto` is compiled: `look` is called at its `points`."""

    def __init__(self, run: BatchedRun, steps: int, pending_steps: float) -> None:
        """`steps` are those of a whole run; `pending_steps`, those of such batches to come."""
        self.run, self.steps, self.pending_steps = run, steps, pending_steps
        self.record = run.program.compile_record
        first = run.step_index
        # A batch that begins compiled has nothing to decide.
        self.points = [] if run.compiled else [first + step for step in TIMED_STEPS]
        # When the stretch that is being timed began, seconds of an eager step, when it was decided
        # to compile, and the number of slices that was timed.
        self._began, self._eager, self._decided, self._size = 0.0, 0.0, 0.0, 0

    def look(self, step: int) -> None:
        """To be called after `step`, which is one of `points`."""
        if step not in self.points:
            return
        # Until the device is idle, so that the host's clock is the device's.
        if self.run.device.type == "cuda":
            torch.cuda.synchronize(self.run.device)
        now = time.perf_counter()
        match self.points.index(step):
            case 0:
                self._began, self._size = now, len(self.run.slots)
            case 1:
                self._eager = self._per_step(1, now)
                self._decide(step)
                self._decided = time.perf_counter()
            case 2:
                self._began = now
            # Steps of another size say nothing of what compiling gained.
            case 3 if self.run.compiled and len(self.run.slots) == self._size:
                self._judge(self._per_step(3, now))

    def shrinks(self, size: int) -> bool:
        """Whether compiling the batch for `size` slices saves more time than it costs."""
        remaining = self.steps - self.run.step_index
        saved = (self.record.per_slice or 0.0) * (len(self.run.slots) - size) * remaining
        return saved > self._cost()

    def _per_step(self, last: int, now: float) -> float:
        return (now - self._began) / (TIMED_STEPS[last] - TIMED_STEPS[last - 1])

    def _cost(self) -> float:
        seconds = EXPECTED_SECONDS if self.record.seconds is None else self.record.seconds
        return seconds * (MARGIN_CPU if self.run.device.type == "cpu" else 1.0)

    def _decide(self, step: int) -> None:
        kind = self.run.device.type
        gain = self.record.gain or EXPECTED_GAIN.get(kind, EXPECTED_GAIN_GPU)
        remaining = self.steps - step + self.pending_steps
        saved = self._eager * remaining * (1 - 1 / gain)
        self.run.compile(pays=gain >= MIN_GAIN and saved > self._cost())

    def _judge(self, compiled: float) -> None:
        self.record.gain = self._eager / compiled
        # The steps between the decision and the second timing took what compiling took, and their
        # own time as well.
        steps = TIMED_STEPS[2] - TIMED_STEPS[1]
        self.record.seconds = max(0.0, self._began - self._decided - steps * compiled)
        self.record.per_slice = compiled / self._size
        if self.record.gain < MIN_GAIN:
            self.run.uncompile()
            self.run.notices.append(
                f"compiled steps take {1 / self.record.gain:.2f} times as long: "
                "the model is trained without compiling it"
            )
