"""Train a pack to its end and say what came of every trial."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch

from sweeper.control import Control, Leave
from sweeper.search.prune import Pruner
from sweeper.training import checkpoint
from sweeper.training.checkpoint import Ledger
from sweeper.training.pack import BALLAST, Compile, Pack, PackRun, quiet_attention
from sweeper.trial import Result, Status

CURVE_POINTS = 100
"""A result keeps its loss curve as at most this many averages."""
DIVERGED = 2.0
"""A run that ends above this multiple of its first loss has diverged, finite or not."""
TIMED = (4, 12)
"""Looks between which eager steps are timed, to tell whether compiling them pays; counted from
where this run of the pack begins."""
LOOKS = 50
"""The host looks at the losses so often in a run; between looks no step waits for it."""
COMPILE_SECONDS = 40.0
"""What compiling a pack is taken to cost; it must save more."""
COMPILE_GAIN = 2.0
"""How much faster a step is taken to become by compiling it."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a pack is run: nothing here changes what comes of its trials beyond rounding.

    `compile` is "auto" for a GPU, where a pack is long enough to earn the compile time back.
    Checkpoints go to the folder `checkpoints` (None: nowhere), every `save_every` seconds.
    """

    device: str = "cpu"
    compile: Compile = "off"
    checkpoints: Path | None = None
    save_every: float = 300.0


def train(
    pack: Pack,
    execution: Execution = Execution(),
    control: Control = Control(),  # noqa: B008
    pruner: Pruner | None = None,
) -> list[Result]:
    """Train all trials of `pack` together; one result each, in their order.

    A trial has diverged, and its objective is +inf, when its loss was ever not finite or ends at
    more than DIVERGED times what it was before the first step. A trial that diverges or is
    pruned leaves the pack at the next look. Losses stay on the device between looks, so that
    no step waits for the host. A pack that has a checkpoint goes on from there. `Leave`
    is raised when the control says so.
    """
    with quiet_attention():
        return Training(pack, execution, control, pruner).run()


class Training:
    """One call of `train`."""

    def __init__(
        self, pack: Pack, execution: Execution, control: Control, pruner: Pruner | None
    ) -> None:
        """Draw the pack's weights, or take them from its checkpoint."""
        self.execution, self.control, self.pruner = execution, control, pruner
        self.start = time.perf_counter()
        self.pack = PackRun(pack, execution.device, compile=execution.compile)
        self.train = self.pack.prepared.train
        count = len(pack.trials)
        losses = np.full((self.train.steps, count), np.nan, np.float64)
        self.ledger = Ledger(losses=losses, left={}, steps=[0] * count)
        self.path = None
        if execution.checkpoints is not None:
            self.path = checkpoint.path_of(execution.checkpoints, pack.trials)
            self._resume()
        self.saved_at = self.timed_from = time.perf_counter()
        self.timed = [self.pack.step_index + step for step in TIMED]
        self.rows: list[torch.Tensor] = []

    def _resume(self) -> None:
        assert self.path is not None
        try:
            checkpoint.load(self.pack, self.ledger, self.path)
        except ValueError as error:
            self.control.notify(f"{error}; its trials begin anew")
        # The time of earlier attempts counts, the time of what they lost does not.
        self.start = time.perf_counter() - self.ledger.seconds

    def run(self) -> list[Result]:
        """To the end, look by look."""
        try:
            for stop in self._looks():
                while self.pack.step_index < stop:
                    self.rows.append(self.pack.step())
                    self._save_if_due()
                if self.rows:
                    self._look()
                if not self._alive():
                    break
                self._reshape(stop)
            return self._results()
        finally:
            self.pack.program.release()

    def _looks(self) -> list[int]:
        """Steps after which the host looks, from where the pack stands."""
        stretch = max(1, self.train.steps // LOOKS)
        rungs = self.pruner.rungs if self.pruner else ()
        stops = {*range(stretch, self.train.steps, stretch), *rungs, self.train.steps}
        if self.execution.compile == "auto":
            stops |= set(self.timed)
        # The step of a checkpoint is among them: its pack may not have been made smaller yet.
        return sorted(stop for stop in stops if self.pack.step_index <= stop <= self.train.steps)

    def _alive(self) -> list[int]:
        return [s for s in self.pack.slots if s != BALLAST and s not in self.ledger.left]

    def _look(self) -> None:
        """Take the losses to the host; see who leaves; report."""
        first = self._collect()
        step = self.pack.step_index
        for slot in self._alive():
            broken = np.flatnonzero(~np.isfinite(self.ledger.losses[first:step, slot]))
            if len(broken):  # what it trained on until this look is left out of its result
                self.ledger.left[slot] = "diverged"
                self.ledger.steps[slot] = first + int(broken[0]) + 1
        if step < self.train.steps:
            self._prune(step)
        self.pack.slots = [BALLAST if s in self.ledger.left else s for s in self.pack.slots]
        for notice in self.pack.notices:
            self.control.notify(notice)
        self.pack.notices.clear()
        self.control.progress(self._done())

    def _collect(self) -> int:
        """Losses since the last look, one copy for all of them; the first of these steps."""
        taken = torch.stack(self.rows).double().cpu().numpy()
        self.rows.clear()
        first = self.pack.step_index - len(taken)
        for column, slot in enumerate(self.pack.slots):
            if slot != BALLAST:
                self.ledger.losses[first : first + len(taken), slot] = taken[:, column]
                self.ledger.steps[slot] = self.pack.step_index
        return first

    def _done(self) -> float:
        """Share of the pack's work that is done; what a trial is spared counts as done."""
        left = (self.train.steps - self.pack.step_index) * len(self._alive())
        return 1.0 - left / (self.train.steps * len(self.ledger.steps))

    def _prune(self, step: int) -> None:
        if self.pruner is None or step not in self.pruner.rungs:
            return
        trials, window = self.pack.pack.trials, self.train.window()
        slots = {trials[slot].key: slot for slot in self._alive()}
        recent = self.ledger.losses[max(0, step - window) : step]
        losses = {key: float(recent[:, slot].mean()) for key, slot in slots.items()}
        for key in self.pruner.trials_to_stop(step, losses, trials):
            self.ledger.left[slots[key]] = "pruned"

    def _reshape(self, step: int) -> None:
        """Make the pack smaller, or compile it; at stops alone, so that saving changes nothing."""
        if step < self.train.steps:
            self._compact(len(self._alive()))
            self._consider_compiling(step)

    def _compact(self, alive: int) -> None:
        """Drop the slices of trials that have left, down to a size that costs no compiling."""
        slots = self.pack.slots
        gone = [i for i, slot in enumerate(slots) if slot == BALLAST]
        size = self._size(alive)
        if size < len(slots):
            kept = [i for i in range(len(slots)) if i not in set(gone)] + gone[: size - alive]
            self.pack.keep(sorted(kept))

    def _size(self, alive: int) -> int:
        """The size to go on with: one that is compiled already, where packs are compiled."""
        if not self.pack.compiled:
            return alive
        return min((size for size in self.pack.program.sizes if size >= alive), default=alive)

    def _consider_compiling(self, step: int) -> None:
        """Compile from here on where that is sure to pay."""
        if self.execution.compile == "auto" and step == self.timed[0]:
            self.timed_from = time.perf_counter()
        if self.execution.compile == "auto" and step == self.timed[1]:
            per_step = (time.perf_counter() - self.timed_from) / (TIMED[1] - TIMED[0])
            saved = per_step * (self.train.steps - step) * (1 - 1 / COMPILE_GAIN)
            self.pack.compile(worth=saved > COMPILE_SECONDS)

    def _save_if_due(self) -> None:
        """Save when it is time to, or when told to leave; then `Leave` is raised."""
        leave = self.control.should_leave()
        due = time.perf_counter() - self.saved_at > self.execution.save_every
        if not leave and not (due and self.path):
            return
        self._look()
        if self.path and self._alive():
            self._save(self.path)
        if leave and self._alive():
            raise Leave

    def _save(self, path: Path) -> None:
        self.ledger.seconds = time.perf_counter() - self.start
        self.saved_at = time.perf_counter()
        try:
            checkpoint.save(self.pack, self.ledger, path)
        except OSError as error:
            self.control.notify(f"no checkpoint could be written ({error}); training goes on")

    def _results(self) -> list[Result]:
        heldout = dict.fromkeys(range(len(self.ledger.steps)), math.nan)
        if self._alive():
            values = self.pack.heldout().double().cpu().numpy()
            heldout |= {s: float(v) for s, v in zip(self.pack.slots, values, strict=True)}
        seconds = time.perf_counter() - self.start
        share = seconds / max(1, sum(self.ledger.steps))
        return [
            self._result(index, heldout[index], share * steps)
            for index, steps in enumerate(self.ledger.steps)
        ]

    def _result(self, index: int, heldout: float, seconds: float) -> Result:
        losses = self.ledger.losses[: self.ledger.steps[index], index]
        objective = float(losses[-self.train.window() :].mean())
        finite = bool(np.isfinite(losses).all())
        status = self.ledger.left.get(index, "complete")
        if not finite or (status == "complete" and objective > DIVERGED * float(losses[0])):
            status, objective, heldout = "diverged", math.inf, math.inf
        if status == "complete" and not math.isfinite(heldout):
            heldout = math.inf
        return Result(
            trial=self.pack.pack.trials[index],
            status=cast(Status, status),
            objective=objective,
            heldout=heldout,
            curve=tuple(curve(losses)),
            seconds=seconds,
            steps=len(losses),
            finished_at=time.time(),
            device=device_name(self.pack.device),
        )


def device_name(device: torch.device) -> str:
    """A GPU's product name, or the device's kind."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def curve(losses: np.ndarray) -> list[float]:
    """`losses` averaged over at most CURVE_POINTS equal stretches; not finite becomes +inf."""
    pieces = np.array_split(losses, min(CURVE_POINTS, len(losses)))
    means = (float(piece.mean()) for piece in pieces)
    return [round(mean, 5) if math.isfinite(mean) else math.inf for mean in means]
