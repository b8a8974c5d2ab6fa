"""Why a Slurm job is gone without a result, from what it left."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sweeper.launch.slurm.arrays import Array, submissions
from sweeper.launch.slurm.scheduler import Entry

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
