"""What the loop asks of a launcher and of a runner, and what it is told.

Both are plugins. A launcher has the settings of a place where jobs run; its executor runs the jobs
of one sweep there, and sees a folder, a task and resources, not what is trained. A runner knows
what a trial is: it makes jobs of trials.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from sweeper.launch.job import Job, JobFailure, JobOutcome, Task
from sweeper.trial import Trial, TrialSpec

if TYPE_CHECKING:
    from sweeper.data.corpus import Corpus
    from sweeper.search.prune import Pruner

MAX_FALSE_STARTS = 3
"""So many jobs or workers in a row that end before they begin are no accident."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What jobs may use of this machine.

    `gpus` are the names by which CUDA_VISIBLE_DEVICES calls them, none where jobs run on the CPU;
    `threads` are all that one process would use.
    """

    gpus: tuple[str, ...] = ()
    threads: int = 1


@dataclass(frozen=True, kw_only=True)
class Context:
    """What an executor is given: the sweep's folder, the machine, and whom to tell.

    `progress` takes a job's id and the fraction of it that is done, `notify` a sentence for the
    user at the end, `tell` one that is said at once. `cancelled` tells whether the user has
    cancelled the sweep from elsewhere.
    """

    folder: Path
    machine: Machine = Machine()
    progress: Callable[[str, float], None] = lambda job, fraction: None
    notify: Callable[[str], None] = lambda sentence: None
    tell: Callable[[str], None] = lambda sentence: None
    cancelled: Callable[[], bool] = lambda: False


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A job came to an end and left an outcome."""

    job: str
    outcome: JobOutcome


@dataclass(frozen=True, kw_only=True)
class Left:
    """A job saved itself and left, or never began; nobody is to blame."""

    job: str


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A job is gone without an outcome."""

    job: str
    failure: JobFailure


Event = Finished | Left | Lost


class Executor(Protocol):
    """Runs jobs, known by their ids, and says what became of them.

    Methods with a body are those of one whose jobs end with this process, on this machine.

    `layouts` are the numbers of jobs at a time that it may run, one of which `use` chooses; it is
    empty where nothing can be measured beforehand. `recovered` holds the jobs that
    earlier drivers left, with their trials: one that is claimed counts as submitted.
    """

    layouts: range  # 1..cores on a CPU; one number where it is known
    recovered: dict[str, tuple[Trial, ...]]

    def room(self, *, ahead: bool = False) -> bool:
        """Whether a job would run now; `ahead`: whether one may wait for the next free place."""

    def submit(self, job: Job) -> None:
        """Take a job. SweeperError when it cannot be run in other processes."""

    def claim(self, job: str) -> None:
        """Take a recovered job over; here there are none, as a process takes its jobs along."""
        raise LookupError(job)

    def poll(self, *, wait: bool = True) -> list[Event]:
        """What has happened since, as soon as something does; nothing when it takes long.

        SweeperError ends the sweep. An inline executor runs its job in here.
        """

    def settled(self) -> bool:
        """Whether every job that was submitted would go on without this process."""
        return False

    def elsewhere(self, job: str, failure: JobFailure) -> bool:
        """Whether a job that finished with this failure is to run once more on another machine.

        Its machine may be to blame, and there is another: the next `submit` of the job goes there.
        """
        return False

    def forget(self, job: str, *, keep_log: bool = False) -> None:
        """Remove a job's files: its results are recorded, or it goes on in parts."""
        return

    def call(self, tasks: Sequence[Task], layout: int) -> list[Any]:
        """What tasks return that run at the same time in this layout; None from one that dies."""
        return [None] * len(tasks)

    def use(self, layout: int) -> None:
        """Run jobs in this layout from here on."""
        return

    def close(self) -> None:
        """End what this process started: jobs save themselves."""
        return


class Launcher(Protocol):
    """Where jobs run; a plugin.

    One with a key `ahead` has at most so many trials at a time that nobody has asked for yet: None
    for as many as take nothing from others, 0 for none, as of one without the key.
    """

    @property
    def retries(self) -> int:
        """How often a lost job runs again; failures after coming further need not count."""

    @property
    def pins_gpus(self) -> bool:
        """Whether a job sees no GPU but those it has to itself."""

    @property
    def device(self) -> str | None:
        """What a job finds elsewhere, "cuda" or "cpu"; None when jobs run on this machine."""

    def at_once(self, gpus: Sequence[str]) -> int:
        """How many jobs run on this machine at the same time, a GPU each where there are any."""

    def sharing(self, machine: Machine) -> str:
        """How commands share this machine, for the user; empty where nothing is chosen."""

    def executor(self, context: Context) -> Executor:
        """An executor for one sweep."""


Stage = Literal["queued", "running", "finished", "failed", "ended"]
"""What becomes of a job's trials; "ended" is a job that is gone and left no result."""


@dataclass(frozen=True, kw_only=True)
class JobState:
    """One job as `sweeper status` shows it.

    `state` is what its scheduler calls it, `fraction` of its trials' work is done, and `error` is
    why it failed.
    """

    id: str
    state: str
    stage: Stage
    node: str
    since: str
    trials: int
    fraction: float
    error: str = ""


@runtime_checkable
class Scheduled(Protocol):
    """What a launcher offers, too, whose jobs outlive their driver: they are a scheduler's.

    It keeps what it must know of a study's jobs in a folder of the study that has the name of its
    config, such as `runs/a/slurm`. By this folder `sweeper status`, `sweeper cancel` and the next
    driver find it (`launch.job_states`), and ask its class: there are no settings then, and what a
    scheduler must be asked with stands in that folder.
    """

    def check(self, folder: Path) -> None:
        """ConfigError, before anything is submitted, for what the cluster would never run."""

    def script(self, folder: Path, jobs: int) -> str:
        """The batch script of so many jobs of the study in `folder`; nothing is written or sent."""

    @staticmethod
    def available() -> str:
        """What its scheduler offers here, in words; SweeperError without one that answers."""

    @staticmethod
    def states(folder: Path) -> list[JobState]:
        """The study's jobs whose results nobody has recorded; none that was cancelled.

        SweeperError when the scheduler does not answer.
        """

    @staticmethod
    def cancel(folder: Path) -> int:
        """End exactly this study's jobs; how many there were. SweeperError as `states`.

        A driver that waits for them takes none for failed: its `poll` raises SweeperError.
        """

    @staticmethod
    def forget(folder: Path, jobs: Collection[str]) -> None:
        """Remove what is kept of jobs, by id, whose folders are gone."""


Batch = tuple[Trial, ...]
"""Trials that one job runs."""
PrunerOf = Callable[[Trial], "Pruner | None"]
"""The pruner for a job with a trial like this one, or None."""


class Runner(Protocol):
    """Turns trials into jobs. A job's task turns it into results (`launch.job.Task`)."""

    def machine(self) -> Machine:
        """What jobs may use of this machine."""

    def batches(
        self, trials: Sequence[Trial], executor: Executor, ahead: Sequence[Trial] = ()
    ) -> list[Batch]:
        """The trials in batches, one a job; those first that an earlier driver began.

        It may measure with the executor, which has room for a job then. Of `ahead`, which may be
        wanted later, it takes along those that cost next to nothing there.
        """

    def job(self, batch: Batch, pruner: Pruner | None) -> Job:
        """The job that trains a batch."""

    def forget(self, batch: Batch) -> None:
        """Remove what a batch would go on from: it is recorded, or goes on in parts."""

    def tidy(self, is_finished: Callable[[str], bool], *, idle: bool) -> None:
        """Remove what no trial will go on from; `idle`: no job is left that might be writing."""


class RunnerSettings(Protocol):
    """The settings of a runner; a plugin."""

    @property
    def failures(self) -> int:
        """After so many equal failures of trials in a row a sweep stops."""

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
