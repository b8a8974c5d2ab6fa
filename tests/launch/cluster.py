"""A real Slurm for tests, and a driver in a thread or a process of its own beside them."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from sweeper.files import try_json
from sweeper.launch.slurm import Slurm
from sweeper.launch.slurm_jobs import prefix
from sweeper.launch.slurm_queue import QueueEntry, queue
from sweeper.trial import Trial
from tests.engine.tiny_trials import corpus
from tests.launch.trial_sweep import TrialSweep
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/slurm_local.sh"
SMALL = {"gpus": 0, "cpus": 1, "time": 5, "poll": 0.2, "grace": 1.5, "retries": 1}
ENGINE_KEYS = {"batched_trials", "save_every"}
"""Options of tests that the engine takes."""


@cache
def available() -> str | None:
    """Why no Slurm can be started here, or None."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    for name in ("slurmctld", "slurmd", "munged"):
        if shutil.which(name, path=path) is None:
            return f"there is no {name}: apt-get install slurm-wlm munge"
    argv = ["unshare", "--fork", "--pid", "--mount-proc", "--uts", "--mount", "true"]
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        return "namespaces are not allowed: a node needs one"
    return None


@dataclass(frozen=True, kw_only=True)
class Cluster:
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, *argv: str) -> str:
        env = {**os.environ, **self.env, "SLURM_LOCAL_DIR": str(self.folder)}
        done = subprocess.run(
            [str(SCRIPT), *argv], env=env, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout


def slurm(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout


def intrude(seconds: int) -> str:
    argv = ["sbatch", "--parsable", "-p", "high", "-N2", "--exclusive", "-o", "/dev/null"]
    return slurm(*argv, f"--wrap=sleep {seconds}").strip()


def stand_in(folder: Path, name: str, line: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{line}\n")
    (folder / name).chmod(0o755)


class ClusterSweep(TrialSweep):
    """Trials of a study in the folder `study`, and its jobs in Slurm's queue."""

    def __init__(self, folder: Path, trials: Sequence[Trial]) -> None:
        self.study = folder / "study"
        self.study.mkdir(exist_ok=True)
        super().__init__(trials=trials, corpus=corpus(folder), folder=self.study)

    def objectives(self) -> list[float]:
        return [self.results[trial.key].objective for trial in self.trials]

    def errors(self) -> list[str]:
        results = [self.results[trial.key] for trial in self.trials]
        return [result.error for result in results if result.status == "failed"]

    def queue(self) -> list[QueueEntry]:
        """The study's jobs in Slurm's queue, those that have ended too."""
        return queue(prefix(self.study))

    def find(self, pattern: str) -> list[Path]:
        return sorted(self.study.glob(pattern))


class Driver(threading.Thread):
    """Drives a sweep beside the test; `join` raises what the driver raised.

    `options` are the launcher's, but for those of the engine.
    """

    def __init__(self, sweep: ClusterSweep, **options: Any) -> None:
        super().__init__(daemon=True)
        self.sweep, self.engine = sweep, {k: options.pop(k) for k in ENGINE_KEYS & options.keys()}
        self.launcher = Slurm(**(SMALL | options))
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.sweep.run(self.launcher, **self.engine)
        except BaseException as error:
            self.error = error

    def join(self, timeout: float | None = 120.0) -> None:
        super().join(timeout)
        assert not self.is_alive(), self.sweep.notices
        if self.error is not None:
            raise self.error


def in_a_process(code: str, *argv: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", code, *argv], env=os.environ | {"PYTHONPATH": path}
    )


def saved_step(sweep: ClusterSweep) -> int:
    try:
        (path,) = sweep.find("checkpoints/*.checkpoint")
        with safe_open(path, framework="pt") as file:
            return int(json.loads(file.metadata()["sweeper"])["step"])
    except (ValueError, OSError, SafetensorError):
        return 0


def started(
    sweep: ClusterSweep, restart: int = 0, submission: int = 0, seconds: float = 90.0
) -> dict[str, Any]:
    """Wait until a job's run has begun; what it said then."""
    name = f"jobs/*/submission-{submission}/started-{restart}.json"
    return try_json(until(lambda: sweep.find(name), seconds)[0])


def assert_goes_on(sweep: ClusterSweep, before: int, restart: int = 1, submission: int = 0) -> None:
    started(sweep, restart, submission)
    seen = [saved_step(sweep)]
    until(lambda: seen.append(saved_step(sweep)) or seen[-1] > seen[0] or sweep.results)
    saved = [step for step in seen if step]
    assert saved and min(saved) >= before, (before, seen)
