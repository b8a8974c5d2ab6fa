"""Run jobs on a cluster with Slurm: sent in arrays through submitit, watched, found again.

`Slurm` is the launcher: what a cluster must be told, and what is asked of it without a driver.
`SlurmExecutor` drives the jobs of one study. What both know of a job lies in files, see
`slurm_jobs`; Slurm itself is asked through its commands alone, see `slurm_queue`.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, ClassVar

import submitit
from submitit.core.utils import DelayedSubmission, FailedJobError, FailedSubmissionError, JobPaths

from sweeper.errors import ConfigError, SweeperError, suggest
from sweeper.files import check_open, try_json, write_json
from sweeper.launch import slurm_jobs, slurm_queue
from sweeper.launch.executor import (
    MAX_FALSE_STARTS,
    Context,
    Event,
    Executor,
    Finished,
    JobState,
    Left,
    Lost,
    Machine,
    Stage,
)
from sweeper.launch.job import Job, JobFailure, Resources, outcome_of, trials_of, write_job
from sweeper.launch.parameters import Parameters
from sweeper.launch.slurm_jobs import (
    Array,
    SlurmFailure,
    Started,
    Submission,
    Unfit,
    arrays,
    attempts,
    comment,
    failure_of,
    prefix,
    record_array,
    submissions,
    unfit_nodes,
)
from sweeper.launch.slurm_queue import (
    WAITING,
    QueueEntry,
    SchedulerError,
    ask,
    first_lines,
    lack_of,
    largest_array,
    long_options,
    nodes,
    outside_a_job,
    partitions,
)
from sweeper.records import AtLeastOne, Bounds, Seconds, check_bounds
from sweeper.trial import Trial

AWAY = re.compile(
    "unable to contact"  # slurm_load_jobs error: Unable to contact slurm controller
    "|timed? ?out"  # Socket timed out on send/recv operation
    "|no answer"  # ours, when a command of Slurm's runs longer than its PATIENCE
    "|connect"  # Connection refused; Communication connection failure
    "|temporarily"  # Slurm temporarily unable to accept job, sleeping and retrying
    "|communication"  # Transport endpoint: communication failure
    "|zero bytes",  # Zero Bytes were transmitted or received: slurmctld died as it answered
    re.I,
)
"""What Slurm says when it may well take the same thing later."""
LIMIT = re.compile("limit|policy|QOS|too many", re.I)
"""What it says when it would take fewer."""
SETTLING = 15.0
"""Seconds after which a submission cut short by its driver's death can no longer arrive."""
SILENT = 900.0
"""Seconds after which a job that writes nothing is told of: a first compilation takes minutes."""
MAX_PAUSE = 300.0
"""Seconds that Slurm is left alone at most."""
DRIVER_OPTIONS = {"array", "chdir", "error", "job-name", "open-mode", "output", "requeue", "signal"}
"""What a batch script says already, in the way that the driver relies on."""
KEY_OF_COMPLAINT = {
    "account": "account",
    "partition": "partition",
    "qos": "qos",
    "feature|constraint": "constraint",
    "time limit": "time",
    r"memory|\bmem-per|\bmem\b": "memory",
    "cpu count|processors": "cpus",
    "gres|gpu": "gpus",
}
"""What Slurm complains of, and the key that it is about."""
DEFAULT = Resources()
"""Those of the launcher's own settings."""
UNCOUNTED = 10**6
"""submitit counts how often a job was told to leave; the driver does so itself."""


class Submitter(submitit.SlurmExecutor):
    """submitit's, whose jobs look at their folder before they unpickle what lies in it."""

    @property
    def _submitit_command_str(self) -> str:
        boot = slurm_jobs.BOOT.format(folder=str(self.folder))
        return f"{self.python} {shlex.join(('-u', '-c', boot))}"


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """Jobs in arrays, one GPU or some cores each unless a job asks for other resources.

    What a cluster must be told: `partition`, `account`, `qos`, `constraint`, `gpus` to a job
    (0: it trains on `cpus` cores; `gres` says it in another way), `memory` such as 16G, `time`
    in minutes. `setup` are lines of shell before the job, `sbatch` further options of sbatch's,
    `python` the words that start Python.

    `jobs` at most are submitted at a time, `array_parallelism` at most of an array run at a time. A
    job saves itself `warn` seconds before its time is up, when it goes back into the queue. One
    that dies is sent again, at most `retries` times running without coming further. The queue is
    looked at every `poll` seconds; a job that vanished has `grace` seconds to appear again. At most
    `ahead` trials are in jobs at a time that nobody has asked for yet.
    `submitit` are parameters of submitit's; those that are keys here set these.
    """

    pins_gpus: ClassVar[bool] = True

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gpus: int = 1
    gres: str | None = None
    cpus: AtLeastOne = 4
    memory: str | None = None
    time: AtLeastOne = 240
    warn: Annotated[int, Bounds(least=0)] = 120
    array_parallelism: AtLeastOne = 64
    jobs: AtLeastOne = 512
    retries: Annotated[int, Bounds(least=0)] = 2
    poll: Seconds = 10.0
    grace: Annotated[float, Bounds(least=0)] = 60.0
    ahead: Annotated[int, Bounds(least=0)] = 0
    setup: tuple[str, ...] = ()
    sbatch: Mapping[str, Any] = field(default_factory=dict)
    python: tuple[str, ...] | None = None
    submitit: Parameters = field(default_factory=Parameters)

    def __post_init__(self) -> None:
        for key, value in self.submitit.slurm_keys().items():
            object.__setattr__(self, key, value)
        check_bounds(self)
        self._check_memory()
        if self.warn >= 60 * self.time:
            raise ConfigError("warn", self.warn, f"less than time, {60 * self.time} seconds")
        if self.gpus not in (0, 1):
            raise ConfigError("gpus", self.gpus, "0 or 1: a job trains its trials on one device")
        if self.memory is not None and not re.fullmatch(r"\d+[KMGT]?", self.memory):
            raise ConfigError("memory", self.memory, "a size such as 16G, or null")
        if self.python is not None and not self.python:
            raise ConfigError("python", [], "null, or the words that start Python")
        for key in ("partition", "account", "qos", "constraint", "gres"):
            _check_word(key, getattr(self, key))
        for line in self.setup:
            if "\n" in line:
                raise ConfigError("setup", line, "one line of shell each")
        for name, value in self.sbatch.items():
            _check_option(name, value)

    def _check_memory(self) -> None:
        ours, theirs = self.sbatch, self.submitit.slurm()
        sizes = {"memory": self.memory}
        sizes |= {f"sbatch.{key}": ours.get(key) for key in ("mem", "mem-per-cpu", "mem-per-gpu")}
        sizes |= {f"submitit.slurm_{k}": theirs.get(k) for k in ("mem_per_cpu", "mem_per_gpu")}
        settings = {key: value for key, value in sizes.items() if value is not None}
        if len(settings) > 1:
            first, *others = settings
            names = " and ".join(f"launcher.{key}" for key in others)
            raise ConfigError(first, settings[first], f"null, or {names} left out: Slurm takes one")

    @property
    def device(self) -> str:
        """A GPU where jobs ask for one."""
        return "cuda" if self.gpus else "cpu"

    def at_once(self, gpus: Sequence[str]) -> int:
        """None of this machine's."""
        return 1

    def sharing(self, machine: Machine) -> str:
        """The cluster shares its machines out."""
        return ""

    def executor(self, context: Context) -> Executor:
        """One that takes over the jobs of earlier drivers; ConfigError as `check`."""
        self.check(context.folder)
        return SlurmExecutor(context, self)

    def script(self, folder: Path, jobs: int = 1) -> str:
        """The batch script of an array of so many jobs; nothing is written or sent."""
        executor = self._executor(folder / "slurm" / "TOKEN", f"sweeper-{folder.name}-TOKEN")
        if jobs > 1:
            executor.parameters["map_count"] = jobs
        return str(executor._make_submission_file_text(executor._submitit_command_str, ""))

    def check(self, folder: Path) -> None:
        """ConfigError for what the cluster would refuse or never run; SchedulerError without one.

        Slurm itself is asked, with the very script of a job. SweeperError where the study has jobs
        of another user.
        """
        check_open(folder / "slurm")
        if re.search(r"[%\n]", str(folder)):
            raise ConfigError("root", str(folder), "a path without % and line ends, for Slurm")
        by_name = partitions()
        if self.partition is not None:
            for name in self.partition.split(","):
                if name not in by_name:
                    allowed = f"no such partition; {suggest(name, by_name)}"
                    raise ConfigError("launcher.partition", name, allowed)
        wanted = (self.partition or "").split(",")
        limits = [
            p.minutes for p in by_name.values() if p.name in wanted or (p.default and not wanted[0])
        ]
        if limits and all(limit is not None and self.time > limit for limit in limits):
            longest = max(limit for limit in limits if limit is not None)
            raise ConfigError("launcher.time", self.time, f"at most {longest:g} minutes there")
        try:
            with outside_a_job():
                ask("sbatch", *long_options(test_only=None), stdin=self.script(folder))
        except SchedulerError as error:
            complaint = str(error)
            for pattern, key in KEY_OF_COMPLAINT.items():
                if re.search(pattern, complaint, re.I):
                    allowed = f"Slurm says: {complaint}"
                    raise ConfigError(f"launcher.{key}", getattr(self, key), allowed) from error
            if AWAY.search(complaint):
                raise
            sizes = ("cpus", "memory", "gpus", "gres", "constraint")
            asked = {key: getattr(self, key) for key in sizes}
            allowed = f"what some node has; Slurm says: {complaint}"
            raise ConfigError("launcher", asked, allowed) from error

    @staticmethod
    def available() -> str:
        """The partitions; see `Scheduled`."""
        if shutil.which("sbatch") is None:
            raise SchedulerError("no sbatch: launcher=slurm cannot run")
        return f"partitions {', '.join(partitions())}"

    @staticmethod
    def states(folder: Path) -> list[JobState]:
        """Jobs whose results are not yet recorded; see `Scheduled`."""
        # Numbers first, then the queue: an array whose number is noted by now is in what it says.
        sent = {array.name: array for array in arrays(folder)}
        numbered = {name for name, array in sent.items() if array.id is not None}
        jobs = [
            job
            for array in sent.values()
            for job in jobs_of(array)
            # What had finished before it was cancelled is collected by the next driver.
            if job.member.newest() and not (array.cancelled and outcome_of(job.job_dir) is None)
        ]
        entries = queued(folder) if jobs else {}
        return [
            _state(job, entries.get(job.place), numbered=job.array.name in numbered)
            for job in jobs
            if job.job_dir.is_dir()  # else it was recorded meanwhile
        ]

    @staticmethod
    def cancel(folder: Path) -> int:
        """End exactly this study's jobs; see `Scheduled`."""
        for array in arrays(folder):  # before they end, or a driver takes them for failed
            write_json(array.folder / "cancelled", {"at": time.time()})
        active = [entry for entry in queued(folder).values() if entry.active]
        if others := " ".join(end(folder, active)):
            raise SchedulerError(
                f"{others}: these have the names of this study's jobs, and were not submitted from "
                f"{folder}: it was copied or moved, or they are an earlier version's. They go on; "
                f"if they are yours, scancel {others}"
            )
        return len(active)

    @staticmethod
    def forget(folder: Path, jobs: Collection[str]) -> None:
        """Remove arrays of which one of these was the last; see `Scheduled`."""
        for array in arrays(folder):
            job_dirs = {member.job_dir for member in array.members}
            if {path.name for path in job_dirs} & {*jobs} and not any(
                path.exists() for path in job_dirs
            ):
                shutil.rmtree(array.folder, ignore_errors=True)

    def submit(self, array: Array) -> str:
        """Send an array; Slurm's number of it. SchedulerError with Slurm's words."""
        executor = self._executor(array.folder, array.name, array.resources, array.avoid)
        folders = [str(member.folder) for member in array.members]
        try:
            with outside_a_job(), redirect_stderr(StringIO()):
                jobs = executor.map_array(slurm_jobs.run, folders)
        except (FailedJobError, FailedSubmissionError) as error:
            raise SchedulerError(f"sbatch: {first_lines(str(error))}") from error
        return str(jobs[0].job_id).partition("_")[0]

    def repair(self, array: Array, number: str) -> None:
        """Finish what `submit` leaves undone when the driver dies right after sbatch has answered.

        submitit writes then what the tasks wait for.
        """
        for index, member in enumerate(array.members):
            name = f"{number}_{index}" if len(array.members) > 1 else number
            path = JobPaths(array.folder, job_id=name).submitted_pickle
            if not path.exists():
                delayed = DelayedSubmission(slurm_jobs.run, str(member.folder))
                delayed.set_timeout(self.time, UNCOUNTED)
                aside = path.with_suffix(".repair")
                delayed.dump(aside)
                os.replace(aside, path)

    def _executor(
        self, folder: Path, name: str, resources: Resources = DEFAULT, avoid: Sequence[str] = ()
    ) -> Submitter:
        ask("sbatch", *long_options(version=None))
        python = shlex.join(self.python or (sys.executable,))
        executor = Submitter(folder, max_num_timeout=UNCOUNTED, python=python)
        gpus = self.gpus if resources.gpus is None else resources.gpus
        cpus = resources.cpus or self.cpus
        options = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "gres": self.gres,
            "mem": resources.memory or self.memory,
            "gpus_per_node": gpus if gpus and self.gres is None else None,
        }
        others, ours = self.submitit.slurm(), dict(self.sbatch)
        comments = (others.pop("comment", None), ours.pop("comment", None))
        if avoid:
            others["exclude"] = ",".join(filter(None, (others.get("exclude"), *avoid)))
        executor.update_parameters(
            job_name=name,
            comment=" ".join([*map(str, filter(None, comments)), comment(folder.parents[1])]),
            time=resources.time or self.time,
            nodes=resources.nodes,
            ntasks_per_node=resources.tasks,
            cpus_per_task=cpus,
            array_parallelism=self.array_parallelism,
            setup=checked_setup(self.setup),
            # submitit's own default is one that clusters which check them refuse.
            wckey=others.pop("wckey", None),
            # Since 22.05 srun does not take this from sbatch.
            srun_args=[*long_options(cpus_per_task=cpus), *others.pop("srun_args", ())],
            additional_parameters={
                **ours,
                "requeue": True,  # or `scontrol requeue` may be refused
                # Without "B:" it goes to the job's processes and not to the batch shell.
                "signal": f"URG@{self.warn}",
            },
            **{key: value for key, value in options.items() if value is not None},
            **others,
        )
        return executor


def checked_setup(lines: Sequence[str]) -> list[str]:
    """Lines of shell, and behind each command that is whole one that ends the job where it failed.

    A job would run on without what it needs, and fail of something else, or be another. A line that
    ends the shell by itself is told likewise: unless it sets a trap of its own, on EXIT.
    """
    failed = "sweeper: launcher.setup failed:"
    at_exit = (
        'code=$?; if [ -n "$sweeper_setup" ]; then '
        f'echo "{failed} $BASH_COMMAND (exit code $code)" >&2; [ $code -ne 0 ] || exit 1; fi'
    )
    checked, command = ["sweeper_setup=1", f"trap {shlex.quote(at_exit)} EXIT"], list[str]()
    for line in lines:
        command.append(line)
        checked.append(line)
        whole = subprocess.run(
            ["bash", "-n"], input="\n".join(command), capture_output=True, text=True, check=False
        )
        # A loop may take several lines, a text too: bash warns of one that has no end.
        if whole.returncode == 0 and not whole.stderr and not line.endswith("\\"):
            complaint = shlex.quote(f"{failed} {' '.join(command)}")
            checked.append(
                f'code=$?; if [ $code -ne 0 ]; then echo {complaint} "(exit code $code)" >&2; '
                "sweeper_setup=; exit $code; fi"
            )
            command = []
    return [*checked, "sweeper_setup="] if lines else []


def _check_word(key: str, value: str | None) -> None:
    if value is not None and not re.fullmatch(r"[\w.,:;&|()\[\]*@=+/!-]+", value):
        raise ConfigError(key, value, "null, or one word as sbatch takes it")


def _check_option(name: str, value: Any) -> None:
    key = f"sbatch.{name}"
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9-]+", name):
        raise ConfigError(
            key, value, "a long option of sbatch's without its dashes, such as licenses"
        )
    if name in DRIVER_OPTIONS:
        raise ConfigError(key, value, "the driver sets it itself")
    if not isinstance(value, str | int) or value is False or "\n" in str(value):
        raise ConfigError(key, value, "a text of one line, a number, or true for an option alone")


@dataclass(kw_only=True)
class SubmittedJob:
    """A job that is in Slurm's hands: a member of an array, by its index.

    `seen` tells that it was once in the queue, `missing` since when it is not.
    """

    array: Array
    index: int
    seen: bool = False
    missing: float | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Where the job is found in the `queued` jobs."""
        return self.array.name, self.index

    @property
    def member(self) -> Submission:
        """The submission."""
        return self.array.members[self.index]

    @property
    def job_dir(self) -> Path:
        """The job's folder."""
        return self.member.job_dir

    @property
    def id(self) -> str:
        """The job's."""
        return self.job_dir.name


def jobs_of(array: Array) -> list[SubmittedJob]:
    """All jobs of an array."""
    return [SubmittedJob(array=array, index=index) for index in range(len(array.members))]


def queued(study: Path) -> dict[tuple[str, int], QueueEntry]:
    """The study's jobs in Slurm's queue, by array's name and index; SchedulerError."""
    return {(entry.name, entry.index): entry for entry in slurm_queue.queue(prefix(study))}


def end(study: Path, entries: Sequence[QueueEntry]) -> list[str]:
    """End those of the jobs that were submitted from the study's folder; the others' ids."""
    ours = comment(study)
    slurm_queue.cancel([entry.id for entry in entries if ours in entry.comment])
    return [entry.id for entry in entries if ours not in entry.comment]


def _state(job: SubmittedJob, entry: QueueEntry | None, *, numbered: bool) -> JobState:
    member, started = job.member, job.member.last(Started)
    # As JSON: `sweeper status` counts the trials of hundreds of jobs, and wants none of them.
    task = try_json(job.job_dir / "job.json").get("task")
    trials = task.get("trials") if isinstance(task, dict) else None
    stage: Stage = "ended"
    state, name = "vanished", job.array.task_id(job.index)
    if entry is not None:
        state, name = entry.state.lower(), entry.id
        if entry.active:
            stage = "queued" if entry.state in WAITING else "running"
        if entry.state == "PENDING":
            state = f"pending ({entry.reason})"
    elif not numbered:  # it is on record before sbatch has taken it
        state, name = "never submitted", job.id[:8]
        if _arriving(job.array):
            state, stage = "being submitted", "queued"
    error = ""
    for path in sorted(job.job_dir.glob("result-*.json")):
        state = stage = "finished"
        # A result of an exception, or of a script that ended with an error, is one too.
        failure = try_json(path).get("failure")
        if isinstance(failure, dict):
            state, stage, error = "failed", "failed", str(failure.get("reason"))
            # The error's own words stand last, before where the whole log lies.
            lines = [x for x in str(failure.get("details") or "").splitlines() if x and x[0] != "("]
            error += f": {lines[-1]}" if lines else ""
    if stage == "running" and entry:
        error = _silent(job, entry)
    return JobState(
        id=name,
        state=state,
        stage=stage,
        node=entry.node if entry and entry.node else (started.node if started else ""),
        since=entry.since if entry else (started.at if started else ""),
        trials=len(trials) if isinstance(trials, list) else 0,
        fraction=member.progress.fraction,
        error=error,
    )


def _silent(job: SubmittedJob, entry: QueueEntry) -> str:
    def written() -> Iterator[Path]:
        yield from job.member.folder.iterdir()
        yield from job.array.folder.glob(f"{job.array.task_id(job.index)}_*_log.*")
        task = try_json(job.job_dir / "job.json").get("task")
        if isinstance(task, dict) and "folder" in task:  # a command's own log
            yield Path(str(task["folder"]), "log.txt")

    since = time.time() - SILENT
    with suppress(OSError):
        if job.member.runs() and not any(
            path.stat().st_mtime > since for path in written() if path.exists()
        ):
            return (
                f"job {entry.id} on {entry.node} runs, says Slurm, and has written nothing for "
                f"{SILENT / 60:.0f} minutes, neither progress nor a log. If none of its processes "
                f"is there, scancel {entry.id} frees it: its trials then fail, and the same "
                "command trains them"
            )
    return ""


def _arriving(array: Array) -> bool:
    """Whether its sbatch may still be on the way; a negative age is of a clock that went back."""
    return 0 <= time.time() - array.at < SETTLING


class SlurmExecutor(Executor):
    """All jobs of one study, for one run of its driver.

    A job moves between these, and no job is in two of them:

    - `to_submit`: written, and sent with the next array (`_send`).
    - `unconfirmed`: its array was sent, and it is not known whether Slurm took it, because Slurm
      gave no answer or the driver died. Nothing else is sent meanwhile: a job must never run
      twice. Once Slurm answers, the array is in its queue or never was (`_confirm`).
    - `recovered`: an earlier driver's, until the loop claims it or this driver ends.
    - `submitted`: in Slurm's hands. It leaves with a result, or as lost (`_look`): Slurm may put a
      lost node's job back, so that one is waited for until `grace` is over.
    """

    layouts = range(0)

    def __init__(self, context: Context, launcher: Slurm) -> None:
        self.context, self.launcher = context, launcher
        self.study = context.folder
        self.recovered: dict[str, tuple[Trial, ...]] = {}
        self._recovered_jobs: dict[str, SubmittedJob] = {}  # those of `recovered`, by id
        self.submitted: list[SubmittedJob] = []
        self.to_submit: dict[Path, Resources] = {}
        self.unconfirmed: list[Array] = []
        # Jobs to an array: halved where Slurm would take fewer, doubled while it takes them.
        self._chunk, self._largest_array = math.inf, 0
        self._pause, self._not_before = 0.0, 0.0
        # Jobs in a row that never began, the nodes on which they did not, and who lacked what.
        self._false_starts, self._unfit = 0, set[str]()
        self._told = set[str]()  # jobs of which it was said that they wait, or write nothing
        self._lacking: dict[str, set[str]] = {}
        for array in arrays(self.study):
            self._adopt(array)

    def room(self, *, ahead: bool = False) -> bool:
        """Whether fewer jobs are submitted than may be."""
        taken = len(self.submitted) + len(self.to_submit)
        return not self.unconfirmed and taken < self.launcher.jobs

    def submit(self, job: Job) -> None:
        """Write the job; the next `poll` sends it."""
        try:
            self.to_submit[write_job(self.study / "jobs", job)] = job.resources
        except TypeError as error:
            raise SweeperError(f"{error}; use launcher=inline") from error

    def claim(self, job: str) -> None:
        """Watch it like one of this driver's."""
        del self.recovered[job]
        self.submitted.append(self._recovered_jobs.pop(job))

    def poll(self, *, wait: bool = True) -> list[Event]:
        """Send what is to be sent, and look at the queue; then wait a while if nothing happened."""
        submitted_arrays = {job.array.name: job.array for job in self.submitted}
        if any(array.cancelled for array in submitted_arrays.values()):
            raise SweeperError("its jobs were cancelled; run the same command again to go on")
        self._send()
        events = self._look()
        if not events and (wait or not self.settled()):
            time.sleep(self.launcher.poll)
        return events

    def settled(self) -> bool:
        """Whether all is submitted, known to be, and not out of the queue without a result."""
        missing = any(job.missing is not None for job in self.submitted)
        return not (self.to_submit or self.unconfirmed or missing)

    def elsewhere(self, job: str, failure: JobFailure) -> bool:
        """Once, where the node lacks something that no job has missed on another node."""
        for submitted in [other for other in self.submitted if other.id == job]:
            started = submitted.member.last(Started)
            if started and self._avoids(submitted, started.node, str(failure)):
                self.submitted.remove(submitted)
                return True
        return False

    def _avoids(self, job: SubmittedJob, node: str, log: str) -> bool:
        """Have the job avoid a node that lacks something; False where that would not help it."""
        if (lack := lack_of(log)) is None or not node:
            return False
        self._lacking.setdefault(lack.what, set()).add(node)
        alone = self._lacking[lack.what] == {node}
        if unfit_nodes(job.job_dir) or not (alone and self._others({node})):
            return False
        write_json(job.member.folder / "unfit.json", Unfit(node=node))
        for result in job.job_dir.glob("result-*.json"):
            result.unlink()
        self.context.notify(f"a job is run once more, on another node than {node}:\n{lack}")
        return True

    def _others(self, tried: set[str]) -> set[str]:
        try:
            return nodes(self.launcher.partition) - tried
        except SchedulerError:
            return set()

    def forget(self, job: str, *, keep_log: bool = False) -> None:
        """Remove the job's folder, and its array's once that has no other job."""
        for submitted in [other for other in self.submitted if other.id == job]:
            if outcome_of(submitted.job_dir) is None:
                with suppress(SchedulerError):
                    slurm_queue.cancel([submitted.array.task_id(submitted.index)])
            self.submitted.remove(submitted)
            others = [*self.submitted, *self._recovered_jobs.values()]
            if not keep_log and all(other.array is not submitted.array for other in others):
                shutil.rmtree(submitted.array.folder, ignore_errors=True)
        shutil.rmtree(self.study / "jobs" / job, ignore_errors=True)

    def close(self) -> None:
        """Jobs go on; what was never sent is removed."""
        for job_dir in self.to_submit:
            if not submissions(job_dir):
                shutil.rmtree(job_dir, ignore_errors=True)

    def _adopt(self, array: Array) -> None:
        if array.cancelled:  # its jobs are forgotten; what had finished is still collected
            for member in array.members:
                if member.newest() and outcome_of(member.job_dir) is None:
                    shutil.rmtree(member.job_dir, ignore_errors=True)
            (array.folder / "cancelled").unlink(missing_ok=True)
        if array.id is None:
            self.unconfirmed.append(array)
            return
        jobs = jobs_of(array)
        usable = {
            job.id: trials
            for job in jobs
            if job.member.newest()
            and (trials := trials_of(job.job_dir))
            and not self._is_outdated(job)
        }
        if not usable:
            shutil.rmtree(array.folder, ignore_errors=True)
        self._recovered_jobs |= {job.id: job for job in jobs if job.id in usable}
        self.recovered |= usable

    def _is_outdated(self, job: SubmittedJob) -> bool:
        """Take a job that has not begun out of the queue, when the code is no more the same."""
        if job.member.runs() or outcome_of(job.job_dir) or not job.member.changed_code():
            return False
        try:
            entry = queued(self.study).get(job.place)
            if entry and entry.active and end(self.study, [entry]):
                return False
        except SchedulerError:
            return False  # it will find out by itself, and fail
        shutil.rmtree(job.job_dir, ignore_errors=True)
        return True

    def _confirm(self, entries: Mapping[tuple[str, int], QueueEntry]) -> None:
        arrived = {name: entry.array for (name, _), entry in entries.items()}
        for array in list(self.unconfirmed):
            if (number := arrived.get(array.name)) is not None:
                self.launcher.repair(array, number)
                array.accept(number)
                self._adopt(array)
                for job_dir in [member.job_dir for member in array.members]:
                    if job_dir in self.to_submit and job_dir.name in self.recovered:
                        del self.to_submit[job_dir]  # it is this driver's
                        self.claim(job_dir.name)
            elif _arriving(array):
                continue
            else:
                array.discard()
            self.unconfirmed.remove(array)

    def _send(self) -> None:
        while self.to_submit and not self.unconfirmed and time.monotonic() >= self._not_before:
            try:
                self._largest_array = self._largest_array or largest_array()
            except SchedulerError as error:
                self._leave_alone(error)
                return
            # One batch script asks for the same resources, and the same nodes, for all.
            first, resources = next(iter(self.to_submit.items()))
            avoid = self._avoided(first)
            alike = [
                job_dir
                for job_dir, other in self.to_submit.items()
                if other == resources and self._avoided(job_dir) == avoid
            ]
            job_dirs = alike[: int(min(self._largest_array, self._chunk))]
            array = record_array(self.study, job_dirs, resources, avoid)
            try:
                array.accept(self.launcher.submit(array))
            except SchedulerError as error:
                if AWAY.search(str(error)):
                    self.unconfirmed.append(array)  # it may have arrived all the same
                else:
                    array.discard()
                    fewer = self.submitted or len(job_dirs) > 1
                    if not (LIMIT.search(str(error)) and fewer):
                        raise
                self._chunk = max(1, len(job_dirs) // 2)
                self._leave_alone(error)
                return
            if array.cancelled:  # it was, while sbatch took it: not all were in the queue yet
                slurm_queue.cancel([str(array.id)])
            self._pause, self._chunk = 0.0, 2 * self._chunk
            for job in jobs_of(array):
                del self.to_submit[job.job_dir]
                job.seen = True
                self.submitted.append(job)

    def _avoided(self, job_dir: Path) -> tuple[str, ...]:
        return tuple(sorted(self._unfit | unfit_nodes(job_dir)))

    def _leave_alone(self, error: SchedulerError) -> None:
        self._pause = min(MAX_PAUSE, max(self.launcher.poll, 2 * self._pause))
        self._not_before = time.monotonic() + self._pause
        self.context.notify(f"nothing could be submitted for a while, it was tried again: {error}")

    def _look(self) -> list[Event]:
        if not (self.submitted or self._recovered_jobs or self.unconfirmed):
            return []
        entries = None
        try:
            entries = queued(self.study)
        except SchedulerError as error:
            self.context.notify(f"the scheduler did not answer for a while, jobs went on: {error}")
        if entries is not None:
            self._confirm(entries)
            self._end_strays(entries)
        events: list[Event] = []
        for job in list(self.submitted):
            entry = None if entries is None else entries.get(job.place)
            # While Slurm cleans up after a job (COMPLETING), its result may be there already.
            if entry is not None and entry.active and entry.state != "COMPLETING":
                job.seen, job.missing = True, None
                self._note_progress(job, entry)
            elif (outcome := outcome_of(job.job_dir)) is not None:
                self._false_starts = 0
                events.append(Finished(job=job.id, outcome=outcome))
            elif entries is not None and not (entry and entry.active):
                events += self._give_up(job, entry)
        return events

    def _end_strays(self, entries: Mapping[tuple[str, int], QueueEntry]) -> None:
        names = {job.array.name for job in (*self.submitted, *self._recovered_jobs.values())}
        names |= {array.name for array in self.unconfirmed}
        strays = [e for (name, _), e in entries.items() if e.active and name not in names]
        with suppress(SchedulerError):
            end(self.study, strays)

    def _note_progress(self, job: SubmittedJob, entry: QueueEntry) -> None:
        trouble = ""
        if entry.state == "RUNNING":
            self.context.progress(job.id, job.member.progress.fraction)
            trouble = _silent(job, entry)
        elif "held" in entry.reason.lower():
            trouble = (
                f"job {entry.id} is held ({entry.reason}): scontrol release {entry.id} lets it go"
            )
        if trouble and entry.id not in self._told:
            self._told.add(entry.id)
            self.context.tell(trouble)
            self.context.notify(trouble)

    def _give_up(self, job: SubmittedJob, entry: QueueEntry | None) -> list[Event]:
        """`Lost` for a job that is gone without a result, once it has not come back in a while."""
        failure = failure_of(job.array, job.index, entry)
        job.missing = time.monotonic() if job.missing is None else job.missing
        if not failure.certain and time.monotonic() - job.missing < self.launcher.grace:
            return []  # a lost node's job may be put back, a file may be slow to appear
        if job.array.cancelled:
            return []  # `poll` ends the sweep
        # Or a late requeue makes two of it. What is not in the queue has a number that Slurm, where
        # it lost its state, may have given to anybody.
        with suppress(SchedulerError):
            end(self.study, [entry] if entry else [])
        self.submitted.remove(job)
        if not failure.began:
            self._never_began(job, failure)
            return [Left(job=job.id)]
        if self._avoids(job, failure.node, failure.cause.replace(" | ", "\n")):
            return [Left(job=job.id)]
        # Somebody who ends one job by hand (scancel) wants it neither again nor halved.
        by_hand = failure.cancelled and job.seen
        return [
            Lost(
                job=job.id,
                failure=JobFailure(
                    reason=str(failure),
                    attempts=attempts(job.job_dir),
                    retry=failure.retry and not by_hand,
                    blames_trials=failure.blames_trials and not by_hand,
                ),
            )
        ]

    def _never_began(self, job: SubmittedJob, failure: SlurmFailure) -> None:
        """Note that a job never began; SweeperError once it is no accident of a single node's."""
        self._false_starts += 1
        tried = (unfit_nodes(job.job_dir) | {failure.node}) - {""}
        self._unfit |= tried
        others = self._others(self._unfit) if failure.node else set[str]()
        many = self._false_starts >= MAX_FALSE_STARTS
        if others and len(tried) < 2:
            write_json(job.member.folder / "unfit.json", Unfit(node=failure.node))
        else:  # there is none to go to
            self._unfit.clear()
            for submission in submissions(job.job_dir):
                (submission.folder / "unfit.json").unlink(missing_ok=True)
        if len(tried) > 1 or (many and not others):
            raise SweeperError(f"jobs do not start: {failure}")
        self.context.notify(f"a job did not start, and is sent again:\n{failure}")
