"""The loop: ask for trials, submit jobs, poll for what became of them, record.

There is one for all runners and launchers, and it alone decides what becomes of a job. A trial
that is wanted passes through these places; who moves it stands on the arrow:

```
            ask                 batches             submit               Finished
  wanted  -------->  in a batch  ------>  _ready  ---------->  live  ------------->  recorded
     ^   the strategy          the runner    ^     the loop     |   the executor        |
     |                                       |                  |                       |
     |                                       +--- again --------+                       |
     +------------------- the strategy is asked anew, as there are results -------------+
```

A live job's executor reports one of three events:

- Finished: it left an outcome. Its results are recorded. Trials without a result fail, by the
  outcome's `failure`, or else because there is none.
- Left: it saved itself and went, or never began. It runs again, and that counts for nothing.
- Lost: it is gone without an outcome. It fails.

A job that fails (`_failed`) runs again whole, from its checkpoint, at most `retries` times without
coming further. Then it is halved, if its trials may be to blame: one bad trial among many is found
in log2 steps. A job of one trial fails with the reason.

Before its trials are blamed, what failed of something that its node may lack runs once on another.

What may be wanted later (`may_follow`) is trained ahead where that takes nothing from what is
wanted: within a batch, if the runner finds room there, and in places that stay empty as a batch
begins. Such a trial that fails is as if it had not been trained, and none is waited for at the end.

A job of an earlier driver (`recovered`) is claimed once the strategy wants a trial of it. Its
failures are not recorded: the user may have mended their cause. These trials go into new jobs. Only
a driver that does not wait records them: its jobs are always an earlier one's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from sweeper.errors import SweeperError
from sweeper.launch.executor import (
    Batch,
    Context,
    Event,
    Executor,
    Finished,
    JobState,
    Launcher,
    Left,
    Lost,
    PrunerOf,
    Runner,
)
from sweeper.launch.job import JobFailure, JobOutcome, failed
from sweeper.launch.job_states import check_owner, tidy
from sweeper.trial import Result, Trial

Ask = Callable[[], Sequence[Trial]]
"""All trials that are wanted now and have no result, those that are being trained included."""


@dataclass
class LiveJob:
    """A job in the executor's hands; `recovered` from an earlier driver."""

    batch: Batch
    recovered: bool = False
    fraction: float = 0.0


@dataclass(kw_only=True)
class Loop:
    """One sweep's jobs, from what is wanted to what is recorded; their files are below `folder`.

    `record` keeps results for good before it returns. `advanced` takes a job's batch, the
    fraction of its work that was done, and the one that is now (it may be less). Without `wait`
    the loop ends as soon as all that can be named is submitted to a scheduler. `_assigned` are the
    keys of trials that are in a batch, a job, or recorded, `_early` of those that nobody has asked
    for: `may_follow` names them, the likeliest first.
    """

    runner: Runner
    launcher: Launcher
    folder: Path
    record: Callable[[Sequence[Result]], None]
    notify: Callable[[str], None] = lambda sentence: None
    tell: Callable[[str], None] = lambda sentence: None
    advanced: Callable[[Batch, float, float], None] = lambda batch, before, fraction: None
    cancelled: Callable[[], bool] = lambda: False
    pruner: PrunerOf = lambda trial: None
    may_follow: Ask = tuple
    wait: bool = True
    executor: Executor = field(init=False)
    live: dict[str, LiveJob] = field(default_factory=dict, init=False)
    _ready: deque[Batch] = field(default_factory=deque, init=False)
    _assigned: set[str] = field(default_factory=set, init=False)
    _early: set[str] = field(default_factory=set, init=False)
    _needs_trials: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        """The executor tells how far jobs are; SweeperError for another user's in the folder."""
        check_owner(self.folder)
        context = Context(
            folder=self.folder,
            machine=self.runner.machine(),
            progress=self.progress,
            notify=self.notify,
            tell=self.tell,
            cancelled=self.cancelled,
        )
        self.executor = self.launcher.executor(context)

    def run(self, ask: Ask) -> None:
        """Until nothing more is wanted. SweeperError when the sweep cannot go on."""
        try:
            while True:
                if self.cancelled():
                    raise SweeperError("the study was cancelled; run the same command to go on")
                claimed = self._claim(ask)
                if not claimed:  # else what they left is looked at before more is sent
                    self._fill(ask)
                in_jobs = chain(*(live.batch for live in self.live.values()), *self._ready)
                if not self._needs_trials and self._early.issuperset(t.key for t in in_jobs):
                    break
                events = self.executor.poll(wait=self.wait and not claimed)
                self._handle_all(events)
                # Nobody waits, nothing came of this look: all is in the scheduler's hands.
                if not (events or self.wait or claimed) and self.executor.settled():
                    return
        finally:
            self.executor.close()
        for job in list(self.live):  # what was trained ahead, and is not wanted any more
            self._end(job)

    def tidy(self, is_finished: Callable[[str], bool]) -> None:
        """Remove what nothing will go on from: `is_finished` says it of a trial, by its key."""
        # Jobs first: once none is left, nobody can be writing a checkpoint, and half of one may go.
        self.runner.tidy(is_finished, idle=tidy(self.folder, is_finished))

    def progress(self, job: str, fraction: float) -> None:
        """Take the fraction of a job that is done."""
        if live := self.live.get(job):
            if wanted := tuple(trial for trial in live.batch if trial.key not in self._early):
                self.advanced(wanted, live.fraction, fraction)
            live.fraction = fraction

    def states(self) -> list[JobState]:
        """Jobs as `sweeper status` shows them where no scheduler can be asked."""
        return [
            JobState(
                id=job[:8],
                state="running" if live.fraction else "submitted",
                stage="running" if live.fraction else "queued",
                node="",
                since="",
                trials=len(live.batch),
                fraction=live.fraction,
            )
            for job, live in self.live.items()
        ]

    def _claim(self, ask: Ask) -> bool:
        """Claim jobs of earlier drivers of which a trial is wanted; whether there were any.

        Before others are submitted: a trial that runs somewhere must not go into a second job, and
        where all that was submitted has failed nothing more is to be sent.
        """
        if not (self.executor.recovered and self._needs_trials):
            return False
        keys, claimed = {trial.key for trial in ask()}, False
        for job, batch in list(self.executor.recovered.items()):
            if keys & {trial.key for trial in batch}:
                self.executor.claim(job)
                self.live[job] = LiveJob(batch, recovered=True)
                self._assigned |= {trial.key for trial in batch}
                claimed = True
        return claimed

    def _fill(self, ask: Ask) -> None:
        """Submit jobs while there is room for them.

        The strategy is asked only when a job could run at once and there are new results: what it
        names later may fill larger batches.
        """
        begins = False
        while self.executor.room():  # a job would run at once
            if not self._ready and self._needs_trials:
                self._needs_trials = False
                self._ready.extend(self._batches(ask()))
                begins |= bool(self._ready)
            elif not self._ready:
                break
            if self._ready:
                self._submit(self._ready.popleft())
        # Only now: what began later would still take a place when the next batch is wanted.
        ahead = self._ahead() if begins else []
        while ahead and self.executor.room():
            # A place each, or of a scheduler's, which are paid for, as few as there can be.
            count = 1 if self.executor.layouts else len(ahead)
            for batch in self._form(ahead[:count], ()):
                self._submit(batch)
            ahead = ahead[count:]
        # A job written ahead spares a worker the wait between two. No new trials are asked for.
        while self._ready and self.executor.room(ahead=True):
            self._submit(self._ready.popleft())

    def _batches(self, wanted: Sequence[Trial]) -> list[Batch]:
        self._early -= {trial.key for trial in wanted}
        fresh = [trial for trial in wanted if trial.key not in self._assigned]
        self._assigned |= {trial.key for trial in fresh}
        return self._form(fresh, self._ahead()) if fresh else []

    def _form(self, trials: Sequence[Trial], ahead: Sequence[Trial]) -> list[Batch]:
        """Batches of `trials`, with those of `ahead` that the runner takes along."""
        batches = self.runner.batches(trials, self.executor, ahead)
        new = {trial.key for batch in batches for trial in batch} - self._assigned
        self._assigned |= new
        self._early |= new
        return batches

    def _ahead(self) -> list[Trial]:
        """What may be trained ahead now, at most `launcher.ahead` trials at a time."""
        most: int | None = getattr(self.launcher, "ahead", 0)
        if most == 0 or not self.wait:
            return []
        taken = {t.key for batch in self.executor.recovered.values() for t in batch}
        taken |= self._assigned | self._early
        trials = {trial.key: trial for trial in self.may_follow() if trial.key not in taken}
        live = sum(t.key in self._early for job in self.live.values() for t in job.batch)
        return list(trials.values())[: None if most is None else max(0, most - live)]

    def _submit(self, batch: Batch) -> None:
        job = self.runner.job(batch, self.pruner(batch[0]))
        self.live[job.id] = LiveJob(batch)
        self.executor.submit(job)

    def _handle_all(self, events: Sequence[Event]) -> None:
        errors = list[SweeperError]()
        for event in events:
            try:
                self._handle(event)
            except SweeperError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _handle(self, event: Event) -> None:
        match event:
            case Finished():
                for notice in event.outcome.notices:
                    self.notify(notice)
                self._finished(event.job, event.outcome)
            case Left():
                self._again(event.job)
            case Lost():
                self._failed(event.job, event.failure, self.live[event.job].batch)

    def _finished(self, job: str, outcome: JobOutcome) -> None:
        live = self.live[job]
        # Failures of an earlier driver's job are left out, and so tried again; but where nobody
        # waits every driver is a later one than its jobs': they would be tried again for ever.
        anew = live.recovered and self.wait
        results = [r for r in outcome.results if not (anew and r.status == "failed")]
        done = {result.key for result in results}
        rest = tuple(trial for trial in live.batch if trial.key not in done)
        if not rest:
            # Before they are recorded: from then on the listener counts them as finished trials,
            # and the rest of their work would be counted a second time.
            self.progress(job, 1.0)
        self._record(results)
        if live.recovered and (self.wait or not rest):
            # What its results do not settle is wanted again, and is asked for as any other trial.
            if rest:
                self.progress(job, 0.0)
            self._end(job)
            self._assigned -= {trial.key for trial in live.batch}
            self._needs_trials = True
        elif not rest:
            self._end(job)
        else:
            no_result = JobFailure(reason="its job left no result", retry=False)
            self._failed(job, outcome.failure or no_result, rest)

    def _failed(self, job: str, failure: JobFailure, rest: Batch) -> None:
        """Run the job again, or its halves, or have its trials fail: the one policy for all.

        `rest` are its trials without a result. A failure that cannot pass, such as an exception
        of a model's, halves the job at once and without a word: that is how the trial is found.
        """
        # `attempts` counts from the last progress: a job that comes further each time goes on.
        if failure.retry and failure.attempts <= self.launcher.retries:
            self.notify(f"a job is run again: {failure.reason}")
            self._again(job)
        elif not failure.retry and self.executor.elsewhere(job, failure):
            self._again(job)
        elif failure.blames_trials and len(rest) > 1:
            if failure.retry:
                self.notify(f"a job of {len(rest)} trials is halved: {failure.reason}")
            middle = -(-len(rest) // 2)  # rounded up
            self._end(job, again=[rest[:middle], rest[middle:]], keep_log=failure.retry)
        else:
            self.progress(job, 1.0)
            try:  # it may be one failure too many
                self._record(failed(rest, str(failure)))
            finally:
                self._end(job, keep_log=True)

    def _record(self, results: Sequence[Result]) -> None:
        # What failed before it was asked for is trained in its own right once it is.
        failed_early = {r.key for r in results if r.status == "failed"} & self._early
        self._assigned -= failed_early
        if results := [result for result in results if result.key not in failed_early]:
            self.record(results)
            self._needs_trials = True

    def _again(self, job: str) -> None:
        """The whole job, from where it was saved."""
        self.progress(job, 0.0)
        # In front: its trials were asked for first, and its checkpoint serves nothing else.
        self._ready.appendleft(self.live.pop(job).batch)

    def _end(self, job: str, again: Sequence[Batch] = (), *, keep_log: bool = False) -> None:
        """Forget a job; its trials are recorded, or go on as `again`."""
        if again:  # a checkpoint is one of the whole batch: its parts begin anew
            self.progress(job, 0.0)
        live = self.live.pop(job)
        self.executor.forget(job, keep_log=keep_log)
        self.runner.forget(live.batch)
        # `extendleft` turns the order round: reversed, the halves stay in theirs.
        self._ready.extendleft(reversed(again))
