"""Run jobs on a cluster with Slurm: in arrays, sent through submitit."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import submitit
from submitit.core.utils import (
    DelayedSubmission,
    FailedJobError,
    FailedSubmissionError,
    JobPaths,
)

from sweeper.errors import ConfigError, suggest
from sweeper.launch.executor import Context, Executor
from sweeper.launch.job import Resources
from sweeper.launch.slurm import node
from sweeper.launch.slurm.arrays import Array
from sweeper.launch.slurm.executor import AWAY, Pace, SlurmExecutor
from sweeper.launch.slurm.scheduler import (
    SchedulerError,
    ask,
    first_lines,
    outside_a_job,
    partitions,
)

DRIVER_OPTIONS = {"array", "chdir", "error", "job-name", "open-mode", "output", "requeue", "signal"}
"""What a batch script says already, in the way that the driver relies on."""
KEY_OF_COMPLAINT = {
    "account": "account",
    "partition": "partition",
    "qos": "qos",
    "feature|constraint": "constraint",
    "time limit": "time",
    "memory": "memory",
    "cpu count|processors": "cpus",
    "gres|gpu": "gpus",
}
"""What Slurm complains of, and the key that it is about."""
DEFAULT = Resources()
"""Those of the launcher's own settings."""
UNCOUNTED = 10**6
"""submitit counts how often a job was told to leave; the driver does so itself."""


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
    looked at every `poll` seconds; a job that vanished has `grace` seconds to appear again.
    """

    pins_gpus: ClassVar[bool] = True

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gpus: int = 1
    gres: str | None = None
    cpus: int = 4
    memory: str | None = None
    time: int = 240
    warn: int = 120
    array_parallelism: int = 64
    jobs: int = 512
    retries: int = 2
    poll: float = 10.0
    grace: float = 60.0
    setup: tuple[str, ...] = ()
    sbatch: Mapping[str, Any] = field(default_factory=dict)
    python: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what no cluster could mean."""
        for key in ("cpus", "time", "array_parallelism", "jobs"):
            if getattr(self, key) < 1:
                raise ConfigError(key, getattr(self, key), "a whole number, at least 1")
        if not self.poll > 0:
            raise ConfigError("poll", self.poll, "a positive number of seconds")
        for key in ("retries", "grace", "warn"):
            if not getattr(self, key) >= 0:
                raise ConfigError(key, getattr(self, key), "at least 0")
        if self.warn >= 60 * self.time:
            raise ConfigError("warn", self.warn, f"less than time, {60 * self.time} seconds")
        if self.gpus not in (0, 1):
            raise ConfigError("gpus", self.gpus, "0 or 1: a job trains one pack on one device")
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

    @property
    def device(self) -> str:
        """A GPU where jobs ask for one."""
        return "cuda" if self.gpus else "cpu"

    def gpus_at_once(self, gpus: Sequence[str]) -> int:
        """None of this machine's."""
        return 1

    def executor(self, context: Context) -> Executor:
        """One that takes over the jobs of earlier drivers; ConfigError as `check`."""
        self.check(context.folder)
        pace = Pace(jobs=self.jobs, poll=self.poll, grace=self.grace)
        return SlurmExecutor(context, pace, self)

    def submit(self, array: Array) -> str:
        """Send an array; see `executor.Submitter`."""
        executor = self._executor(array.folder, array.name, array.resources)
        folders = [str(member.folder) for member in array.members]
        try:
            with outside_a_job(), redirect_stderr(StringIO()):
                jobs = executor.map_array(node.run, folders)
        except (FailedJobError, FailedSubmissionError) as error:
            raise SchedulerError(f"sbatch: {first_lines(str(error))}") from error
        return str(jobs[0].job_id).partition("_")[0]

    def repair(self, array: Array, number: str) -> None:
        """Write what submitit writes after sbatch has answered: what the tasks wait for."""
        for index, member in enumerate(array.members):
            name = f"{number}_{index}" if len(array.members) > 1 else number
            path = JobPaths(array.folder, job_id=name).submitted_pickle
            if not path.exists():
                delayed = DelayedSubmission(node.run, str(member.folder))
                delayed.set_timeout(self.time, UNCOUNTED)
                aside = path.with_suffix(".repair")
                delayed.dump(aside)
                os.replace(aside, path)

    def script(self, folder: Path, jobs: int = 1) -> str:
        """The batch script of an array of so many jobs; nothing is written or sent."""
        executor = self._executor(folder / "slurm" / "TOKEN", f"sweeper-{folder.name}-TOKEN")
        if jobs > 1:
            executor.parameters["map_count"] = jobs
        return str(executor._make_submission_file_text(executor._submitit_command_str, ""))

    def check(self, folder: Path) -> None:
        """ConfigError for what the cluster would refuse or never run; SchedulerError without one.

        Slurm itself is asked, with the very script of a job.
        """
        if re.search(r"[%\n]", str(folder)):
            raise ConfigError("root", str(folder), "a path without % and line ends, for Slurm")
        by_name = partitions()
        if self.partition is not None:
            for name in self.partition.split(","):
                if name not in by_name:
                    allowed = f"no such partition; {suggest(name, by_name)}"
                    raise ConfigError("launcher.partition", name, allowed)
        mine = (self.partition or "").split(",")
        limits = [
            p.minutes for p in by_name.values() if p.name in mine or (p.default and not mine[0])
        ]
        if limits and all(limit is not None and self.time > limit for limit in limits):
            longest = max(limit for limit in limits if limit is not None)
            raise ConfigError("launcher.time", self.time, f"at most {longest:g} minutes there")
        try:
            with outside_a_job():
                ask("sbatch", "--test-only", given=self.script(folder))
        except SchedulerError as error:
            raise self._explained(error) from error

    def _explained(self, error: SchedulerError) -> Exception:
        """Slurm's refusal by the key that it is about, where that can be told."""
        said = str(error)
        for pattern, key in KEY_OF_COMPLAINT.items():
            if re.search(pattern, said, re.I):
                return ConfigError(f"launcher.{key}", getattr(self, key), f"Slurm says: {said}")
        if AWAY.search(said):
            return error
        sizes = {
            key: getattr(self, key) for key in ("cpus", "memory", "gpus", "gres", "constraint")
        }
        return ConfigError("launcher", sizes, f"what some node has; Slurm says: {said}")

    def _executor(
        self, folder: Path, name: str, resources: Resources = DEFAULT
    ) -> submitit.SlurmExecutor:
        """The executor of submitit with all of this in its parameters; it writes below `folder`."""
        ask("sbatch", "--version")
        words = self.python or (sys.executable,)
        executor = submitit.SlurmExecutor(
            folder, max_num_timeout=UNCOUNTED, python=shlex.join(words)
        )
        gpus = self.gpus if resources.gpus is None else resources.gpus
        cpus = resources.cpus or self.cpus
        given = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "gres": self.gres,
            "mem": resources.memory or self.memory,
            "gpus_per_node": gpus if gpus and self.gres is None else None,
        }
        executor.update_parameters(
            job_name=name,
            time=resources.time or self.time,
            nodes=resources.nodes,
            ntasks_per_node=resources.tasks,
            cpus_per_task=cpus,
            array_parallelism=self.array_parallelism,
            setup=list(self.setup),
            wckey=None,
            # Since 22.05 srun does not take this from sbatch.
            srun_args=[f"--cpus-per-task={cpus}"],
            additional_parameters={
                **self.sbatch,
                "requeue": True,
                "signal": f"USR2@{self.warn}",
            },
            **{key: value for key, value in given.items() if value is not None},
        )
        return executor


def _check_word(key: str, value: str | None) -> None:
    """ConfigError for what cannot stand in one line of a batch script."""
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
