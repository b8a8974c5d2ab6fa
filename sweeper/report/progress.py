"""Progress of a sweep: a bar on a terminal, lines elsewhere, and a file for other terminals."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from sweeper.files import write_json
from sweeper.launch.executor import JobState
from sweeper.report.cost import TrialSeconds, trained
from sweeper.stats.ladder import LadderSoFar
from sweeper.study.folder import StudyFolder
from sweeper.study.setup import LADDER_PHASE
from sweeper.table import duration
from sweeper.trial import Result, Trial, TrialSpec

if TYPE_CHECKING:
    from sweeper.report.live import LivePage

# How long work will still take: what a trial takes, by its size, and how many run at once.


SURE = 0.3
"""The share of a job after which its pace is known."""
UNSURE = 10.0
"""Seconds after which it is taken to be known of a job that has not come as far."""
SPENT = 0.9
"""The largest share of a job that its time alone, and no word of its own, says to be done."""
WARM = 2.0
"""Seconds of work after which the jobs that ran at once are counted by their time."""
POINTS = 64
"""So many moments of a job are remembered."""


class RunningJob:
    """A job's way since it was first heard of; times in seconds."""

    def __init__(self, trials: Sequence[Trial], now: float) -> None:
        """Nothing is known of it but that it runs."""
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
        self._left, self._kinds = Counter[TrialSpec](), dict[TrialSpec, Trial]()
        self._asked = Counter[TrialSpec]()
        self._todo: set[str] = set()
        self._spent, self._began = 0.0, math.inf
        self._steps, self._done = 0.0, 0

    def proposed(self, missing: Sequence[Trial]) -> None:
        """These are left, and nothing else."""
        self._todo = {trial.key for trial in missing}
        self._asked = Counter(trial.spec for trial in missing)
        self._left = Counter(self._asked)
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
            self._left[result.trial.spec] -= 1
        if result.status != "failed":
            self._steps += trained(result)
            self._done += 1

    def left(self, now: float, later: int) -> float | None:
        """Seconds until what is left has ended, and `later` trials like it; None: not known."""
        if not self._todo and not later:
            return 0.0
        jobs = {id(job): job for job in self._running.values()}.values()
        work = sum(n * self.seconds.of(self._kinds[kind]) for kind, n in self._left.items() if n)
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
        left = max(longest, work * share / max(at_once, 1e-9))
        if later and (asked := self._asked.total()):
            # They are asked for when the others have ended, and trained in rounds.
            mean = sum(n * self.seconds.of(self._kinds[kind]) for kind, n in self._asked.items())
            left += math.ceil(later / max(1, round(at_once))) * share * mean / asked
        return left


# What is shown and written.


WRITE_EVERY = 1.0
"""Seconds between two writings of the file."""
BAR_EVERY = 0.2
"""Seconds between two drawings of a notebook's bar."""
LINE_EVERY = 60.0
"""Seconds between two lines where there is no terminal."""


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
    jobs: tuple[JobState, ...] = ()
    ladder: LadderSoFar | None = None
    over: bool = True
    """Whether it came to its end; False while it runs, and where it was stopped."""
    command: str = ""

    def where(self) -> str:
        """The job, and its phase where that says more."""
        return self.job if self.phase in ("", self.job) else f"{self.job}: {self.phase}"


class SweepProgress:
    """A `ProgressListener` that shows and writes how far a sweep is. Use it as a context manager.

    `planned` is the number of trials that the job expects from the beginning; `seconds` learn how
    long these take, and know it of those before, of which `at_once` ran at the same time.
    A `page` is written as results come, and `heard` is told of each. The `command` is the one that
    goes on where it is stopped.
    """

    def __init__(
        self,
        folder: Path,
        console: Console,
        job: str,
        *,
        planned: int,
        seconds: TrialSeconds,
        at_once: float = 1.0,
        page: LivePage | None = None,
        bar: ProgressBar | None = None,
        heard: Callable[[Result], None] | None = None,
        command: str = "",
    ) -> None:
        """Nothing is shown before the first trials are proposed. A `bar` takes the lines' place."""
        self._page, self._notebook_bar, self._heard = page, bar, heard
        self.path, self.console = StudyFolder(folder).progress, console
        self._states: Callable[[], list[JobState]] = list  # none, until `watch`
        self._ladder: Callable[[], LadderSoFar] | None = None
        self.planned, self.start = planned, time.monotonic()
        self._time, self._todo, self._partial = TimeLeft(seconds, at_once), 0, 0.0
        self.snapshot = Snapshot(job=job, over=False, command=command)
        self._written = self._printed = self._drawn = -math.inf
        # Of a job in parts: what comes before the present one and after it.
        self._part, self._before, self._after = "", 0, tuple[Trial, ...]()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[facts]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(job, total=1.0, facts="")

    def __enter__(self) -> SweepProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.stop()
        self.snapshot.over = kind is None
        self._write(force=True)
        if self._page is not None:
            # A verb that goes on to its end writes the last page itself.
            self._page.close(is_last=kind is not None)

    def watch(self, states: Callable[[], list[JobState]]) -> None:
        """Write the jobs, too, from here on."""
        self._states = states

    def watch_ladder(self, so_far: Callable[[], LadderSoFar]) -> None:
        """Write the ladder as it fills, too, from here on."""
        self._ladder = so_far

    def part(self, name: str, before: int, after: Sequence[Trial]) -> None:
        """What is proposed from here on is a part of a job whose parts are known.

        So many trials of the job lie `before` it, and those `after` it follow.
        """
        self._part, self._before, self._after, self.planned = name, before, tuple(after), 0

    def proposed(self, finished: int, missing: Sequence[Trial]) -> None:
        """A new batch: what is known, and what will be trained now."""
        snapshot, left = self.snapshot, [*missing, *self._after]
        snapshot.done = self._before + finished
        snapshot.total = max(self.planned, snapshot.done + len(left))
        snapshot.phase, self._todo = self._part or missing[0].phase, len(left)
        self._partial = 0.0
        self._time.proposed(left)
        self._show()

    def told(self, sentence: str, expected: int) -> None:
        """Say what a look at the results found; `expected` trials are likely needed in all."""
        self.planned = expected
        self.console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def advanced(self, batch: Sequence[Trial], before: float, fraction: float) -> None:
        """The job of a batch has come from the fraction `before` of its work to this one."""
        self._partial += (fraction - before) * len(batch)
        self._time.advanced(batch, fraction, time.monotonic())
        self._show()

    def finished(self, result: Result) -> None:
        """Count a result."""
        if self._page is not None:
            self._page.changed()
        if self._heard is not None:
            self._heard(result)
        snapshot = self.snapshot
        snapshot.done += 1
        snapshot.trained += 1
        snapshot.failed += result.status == "failed"
        snapshot.diverged += result.status == "diverged"
        if result.objective < snapshot.best:
            snapshot.best = result.objective
            # Losses of several sizes say little beside each other: of a ladder the size is told.
            of_ladder = result.trial.phase == LADDER_PHASE
            snapshot.best_of = f"width {result.trial.width}" if of_ladder else ""
        self._todo -= 1
        # Parts of the trial were counted by `advanced`; they are part of `done` now.
        self._partial = max(0.0, self._partial - 1)
        self._time.finished(result, time.monotonic())
        self._show()

    def _show(self) -> None:
        snapshot, now = self.snapshot, time.monotonic()
        snapshot.elapsed = now - self.start
        # What the strategy will ask for after this batch is not known yet.
        later = max(0, snapshot.total - snapshot.done - self._todo)
        snapshot.left = self._time.left(now, later)
        share = (snapshot.done + self._partial) / max(1, snapshot.total)
        self._bar.update(
            self._task,
            completed=min(1.0, share),
            description=snapshot.where(),
            facts=self.facts(),
        )
        self._write()
        if self._notebook_bar is not None:
            if now - self._drawn >= BAR_EVERY or share >= 1:
                self._drawn = now
                self._notebook_bar(min(1.0, share), snapshot.where(), self.facts())
        elif not self.console.is_terminal and now - self._printed >= LINE_EVERY:
            self._printed = now
            line = f"{snapshot.where()}: {self.facts()}"
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def facts(self) -> str:
        """Done and total, best so far, time left: for people."""
        snapshot = self.snapshot
        parts = [f"{snapshot.done}/{snapshot.total} trials"]
        if math.isfinite(snapshot.best) and not self._part:
            at = f" at {snapshot.best_of}" * bool(snapshot.best_of)
            parts.append(f"best {snapshot.best:.4f}{at}")
        # Losses of parts do not compare, and the time left must have room in a terminal's line.
        if snapshot.diverged and not self._part:
            parts.append(f"{snapshot.diverged} diverged")
        if snapshot.failed:
            parts.append(f"{snapshot.failed} failed")
        if snapshot.left is not None:
            parts.append(f"about {duration(snapshot.left)} left")
        return ", ".join(parts)

    def _write(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - self._written < WRITE_EVERY:
            return
        self._written = now
        self.snapshot.updated = time.time()
        self.snapshot.jobs = tuple(self._states())
        self.snapshot.ladder = self._ladder() if self._ladder is not None else None
        # Progress is a courtesy: a full disk must not stop the sweep here.
        with suppress(OSError):
            write_json(self.path, self.snapshot)
