"""Real commands to be broken, and what must be true of a study whatever was done to them."""

import json
import multiprocessing
import os
import shutil
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from sweeper.study.lock import live_holder
from sweeper.study.study import StudyRecord
from tests.cli.driver import TINY, Answer
from tests.faults.forked_command import run_command
from tests.waiting import until

ROOT = Path(__file__).parents[2]
TAG = "SWEEPER_TEST_TAG"
WORDS = [*TINY, "search.line.points=7", "train.steps=60", "train.precision=float64", "study=a"]
"""A search of seven trials, in batches of one: results are equal to the last bit."""
MEASURED = [word for word in WORDS if not word.startswith(("runner.batched", "train.precision"))]
MEASURED += ["runner.batched_trials=auto", "train.precision=float32", "runner.compile=off"]
"""The same in batches of a measured size, which round by their size."""
FAULTY = [*WORDS, "data._target_=tests.faults.injection.FaultyText"]
"""The same trials; `+data.fault=...` says what is done to them."""
SLOW = [*FAULTY, "+data.fault=slow"]
"""The same trials, each more than half a second."""
LOCAL = ["launcher=local", "launcher.workers=2", "runner.save_every=0.02"]
LAUNCHERS = {"inline": ["runner.save_every=0.02"], "local": LOCAL}
SEEDS = max(1, int(os.environ.get("SWEEPER_FAULT_SEEDS", "50")))
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CommandProcess:
    """A command in a process of its own, forked from one that imported all. `kill` or `wait`."""

    def __init__(self, *argv: str, tag: str, env: Mapping[str, str] | None = None) -> None:
        if argv[0] == "search" and not any(word.startswith("launcher") for word in argv):
            argv = (argv[0], "launcher=inline", *argv[1:])  # as in the tests' own process
        context = multiprocessing.get_context("forkserver")
        # A warm-up is a search, which only the many commands of a harness make up for.
        context.set_forkserver_preload([f"tests.faults.{'preload' if tag else 'forked_command'}"])
        self.output = Path.cwd() / f".output-{uuid4().hex[:8]}"
        paths = [(env or {}).get("SITE", ""), str(ROOT), os.environ.get("PYTHONPATH", "")]
        path = os.pathsep.join(filter(None, paths))
        variables = {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "PYTHONPATH": path, "PATH":
                 os.environ["PATH"], TAG: tag, **(env or {})}  # fmt: skip
        if "SLURM_CONF" in os.environ:
            variables["SLURM_CONF"] = os.environ["SLURM_CONF"]
        self.process = context.Process(
            target=run_command, args=(argv, Path.cwd(), variables, self.output)
        )
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid
        return self.process.pid

    def lives(self, seconds: float = 0.0) -> bool:
        self.process.join(seconds)
        return self.process.is_alive()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def wait(self, seconds: float = 120.0) -> Answer:
        alive = self.lives(seconds)
        if alive:
            self.kill()
        out, err = self.output.with_suffix(".out"), self.output.with_suffix(".err")
        answer = Answer(self.process.exitcode or 0, out.read_text(), err.read_text())
        assert not alive, answer
        return answer


class Harness:
    """Commands in one folder, which know each other by a tag in their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tag = folder, uuid4().hex
        self.study = folder / "runs/a"

    def start(self, *argv: str, env: Mapping[str, str] | None = None) -> CommandProcess:
        return CommandProcess(*argv, tag=self.tag, env=env)

    def run(self, *argv: str, env: Mapping[str, str] | None = None) -> Answer:
        return self.start(*argv, env=env).wait()

    def processes(self, word: str = "") -> list[int]:
        """Processes that commands of this harness have started and that live, with that word."""
        pids = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                mine = f"{TAG}={self.tag}".encode() in path.read_bytes()
                state = path.with_name("stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if mine and state != "Z":
                pids.append(int(path.parent.name))
        return [pid for pid in pids if word.encode() in _command(pid)] if word else pids

    def workers(self) -> list[int]:
        return self.processes("sweeper.launch.worker")


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def lines(study: Path) -> list[dict[str, Any]]:
    paths = sorted((study / "results").glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


Outcomes = dict[str, tuple[Any, ...]]


def outcomes(study: Path) -> Outcomes:
    return {
        r.key: (r.status, r.objective, r.heldout, r.curve, r.steps, r.error)
        for r in StudyRecord.read(study).results()
    }


def recorded(study: Path) -> int:
    return len(outcomes(study)) if study.is_dir() else 0


def assert_whole(harness: Harness, expected: Outcomes, mirrored: bool = True) -> None:
    """Each trial is recorded once, as in an undisturbed run, and nothing is left behind."""
    study = harness.study
    counts = Counter(line["key"] for line in lines(study))
    assert set(counts.values()) == {1}, counts
    assert outcomes(study) == expected
    assert json.loads((study / "search.json").read_text())["finished"]
    assert live_holder(study) is None
    until(lambda: not harness.processes(), 15)
    leftovers = [*study.glob("jobs/*/"), *study.glob("checkpoints/*"), *study.glob("slurm/*/")]
    assert not leftovers and not list(study.rglob(".*.tmp"))
    if mirrored:
        storage = JournalStorage(JournalFileBackend(str(study / "study.journal")))
        trials = optuna.load_study(study_name=study.name, storage=storage).trials
        newest = {trial.user_attrs["key"]: trial.state.name for trial in trials}
        assert newest == dict.fromkeys(counts, "COMPLETE")
        assert all(trial.state.is_finished() for trial in trials)


def forget(study: Path) -> None:
    shutil.rmtree(study, ignore_errors=True)
