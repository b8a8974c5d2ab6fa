"""Why a Slurm job is gone without a result, from what it left."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sweeper.launch.arrays import Array, submissions
from sweeper.launch.scheduler import Entry

TAIL = 4000
"""So much of a log's end is looked at, in bytes."""
LINES = 3
"""Lines of it that a message quotes."""
FURTHER = 0.01
"""A job has come further when it has done this share of its work more."""
NOISE = ("submitit INFO", "submitit WARNING", "slurmstepd: ", "srun: ")
"""Lines that say nothing of the cause, where there are others."""


@dataclass(frozen=True, kw_only=True)
class Death:
    """The end of a job that left no result.

    It is `certain` when it will not come back by itself, `by_training` when it died while it
    trained and did not say of what, and to `retry` unless it would end the same way.
    """

    id: str
    state: str
    node: str
    cause: str
    certain: bool
    cancelled: bool
    by_training: bool
    retry: bool

    def __str__(self) -> str:
        """As the user reads it."""
        where = f" on {self.node}" if self.node else ""
        return f"job {self.id}{where} ended without a result ({self.state}): {self.cause}"


def death_of(array: Array, index: int, entry: Entry | None) -> Death:
    """What is known of the end of a member of `array`; `entry` is the queue's last word on it."""
    member = array.members[index]
    started, left, error = (member.last(kind) for kind in ("started", "left", "error"))
    state = "vanished from the queue" if entry is None else entry.state
    if error:
        cause = str(error.get("error"))
    elif left:
        share = 100 * float(left.get("share", 0.0))
        cause = f"{left.get('signal')} told it to leave, at {share:.0f} % of its work"
    else:
        cause = last_lines(array, index) or "it left no word"
    return Death(
        id=array.task_id(index),
        state=state,
        node=str(started.get("node", "")) or (entry.node if entry else ""),
        cause=cause,
        certain=bool(error) or (bool(left) and not left.get("requeue", True)),
        cancelled=state == "CANCELLED",
        by_training=bool(started) and not error and not left,
        retry=bool(error.get("retry", True)) and state != "OUT_OF_MEMORY",
    )


def strikes(own: Path) -> int:
    """How often running the job in `own` ended without coming further than before."""
    best, count = 0.0, 0
    for submission in submissions(own):
        share = submission.share
        count = 0 if share > best + FURTHER else count + 1
        best = max(best, share)
    return count


def last_lines(array: Array, index: int) -> str:
    """The end of a job's log, in one line, with the log's name."""
    for path in logs(array, index):
        lines = [line.strip() for line in _tail(path).splitlines() if line.strip()]
        telling = [line for line in lines if not any(noise in line for noise in NOISE)]
        if found := (telling or lines)[-LINES:]:
            return f"{' | '.join(found)} (the log is {path})"
    return ""


def logs(array: Array, index: int) -> list[Path]:
    """Where a member's words went, errors first; submitit names them by Slurm's number."""
    base = array.folder / f"{array.task_id(index)}_0_log"
    return [base.with_name(f"{base.name}.{end}") for end in ("err", "out")]


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
