"""What was submitted to Slurm, as files: it outlives the driver, and any host may read it.

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
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from sweeper.errors import SweeperError
from sweeper.files import RECORD_ERRORS, private_folder, read_json, try_json, write_json
from sweeper.launch import slurm_queue
from sweeper.launch.executor import JobState
from sweeper.launch.job import Resources
from sweeper.launch.slurm_queue import Entry

MAX_RESTARTS = 1000
"""More than Slurm ever runs one submission."""


def check_private(folder: Path) -> None:
    """SweeperError unless `folder` is this user's own and nobody else may enter it."""
    status = os.lstat(folder)
    private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
    if not stat.S_ISDIR(status.st_mode) or not private:
        raise SweeperError(
            f"{folder} must be a folder of yours that nobody else can enter: "
            "what lies there is run (chmod 700)"
        )


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
        """N, from 0."""
        return int(self.folder.name.rpartition("-")[2])

    @property
    def fraction(self) -> float:
        """The fraction of the job that was last told to be done."""
        return float(try_json(self.folder / "progress.json").get("fraction", 0.0))

    def runs(self) -> int:
        """How often Slurm ran it, as far as it came to tell."""
        numbers = (_number(path) for path in self.folder.glob("started-*.json"))
        return max(numbers, default=-1) + 1

    def last(self, kind: str) -> dict[str, Any]:
        """What its last run left as `kind` (started, left, error); empty when it left none."""
        return try_json(self.folder / f"{kind}-{self.runs() - 1}.json")

    def newest(self) -> bool:
        """Whether the job was not submitted again after it."""
        return self.job_dir.is_dir() and self.number == len(submissions(self.job_dir)) - 1


def _number(path: Path) -> int:
    match = re.search(r"-(\d+)\.json$", path.name)
    return int(match[1]) if match else -1


def submissions(job_dir: Path) -> list[Submission]:
    """All submissions of the job in `job_dir`, in order."""
    folders = [path for path in job_dir.glob("submission-*") if path.is_dir()]
    return sorted(
        (Submission(folder=path) for path in folders), key=lambda submission: submission.number
    )


@dataclass(frozen=True, kw_only=True)
class Array:
    """Submissions that are sent to Slurm together; `at` is when, in seconds since the epoch.

    `resources` are those of every job; they are not kept, since the batch script has them.
    """

    folder: Path
    name: str
    members: tuple[Submission, ...]
    at: float
    resources: Resources = field(default=Resources(), compare=False)

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
    private_folder(folder)
    check_private(folder)
    record = folder / "study.json"
    if not try_json(record):
        write_json(record, {"id": uuid4().hex[:8]})
    return f"sweeper-{study.name}-{try_json(record)['id']}-"


def plan(
    study: Path,
    job_dirs: Sequence[Path],
    codes: Sequence[dict[str, str]],
    resources: Resources,
) -> Array:
    """Note, before it is done, that the jobs in `job_dirs` are submitted with this code."""
    name, members = f"{prefix(study)}{(token := uuid4().hex[:12])}", []
    for job_dir, code in zip(job_dirs, codes, strict=True):
        folder = job_dir / f"submission-{len(submissions(job_dir))}"
        private_folder(folder)
        write_json(folder / "submission.json", {"code": code})
        members.append(Submission(folder=folder))
    folder = study / "slurm" / token
    private_folder(folder)
    array = Array(
        folder=folder, name=name, members=tuple(members), at=time.time(), resources=resources
    )
    places = [f"{member.job_dir.name}/{member.folder.name}" for member in members]
    write_json(folder / "array.json", {"name": name, "members": places, "at": array.at})
    return array


def arrays(study: Path) -> list[Array]:
    """All arrays on record; what is damaged is passed over."""
    recorded = []
    for path in sorted((study / "slurm").glob("*/array.json")):
        try:
            record = read_json(path)
            members = [Submission(folder=study / "jobs" / place) for place in record["members"]]
            recorded.append(
                Array(
                    folder=path.parent,
                    name=str(record["name"]),
                    members=tuple(members),
                    at=float(record["at"]),
                )
            )
        except (OSError, *RECORD_ERRORS):
            continue
    return recorded


def queued(study: Path) -> dict[tuple[str, int], Entry]:
    """The study's jobs in Slurm's queue, by array's name and index; SchedulerError."""
    return {(entry.name, entry.index): entry for entry in slurm_queue.queue(prefix(study))}


def job_states(study: Path) -> list[JobState]:
    """Jobs whose results are not yet recorded; SchedulerError when Slurm does not answer."""
    live = [array for array in arrays(study) if not array.cancelled]
    if not live:
        return []
    entries, states = queued(study), []
    for array in live:
        for index, member in enumerate(array.members):
            if member.newest():
                states.append(_state(array, index, entries.get((array.name, index))))
    return states


def _state(array: Array, index: int, entry: Entry | None) -> JobState:
    member = array.members[index]
    done = any(member.job_dir.glob("result-*.json"))
    state = "vanished" if entry is None else entry.state.lower()
    if entry is not None and entry.state == "PENDING":
        state = f"pending ({entry.reason})"
    started = member.last("started")
    return JobState(
        id=array.task_id(index) if entry is None else entry.id,
        state="finished" if done else state,
        node=entry.node if entry and entry.node else str(started.get("node", "")),
        since=entry.since if entry else str(started.get("at", "")),
        trials=len(try_json(member.job_dir / "job.json").get("trials", ())),
        fraction=member.fraction,
    )


def cancel_jobs(study: Path) -> int:
    """End exactly this study's jobs; how many there were. SchedulerError when Slurm is away.

    The arrays are marked first, so that a driver takes no job for failed.
    """
    for array in arrays(study):
        write_json(array.folder / "cancelled", {"at": time.time()})
    if not (study / "slurm").is_dir():
        return 0
    ids = [entry.id for entry in queued(study).values() if entry.active]
    slurm_queue.cancel(ids)
    return len(ids)


# Why a Slurm job is gone without a result, from what it left.


TAIL_BYTES = 4000
"""So much of a log's end is looked at."""
QUOTED_LINES = 3
"""Lines of it that a message quotes."""
MIN_PROGRESS = 0.01
"""A job has come further when it has done this fraction of its work more."""
NOISE = ("submitit INFO", "submitit WARNING", "slurmstepd: ", "srun: ")
"""Lines that say nothing of the cause, where there are others."""


@dataclass(frozen=True, kw_only=True)
class SlurmFailure:
    """The end of a job that left no result.

    It is `certain` when the job will not come back by itself. `cancelled` tells that somebody
    ended it; see `launch.job.JobFailure` for the rest.
    """

    id: str
    state: str
    node: str
    cause: str
    certain: bool
    cancelled: bool
    blames_trials: bool
    retry: bool

    def __str__(self) -> str:
        """As the user reads it."""
        where = f" on {self.node}" if self.node else ""
        return f"job {self.id}{where} ended without a result ({self.state}): {self.cause}"


def failure_of(array: Array, index: int, entry: Entry | None) -> SlurmFailure:
    """What is known of the end of a member of `array`; `entry` is the queue's last word on it."""
    member = array.members[index]
    started, left, error = (member.last(kind) for kind in ("started", "left", "error"))
    state = "vanished from the queue" if entry is None else entry.state
    if error:
        cause = str(error.get("error"))
    elif left:
        percent = 100 * float(left.get("fraction", 0.0))
        cause = f"{left.get('signal')} told it to leave, at {percent:.0f} % of its work"
    else:
        cause = last_lines(array, index) or "it left no word"
    return SlurmFailure(
        id=array.task_id(index),
        state=state,
        node=str(started.get("node", "")) or (entry.node if entry else ""),
        cause=cause,
        certain=bool(error) or (bool(left) and not left.get("requeue", True)),
        cancelled=state == "CANCELLED",
        # It died while it trained, and did not say of what.
        blames_trials=bool(started) and not error and not left,
        retry=bool(error.get("retry", True)) and state != "OUT_OF_MEMORY",
    )


def attempts(job_dir: Path) -> int:
    """How often running the job in `job_dir` ended without coming further than before."""
    best, count = 0.0, 0
    for submission in submissions(job_dir):
        fraction = submission.fraction
        count = 0 if fraction > best + MIN_PROGRESS else count + 1
        best = max(best, fraction)
    return count


def last_lines(array: Array, index: int) -> str:
    """The end of a job's log, in one line, with the log's name."""
    for path in logs(array, index):
        lines = [line.strip() for line in _tail(path).splitlines() if line.strip()]
        telling = [line for line in lines if not any(noise in line for noise in NOISE)]
        if quoted := (telling or lines)[-QUOTED_LINES:]:
            return f"{' | '.join(quoted)} (the log is {path})"
    return ""


def logs(array: Array, index: int) -> list[Path]:
    """Where a member's words went, errors first; submitit names them by Slurm's number."""
    base = array.folder / f"{array.task_id(index)}_0_log"
    return [base.with_name(f"{base.name}.{end}") for end in ("err", "out")]


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
