"""A job: trials that are run together, in this process or, through files, in another.

```
jobs/<id>/job.json             what to run: written before anything runs
          result-<attempt>.json   what came of an attempt, whole or not there
```

Files are written aside, synced (where the job should survive the machine) and renamed. Nothing is
ever unpickled. A `Task` is the seam between training and launching: a job that runs is told through
its `Control`, and tells, all that the two sides say to each other.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

from sweeper.errors import SweeperError
from sweeper.files import (
    RECORD_ERRORS,
    owners_folder,
    parse_record,
    private_folder,
    read_json,
    read_own,
    replacing,
    write_json,
)
from sweeper.launch.code import MAIN
from sweeper.records import NAMES_CLASS, Build, from_json, to_json
from sweeper.trial import Result, Trial, digest


class Leave(Exception):
    """A job saved itself and left, as it was asked to; it goes on from there later."""


@dataclass(frozen=True, kw_only=True)
class Control:
    """What a running job says and asks: to its launcher, whichever it is.

    `progress` takes the fraction of the job that is done, `notify` a sentence for the user.
    `should_leave` is asked at every step: where it is true, the job saves itself and raises
    `Leave`. `saved` is told True before work that cannot ask and takes long, such as compiling,
    when all that was done is saved: until it is told False, to end the process loses nothing.
    """

    progress: Callable[[float], None] = lambda fraction: None
    notify: Callable[[str], None] = lambda sentence: None
    should_leave: Callable[[], bool] = lambda: False
    saved: Callable[[bool], None] = lambda is_saved: None

    def leave_if_asked(self) -> None:
        """Once a step, for work that saves nothing: it starts anew later. Raises `Leave`.

        Asking is also a sign of life to the process that started this one.
        """
        if self.should_leave():
            raise Leave


UNCONTROLLED = Control()
"""Nobody listens, and nobody asks to leave."""

JOB_FORMAT = 3
"""Raised when `job.json` changes in a way that old readers would misread."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a job asks of a cluster; None leaves it to the launcher's own settings.

    `gpus` and `cpus` are those of a node, `tasks` are processes on a node, `memory` is such as
    "16G", and `time` is in minutes.
    """

    nodes: int = 1
    tasks: int = 1
    gpus: int | None = None
    cpus: int | None = None
    memory: str | None = None
    time: int | None = None


@dataclass(frozen=True, kw_only=True)
class JobFailure:
    """Why a job left trials without a result, and what may help.

    `reason` is one line, `details` the lines that tell more, such as the end of a log. `attempts`
    counts how often the job failed, where that can be told without coming further. `retry` tells
    that the same job may do better another time, `blames_trials` that one of its trials may be the
    cause.
    """

    reason: str
    details: str = ""
    attempts: int = 1
    retry: bool = True
    blames_trials: bool = True

    def __str__(self) -> str:
        return f"{self.reason}:\n{self.details}" if self.details else self.reason


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    """What came of a job's attempt, by its number from 0.

    `failure` says why trials are without a result. The user should be told `notices`.
    """

    results: tuple[Result, ...] = ()
    failure: JobFailure | None = None
    notices: tuple[str, ...] = ()
    attempt: int = 0


class Task(Protocol):
    """Work that can be done in this process or, where it is a record, in another.

    In JSON its `trials` are among its fields.
    """

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials that it is about."""

    def run(self, control: Control) -> Any:
        """Do it. A job's task returns its `JobOutcome`, and raises SweeperError for bad input."""

    def modules(self) -> list[str]:
        """Modules of the user's own that the task runs."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A task, and what it needs of the machines that it runs on."""

    task: Task = field(metadata=NAMES_CLASS)
    resources: Resources = Resources()

    JSON_SHOWS: ClassVar[tuple[str, ...]] = ("format", "modules")
    format: ClassVar[int] = JOB_FORMAT

    @property
    def modules(self) -> list[str]:
        """Modules of the user's own that the task runs."""
        return self.task.modules()

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The task's trials."""
        return self.task.trials

    @cached_property
    def id(self) -> str:
        """Name of the job's folder: it follows from the trials and their order."""
        return digest([trial.key for trial in self.trials])[:24]

    @classmethod
    def read_json(cls, record: Mapping[str, Any], build: Build) -> Job:
        """ValueError for a job of another format."""
        if (version := record.get("format")) != JOB_FORMAT:
            raise ValueError(f"its format is {version!r}")
        job: Job = build(record)
        return job


def can_be_sent(value: object) -> bool:
    """Whether a job's file can hold it: by the name of its class, and fields of plain values."""
    kind = type(value)
    try:
        from_json(kind, json.loads(json.dumps(to_json(value))))
    except (SweeperError, *RECORD_ERRORS):
        return False
    return kind.__module__ != MAIN and "<locals>" not in kind.__qualname__


def write_job(folder: Path, job: Job, *, sync: bool = True) -> Path:
    """The job's folder in `folder`, with its `job.json`; OSError when it cannot be written.

    Without `sync` it may be lost when the whole machine fails, but no worker waits for the disk.
    """
    owners_folder(folder)
    job_dir = folder / job.id
    private_folder(job_dir)
    _write(job_dir / "job.json", to_json(job), sync)
    return job_dir


def _write(path: Path, record: dict[str, Any], sync: bool) -> None:
    if sync:
        write_json(path, record)
        return
    # Workers of this machine read it at once, so it need not survive the machine, nor be indented.
    with replacing(path, sync=False) as file:
        file.write(json.dumps(to_json(record), allow_nan=False).encode())


def read_job(job_dir: Path) -> Job:
    """The job in the folder `job_dir`; SweeperError when there is none that can be trusted."""
    try:
        return from_json(Job, parse_record(read_own(job_dir / "job.json")))
    except (OSError, *RECORD_ERRORS) as error:
        raise SweeperError(f"there is no job in {job_dir}: {error}") from error


def trials_of(job_dir: Path) -> tuple[Trial, ...]:
    """The trials of the job in the folder `job_dir`; none when nobody could read and run it."""
    # To build the task would import what it names: torch, or a module of the user's own.
    try:
        record = read_json(job_dir / "job.json")
        trials = from_json(tuple[Trial, ...], record["task"]["trials"])
        readable = record["format"] == JOB_FORMAT and all(trial.key for trial in trials)
        return trials if readable else ()  # damaged values have no key: it raises
    except (OSError, *RECORD_ERRORS):
        return ()


def run_job(
    job_dir: Path,
    attempt: int,
    control: Callable[[Callable[[str], None]], Control] = lambda notify: Control(notify=notify),
    *,
    sync: bool = True,
) -> None:
    """Run the job in `job_dir` and write what came of it; `Leave` when it was told to leave.

    `control` gets a function that keeps a sentence for the user; `sync` as in `write_job`.
    """
    job, notices = read_job(job_dir), list[str]()
    outcome = job.task.run(control(notices.append))
    outcome = replace(outcome, attempt=attempt, notices=(*outcome.notices, *notices))
    _write(job_dir / f"result-{attempt}.json", to_json(outcome), sync)


def outcome_of(job_dir: Path) -> JobOutcome | None:
    """What came of the job in `job_dir`, by its newest attempt that left a whole result; or None.

    An older attempt may finish after a newer one was begun, on a node that was thought lost: the
    newest counts, so that what is read does not depend on when.
    """
    outcomes = []
    for path in job_dir.glob("result-*.json"):
        with suppress(OSError, *RECORD_ERRORS):
            outcomes.append(from_json(JobOutcome, read_json(path)))
    return max(outcomes, key=lambda outcome: outcome.attempt, default=None)


def failed(trials: Iterable[Trial], reason: str) -> list[Result]:
    """Results of trials that could not be trained, with the reason."""
    return [
        Result(
            trial=trial,
            status="failed",
            objective=math.nan,
            heldout=math.nan,
            finished_at=time.time(),
            error=reason[:2000],  # a log's lines; the study's record keeps them for good
        )
        for trial in trials
    ]
