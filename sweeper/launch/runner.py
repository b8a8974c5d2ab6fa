"""What the loop asks of a runner: trials in, jobs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from sweeper.data.corpus import Corpus
from sweeper.launch.executor import Executor, Launcher, Machine
from sweeper.launch.job import Job
from sweeper.search.prune import Pruner
from sweeper.trial import Trial, TrialSpec

Batch = tuple[Trial, ...]
"""Trials that one job runs."""
PrunerOf = Callable[[Trial], Pruner | None]
"""The pruner for a job with a trial like this one, or None."""


def no_pruner(trial: Trial) -> Pruner | None:
    """Every trial trains to its end."""
    return None


class Runner(Protocol):
    """Turns trials into jobs. A job's task turns it into results (`launch.job.Task`)."""

    def machine(self) -> Machine:
        """What jobs may use of this machine."""

    def batches(self, trials: Sequence[Trial], executor: Executor) -> list[Batch]:
        """The trials in batches, one a job; those first that an earlier driver began.

        It may measure with the executor, which has room for a job then.
        """

    def job(self, batch: Batch, pruner: Pruner | None) -> Job:
        """The job that trains a batch."""

    def forget(self, batch: Batch) -> None:
        """Remove what a batch would go on from: it is recorded, or goes on in parts."""

    def tidy(self, is_finished: Callable[[str], bool], *, idle: bool) -> None:
        """Remove what no trial will go on from; `idle`: no job is left that might be writing."""


class RunnerSettings(Protocol):
    """The settings of a runner; a plugin.

    After `failures` equal failures of trials in a row a sweep stops.
    """

    @property
    def failures(self) -> int:
        """See above."""

    def measures(self, kind: str) -> bool:
        """Whether trials can measure a kind of `measurements.MEASUREMENTS` beside their loss."""

    def check_use(self, hyperparameters: Sequence[str], *, scaled_by_user: bool) -> None:
        """ConfigError where trials cannot be given these hyperparameters.

        `scaled_by_user`: no parameterization of sweeper's says what they do to each parameter.
        """

    def takes(self, name: str) -> bool:
        """Whether trials take `data`, the seed, or a size (width, depth, batch_size, steps)."""

    def argv(self, trial: Trial, folder: Path, *, write: bool = False) -> list[str] | None:
        """The command that a trial runs, its files in `folder`; None where it runs none.

        A file of arguments that it names is only there if asked to `write`.
        """

    def identity(self) -> dict[str, Any]:
        """What determines results beside a trial's own settings: its part of a trial's key."""

    def validate(self, trial: Trial, corpus: Corpus, launcher: Launcher) -> None:
        """ConfigError, before anything is written, for a trial that could never be trained."""

    def parameters(self, spec: TrialSpec) -> int | None:
        """Number of weights of the model; None when it cannot be known."""

    def flops(self, spec: TrialSpec) -> float | None:
        """Floating-point operations of a trial; None when they cannot be known."""

    def precision(self, launcher: Launcher) -> str:
        """What `train.precision=auto` stands for where this launcher's jobs run."""

    def estimate(
        self, trials: Sequence[Trial], corpus: Corpus, launcher: Launcher
    ) -> tuple[int, float]:
        """Trials to a job and seconds of one trial's step; NaN where nothing can be measured."""

    def open(
        self,
        corpus: Corpus,
        launcher: Launcher,
        folder: Path,
        notify: Callable[[str], None],
        planned: int = 0,
    ) -> Runner:
        """The runner of one sweep of so many trials as planned, with its files below `folder`."""
