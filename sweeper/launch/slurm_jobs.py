"""Slurm jobs on the record: what was submitted, what runs on a node, and why a job is gone.

The record is files, which outlive the driver and which any host may read. The driver writes those
of `slurm/` and `submission.json`, a job the rest of its submission:

```
jobs/<id>/job.json                      as for every launcher that uses other processes
          result-<attempt>.json
          submission-<n>/submission.json   the code it was submitted with
                         started-<r>.json  the r-th time that Slurm ran it, and how that ended:
                         left-<r>.json       saved and left on a signal
                         error-<r>.json      an exception
                         progress.json
slurm/study.json                        what tells this study's jobs in the queue from others
      <token>/array.json                written before the array is submitted: its jobs in order
              id.json                   written after: its number
              cancelled                 written by `sweeper cancel`
              ...                       the batch script and the logs
```

An attempt's number is 1000 n + r: Slurm may run a job again, or two copies of it at once.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar
from uuid import uuid4

from sweeper.errors import SweeperError
from sweeper.files import (
    RECORD_ERRORS,
    owners_folder,
    private_folder,
    read_json,
    try_json,
    write_json,
)
from sweeper.launch.code import changed_modules, module_digests
from sweeper.launch.job import Control, Leave, Resources, outcome_of, run_job
from sweeper.launch.machine import THREADS, find_users_modules, users_threads
from sweeper.launch.slurm_queue import QueueEntry, lack_of
from sweeper.launch.worker import Controls, Work, serve
from sweeper.records import Bounds, from_json
from sweeper.trial import digest

MAX_RESTARTS = 1000
"""More than Slurm ever runs one submission."""
PROGRESS_EVERY = 10.0
"""Seconds between two looks at whether a newer copy runs, and between two words of progress."""
MAX_STANDSTILLS = 3
"""So many runs that are ended at one and the same place are the last."""
TAIL_BYTES = 4000
"""So much of a log's end is looked at."""
QUOTED_LINES = 3
"""Lines of it that a message quotes."""
MIN_PROGRESS = 0.01
"""A job has come further when it has done this fraction of its work more."""
BEFORE_THE_END = (signal.SIGURG, signal.SIGUSR2)
"""Signals that the job's end is near, SIGURG as the batch script asks for it.

Slurm sends it to every process of the job. SIGUSR2, which some people and clusters send, ends all
that do not handle it, a user's training command among them; SIGURG does nothing to them.
"""
ADVICE = (
    "it comes no further by running again: raise launcher.time (runner.time, of a command), or let "
    "the command go on from a checkpoint (runner.resume_if)"
)
"""What helps a job whose time is up again and again."""
NOISE = ("submitit INFO", "submitit WARNING", "slurmstepd: ", "srun: ")
"""Lines that say nothing of the cause, where there are others."""


def check_private(folder: Path) -> None:
    """SweeperError unless `folder` is this user's own and nobody else may enter it."""
    _check_private(os.lstat(folder), folder)


def _check_private(status: os.stat_result, folder: Path) -> None:
    private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
    if not stat.S_ISDIR(status.st_mode) or not private:
        raise SweeperError(
            f"{folder} must be a folder of yours that nobody else can enter: "
            "what lies there is run (chmod 700)"
        )


# What a run of a job leaves behind. A file may be half of one of another version's, or of a disk
# that failed: what cannot be read typed counts as not there.

Share = Annotated[float, Bounds(least=0, most=1)]


@dataclass(frozen=True, kw_only=True)
class JobProgress:
    """`progress.json`: the fraction of the job that is done, and that with which it `began`."""

    fraction: Share
    began: Share | None = None


@dataclass(frozen=True, kw_only=True)
class Note:
    """What a run notes of itself, in `<file>-<r>.json`; `at` is its clock's time."""

    file: ClassVar[str]
    at: str = ""


@dataclass(frozen=True, kw_only=True)
class Started(Note):
    """It began, on a node."""

    file: ClassVar[str] = "started"
    node: str = ""


@dataclass(frozen=True, kw_only=True)
class SavedAndLeft(Note):
    """It saved itself on a signal; `requeue` tells that it put itself back into the queue.

    `began` is the fraction that was done when it began; `still` that more runs would not help.
    """

    file: ClassVar[str] = "left"
    signal: str = ""
    fraction: Share = 0.0
    began: Share | None = None
    requeue: bool = True
    still: bool = False


@dataclass(frozen=True, kw_only=True)
class Raised(Note):
    """An exception ended it; `retry` tells that it may do better on another node, or later."""

    file: ClassVar[str] = "error"
    error: str = ""
    retry: bool = True


@dataclass(frozen=True, kw_only=True)
class Unfit:
    """`unfit.json`, by the driver: the node that the submission failed on, and is to avoid."""

    node: str


@dataclass(frozen=True, kw_only=True)
class ArrayRecord:
    """`array.json`: the array's name, the folders of its submissions, when it was sent."""

    name: str
    members: tuple[str, ...]
    at: float


R = TypeVar("R")
N = TypeVar("N", bound=Note)


def recorded(kind: type[R], path: Path) -> R | None:
    """The record in the file at `path`; None when it is not there or damaged."""
    try:
        return from_json(kind, read_json(path))
    except (OSError, *RECORD_ERRORS):
        return None


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job's n-th submission, in the folder `<job>/submission-<n>`."""

    folder: Path

    @property
    def job_dir(self) -> Path:
        """The job's folder."""
        return self.folder.parent

    @property
    def number(self) -> int:
        """The n of `submission-<n>`, from 0."""
        return int(self.folder.name.rpartition("-")[2])

    @property
    def progress(self) -> JobProgress:
        """What its last run told, if only that nothing is done."""
        told = recorded(JobProgress, self.folder / "progress.json")
        return told or JobProgress(fraction=0.0)

    def runs(self) -> int:
        """How often Slurm ran it, as far as it came to tell."""
        names = (path.name for path in self.folder.glob("started-*.json"))
        matches = (re.fullmatch(r"started-(\d+)\.json", name) for name in names)
        return max((int(match[1]) for match in matches if match), default=-1) + 1

    def last(self, kind: type[N]) -> N | None:
        """What its last run noted of this kind; None when it did not."""
        return recorded(kind, self.folder / f"{kind.file}-{self.runs() - 1}.json")

    def changed_code(self) -> list[str]:
        """Modules that are not as they were when it was submitted: results would not compare."""
        code = try_json(self.folder / "submission.json").get("code")
        return changed_modules(code if isinstance(code, dict) else {})

    def newest(self) -> bool:
        """Whether the job was not submitted again after it."""
        return self.job_dir.is_dir() and self.number == len(submissions(self.job_dir)) - 1


def unfit_nodes(job_dir: Path) -> set[str]:
    """The nodes that the job is to avoid."""
    notes = [recorded(Unfit, each.folder / "unfit.json") for each in submissions(job_dir)]
    return {note.node for note in notes if note}


def submissions(job_dir: Path) -> list[Submission]:
    """All submissions of the job in `job_dir`, in order."""
    folders = [path for path in job_dir.glob("submission-*") if path.is_dir()]
    return sorted(
        (Submission(folder=path) for path in folders), key=lambda submission: submission.number
    )


@dataclass(frozen=True, kw_only=True)
class Array:
    """Submissions that are sent to Slurm together; `at` is when, in seconds since the epoch.

    `resources` are those of every job, which is to `avoid` some nodes; neither is kept, since the
    batch script has them.
    """

    folder: Path
    name: str
    members: tuple[Submission, ...]
    at: float
    resources: Resources = field(default=Resources(), compare=False)
    avoid: tuple[str, ...] = field(default=(), compare=False)

    @property
    def id(self) -> str | None:
        """Slurm's number of the array; None when it is not known to have been accepted."""
        number = try_json(self.folder / "id.json").get("id")
        return None if number is None else str(number)

    def accept(self, number: str) -> None:
        """Keep Slurm's number."""
        write_json(self.folder / "id.json", {"id": number})

    @property
    def cancelled(self) -> bool:
        """Whether `sweeper cancel` ended it."""
        return (self.folder / "cancelled").exists()

    def task_id(self, index: int) -> str:
        """What Slurm calls a member; a lone job is no array."""
        return f"{self.id}_{index}" if len(self.members) > 1 else str(self.id)

    def discard(self) -> None:
        """Remove all traces of an array that Slurm did not take."""
        for member in self.members:
            shutil.rmtree(member.folder, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def prefix(study: Path) -> str:
    """What the names of the study's jobs begin with; makes the folder `slurm` where need be."""
    folder = study / "slurm"
    owners_folder(folder)
    check_private(folder)
    record = folder / "study.json"
    if "id" not in try_json(record):
        write_json(record, {"id": uuid4().hex[:8]})
    return f"sweeper-{study.name}-{try_json(record)['id']}-"


def comment(study: Path) -> str:
    """What the comments of the study's jobs end with: those of a copy of it have another."""
    return f"sweeper-{digest(str(study.resolve()))[:12]}"


def record_array(
    study: Path, job_dirs: Sequence[Path], resources: Resources, avoid: tuple[str, ...] = ()
) -> Array:
    """Note, before it is done, that the jobs in `job_dirs` are submitted with today's code."""
    name, members = f"{prefix(study)}{(token := uuid4().hex[:12])}", []
    for job_dir in job_dirs:
        folder = job_dir / f"submission-{len(submissions(job_dir))}"
        private_folder(folder)
        code = module_digests(try_json(job_dir / "job.json").get("modules", ()))
        write_json(folder / "submission.json", {"code": code})
        members.append(Submission(folder=folder))
    folder = study / "slurm" / token
    private_folder(folder)
    array = Array(
        folder=folder,
        name=name,
        members=tuple(members),
        at=time.time(),
        resources=resources,
        avoid=avoid,
    )
    places = tuple(f"{member.job_dir.name}/{member.folder.name}" for member in members)
    write_json(folder / "array.json", ArrayRecord(name=name, members=places, at=array.at))
    return array


def arrays(study: Path) -> list[Array]:
    """All arrays on record; what is damaged is passed over."""
    paths = sorted((study / "slurm").glob("*/array.json"))
    return [
        Array(
            folder=path.parent,
            name=record.name,
            members=tuple(Submission(folder=study / "jobs" / place) for place in record.members),
            at=record.at,
        )
        for path in paths
        if (record := recorded(ArrayRecord, path)) is not None
    ]


class Superseded(Exception):
    """A newer copy of this job runs elsewhere: this one is of no use any more."""


BOOT = (
    "import sys; sys.path = [path for path in sys.path if path]; "
    "from submitit.core.submission import process_job; "
    "from sweeper.launch.slurm_jobs import opened; process_job(opened({folder!a}))"
)
"""The program of every job: submitit unpickles `run` in its folder, and calls it.

In the folder worked in, which Python puts first as "", it imports what is the user's alone.
"""


def opened(folder: str) -> str:
    """The folder by its open descriptor, once that was looked at; SweeperError as `check_private`.

    In a study that a group shares another may put a folder of theirs in its place.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    _check_private(os.fstat(descriptor), Path(folder))
    return f"/proc/self/fd/{descriptor}"


def run(folder: str) -> None:
    """Entry of every job; `folder` is that of its submission. Results are files, never returned.

    On several nodes it is called once a node: one call runs the job, which starts what it needs on
    the others by itself, and these have nothing to do here.
    """
    if int(os.environ.get("SLURM_PROCID") or 0) > 0:
        return
    submission = Submission(folder=Path(folder))
    for private in (submission.job_dir, submission.folder):
        check_private(private)
    find_users_modules()
    serve(Run(submission))


class Run:
    """One run of a submission by Slurm, a worker's source; `restart`: how often it ran before."""

    def __init__(self, submission: Submission) -> None:
        self.submission, self.signals = submission, list[int]()
        self.restart = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        self.attempt = MAX_RESTARTS * submission.number + min(self.restart, MAX_RESTARTS - 1)
        self.fraction, self._looked, self._begun = 0.0, time.monotonic(), False
        self.began: float | None = None
        for number in (*BEFORE_THE_END, signal.SIGTERM):
            signal.signal(number, lambda number, _: self.signals.append(number))

    def next(self) -> Work | None:
        """The submission's job, once; None where it is of no use any more."""
        if self._begun or self._is_superseded():
            return None
        self._begun = True
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        self._note(Started(node=node))
        return self._train

    def control(self, notify: Callable[[str], None]) -> Control:
        """It is told to leave by a signal."""
        return Control(
            notify=notify, progress=self._progress, should_leave=lambda: bool(self.signals)
        )

    def done(self, answer: None) -> None:
        """Its result is a file."""

    def failed(self, error: BaseException) -> bool:
        """Note how it ended; an exception that is no fault of the cluster's ends the process."""
        if isinstance(error, Leave):
            self._leave()
        elif isinstance(error, Superseded):
            print("a newer copy of this job runs: this one ends here")
        else:
            lines = traceback.format_exception_only(error)
            # Bad input is as bad on another node; anything else may do better there, or later.
            retry = not isinstance(error, SweeperError)
            self._note(Raised(error="".join(lines).strip(), retry=retry))
            return False
        return True

    def _train(self, controls: Controls) -> None:
        cpus = os.environ.get("SLURM_CPUS_PER_TASK")
        if cpus and users_threads() is None:
            os.environ[THREADS] = cpus  # read when torch is imported, by the task
        if outcome_of(self.submission.job_dir) is not None:
            return  # another copy was faster
        if names := self.submission.changed_code():
            raise SweeperError(
                f"the code of {', '.join(names)} is not that of the submission: it was edited "
                "while the job waited, or the node has another installation. Run the same command "
                "again to train these trials with the code as it is now"
            )
        run_job(self.submission.job_dir, self.attempt, controls)

    def _progress(self, fraction: float) -> None:
        self.began = fraction if self.began is None else self.began
        self.fraction = fraction
        if time.monotonic() - self._looked < PROGRESS_EVERY:
            return
        self._looked = time.monotonic()
        self._write_progress()
        if self._is_superseded():
            raise Superseded

    def _write_progress(self) -> None:
        with suppress(OSError):
            progress = JobProgress(fraction=self.fraction, began=self.began)
            write_json(self.submission.folder / "progress.json", progress)

    def _is_superseded(self) -> bool:
        return not self.submission.newest() or self.submission.runs() > self.restart + 1

    def _leave(self) -> None:
        """Back into the queue, when that was asked for: SIGTERM alone may be a cancellation."""
        self._write_progress()
        number = self.signals[0]
        still = self._stands_still()
        requeue = number in BEFORE_THE_END and not still
        saved = SavedAndLeft(
            signal=signal.Signals(number).name,
            fraction=self.fraction,
            began=self.began,
            requeue=requeue,
            still=still,
        )
        # Noted first: Slurm may end this process as soon as it has taken the request.
        self._note(saved)
        if not requeue:
            return
        # What is ignored here is ignored by a child too: a SIGTERM that comes on the heels of
        # the signal before must not end the asking.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            request = ["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]
            subprocess.run(request, check=True, timeout=60)
        except (OSError, KeyError, subprocess.SubprocessError) as error:
            print(f"this job cannot put itself back into the queue, its driver will ({error})")
            self._note(replace(saved, requeue=False))

    def _stands_still(self) -> bool:
        folder, job_dir = self.submission.folder, self.submission.job_dir
        before = [s.progress for s in submissions(job_dir) if s.number < self.submission.number]
        runs = [(each.began, each.fraction) for each in before]
        for number in range(self.restart):
            saved = recorded(SavedAndLeft, folder / f"left-{number}.json")
            runs = [*runs, (saved.began, saved.fraction)] if saved else []
        # The first of them came somewhere, and is none of those that came no further.
        return without_progress([*runs, (self.began, self.fraction)])[0] >= MAX_STANDSTILLS - 1

    def _note(self, note: Note) -> None:
        note = replace(note, at=time.strftime("%Y-%m-%dT%H:%M:%S"))
        write_json(self.submission.folder / f"{note.file}-{self.restart}.json", note)


@dataclass(frozen=True, kw_only=True)
class SlurmFailure:
    """The end of a job that left no result.

    It is `certain` when the job will not come back by itself. `cancelled` tells that somebody
    ended it, `began` that it came as far as to say so; see `launch.job.JobFailure` for the rest.
    """

    id: str
    state: str
    node: str
    cause: str
    certain: bool
    cancelled: bool
    blames_trials: bool
    retry: bool
    began: bool = True

    def __str__(self) -> str:
        where = f" on {self.node}" if self.node else ""
        return f"job {self.id}{where} ended without a result ({self.state}): {self.cause}"


def failure_of(array: Array, index: int, entry: QueueEntry | None) -> SlurmFailure:
    """What is known of the end of a member of `array`; `entry` is the queue's last word on it."""
    member = array.members[index]
    started, saved, error = member.last(Started), member.last(SavedAndLeft), member.last(Raised)
    state, last = "vanished from the queue" if entry is None else entry.state, list[str]()
    if error:
        cause = error.error
    elif saved:
        cause = f"{saved.signal} told it to leave, at {100 * saved.fraction:.0f} % of its work"
        cause += f", and {ADVICE}" if saved.still else ""
    else:
        last, log = _last_lines(array, index)
        lack = lack_of("\n".join(last)) if started is None else None
        cause = str(lack or " | ".join(last) or "it left no word") + log
        if state == "TIMEOUT":
            cause = f"its time was up ({cause}): {ADVICE}"
    # Slurm says that it failed, and its log why: nothing of it will come back.
    never_began = state == "FAILED" and started is None and bool(last)
    return SlurmFailure(
        id=array.task_id(index),
        state=state,
        node=(started.node if started else "") or (entry.node if entry else ""),
        cause=cause,
        certain=never_began or error is not None or (saved is not None and not saved.requeue),
        cancelled=state == "CANCELLED",
        # It died while it trained, and did not say of what.
        blames_trials=started is not None and error is None and saved is None,
        retry=(error is None or error.retry)
        and state != "OUT_OF_MEMORY"
        and not (saved and saved.still),
        began=not never_began,
    )


def _last_lines(array: Array, index: int) -> tuple[list[str], str]:
    """The end of a job's log, errors first, and where it lies, in words."""
    for kind in ("err", "out"):  # submitit names them by Slurm's number
        path = array.folder / f"{array.task_id(index)}_0_log.{kind}"
        text = ""
        with suppress(OSError), path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        telling = [line for line in lines if not any(noise in line for noise in NOISE)]
        if quoted := (telling or lines)[-QUOTED_LINES:]:
            return quoted, f" (the log is {path})"
    return [], ""


def attempts(job_dir: Path) -> int:
    """How often running the job in `job_dir` ended without coming further than before."""
    told = [each.progress for each in submissions(job_dir)]
    count, anew = without_progress([(each.began, each.fraction) for each in told])
    # That the first run came somewhere was no progress, as is known since the next began anew.
    return count + anew


def without_progress(runs: Sequence[tuple[float | None, float]]) -> tuple[int, bool]:
    """How many runs in a row, up to the last, came no further; whether one of them began anew.

    A run is the fraction that was done when it began, None where that is not known, and when it
    ended. One that began anew comes no further, wherever it ends: it has no checkpoint.
    """
    best = before = 0.0
    count, some_anew = 0, False
    for began, fraction in runs:
        anew = began is not None and began < before / 2
        further = fraction > best + MIN_PROGRESS and not anew
        count, some_anew = (0, False) if further else (count + 1, some_anew or anew)
        best, before = max(best, fraction), fraction
    return count, some_anew
