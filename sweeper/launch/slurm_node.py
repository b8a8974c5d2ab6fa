"""What a Slurm job runs: the job in its folder, to the end or until it is told to leave."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from sweeper.errors import SweeperError
from sweeper.files import try_json, write_json
from sweeper.launch.code import changed, code_digests
from sweeper.launch.job import Control, Leave, outcome_of, run_job
from sweeper.launch.slurm_arrays import MAX_RESTARTS, Submission, check_private

PROGRESS_EVERY = 10.0
"""Seconds between two looks at whether a newer copy runs, and between two words of progress."""
MAX_STANDSTILLS = 3
"""So many runs that are ended at one and the same place are the last."""


class Superseded(Exception):
    """A newer copy of this job runs elsewhere: this one is of no use any more."""


def run(folder: str) -> None:
    """Entry of every job; `folder` is that of its submission. Results are files, never returned.

    On several nodes it is called once a node: one call runs the job, which starts what it needs on
    the others by itself, and these have nothing to do here.
    """
    if int(os.environ.get("SLURM_PROCID") or 0) > 0:
        return
    Run(Submission(folder=Path(folder))).run()


class Run:
    """One run of a submission by Slurm; `restart` tells how often it ran before."""

    def __init__(self, submission: Submission) -> None:
        """Signals are heard from here on."""
        self.submission, self.signals = submission, list[int]()
        self.restart = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        self.attempt = MAX_RESTARTS * submission.number + min(self.restart, MAX_RESTARTS - 1)
        self.fraction, self._looked = 0.0, time.monotonic()
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._keep_signal)

    def _keep_signal(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(number)

    def run(self) -> None:
        """Train, and note how it ended; an exception is noted and raised again."""
        for folder in (self.submission.job_dir, self.submission.folder):
            check_private(folder)
        if self._newer():
            return
        self._note("started", node=socket.gethostname(), job=os.environ.get("SLURM_JOB_ID", ""))
        try:
            self._train()
        except Leave:
            self._leave()
        except Superseded:
            print("a newer copy of this job runs: this one ends here")
        except BaseException as error:
            lines = traceback.format_exception_only(error)
            self._note("error", error="".join(lines).strip(), retry=_may_do_better(error))
            raise

    def _train(self) -> None:
        if cpus := os.environ.get("SLURM_CPUS_PER_TASK"):
            os.environ["OMP_NUM_THREADS"] = cpus  # read when torch is imported, by the task
        if outcome_of(self.submission.job_dir) is not None:
            return  # another copy was faster
        self._check_code()
        run_job(self.submission.job_dir, self.attempt, self._control)

    def _check_code(self) -> None:
        """SweeperError when the code is not that of the submission: results would not compare."""
        submitted = try_json(self.submission.folder / "submission.json").get("code", {})
        if names := changed(submitted, code_digests(submitted.keys() - {"sweeper"})):
            raise SweeperError(
                f"the code of {', '.join(names)} is not that of the submission: it was edited "
                "while the job waited, or the node has another installation. Run the same command "
                "again to train these trials with the code as it is now"
            )

    def _control(self, notify: Callable[[str], None]) -> Control:
        leave = lambda: bool(self.signals)  # noqa: E731
        return Control(notify=notify, progress=self._progress, should_leave=leave)

    def _progress(self, fraction: float) -> None:
        self.fraction = fraction
        if time.monotonic() - self._looked < PROGRESS_EVERY:
            return
        self._looked = time.monotonic()
        self._write_progress()
        if self._newer():
            raise Superseded

    def _write_progress(self) -> None:
        with suppress(OSError):
            write_json(self.submission.folder / "progress.json", {"fraction": self.fraction})

    def _newer(self) -> bool:
        """Whether the job was submitted again, or Slurm runs this submission again."""
        return not self.submission.newest() or self.submission.runs() > self.restart + 1

    def _leave(self) -> None:
        """Back into the queue, when that was asked for: SIGTERM alone may be a cancellation."""
        self._write_progress()
        number = self.signals[0]
        requeue = number == signal.SIGUSR2 and not self._stands_still()
        facts = {"signal": signal.Signals(number).name, "fraction": self.fraction}
        self._note("left", **facts, requeue=requeue)
        if requeue and not _requeue():
            self._note("left", **facts, requeue=False)

    def _stands_still(self) -> bool:
        """Whether the last runs were ended where this one is: more of them would go on for ever."""
        before = range(self.restart - 1, self.restart - MAX_STANDSTILLS, -1)
        lefts = [try_json(self.submission.folder / f"left-{number}.json") for number in before]
        return all(left and self.fraction - float(left["fraction"]) < 0.001 for left in lefts)

    def _note(self, kind: str, **facts: object) -> None:
        record = {"at": time.strftime("%Y-%m-%dT%H:%M:%S"), **facts}
        write_json(self.submission.folder / f"{kind}-{self.restart}.json", record)


def _requeue() -> bool:
    """Ask Slurm to run this job again; False where a node may not ask."""
    # What is ignored here is ignored by a child too: a SIGTERM that comes on the heels of SIGUSR2
    # must not end the asking.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        subprocess.run(
            ["scontrol", "requeue", os.environ["SLURM_JOB_ID"]],
            check=True,
            timeout=60,
        )
    except (OSError, KeyError, subprocess.SubprocessError) as error:
        print(f"this job cannot put itself back into the queue, its driver will ({error})")
        return False
    return True


def _may_do_better(error: BaseException) -> bool:
    """Whether the same job may do better elsewhere, or later."""
    return not isinstance(error, SweeperError)
