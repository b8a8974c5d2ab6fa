"""The runner that trains in sweeper's own engine: a job's trials train as one model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch

from sweeper.data.corpus import Corpus
from sweeper.engine import checkpoint
from sweeper.engine.batched import Compile
from sweeper.engine.branches import horizons, joined, taken_alike
from sweeper.engine.jobs import TrainTrials, TrialCount, TrialsPerJob, TryStep, measure_here, split
from sweeper.engine.prepare import check_decay, prepare
from sweeper.engine.train import Execution
from sweeper.errors import ConfigError
from sweeper.launch.executor import Batch, Executor, Launcher, Machine
from sweeper.launch.job import Job
from sweeper.launch.machine import cores, visible_gpus
from sweeper.records import Bounded, Bounds, Seconds
from sweeper.search.prune import Pruner
from sweeper.trial import Trial, TrialSpec

NUMERICS = 2
"""Part of every trial's key: raised when a change makes trials train differently."""


def resolve_device(name: str) -> str:
    """`name`, or for "auto" the GPU if any, which is left untouched; ConfigError without it."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "cuda":
            if (device.index or 0) < torch.cuda.device_count():
                return name
            raise RuntimeError(f"there are {torch.cuda.device_count()}")
        torch.zeros(1, device=device).item()  # "meta" has no values
    except (RuntimeError, AssertionError) as error:
        raise ConfigError("device", name, "auto, cpu, or a device that torch can use") from error
    return name


@dataclass(frozen=True, kw_only=True)
class Engine(Bounded):
    """Trains batched trials: of one specification, stacked, as one model.

    `device` is where, "auto" for a GPU if there is one; on a cluster the launcher tells.
    `batched_trials` is how many are trained at a time, "auto" to measure it. `compile` is "auto"
    (where there is enough to train to earn the compile time back), "on" or "off". A checkpoint
    is written every `save_every` seconds.
    """

    device: str = "auto"
    batched_trials: Annotated[TrialCount, Bounds(least=1, allowed="auto, or at least 1")] = "auto"
    compile: Compile = "auto"
    save_every: Seconds = 300.0

    failures: ClassVar[int] = 10

    def check_use(self, hyperparameters: Sequence[str], *, scaled_by_user: bool) -> None:
        """ConfigError without a parameterization: the engine must know what to do with each."""
        if scaled_by_user:
            raise ConfigError(
                "parameterization", "own", "a parameterization: own is for runner=command"
            )

    def takes(self, name: str) -> bool:
        """Whether trials take data, a seed or a size: all of them."""
        return True

    def measures(self, kind: str) -> bool:
        """Whether trials can measure a kind of `measurements.MEASUREMENTS`: all of them."""
        return True

    def argv(self, trial: Trial, folder: Path, *, write: bool = False) -> None:
        """The command of a trial: there is none."""
        return

    def identity(self) -> dict[str, Any]:
        """The runner's part of a trial's key: the engine, and how it computes."""
        return {"name": "engine", "numerics": NUMERICS}

    def device_of(self, launcher: Launcher) -> str:
        """The device that jobs of this launcher train on; ConfigError when it cannot be had."""
        return launcher.device or resolve_device(self.device)

    def precision(self, launcher: Launcher) -> str:
        """What `train.precision=auto` stands for: bfloat16 on a GPU, float32 elsewhere."""
        return "bfloat16" if self.device_of(launcher).startswith("cuda") else "float32"

    def estimate(
        self, trials: Sequence[Trial], corpus: Corpus, launcher: Launcher
    ) -> tuple[int, float]:
        """How many trials to batch, and a step's seconds; NaN for jobs that run elsewhere."""
        device = self.device_of(launcher)
        if launcher.device is not None:
            return TrialsPerJob.elsewhere(self.batched_trials), math.nan
        at_once, threads = launcher.at_once(visible_gpus(device)), torch.get_num_threads()
        try:
            if device == "cpu":  # workers share the cores
                torch.set_num_threads(max(1, min(threads, cores() // at_once)))
            size, seconds = measure_here(tuple(trials), corpus, device, self.batched_trials)
        finally:
            torch.set_num_threads(threads)
        return size, seconds / at_once

    def validate(self, trial: Trial, corpus: Corpus, launcher: Launcher) -> None:
        """ConfigError for what cannot be built, classified, scaled, or trained for a step.

        The step is a real one, of two examples. For jobs that run elsewhere it runs on the CPU,
        and where worker processes have the GPUs, in one of them.
        """
        check_decay(prepare(trial.spec), trial.hps)
        device = "cpu" if launcher.device is not None else self.device_of(launcher)
        step = TryStep(trials=(trial,), corpus=corpus, device=device)
        if launcher.pins_gpus and device.startswith("cuda"):
            step.run_in_worker(launcher, Machine(gpus=visible_gpus(device)))
        else:
            step.check()

    def parameters(self, spec: TrialSpec) -> int:
        """Number of weights of the model."""
        return prepare(spec).parameters()

    def flops(self, spec: TrialSpec) -> float:
        """Floating-point operations of a trial."""
        return prepare(spec).flops()

    def open(
        self,
        corpus: Corpus,
        launcher: Launcher,
        folder: Path,
        notify: Callable[[str], None] = lambda sentence: None,
        planned: int = 0,
    ) -> EngineRunner:
        """The runner of one sweep, whose checkpoints go below `folder`."""
        return EngineRunner(self, corpus, launcher, folder, notify, planned)


class EngineRunner:
    """Batches as jobs; see `Runner`."""

    def __init__(
        self,
        settings: Engine,
        corpus: Corpus,
        launcher: Launcher,
        folder: Path,
        notify: Callable[[str], None],
        planned: int = 0,
    ) -> None:
        device = settings.device_of(launcher)
        self.settings, self.corpus, self.device = settings, corpus, device
        self.checkpoints = folder.absolute() / "checkpoints"
        self.execution = Execution(
            # A worker that is pinned to a GPU sees no other.
            device="cuda" if launcher.pins_gpus and device.startswith("cuda") else device,
            compile=settings.compile,
            checkpoints=self.checkpoints,
            save_every=settings.save_every,
        )
        self.sizes = TrialsPerJob(
            settings.batched_trials,
            corpus,
            self.execution.device,
            notify,
            folder.absolute() / "batches.jsonl",
            planned,
        )
        # Trials of each specification that are in a batch and in no job yet; sizes of batches that
        # got a job.
        self._pending, self._sizes = Counter[str](), dict[str, list[int]]()

    def machine(self) -> Machine:
        """GPUs, and torch's threads."""
        return Machine(gpus=visible_gpus(self.device), threads=torch.get_num_threads())

    def batches(
        self, trials: Sequence[Trial], executor: Executor, ahead: Sequence[Trial] = ()
    ) -> list[Batch]:
        """Batches that were begun before, as they were, so that they go on from their checkpoints.

        So does what an earlier driver has formed, so that its trials round as they would have. The
        others hold trials of one specification, as equal in size as they can be; those of horizons
        that share a trunk go together. A trial that measures more than its loss is a batch by
        itself.
        """
        batches = checkpoint.saved_batches(self.checkpoints, trials)
        begun = {trial.key for batch in batches for trial in batch}
        fresh = [trial for trial in trials if trial.key not in begun]
        batched = [trial for trial in fresh if not trial.measurement]
        if batched:
            self.sizes.choose_layout(batched, executor)
            batched += ahead[: self.sizes.room(batched, ahead, executor)]
        formed = self.sizes.record.again(batched, self.sizes.settings)
        begun |= {trial.key for batch in formed for trial in batch}
        batched = [trial for trial in batched if trial.key not in begun]
        new: list[Batch] = []
        # Of neighbours alone: trials train in the order in which they were asked for.
        for _, group in groupby(batched, key=lambda trial: trial.spec.digest):
            alike, same = taken_alike(tuple(group), [*batches, *formed, *new])
            new += alike
            if same:
                new += [same[part] for part in split(same, self.sizes.size(same, executor))]
        self.sizes.record.note_batches(new, self.sizes.settings)
        batches += [*formed, *new]
        self._pending.update(trial.spec.digest for batch in batches for trial in batch)
        return joined(batches) + [(trial,) for trial in fresh if trial.measurement]

    def job(self, batch: Batch, pruner: Pruner | None) -> Job:
        """The job that trains a batch."""
        digest = batch[0].spec.digest
        for part in horizons(batch):
            at_hand = self._pending[part[0].spec.digest]
            self._pending[part[0].spec.digest] = max(0, at_hand - len(part))
            self._sizes.setdefault(part[0].spec.digest, []).append(len(part))
        execution = replace(self.execution, pending=self._queued(digest, len(horizons(batch)[0])))
        return Job(
            task=TrainTrials(trials=batch, corpus=self.corpus, execution=execution, pruner=pruner)
        )

    def _queued(self, digest: str, size: int) -> float:
        """Its process's share of the batches to come that what is compiled for `size` serves.

        They are as those so far: a search of one specification asks for all that is planned, in
        rounds whose batches are of other sizes. A batch is filled up to at most twice its size.
        """
        sizes, layout, rest = self._sizes[digest], self.sizes.layout, self._pending[digest]
        if not layout:
            return 0.0
        if len(self._sizes) == 1:
            rest = max(rest, self.sizes.planned - sum(sizes))
        served = sum(size <= 2 * each <= 2 * size for each in sizes)
        return rest * served / sum(sizes) / layout

    def forget(self, batch: Batch) -> None:
        """Remove the batch's checkpoints."""
        for part in horizons(batch):
            checkpoint.forget(self.checkpoints, part)

    def tidy(self, is_finished: Callable[[str], bool], *, idle: bool) -> None:
        """Remove checkpoints of trials that are all finished, or that none can read."""
        checkpoint.tidy(self.checkpoints, is_finished, idle=idle)
