"""Train batched trials to their end and say what came of every trial."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from sweeper.engine import checkpoint
from sweeper.engine.batched import PADDING, BatchedRun, BatchedTrials, Compile
from sweeper.engine.branches import NO_BRANCHES, Branching
from sweeper.engine.checkpoint import RunProgress
from sweeper.engine.compile import CompileDecision
from sweeper.engine.program import quiet_attention
from sweeper.launch.job import UNCONTROLLED, Control, Leave
from sweeper.search.prune import Pruner
from sweeper.trial import Result, curve, judged

SHRINKS = {"cpu": 1.0}
SHRINKS_GPU = 0.75
"""Slices are dropped where at most this share still trains: a graph of fewer is most often recorded
anew, in steps that are launched one by one."""
SYNC_POINTS = 50
"""The host reads the losses so often in a run; between sync points no step waits for it."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How trials are run: nothing here changes what comes of its trials beyond rounding.

    `compile` is "auto" to compile where it earns its time back: `pending` are batches of the same
    specification and about this size that are to be trained in this process later. Checkpoints go
    to the folder `checkpoints` (None: nowhere), every `save_every` seconds.
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
    branching: Branching = NO_BRANCHES,
) -> list[Result]:
    """Train all trials of `batched` together; one result each, in their order.

    A trial has diverged, and its objective is +inf, when its loss was ever not finite or ends at
    more than twice what it was before the first step. A trial that diverges or is pruned leaves the
    batch at the next sync point. Trials that have a checkpoint together go on from there. `Leave`
    is raised when the control says so.
    """
    with quiet_attention():
        return Training(batched, execution, control, pruner, branching).run()


class Training:
    """One call of `train`: steps, and every so often a sync point, where the host sees what came.

    A resumed run ends as an undisturbed one, to the last bit on a CPU. Dropping slices changes the
    shapes of kernels, and thereby how they round. So it happens at sync points, which the step
    fixes, and never because a checkpoint was written.
    """

    def __init__(
        self,
        batched: BatchedTrials,
        execution: Execution,
        control: Control,
        pruner: Pruner | None,
        branching: Branching = NO_BRANCHES,
    ) -> None:
        self.branching = branching
        self.execution, self.control, self.pruner = execution, control, pruner
        self.trials, count = batched.trials, len(batched.trials)
        _forks_train_alone()
        self.batched_run = BatchedRun(batched, execution.device, compile=execution.compile)
        self.train = self.batched_run.prepared.train
        losses = np.full((self.train.steps, count), np.nan, np.float64)
        self.progress = RunProgress(losses=losses, stopped={}, steps=[0] * count)
        self.path = None
        if execution.checkpoints is not None:
            self.path = checkpoint.path_of(execution.checkpoints, batched.trials)
            try:
                checkpoint.load(self.batched_run, self.progress, self.path)
            except ValueError as error:
                control.notify(f"{error}; its trials begin anew")
            self._take_trunk()
        # The time of earlier attempts counts, the time of what they lost does not.
        self.saved_at = time.perf_counter()
        self.start = self.saved_at - self.progress.seconds
        # The steps of its last checkpoint and of the last losses that were read, and the sizes of
        # which a compiled step has run.
        self.saved_step = self.read_step = self.batched_run.step_index
        self.compiled_sizes = set[int]()
        self.compiling = None
        if execution.compile == "auto":
            pending_steps = execution.pending * self.train.steps
            self.compiling = CompileDecision(self.batched_run, self.train.steps, pending_steps)

    def run(self) -> list[Result]:
        """To the end, from sync point to sync point."""
        steps, run = self.train.steps, self.batched_run
        stretch = max(1, steps // SYNC_POINTS)
        rungs = self.pruner.rungs if self.pruner else ()
        # A checkpoint's own step counts, if it is one: trials that stopped at it are still there.
        sync_points = {
            stop
            for stop in {*range(stretch, steps, stretch), *rungs, steps}
            if run.step_index <= stop <= steps
        }
        timed = {*(self.compiling.points if self.compiling else ()), *self.branching.saved_at}
        try:
            for stop in sorted({*sync_points, *(t for t in timed if t < steps)}):
                while run.step_index < stop:
                    self._step()
                    self._save_if_due()
                if stop in sync_points:
                    if run.step_index > self.read_step:
                        self._sync()
                    if not self._active():
                        break
                    if stop < steps:
                        self._drop_stopped()
                if stop in self.branching.saved_at:
                    self._save_trunk(stop)
                # Only now: what is compiled is compiled for the size that training goes on with.
                if self.compiling:
                    self.compiling.look(stop)
            if self.branching.keeps_end and self._active():
                self._save()
            results = self._results()
            run.keep()
            return results
        finally:
            run.program.release()

    def _step(self) -> None:
        """One step; before one that may compile for a minute, and hears nothing, save."""
        run, size = self.batched_run, len(self.batched_run.slots)
        if not run.compiled or size in self.compiled_sizes:
            run.step()
            return
        self.compiled_sizes.add(size)
        if run.step_index > self.saved_step:
            if run.step_index > self.read_step:
                self._sync()
            self._save()
        self.control.saved(self.path is None or run.step_index == self.saved_step)
        try:
            run.step()
        finally:
            self.control.saved(False)

    def _active(self) -> list[int]:
        stopped = self.progress.stopped
        return [slot for slot in self.batched_run.slots if slot != PADDING and slot not in stopped]

    def _sync(self) -> None:
        run, progress = self.batched_run, self.progress
        step, first = run.step_index, self.read_step
        losses, broken = run.losses[first:step].cpu().numpy(), run.broken.tolist()
        self.read_step = step
        # Columns are slices, of which some may have been dropped; results go by the trial's index.
        for column, slot in enumerate(run.slots):
            if slot != PADDING:
                progress.losses[first:step, slot] = losses[:, column]
                progress.steps[slot] = step
                if broken[column] >= 0 and slot not in progress.stopped:
                    # A result ends where its loss did, whenever that was noticed. What the trial
                    # trained on until this sync point is left out.
                    progress.stopped[slot] = "diverged"
                    progress.steps[slot] = broken[column] + 1
        if self.pruner and step in self.pruner.rungs and step < self.train.steps:
            slots = {self.trials[slot].key: slot for slot in self._active()}
            recent = progress.losses[max(0, step - self.train.window()) : step]
            means = {key: float(recent[:, slot].mean()) for key, slot in slots.items()}
            for key in self.pruner.trials_to_stop(step, means, self.trials):
                progress.stopped[slots[key]] = "pruned"
        run.slots = [PADDING if slot in progress.stopped else slot for slot in run.slots]
        for notice in run.take_notices():
            self.control.notify(notice)
        # What a stopped trial is spared counts as done.
        remaining = (self.train.steps - step) * len(self._active())
        self.control.progress(1.0 - remaining / (self.train.steps * len(self.trials)))

    def _drop_stopped(self) -> None:
        """Drop slices of stopped trials; where compiled, only down to a size that was compiled."""
        run, size = self.batched_run, len(self._active())
        if run.compiled and not (self.compiling and self.compiling.shrinks(size)):
            sizes = run.program.compiled_sizes
            size = min((compiled for compiled in sizes if compiled >= size), default=size)
        elif size > SHRINKS.get(run.device.type, SHRINKS_GPU) * len(run.slots):
            return
        if size < len(run.slots):
            # Trials first, then padding that fills the size up; what is kept stays in its order.
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
        # A checkpoint holds the losses up to its step. Where no trial trains any more there is
        # nothing to save or to leave: the results are at hand.
        self._sync()
        if self._active():
            self._save()
        if leave and self._active():
            raise Leave

    def _save(self, path: Path | None = None) -> None:
        """To the run's checkpoint, or aside to `path`; its losses are on the host."""
        if not (path := path or self.path):
            return
        self.progress.seconds = time.perf_counter() - self.start
        self.saved_at = time.perf_counter()
        try:
            checkpoint.save(self.batched_run, self.progress, path)
        except OSError as error:
            self.control.notify(f"no checkpoint could be written ({error}); training goes on")
            return
        if path == self.path:
            self.saved_step = self.batched_run.step_index

    def _save_trunk(self, step: int) -> None:
        """For the horizons that decay from here, if a run of theirs would have lost no trial."""
        folder = self.execution.checkpoints
        if folder is None or step != self.batched_run.step_index:
            return  # it was saved before the checkpoint that this run went on from
        if self.batched_run.step_index > self.read_step:
            self._sync()
        # A trial that has stopped leaves at the next sync point, and another horizon has others.
        if not self.progress.stopped:
            self._save(checkpoint.trunk_of(folder, self.trials, step))

    def _take_trunk(self) -> None:
        """Go on where a longer horizon was saved, if this run has not come as far by itself."""
        run, (trials, step) = self.batched_run, self.branching.starts_from
        if run.step_index >= step:
            return
        assert self.execution.checkpoints is not None
        path = checkpoint.trunk_of(self.execution.checkpoints, trials, step)
        try:
            checkpoint.load(run, self.progress, path, trials)
        except ValueError as error:
            self.control.notify(f"{error}; its trials begin anew")
            return
        self.progress.seconds = 0.0  # the trunk's are counted with its own trials

    def _results(self) -> list[Result]:
        heldout = dict.fromkeys(range(len(self.trials)), math.nan)
        accuracies: dict[int, float] = {}
        if self._active():
            slots, (values, hits) = self.batched_run.slots, self.batched_run.heldout()
            # Padding has a value too, under the key PADDING, which no trial's index is.
            heldout |= dict(zip(slots, values.tolist(), strict=True))
            if hits is not None:
                accuracies = dict(zip(slots, hits.tolist(), strict=True))
        # Batched trials divide their time among them by their steps.
        seconds = time.perf_counter() - self.start
        per_step = seconds / max(1, sum(self.progress.steps))
        clipped = self.batched_run.clipped.tolist()
        results = []
        for index, (trial, steps) in enumerate(zip(self.trials, self.progress.steps, strict=True)):
            losses = self.progress.losses[:steps, index]
            stopped = self.progress.stopped.get(index, "complete")
            status, objective, final = judged(losses, heldout[index], stopped, self.train)
            results.append(
                Result(
                    trial=trial,
                    status=status,
                    objective=objective,
                    heldout=final,
                    curve=tuple(curve(losses)),
                    seconds=per_step * steps,
                    steps=steps,
                    finished_at=time.time(),
                    device=device_name(self.batched_run.device),
                    # One that diverged has no classes to tell apart: all its logits are NaN.
                    accuracy=accuracies.get(index) if status == "complete" else None,
                    clipped=None if self.train.clip is None else min(1.0, clipped[index] / steps),
                )
            )
        return results


def device_name(device: torch.device) -> str:
    """A GPU's product name, or the device's kind."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def _forks_train_alone() -> None:
    # The parent's threads are none of a forked child's, and torch would wait for them for ever.
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
