"""Train batched trials to their end and say what came of every trial."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sweeper.engine import checkpoint
from sweeper.engine.batched import PADDING, BatchedRun, BatchedTrials, Compile
from sweeper.engine.checkpoint import RunProgress
from sweeper.engine.program import CompileDecision, quiet_attention
from sweeper.launch.job import UNCONTROLLED, Control, Leave
from sweeper.search.prune import Pruner
from sweeper.trial import Result, curve, judged

SYNC_POINTS = 50
"""The host reads the losses so often in a run; between sync points no step waits for it."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a batch is run: nothing here changes what comes of its trials beyond rounding.

    `compile` is "auto" to compile where it earns its time back: `pending` are trials of the same
    specification that are to be trained in this process later. Checkpoints go to the
    folder `checkpoints` (None: nowhere), every `save_every` seconds.
    """

    device: str = "cpu"
    compile: Compile = "off"
    pending: float = 0.0
    checkpoints: Path | None = None
    save_every: float = 300.0


def train(
    batched: BatchedTrials,
    execution: Execution = Execution(),
    control: Control = UNCONTROLLED,
    pruner: Pruner | None = None,
) -> list[Result]:
    """Train all trials of `batched` together; one result each, in their order.

    A trial has diverged, and its objective is +inf, when its loss was ever not finite or ends at
    more than twice what it was before the first step. A trial that diverges or
    is pruned leaves the batch at the next sync point. A batch that has a checkpoint goes on from
    there. `Leave` is raised when the control says so.
    """
    with quiet_attention():
        return Training(batched, execution, control, pruner).run()


class Training:
    """One call of `train`.

    A resumed batch ends as an undisturbed one, to the last bit on a CPU. Dropping slices changes
    the shapes of kernels, and thereby how they round. So it happens at sync points, which the
    step fixes, and never because a checkpoint was written.
    """

    def __init__(
        self, batched: BatchedTrials, execution: Execution, control: Control, pruner: Pruner | None
    ) -> None:
        """Draw the batch's weights, or take them from its checkpoint."""
        self.execution, self.control, self.pruner = execution, control, pruner
        self.start = time.perf_counter()
        self.trials = batched.trials
        self.batched_run = BatchedRun(batched, execution.device, compile=execution.compile)
        self.train = self.batched_run.prepared.train
        count = len(batched.trials)
        losses = np.full((self.train.steps, count), np.nan, np.float64)
        self.progress = RunProgress(losses=losses, stopped={}, steps=[0] * count)
        self.path = None
        if execution.checkpoints is not None:
            self.path = checkpoint.path_of(execution.checkpoints, batched.trials)
            self._resume(self.path)
        self.saved_at = time.perf_counter()
        self.unread_losses: list[torch.Tensor] = []
        self.compiling = None
        if execution.compile == "auto":
            pending_steps = execution.pending / count * self.train.steps
            self.compiling = CompileDecision(self.batched_run, self.train.steps, pending_steps)

    def _resume(self, path: Path) -> None:
        try:
            checkpoint.load(self.batched_run, self.progress, path)
        except ValueError as error:
            self.control.notify(f"{error}; its trials begin anew")
        # The time of earlier attempts counts, the time of what they lost does not.
        self.start = time.perf_counter() - self.progress.seconds

    def run(self) -> list[Result]:
        """To the end, from sync point to sync point."""
        try:
            sync_points = self._sync_points()
            timed = self.compiling.points if self.compiling else []
            for stop in sorted({*sync_points, *(t for t in timed if t < self.train.steps)}):
                while self.batched_run.step_index < stop:
                    self.unread_losses.append(self.batched_run.step())
                    self._save_if_due()
                if stop in sync_points and not self._settle(stop):
                    break
                # A batch is compiled for the size that it goes on with.
                if self.compiling:
                    self.compiling.look(stop)
            return self._results()
        finally:
            self.batched_run.program.release()

    def _settle(self, stop: int) -> bool:
        """Drop what has stopped at this sync point; whether any trial is left to train."""
        if self.unread_losses:
            self._sync()
        if self._active() and stop < self.train.steps:
            self._compact()
        return bool(self._active())

    def _sync_points(self) -> set[int]:
        """Steps after which the host reads the losses, from where the batch stands."""
        stretch = max(1, self.train.steps // SYNC_POINTS)
        rungs = self.pruner.rungs if self.pruner else ()
        stops = {*range(stretch, self.train.steps, stretch), *rungs, self.train.steps}
        # The step of a checkpoint is among them: its batch may not have been made smaller yet.
        here = self.batched_run.step_index
        return {stop for stop in stops if here <= stop <= self.train.steps}

    def _active(self) -> list[int]:
        """Indices of the trials that still train, in the order of their slices."""
        stopped = self.progress.stopped
        return [slot for slot in self.batched_run.slots if slot != PADDING and slot not in stopped]

    def _sync(self) -> None:
        """Take the losses to the host; stop trials; report."""
        first = self._read_losses()
        step, progress = self.batched_run.step_index, self.progress
        for slot in self._active():
            broken = np.flatnonzero(~np.isfinite(progress.losses[first:step, slot]))
            if len(broken):
                # A result ends where its loss did, whenever that was noticed. What the trial
                # trained on until this sync point is left out.
                progress.stopped[slot] = "diverged"
                progress.steps[slot] = first + int(broken[0]) + 1
        if step < self.train.steps:
            self._prune(step)
        slots = self.batched_run.slots
        self.batched_run.slots = [PADDING if slot in progress.stopped else slot for slot in slots]
        for notice in self.batched_run.take_notices():
            self.control.notify(notice)
        # What a stopped trial is spared counts as done.
        remaining = (self.train.steps - step) * len(self._active())
        self.control.progress(1.0 - remaining / (self.train.steps * len(self.trials)))

    def _read_losses(self) -> int:
        """Take the losses since the last sync point, in one copy; the first of these steps."""
        losses = torch.stack(self.unread_losses).double().cpu().numpy()
        self.unread_losses.clear()
        first = self.batched_run.step_index - len(losses)
        for column, slot in enumerate(self.batched_run.slots):
            if slot != PADDING:
                self.progress.losses[first : first + len(losses), slot] = losses[:, column]
                self.progress.steps[slot] = self.batched_run.step_index
        return first

    def _prune(self, step: int) -> None:
        if self.pruner is None or step not in self.pruner.rungs:
            return
        slots = {self.trials[slot].key: slot for slot in self._active()}
        recent = self.progress.losses[max(0, step - self.train.window()) : step]
        losses = {key: float(recent[:, slot].mean()) for key, slot in slots.items()}
        for key in self.pruner.trials_to_stop(step, losses, self.trials):
            self.progress.stopped[slots[key]] = "pruned"

    def _compact(self) -> None:
        """Drop the slices of trials that have stopped; what is compiled, down to a compiled size.

        Another size would be compiled anew: only where that saves more time than it takes.
        """
        run, size = self.batched_run, len(self._active())
        if run.compiled and not (self.compiling and self.compiling.shrinks(size)):
            sizes = run.program.compiled_sizes
            size = min((compiled for compiled in sizes if compiled >= size), default=size)
        if size < len(run.slots):
            order = sorted(range(len(run.slots)), key=lambda i: run.slots[i] == PADDING)
            run.select(sorted(order[:size]))
            if run.compiled:
                run.program.compiled_sizes.add(size)

    def _save_if_due(self) -> None:
        """Save when it is time to, or when told to leave; then `Leave` is raised."""
        leave = self.control.should_leave()
        due = time.perf_counter() - self.saved_at > self.execution.save_every
        if not leave and not (due and self.path):
            return
        self._sync()
        if self.path and self._active():
            self._save(self.path)
        if leave and self._active():
            raise Leave

    def _save(self, path: Path) -> None:
        self.progress.seconds = time.perf_counter() - self.start
        self.saved_at = time.perf_counter()
        try:
            checkpoint.save(self.batched_run, self.progress, path)
        except OSError as error:
            self.control.notify(f"no checkpoint could be written ({error}); training goes on")

    def _results(self) -> list[Result]:
        heldout = dict.fromkeys(range(len(self.trials)), math.nan)
        if self._active():
            values = self.batched_run.heldout().double().cpu().numpy()
            heldout |= {s: float(v) for s, v in zip(self.batched_run.slots, values, strict=True)}
        # Trials of a batch divide its time among them by their steps.
        seconds = time.perf_counter() - self.start
        per_step = seconds / max(1, sum(self.progress.steps))
        return [
            self._result(index, heldout[index], per_step * steps)
            for index, steps in enumerate(self.progress.steps)
        ]

    def _result(self, index: int, heldout: float, seconds: float) -> Result:
        losses = self.progress.losses[: self.progress.steps[index], index]
        stopped = self.progress.stopped.get(index, "complete")
        status, objective, heldout = judged(losses, heldout, stopped, self.train)
        return Result(
            trial=self.trials[index],
            status=status,
            objective=objective,
            heldout=heldout,
            curve=tuple(curve(losses)),
            seconds=seconds,
            steps=len(losses),
            finished_at=time.time(),
            device=device_name(self.batched_run.device),
        )


def device_name(device: torch.device) -> str:
    """A GPU's product name, or the device's kind."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
