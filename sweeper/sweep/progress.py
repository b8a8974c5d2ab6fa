"""How far a sweep is, and how long it still takes; the file that says so to other processes."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.errors import SweeperError
from sweeper.launch.executor import JobState
from sweeper.launch.job_states import job_states
from sweeper.stats.ladder import LadderSoFar
from sweeper.study.cost import TrialSeconds, trained
from sweeper.study.folder import StudyFolder, read_document
from sweeper.study.lock import Holder, live_holder
from sweeper.trial import Result, Trial, TrialSpec

SURE = 0.3
"""The share of a job after which its pace is known."""
UNSURE = 10.0
"""Seconds after which it is taken to be known of a job that has not come as far."""
SPENT = 0.9
"""The largest share of a job that its time alone, and no word of its own, says to be done."""
WARM = 2.0
"""Seconds of work after which the jobs that ran at once are counted by their time."""
PAGE_EVERY = 30.0
"""Seconds before a study's first page and between two: what ends sooner is written at its end."""
POINTS = 64
"""So many moments of a job are remembered."""


class RunningJob:
    """A job's way since it was first heard of; times in seconds."""

    def __init__(self, trials: Sequence[Trial], now: float) -> None:
        self.trials, self.first, self.fraction = tuple(trials), now, 0.0
        self._points = deque[tuple[float, float]](maxlen=POINTS)

    def at(self, now: float, fraction: float) -> None:
        """The job is at this fraction of its work."""
        # From the first step on: before lie its start, or what a checkpoint had done already.
        if fraction > self.fraction:
            self._points.append((now, fraction))
        self.fraction = fraction

    def seconds(self) -> float:
        """What the whole job takes at its pace of late; NaN where too little is seen of it.

        Compiling stands still and then runs faster: the later half of the time counts.
        """
        if len(self._points) < 2:
            return math.nan
        (start, first), (now, last) = self._points[0], self._points[-1]
        if last - first < SURE and now - start < UNSURE:
            return math.nan
        middle = start + (now - start) / 2
        since, before = next(p for p in reversed(self._points) if p[0] <= middle)
        return (now - since) / (last - before)


class TimeLeft:
    """Estimates the seconds that a sweep still takes.

    Trials that are left cost what `seconds` learn from those that finished, here or before, and
    from jobs under way. Of these run as many at once as the time spent on trials says.
    """

    def __init__(self, seconds: TrialSeconds, at_once: float = 1.0) -> None:
        """`at_once`: so many ran at the same time before."""
        self.seconds, self._before = seconds, at_once
        self._running: dict[str, RunningJob] = {}  # by each of its trials' keys
        # By specification: its trials take as long, and one is asked about for all.
        self._remaining, self._kinds = Counter[TrialSpec](), dict[TrialSpec, Trial]()
        self._asked = Counter[TrialSpec]()
        self._todo: set[str] = set()
        self._spent, self._began = 0.0, math.inf
        self._steps, self._done = 0.0, 0

    def proposed(self, missing: Sequence[Trial]) -> None:
        """These are left, and nothing else."""
        self._todo = {trial.key for trial in missing}
        self._asked = Counter(trial.spec for trial in missing)
        self._remaining = Counter(self._asked)
        self._kinds |= {trial.spec: trial for trial in missing}

    def advanced(self, batch: Sequence[Trial], fraction: float, now: float) -> None:
        """The job of `batch` is at this fraction of its work; back at 0 it begins anew."""
        job = self._running.get(batch[0].key)
        if job is None or fraction < job.fraction:
            job = RunningJob(batch, now)
            self._running |= {trial.key: job for trial in batch}
        self._began = min(self._began, now)
        job.at(now, fraction)
        if not math.isnan(seconds := job.seconds()):
            self.seconds.guess(batch, seconds)

    def finished(self, result: Result, now: float) -> None:
        """A trial has ended, whatever became of it."""
        self.seconds.add(result)
        self._spent += result.seconds
        self._began = min(self._began, now - result.seconds)
        self._running.pop(result.key, None)
        if result.key in self._todo:
            self._todo.remove(result.key)
            self._remaining[result.trial.spec] -= 1
        if result.status != "failed":
            self._steps += trained(result)
            self._done += 1

    def remaining(self, now: float, later: int) -> float | None:
        """Seconds until what is left has ended, and `later` trials like it; None: not known."""
        if not self._todo and not later:
            return 0.0
        jobs = {id(job): job for job in self._running.values()}.values()
        work = sum(
            n * self.seconds.of(self._kinds[kind]) for kind, n in self._remaining.items() if n
        )
        longest = 0.0
        for job in jobs:
            trials = [trial for trial in job.trials if trial.key in self._todo]
            whole = sum(self.seconds.of(trial) for trial in trials)
            # A user's command may say nothing of its steps.
            silent = min(SPENT, (now - job.first) / whole) if whole > 0 else 0.0
            done = whole * (job.fraction or silent)
            work, longest = work - done, max(longest, whole - done)
        if math.isnan(work):
            return None
        # Trials that diverge or are pruned end early, and so will their share of the others.
        share = self._steps / self._done if self._done else 1.0
        at_once, passed = self._before, now - self._began
        if passed > WARM:
            at_once = (self._spent + sum(now - job.first for job in jobs)) / passed
        elif jobs:
            at_once = max(at_once, len(jobs))
        remaining = max(longest, work * share / max(at_once, 1e-9))
        if later and (asked := self._asked.total()):
            # They are asked for when the others have ended, and trained in rounds.
            mean = sum(n * self.seconds.of(self._kinds[kind]) for kind, n in self._asked.items())
            remaining += math.ceil(later / max(1, round(at_once))) * share * mean / asked
        return None if math.isnan(remaining) else remaining


ProgressBar = Callable[[float, str, str], None]
"""Is told the share that is done, what is at work, and how far it is, for people."""


@dataclass(kw_only=True)
class Snapshot:
    """Where a sweep stands, and its jobs; what `progress.json` holds. Times in seconds."""

    job: str
    phase: str = ""
    done: int = 0
    total: int = 0
    trained: int = 0
    failed: int = 0
    diverged: int = 0
    best: float = math.inf
    best_of: str = ""
    elapsed: float = 0.0
    left: float | None = None
    updated: float = 0.0
    driver: float = 0.0
    """When its driver took the study, as the lock has it: who wrote this."""
    jobs: tuple[JobState, ...] = ()
    ladder: LadderSoFar | None = None
    over: bool = True
    """Whether it came to its end; False while it runs, and where it was stopped."""
    command: str = ""

    def where(self) -> str:
        """The job, and its phase where that says more."""
        return self.job if self.phase in ("", self.job) else f"{self.job}: {self.phase}"


def stopped_at(folder: Path, notes: list[str], *, is_left: bool = False) -> Snapshot | None:
    """How far the study's last work came, where it was stopped; `notes` gets what is damaged.

    With `is_left` nobody drives the study any more, whatever its lock says.
    """
    path = StudyFolder(folder).progress
    if not path.is_file() or (not is_left and live_holder(folder) is not None):
        return None
    progress = read_document(path, Snapshot, notes)
    return progress if progress and not progress.over else None


def driver_progress(folder: Path, driver: Holder | None, notes: list[str]) -> Snapshot | None:
    """What the live driver last said of itself; None without one. `notes` gets what is damaged."""
    if driver is None:
        return None
    progress = read_document(StudyFolder(folder).progress, Snapshot, notes)
    # Not by when it was written: a clock may have gone back since.
    return progress if progress and progress.driver == driver.started else None


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """A study's jobs, and the `trouble` that kept them from being known."""

    states: tuple[JobState, ...] = ()
    trouble: str | None = None

    @classmethod
    def of(cls, folder: Path, progress: Snapshot | None = None) -> Jobs:
        """A scheduler is asked for its jobs; of others the driver tells, in its `progress`."""
        try:
            states = tuple(job_states(folder))
        except SweeperError as error:
            return cls(trouble=str(error))
        return cls(states=states or (progress.jobs if progress else ()))

    @property
    def trials(self) -> dict[str, int]:
        """Trials in jobs by what becomes of them."""
        counts = Counter[str]()
        for job in self.states:
            counts[job.stage] += job.trials
        return dict(counts)
