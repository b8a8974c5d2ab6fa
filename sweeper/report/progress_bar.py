"""Progress of a sweep: a bar on a terminal, lines elsewhere, and a file for other terminals."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from sweeper.files import write_json
from sweeper.launch.executor import JobState
from sweeper.search.fresh import is_final
from sweeper.stats.ladder import LadderSoFar
from sweeper.study.folder import StudyFolder
from sweeper.study.lock import live_holder
from sweeper.study.setup import LADDER_PHASE
from sweeper.sweep.progress import PAGE_EVERY, Snapshot, TimeLeft
from sweeper.table import duration
from sweeper.trial import Result, Trial

if TYPE_CHECKING:
    from sweeper.report.output import Output

WRITE_EVERY = 1.0
"""Seconds between two writings of the file."""
WRITE_SHARE = 0.05
"""The share of the driver's time that files may take: after one of two seconds come 40 without."""
BAR_EVERY = 0.2
LINE_EVERY, SOON = 60.0, 10.0
"""Seconds between two lines where there is no terminal; what ends so soon needs none."""


class LivePage:
    """The page of the study in `folder` while it runs, written anew as results come, but seldom.

    Where it cannot be written, that is said once.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._next, self._is_there, self._has_failed = time.monotonic() + PAGE_EVERY, False, False

    def changed(self) -> None:
        """There is news: write the page, if the last one is old enough."""
        if not self._has_failed and time.monotonic() >= self._next:
            self._write(live=PAGE_EVERY)

    def stopped(self) -> None:
        """The driver ends before its verb does: a page that says that it runs is put right."""
        if self._is_there and not self._has_failed:
            self._write(is_left=True)

    def _write(self, *, live: float = 0.0, is_left: bool = False) -> None:
        from sweeper.report.study_page import written_page  # late: it draws

        begun = time.monotonic()
        _, notes = written_page(self._folder, live=live, is_left=is_left)
        self._is_there, self._has_failed = self._is_there or not notes, bool(notes)
        for note in notes:
            self._say(f"Note: {note}. All else goes on")
        took = time.monotonic() - begun
        self._next = begun + took + max(PAGE_EVERY, took / WRITE_SHARE)


class SweepProgress:
    """A `ProgressListener` that shows and writes how far a sweep is. Use it as a context manager.

    `planned` is the number of trials that the job expects from the beginning; `time_left` learns
    how long these take. The `output` has watchers, or a notebook's bar, which takes the lines'
    place. A `page` is written as results come, and `heard` is told of each; the best is also one of
    those `kept` before. The `command` is the one that goes on where it is stopped.
    """

    def __init__(
        self,
        folder: Path,
        output: Output,
        job: str,
        *,
        planned: int,
        time_left: TimeLeft,
        page: LivePage | None = None,
        heard: Callable[[Result], None] | None = None,
        kept: Sequence[Result] = (),
        command: str = "",
    ) -> None:
        self._page, self._notebook_bar, self._heard = page, output.bar, heard
        self.path, self.console = StudyFolder(folder).progress, output.watchers
        self._states: Callable[[], list[JobState]] = list  # none, until `watch`
        self._ladder: Callable[[], LadderSoFar] | None = None
        self.planned, self.start = planned, time.monotonic()
        self._time, self._todo, self._partial = time_left, 0, 0.0
        self.snapshot = Snapshot(job=job, over=False, command=command)
        for result in kept:
            self._compare(result)
        self._next_write = self._printed = self._drawn = -math.inf
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[facts]}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task(job, total=1.0, facts="")

    def __enter__(self) -> Self:
        self._bar.start()
        if (holder := live_holder(self.path.parent)) is not None:
            self.snapshot.driver = holder.started
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.stop()
        self.snapshot.over = kind is None
        self._write(force=True)
        # A verb that goes on to its end writes the last page itself.
        if self._page is not None and kind is not None:
            self._page.stopped()

    def watch(self, states: Callable[[], list[JobState]]) -> None:
        """Write the jobs, too, from here on."""
        self._states = states

    def watch_ladder(self, so_far: Callable[[], LadderSoFar]) -> None:
        """Write the ladder as it fills, too, from here on."""
        self._ladder = so_far

    def proposed(self, finished: int, missing: Sequence[Trial]) -> None:
        """A new batch: what is known, and what will be trained now."""
        snapshot = self.snapshot
        snapshot.done = finished
        snapshot.total = max(self.planned, finished + len(missing))
        snapshot.phase, self._todo = missing[0].phase, len(missing)
        self._partial = 0.0
        self._time.proposed(missing)
        self._show()

    def announce(self, sentence: str, expected: int | None = None) -> None:
        """Say something at once; `expected` trials are likely needed in all, where it changed."""
        self.planned = self.planned if expected is None else expected
        self.console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def advanced(self, batch: Sequence[Trial], before: float, fraction: float) -> None:
        """The job of a batch has come from the fraction `before` of its work to this one."""
        self._partial += (fraction - before) * len(batch)
        self._time.advanced(batch, fraction, time.monotonic())
        self._show()

    def finished(self, result: Result) -> None:
        """Count a result."""
        if self._heard is not None:
            self._heard(result)
        snapshot = self.snapshot
        snapshot.done += 1
        snapshot.trained += 1
        snapshot.failed += result.status == "failed"
        snapshot.diverged += result.status == "diverged"
        self._compare(result)
        self._todo -= 1
        # Parts of the trial were counted by `advanced`; they are part of `done` now.
        self._partial = max(0.0, self._partial - 1)
        self._time.finished(result, time.monotonic())
        if snapshot.trained == 1 and time.monotonic() - self.start > SOON:
            self._printed = -math.inf  # the first is told at once, and the time that is left by it
        self._show()

    def _compare(self, result: Result) -> None:
        """Keep the least loss; a fresh seed's is one of several that only their mean stands for."""
        if result.objective < self.snapshot.best and not is_final(result):
            self.snapshot.best = result.objective
            # Losses of several sizes say little beside each other: of a ladder the size is told.
            of_ladder = result.trial.phase == LADDER_PHASE
            self.snapshot.best_of = f"width {result.trial.width}" if of_ladder else ""

    def _show(self) -> None:
        snapshot, now = self.snapshot, time.monotonic()
        snapshot.elapsed = now - self.start
        # What the strategy will ask for after this batch is not known yet.
        later = max(0, snapshot.total - snapshot.done - self._todo)
        snapshot.left = self._time.remaining(now, later)
        share = (snapshot.done + self._partial) / max(1, snapshot.total)
        self._bar.update(
            self._task, completed=min(1.0, share), description=snapshot.where(), facts=self.facts()
        )
        self._write()
        if self._page is not None and snapshot.trained:
            self._page.changed()
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
        if math.isfinite(snapshot.best):
            at = f" at {snapshot.best_of}" * bool(snapshot.best_of)
            parts.append(f"best {snapshot.best:.4f}{at}")
        if snapshot.diverged:
            parts.append(f"{snapshot.diverged} diverged")
        if snapshot.failed:
            parts.append(f"{snapshot.failed} failed")
        if snapshot.left is not None:
            parts.append(f"about {duration(snapshot.left)} left")
        return ", ".join(parts)

    def _write(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now < self._next_write:
            return
        self.snapshot.updated = time.time()
        self.snapshot.jobs = tuple(self._states())
        self.snapshot.ladder = self._ladder() if self._ladder is not None else None
        # Progress is a courtesy: a full disk must not stop the sweep here.
        with suppress(OSError):
            write_json(self.path, self.snapshot)
        # What takes long, of a ladder of thousands, is done seldom: the sweep has to go on.
        took = time.monotonic() - now
        self._next_write = now + max(WRITE_EVERY, took / WRITE_SHARE)
