"""Progress of a sweep: a bar on a terminal, lines elsewhere, and a file for other terminals."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from sweeper.files import write_json
from sweeper.launch.executor import JobState
from sweeper.report.cost import TrialSeconds
from sweeper.table import duration
from sweeper.trial import Result, Trial, TrialSpec

# How long work will still take: the pace of late, and an estimate that does not jump.


SETTLING = 60.0
"""Seconds in which an estimate follows what is seen by about two thirds; in less while young."""
EARLIEST = 5.0
"""Seconds of work before anything is estimated."""
POINTS = 512
"""So many moments are remembered."""


class Pace:
    """Estimates the time left from work done by time, in any unit of work.

    The rate is that of the later half of the time: what a start cost, such as compiling, is soon
    no part of it. The estimated end moves towards what the rate says, and does not jump.
    """

    def __init__(self, start: float) -> None:
        """`start` is when the work began, in seconds of the clock that `left` is given."""
        self._start = start
        self._points = deque([(start, 0.0)], maxlen=POINTS)
        self._end = math.nan
        self._estimated = self._first = start

    def left(self, now: float, done: float, remaining: float) -> float | None:
        """Seconds that `remaining` work takes when `done` is done; None while nobody can say."""
        self._points.append((now, done))
        if remaining <= 0 and done > 0:
            return 0.0
        middle = self._start + (now - self._start) / 2
        while len(self._points) > 1 and self._points[1][0] <= middle:
            self._points.popleft()
        # Since half of the time ago, or from the start where none was done since.
        rate = 0.0
        for at, before in (self._points[0], (self._start, 0.0)):
            if now > at and done > before:
                rate = (done - before) / (now - at)
                break
        if rate <= 0 or now - self._start < EARLIEST:
            self._end = math.nan
            return None
        seen, passed = now + remaining / rate, now - self._estimated
        if math.isnan(self._end):
            self._end, self._first = seen, now
        elif passed > 0:
            # Exponential smoothing of the end: a share 1 - exp(-t / settling) after t seconds.
            settling = min(SETTLING, (now - self._first) / 4)
            self._end += (1.0 - math.exp(-passed / settling)) * (seen - self._end)
        self._estimated = now
        return max(0.0, self._end - now)


# What is shown and written.


WRITE_EVERY = 1.0
"""Seconds between two writings of the file."""
LINE_EVERY = 60.0
"""Seconds between two lines where there is no terminal."""


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
    elapsed: float = 0.0
    left: float | None = None
    updated: float = 0.0
    jobs: tuple[JobState, ...] = ()

    def where(self) -> str:
        """The job, and its phase where that says more."""
        return self.job if self.phase == self.job else f"{self.job}: {self.phase}"


class SweepProgress:
    """A `ProgressListener` that shows and writes how far a sweep is. Use it as a context manager.

    `work` gives a trial's work in any unit; time left is the work left at the pace of late.
    `planned` is the number of trials that the job expects from the beginning. With `seconds`,
    which learn how long runs of a command take, those are the work as soon as one has finished.
    """

    def __init__(
        self,
        folder: Path,
        console: Console,
        job: str,
        *,
        planned: int,
        work: Callable[[Trial], float],
        seconds: TrialSeconds | None = None,
    ) -> None:
        """Nothing is shown before the first trials are proposed."""
        self.path, self.console, self.work = folder / "progress.json", console, work
        self._seconds, self._todo = seconds, dict[str, Trial]()
        # Of `_todo`, by specification: its trials take as long, and one is asked about for all.
        self._left, self._kinds = Counter[TrialSpec](), dict[TrialSpec, Trial]()
        self._spent, self._end = 0.0, math.nan
        self._states: Callable[[], list[JobState]] = list  # none, until `watch`
        self.planned, self.start = planned, time.monotonic()
        self._pace = Pace(self.start)
        self.snapshot = Snapshot(job=job)
        self.work_done, self.work_left = 0.0, 0.0
        self._mean_work, self._partial = 1.0, 0.0
        self._written = self._printed = -math.inf
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

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        self._write(force=True)

    def watch(self, states: Callable[[], list[JobState]]) -> None:
        """Write the jobs, too, from here on."""
        self._states = states

    def proposed(self, finished: int, missing: Sequence[Trial]) -> None:
        """A new batch: what is known, and what will be trained now."""
        phase, self._todo = missing[0].phase, {trial.key: trial for trial in missing}
        self._left = Counter(trial.spec for trial in missing)
        self._kinds = {trial.spec: trial for trial in missing}
        snapshot = self.snapshot
        snapshot.done, snapshot.total = finished, max(self.planned, finished + len(missing))
        work = [self.work(trial) for trial in missing]
        # What the strategy will ask for after this batch is not known yet: it counts as its mean.
        self._mean_work = sum(work) / len(work)
        later = max(0, snapshot.total - finished - len(missing))
        self.work_left, self._partial = sum(work) + later * self._mean_work, 0.0
        snapshot.phase = phase
        self._show()

    def told(self, sentence: str, expected: int) -> None:
        """Say what a look at the results found; `expected` trials are likely needed in all."""
        self.planned = expected
        self.console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def advanced(self, trials: float) -> None:
        """Part of a batch was trained."""
        self._partial += trials
        self._show()

    def finished(self, result: Result) -> None:
        """Count a result."""
        snapshot, work = self.snapshot, self.work(result.trial)
        snapshot.done += 1
        snapshot.trained += 1
        snapshot.failed += result.status == "failed"
        snapshot.diverged += result.status == "diverged"
        if result.objective < snapshot.best:
            snapshot.best = result.objective
        self.work_done += work
        self.work_left -= work
        # Parts of the trial were counted by `advanced`; they are part of `work_done` now.
        self._partial = max(0.0, self._partial - 1)
        if (trial := self._todo.pop(result.key, None)) is not None:
            self._left[trial.spec] -= 1
        if self._seconds is not None:
            # The end, by the seconds that runs have taken and how many run at once.
            self._seconds.add(result)
            self._spent += result.seconds
            now, later = time.monotonic(), snapshot.total - snapshot.done - len(self._todo)
            left = sum(n * self._seconds.of(self._kinds[k]) for k, n in self._left.items() if n)
            expected = left + max(0, later) * self._seconds.of(result.trial)
            at_once = self._spent / max(now - self.start, 1e-9)
            self._end = now + expected / at_once if at_once > 0 else math.nan
        self._show()

    def _show(self) -> None:
        snapshot = self.snapshot
        snapshot.elapsed = time.monotonic() - self.start
        partial = self._partial * self._mean_work
        done, left = self.work_done + partial, max(0.0, self.work_left - partial)
        # Asked even where `_end` is better known, since it learns from being asked.
        paced = self._pace.left(time.monotonic(), done, left)
        learned = max(0.0, self._end - time.monotonic())
        snapshot.left = paced if math.isnan(self._end) else learned
        share = (snapshot.done + self._partial) / max(1, snapshot.total)
        self._bar.update(
            self._task,
            completed=min(1.0, share),
            description=snapshot.where(),
            facts=self.facts(),
        )
        self._write()
        now = time.monotonic()
        if not self.console.is_terminal and now - self._printed >= LINE_EVERY:
            self._printed = now
            line = f"{snapshot.where()}: {self.facts()}"
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def facts(self) -> str:
        """Done and total, best so far, time left: for people."""
        snapshot = self.snapshot
        parts = [f"{snapshot.done}/{snapshot.total} trials"]
        if math.isfinite(snapshot.best):
            parts.append(f"best {snapshot.best:.4f}")
        if snapshot.diverged:
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
        # Progress is a courtesy: a full disk must not stop the sweep here.
        with suppress(OSError):
            write_json(self.path, self.snapshot)
