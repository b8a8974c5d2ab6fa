"""What a Slurm job runs: the pack in its folder, to the end or until it is told to leave."""

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

import torch

from sweeper.errors import SweeperError
from sweeper.files import try_json, write_json
from sweeper.launch.arrays import RESTARTS, Submission, check_private
from sweeper.launch.code import changed, code_of
from sweeper.launch.job import describe, outcome_of, read_job, run_job
from sweeper.training.train import Left, Order, Reporter

TELL_EVERY = 10.0
"""Seconds between two looks at whether a newer copy runs, and between two words of progress."""
STANDSTILL = 3
"""So many runs that are ended at one and the same place are the last."""


class Superseded(Exception):
    """A newer copy of this job runs elsewhere: this one is of no use any more."""


def run(folder: str) -> None:
    """Entry of every job; `folder` is that of its submission. Results are files, never returned."""
    Run(Submission(folder=Path(folder))).run()


class Run:
    """One run of a submission by Slurm; `restart` tells how often it ran before."""

    def __init__(self, submission: Submission) -> None:
        """Signals are heard from here on."""
        self.submission, self.heard = submission, list[int]()
        self.restart = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        self.attempt = RESTARTS * submission.number + min(self.restart, RESTARTS - 1)
        self.share, self._looked = 0.0, time.monotonic()
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.heard.append(number)

    def run(self) -> None:
        """Train, and note how it ended; an exception is noted and raised again."""
        for folder in (self.submission.own, self.submission.folder):
            check_private(folder)
        if self._newer():
            return
        self._note("started", node=socket.gethostname(), job=os.environ.get("SLURM_JOB_ID", ""))
        try:
            self._train()
        except Left:
            self._leave()
        except Superseded:
            print("a newer copy of this job runs: this one ends here")
        except BaseException as error:
            lines = traceback.format_exception_only(error)
            self._note("error", error="".join(lines).strip(), retry=_worth_another(error))
            raise

    def _train(self) -> None:
        if cpus := os.environ.get("SLURM_CPUS_PER_TASK"):
            torch.set_num_threads(int(cpus))
        if outcome_of(self.submission.own) is not None:
            return  # another copy was faster
        self._check_code()
        run_job(self.submission.own, self.attempt, self._reporter)

    def _check_code(self) -> None:
        """SweeperError when the code is not that of the submission: results would not compare."""
        record = try_json(self.submission.folder / "submission.json")
        job = read_job(self.submission.own)
        now = code_of(job.pack.trials[0].spec, describe(job.pack.corpus))
        if other := changed(record.get("code", {}), now):
            raise SweeperError(
                f"the code of {', '.join(other)} is not that of the submission: it was edited "
                "while the job waited, or the node has another installation. Run the same command "
                "again to train these trials with the code as it is now"
            )

    def _reporter(self, tell: Callable[[str], None]) -> Reporter:
        return Reporter(tell=tell, progress=self._progress, order=self._order)

    def _progress(self, share: float) -> None:
        self.share = share
        if time.monotonic() - self._looked < TELL_EVERY:
            return
        self._looked = time.monotonic()
        self._tell_progress()
        if self._newer():
            raise Superseded

    def _tell_progress(self) -> None:
        with suppress(OSError):
            write_json(self.submission.folder / "progress.json", {"share": self.share})

    def _order(self) -> Order:
        return Order.LEAVE if self.heard else Order.GO

    def _newer(self) -> bool:
        """Whether the job was submitted again, or Slurm runs this submission again."""
        return not self.submission.newest() or self.submission.runs() > self.restart + 1

    def _leave(self) -> None:
        """Back into the queue, when that was asked for: SIGTERM alone may be a cancellation."""
        self._tell_progress()
        number = self.heard[0]
        requeue = number == signal.SIGUSR2 and not self._stands_still()
        facts = {"signal": signal.Signals(number).name, "share": self.share}
        self._note("left", **facts, requeue=requeue)
        if requeue and not _requeue():
            self._note("left", **facts, requeue=False)

    def _stands_still(self) -> bool:
        """Whether the last runs were ended where this one is: more of them would go on for ever."""
        before = range(self.restart - 1, self.restart - STANDSTILL, -1)
        lefts = [try_json(self.submission.folder / f"left-{number}.json") for number in before]
        return all(left and self.share - float(left["share"]) < 0.001 for left in lefts)

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


def _worth_another(error: BaseException) -> bool:
    """Whether the same job may do better elsewhere, or later."""
    return not isinstance(error, SweeperError)
