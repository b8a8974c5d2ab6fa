"""What is asked of Slurm: its queue, its limits, its nodes. Plain text alone, no accounting."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sweeper.errors import SweeperError

ACTIVE = {
    "CONFIGURING",
    "COMPLETING",
    "PENDING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESIZING",
    "RESV_DEL_HOLD",
    "RUNNING",
    "SIGNALING",
    "SPECIAL_EXIT",
    "STAGE_OUT",
    "STOPPED",
    "SUSPENDED",
}
"""States of a job that will run, or go on, or is just ending."""
WAITING = {"CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
"""Those of a job that does not run yet."""
PATIENCE = 60.0
"""Seconds after which a command of Slurm's that gives no answer counts as failed."""
_COLUMNS = "%j|%i|%T|%N|%S|%V|%r|%k"
"""squeue's: name, id, state, nodes, start, submission, reason (it may hold a bar), comment."""


class SchedulerError(SweeperError):
    """Slurm refused something, or does not answer; the message is its own."""


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """A line of the queue: one job, or one task of an array.

    `id` is what `scancel` takes, `index` the task's number in its array (0 for a job alone),
    `since` when it began, or was submitted, as Slurm writes times.
    """

    name: str
    id: str
    array: str
    index: int
    state: str
    node: str
    since: str
    reason: str
    comment: str

    @property
    def active(self) -> bool:
        """Whether the job may still do something."""
        return self.state in ACTIVE


def ask(*command: str, stdin: str | None = None) -> str:
    """What a command prints; SchedulerError, with what it said, when it fails or is not there."""
    try:
        done = subprocess.run(
            command,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=PATIENCE,
            check=True,
            encoding="utf-8",
            errors="replace",
        )
    except FileNotFoundError as error:
        raise SchedulerError(
            f"there is no {command[0]} here: launcher=slurm needs a machine of a Slurm cluster"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SchedulerError(f"{command[0]} gave no answer in {PATIENCE:.0f} s") from error
    except (subprocess.CalledProcessError, OSError) as error:
        complaint = first_lines(getattr(error, "stderr", None) or str(error))
        if "configuration source" in complaint:
            complaint = "this machine is on no Slurm cluster (it finds no slurm.conf)"
        raise SchedulerError(f"{command[0]}: {complaint}") from error
    return done.stdout


def long_options(**values: str | int | None) -> list[str]:
    """Long options of a program, as words: `states="all"`; None for one without a value."""
    options = {f"--{name.replace('_', '-')}": value for name, value in values.items()}
    return [name if value is None else f"{name}={value}" for name, value in options.items()]


def first_lines(text: str) -> str:
    """Slurm's own words, without the command's name before every line."""
    lines = [re.sub(r"^\w+: (error: |fatal: )?", "", line) for line in text.strip().splitlines()]
    return "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip()))[:500]


def queue(prefix: str) -> list[QueueEntry]:
    """This user's jobs whose names begin with `prefix`, those that ended lately included.

    One call for all of them. SchedulerError when Slurm does not answer.
    """
    # By default squeue folds an array's waiting tasks into one line, and hides what ended.
    wanted = long_options(
        noheader=None, array=None, states="all", user=os.geteuid(), format=_COLUMNS
    )
    text = ask("squeue", *wanted)
    return [_entry(line) for line in text.splitlines() if line.startswith(prefix)]


def _entry(line: str) -> QueueEntry:
    name, number, state, node, began, submitted, rest = line.split("|", 6)
    reason, _, comment = rest.rpartition("|")
    array, _, index = number.partition("_")
    # Of a job that waits, %S is when Slurm expects to start it.
    since = began if state not in WAITING and began != "N/A" else submitted
    return QueueEntry(
        name=name,
        id=number,
        array=array,
        index=int(index) if index.isdecimal() else 0,
        state=state,
        node=node,
        since=since,
        reason=reason,
        comment=comment,
    )


def steps(name: str) -> list[str]:
    """Ids of the steps with this name that run in the job that this process is a part of.

    SchedulerError when Slurm does not answer.
    """
    job = os.environ.get("SLURM_JOB_ID", "")
    text = ask("squeue", *long_options(noheader=None, steps=None, jobs=job, format="%i|%j"))
    rows = [line.partition("|") for line in text.splitlines()]
    return [number for number, _, of in rows if of == name]


def cancel(ids: Sequence[str], signal: str | None = None) -> None:
    """End these jobs or steps, or only send them a signal, such as TERM.

    Those that have ended already are passed over. SchedulerError when Slurm does not answer.
    """
    options = long_options(quiet=None, **({} if signal is None else {"signal": signal}))
    for start in range(0, len(ids), 200):  # a command line has a longest length
        try:
            ask("scancel", *options, *ids[start : start + 200])
        except SchedulerError as error:
            if not re.search("nvalid job id|already complet", str(error)):
                raise


def largest_array() -> int:
    """How many tasks an array may have; its largest index is one less."""
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config"), re.M)
    return max(1, int(match[1])) if match else 1


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition's longest time in minutes (None: without end), and whether it is the default."""

    name: str
    minutes: float | None
    default: bool


def partitions() -> dict[str, Partition]:
    """All partitions that this user sees, by name."""
    by_name = {}
    for line in ask("sinfo", *long_options(noheader=None, format="%P|%l")).splitlines():
        name, _, limit = line.partition("|")
        plain = name.removesuffix("*")
        by_name[plain] = Partition(name=plain, minutes=minutes(limit), default=name.endswith("*"))
    return by_name


USABLE = ("alloc", "comp", "idle", "mix", "plan", "plnd", "resv")
"""How the states of nodes begin on which jobs run, or soon will."""


def nodes(partition: str | None) -> set[str]:
    """The nodes of a partition (None: the default one) on which jobs run."""
    answer = ask("sinfo", *long_options(noheader=None, Node=None, format="%N|%P|%t"))
    lines = [line.split("|") for line in answer.splitlines()]
    default = partition is None  # its name ends with an asterisk
    asked = [] if partition is None else partition.split(",")
    return {
        name
        for name, place, state in lines
        if (place.endswith("*") if default else place.rstrip("*") in asked)
        and state.startswith(USABLE)
    }


def minutes(text: str) -> float | None:
    """Slurm's time `days-hours:minutes:seconds` in minutes; None for one that has no end."""
    # Days and hours may lack: "1-00:00:00", "4:00:00", "30:00"; other words are "infinite", "n/a".
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if match is None:
        return None
    days, hours, whole, seconds = (int(part or 0) for part in match.groups())
    return 1440 * days + 60 * hours + whole + seconds / 60


SIZES = re.compile(
    r"SLURM_(MEM|N?TASKS|NPROCS|NNODES|NODE|JOB|CPUS?_|GPUS?_?|TRES|STEP|ARRAY|DISTRIBUTION|CORE|"
    r"THREADS|EXACT|EXCLUSIVE|OVERLAP|GRES|RESV)"
)
"""Variables that srun takes for sizes of the job that it is in."""


@contextmanager
def outside_a_job() -> Iterator[None]:
    """Hide from what is submitted here that this process may itself be in a job.

    A job inherits its submitter's environment, and srun would take the outer job's sizes; those
    that a shell still has from one that ended, such as SLURM_MEM_PER_CPU, too.
    """
    inside = "SLURM_JOB_ID" in os.environ
    ours = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_")
    hidden = {
        name: os.environ.pop(name)
        for name in list(os.environ)
        if (inside and name.startswith(ours) and name != "SLURM_CONF") or SIZES.match(name)
    }
    try:
        yield
    finally:
        os.environ.update(hidden)


@dataclass(frozen=True)
class NodeLack:
    """What is wrong, the line that says so, and what may help."""

    what: str
    line: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} there ({self.line}); {self.remedy}"


STARTS = "launcher.python is what starts there, launcher.setup the lines of shell before it"
KINDS = (
    (
        "a line of launcher.setup failed",
        r"sweeper: launcher\.setup",
        "every line of it must succeed",
    ),
    (
        "the GPU or its driver is missing",
        r"NVIDIA driver|CUDA driver|no CUDA-capable|libcuda|CUDA (unknown )?error|NVML|"
        r"CUDA initialization|uncorrectable ECC|fallen off the bus|hipError|No CUDA GPUs",
        "launcher.constraint and launcher.submitit.slurm_exclude choose nodes",
    ),
    (
        "a disk, or room on it, is missing",
        r"No space left|quota exceeded|Read-only file system|Stale file handle|"
        r"Input/output error|Transport endpoint|Unable to create TMPDIR",
        "every node must see the study's folder and write to it",
    ),
    (
        "a module or a library is missing",
        r"ModuleNotFoundError|No module named|ImportError|cannot open shared object|"
        r"GLIBC\w*_[\d.]+' not found",
        STARTS,
    ),
    (
        "the interpreter or a program is missing",
        r"execve|command not found|[Nn]o such program|Exec format error|cannot execute|"
        r"cannot be started|Illegal instruction|python\S*: No such file",
        STARTS,
    ),
    (
        "a file is missing",
        r"FileNotFoundError|No such file or directory|PermissionError|Permission denied",
        "every node must see what a job reads",
    ),
)
"""Kinds, the words of their errors, and remedies; the first that matches counts."""


def lack_of(text: str) -> NodeLack | None:
    """What `text`, the end of a log, says is missing; None where it says of no such thing."""
    lines = [line.strip()[:300] for line in text.splitlines()]
    for what, pattern, remedy in KINDS:
        for at in reversed(range(len(lines))):
            if re.search(pattern, lines[at]):
                # Before our own line about it stands what the line of setup has said.
                first = max(0, at - 1) if what == KINDS[0][0] else at
                return NodeLack(what, " | ".join(lines[first : at + 1]), remedy)
    return None
