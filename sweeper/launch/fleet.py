"""The driver of jobs in Slurm's queue: sends, watches, collects, sends again what was lost."""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from sweeper.errors import SweeperError
from sweeper.files import try_json
from sweeper.launch import scheduler
from sweeper.launch.arrays import (
    Array,
    Submission,
    arrays,
    plan,
    queued,
    submissions,
)
from sweeper.launch.code import changed, code_of
from sweeper.launch.epitaph import Death, death_of, strikes
from sweeper.launch.job import Job, Outcome, describe, outcome_of, trials_of, write_job
from sweeper.launch.launcher import Work
from sweeper.launch.packs import PackQueue, fail_all, halves
from sweeper.launch.scheduler import Entry, SchedulerError, largest_array
from sweeper.training import checkpoint
from sweeper.training.train import Execution
from sweeper.trial import Result, Trial

AWAY = re.compile("nable to contact|timed? ?out|no answer|onnect|temporarily|communication|ero B")
"""What Slurm says when it may well take the same thing later."""
LIMIT = re.compile("imit|policy|QOS|too many", re.I)
"""What it says when it would take fewer."""
SETTLING = 15.0
"""Seconds after which a submission cut short by its driver's death can no longer arrive."""
LONGEST_PAUSE = 300.0


class Submitter(Protocol):
    """Sends an array to Slurm."""

    def submit(self, array: Array) -> str:
        """Slurm's number of the array; SchedulerError with Slurm's words."""
        ...

    def repair(self, array: Array, number: str) -> None:
        """Finish what a submission leaves undone when the driver dies right after it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How the driver goes about it; times in seconds. See `slurm.Slurm`."""

    pack: int
    jobs: int
    retries: int
    poll: float
    grace: float


@dataclass(kw_only=True)
class Live:
    """A job that is submitted; `told` is the share of its work that was told to the monitor."""

    array: Array
    index: int
    trials: tuple[Trial, ...]
    told: float = 0.0
    seen: bool = False
    missing: float | None = None

    @property
    def member(self) -> Submission:
        """The submission."""
        return self.array.members[self.index]

    @property
    def own(self) -> Path:
        """The job's folder."""
        return self.member.own

    @property
    def keys(self) -> set[str]:
        """Keys of its trials."""
        return {trial.key for trial in self.trials}


class Fleet:
    """All jobs of one study, for one run of its driver."""

    def __init__(self, work: Work, pace: Pace, execution: Execution, submitter: Submitter) -> None:
        """Read what earlier drivers submitted; Slurm is not asked yet."""
        self.work, self.pace, self.submitter = work, pace, submitter
        self.execution = execution
        self.study, self.live = work.folder, list[Live]()
        self.queue = PackQueue(replace(work, pending=self._pending), execution.device, pace.pack)
        self.outbox: dict[Path, tuple[Trial, ...]] = {}
        self.found, self.doubtful = list[Live](), list[Array]()
        self.chunk, self.pause, self.not_before = math.inf, 0.0, 0.0
        self.hungry, self.largest = True, 0
        for array in arrays(self.study):
            self._adopt(array)

    def results(self) -> Iterator[list[Result]]:
        """Results as jobs end, until nothing is pending; without `wait`, until all is sent."""
        try:
            yield from self._results()
        finally:
            for own in self.outbox:
                if not submissions(own):
                    shutil.rmtree(own, ignore_errors=True)

    def _results(self) -> Iterator[list[Result]]:
        while True:
            if any(array.cancelled for array in {live.array.name: live.array for live in
                                                 self.live}.values()):  # fmt: skip
                raise SweeperError("its jobs were cancelled; run the same command again to go on")
            for results in self._collect():
                self.hungry = True
                yield results
            self._fill()
            self._send()
            busy = self.live or self.outbox or self.doubtful
            if not busy or (not self.work.wait and not (self.outbox or self.doubtful)):
                return
            time.sleep(self.pace.poll)

    # What earlier drivers left

    def _adopt(self, array: Array) -> None:
        """Take over an array that is on record, as far as its jobs are still wanted."""
        if array.cancelled:
            self._clear(array)
        if array.id is None:
            self.doubtful.append(array)
            return
        known = [self._known(array, index) for index in range(len(array.members))]
        found = [live for live in known if live and not self._outdated(live)]
        if not found:
            shutil.rmtree(array.folder, ignore_errors=True)
        self.found += found

    def _outdated(self, live: Live) -> bool:
        """Take a job that has not begun out of the queue, when the code is no more the same."""
        submitted = try_json(live.member.folder / "submission.json").get("code", {})
        now = self._code(live.trials)
        if live.member.runs() or outcome_of(live.own) or not changed(submitted, now):
            return False
        try:
            scheduler.cancel([live.array.task_id(live.index)])
        except SchedulerError:
            return False  # it will find out by itself, and fail
        shutil.rmtree(live.own, ignore_errors=True)
        return True

    def _clear(self, array: Array) -> None:
        """Forget the cancelled jobs of an array; what had finished is still collected."""
        for member in array.members:
            if member.newest() and outcome_of(member.own) is None:
                shutil.rmtree(member.own, ignore_errors=True)
        (array.folder / "cancelled").unlink(missing_ok=True)

    def _known(self, array: Array, index: int) -> Live | None:
        """A member that was not submitted again, with its trials."""
        member = array.members[index]
        if not member.newest() or not (trials := trials_of(member.own)):
            return None
        return Live(array=array, index=index, trials=trials)

    def _settle_doubts(self, entries: dict[tuple[str, int], Entry]) -> None:
        """See whether arrays arrived of which it is not known; forget those that did not."""
        arrived = {name: entry.array for (name, _), entry in entries.items()}
        for array in list(self.doubtful):
            if (number := arrived.get(array.name)) is not None:
                self.submitter.repair(array, number)
                array.accepted(number)
                self._adopt(array)
                for member in array.members:
                    self.outbox.pop(member.own, None)
            elif 0 <= time.time() - array.at < SETTLING:
                continue
            else:
                array.discard()
            self.doubtful.remove(array)
            self.hungry = True

    def _pending(self) -> Sequence[Trial]:
        """What is pending and in no job; jobs of earlier drivers are claimed by what they train."""
        wanted = self.work.pending()
        keys = {trial.key for trial in wanted}
        for live in [live for live in self.found if live.keys & keys]:
            self.found.remove(live)
            self.live.append(live)
        taken = {key for live in self.live for key in live.keys}
        return [trial for trial in wanted if trial.key not in taken]

    # Sending

    def _fill(self) -> None:
        """Write jobs for what is pending, as long as there is room."""
        if self.doubtful or not (self.hungry or self.outbox):
            return
        while len(self.live) + len(self.outbox) < self.pace.jobs:
            pack = self.queue.next()
            if pack is None:
                self.hungry = False
                return
            pruner = self.work.pruner(pack.trials[0])
            job = Job(pack=pack, execution=self.execution, pruner=pruner)
            self.outbox[write_job(self.study / "jobs", job)] = pack.trials

    def _send(self) -> None:
        """Submit the outbox in as few arrays as may be."""
        while self.outbox and not self.doubtful and time.monotonic() >= self.not_before:
            try:
                self.largest = self.largest or largest_array()
            except SchedulerError as error:
                self._wait(error)
                return
            owns = list(self.outbox)[: int(min(self.largest, self.chunk))]
            array = plan(self.study, owns, [self._code(self.outbox[own]) for own in owns])
            try:
                array.accepted(self.submitter.submit(array))
            except SchedulerError as error:
                self._refused(array, error)
                return
            self.pause, self.chunk = 0.0, 2 * self.chunk
            self.live += [
                Live(array=array, index=index, trials=self.outbox.pop(own), seen=True)
                for index, own in enumerate(owns)
            ]

    def _code(self, trials: Sequence[Trial]) -> dict[str, str]:
        """Digests of the code that trains a pack of these trials."""
        return code_of(trials[0].spec, describe(self.work.corpus))

    def _refused(self, array: Array, error: SchedulerError) -> None:
        """Try again later, and fewer, where that can help; else the error goes on."""
        said = str(error)
        if AWAY.search(said):
            self.doubtful.append(array)  # it may have arrived all the same
        elif LIMIT.search(said) and (self.live or len(array.members) > 1):
            array.discard()
        else:
            array.discard()
            raise error
        self.chunk = max(1, len(array.members) // 2)
        self._wait(error)

    def _wait(self, error: SchedulerError) -> None:
        """Leave Slurm alone for a while, longer each time."""
        self.pause = min(LONGEST_PAUSE, max(self.pace.poll, 2 * self.pause))
        self.not_before = time.monotonic() + self.pause
        self.work.tell(f"nothing could be submitted for a while, it was tried again: {error}")

    # Watching

    def _collect(self) -> Iterator[list[Result]]:
        """Results of jobs that have left the queue, and what becomes of those without one."""
        if not (self.live or self.found or self.doubtful):
            return
        try:
            entries = queued(self.study)
        except SchedulerError as error:
            self.work.tell(f"the scheduler did not answer for a while, jobs went on: {error}")
            entries = None
        if entries is not None:
            self._settle_doubts(entries)
            self._end_strays(entries)
        if self.found and self.hungry:
            self._pending()
        for live in list(self.live):
            entry = entries.get((live.array.name, live.index)) if entries is not None else None
            if entry is not None and entry.active and entry.state != "COMPLETING":
                self._runs(live, entry)
            elif (outcome := outcome_of(live.own)) is not None:
                yield from self._finish(live, outcome)
            elif entries is not None and not (entry and entry.active):
                yield from self._missing(live, entry)

    def _end_strays(self, entries: dict[tuple[str, int], Entry]) -> None:
        """End jobs of this study that nobody waits for: their array was given up."""
        known = {live.array.name for live in self.live + self.found}
        known |= {array.name for array in self.doubtful}
        strays = [e.id for (name, _), e in entries.items() if e.active and name not in known]
        with suppress(SchedulerError):
            scheduler.cancel(strays)

    def _runs(self, live: Live, entry: Entry) -> None:
        live.seen, live.missing = True, None
        if entry.state == "RUNNING":
            self._tell(live, live.member.share)
        elif "held" in entry.reason.lower():
            self.work.tell(
                f"job {entry.id} is held ({entry.reason}): scontrol release {entry.id} lets it go"
            )

    def _tell(self, live: Live, share: float) -> None:
        self.work.watch((share - live.told) * len(live.trials))
        live.told = share

    def _finish(self, live: Live, outcome: Outcome) -> Iterator[list[Result]]:
        for notice in outcome.notices:
            self.work.tell(notice)
        self._tell(live, 0.0 if outcome.back else 1.0)
        self.queue.put_back(outcome.back)
        yield from self._done(live, list(outcome.results), keep_log=False)

    def _done(self, live: Live, results: list[Result], keep_log: bool) -> Iterator[list[Result]]:
        """Hand out results, and when they are recorded remove what is of no more use."""
        self.hungry = True
        yield results
        self.live.remove(live)
        checkpoint.forget(self.study / "checkpoints", live.trials)
        shutil.rmtree(live.own, ignore_errors=True)
        others = [other for other in self.live + self.found if other.array is live.array]
        if not others and not keep_log:
            shutil.rmtree(live.array.folder, ignore_errors=True)

    def _missing(self, live: Live, entry: Entry | None) -> Iterator[list[Result]]:
        """A job that is gone without a result: wait a little, then send it again or fail it."""
        death = death_of(live.array, live.index, entry)
        live.missing = time.monotonic() if live.missing is None else live.missing
        if not death.certain and time.monotonic() - live.missing < self.pace.grace:
            return  # a lost node's job may be put back, a file may be slow to appear
        if live.array.cancelled:
            return
        with suppress(SchedulerError):  # or a late requeue makes two of it
            scheduler.cancel([live.array.task_id(live.index)])
        if death.cancelled and live.seen:
            yield from self._fail(live, death)
        elif death.retry and strikes(live.own) <= self.pace.retries:
            self.work.tell(f"a job was submitted again: {death}")
            self._tell(live, 0.0)
            self.live.remove(live)
            self.outbox[live.own] = live.trials
        elif death.by_training and len(live.trials) > 1:
            self.work.tell(f"a pack was halved: {death}")
            self.queue.put_back(halves(live.trials))
            self._tell(live, 0.0)
            yield from self._done(live, [], keep_log=True)
        else:
            yield from self._fail(live, death)

    def _fail(self, live: Live, death: Death) -> Iterator[list[Result]]:
        self._tell(live, 1.0)
        yield from self._done(live, fail_all(live.trials, str(death)), keep_log=True)
