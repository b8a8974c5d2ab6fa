"""Where does a study stand? Read once, or again and again until its driver and its jobs end."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from sweeper.config.command_line import place_of
from sweeper.errors import BadInput
from sweeper.study.folder import studies
from sweeper.study.lock import Holder, live_holder
from sweeper.study.searched import Searched, read_searched
from sweeper.study.setup import Trials, trials_of
from sweeper.study.study import StudyRecord, find_study
from sweeper.study.watcher import Watcher
from sweeper.sweep.progress import Jobs, Snapshot, driver_progress, stopped_at
from sweeper.verbs.answer import VerbAnswer
from sweeper.verbs.requests import StatusRequest

STARTS_WITHIN = 20.0
"""Seconds for which a watch waits for a driver that was just typed."""


@dataclass(frozen=True, kw_only=True)
class StatusAnswer(VerbAnswer):
    """A study's trials, what its search says so far, its driver and its jobs.

    `notices` are of its results, and of documents that cannot be read; `others` are the studies
    beside it, where it was taken as the latest. While it `waits`, a driver may still start.
    """

    folder: Path
    trials: Trials
    searched: Searched | None
    driver: Holder | None
    progress: Snapshot | None
    stopped: Snapshot | None
    jobs: Jobs
    notices: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    waits: bool = False

    @property
    def counts(self) -> dict[str, int]:
        """Trials of the present setup by how they ended."""
        return dict(Counter(result.status for result in self.trials.current))

    @property
    def in_jobs(self) -> bool:
        """Whether jobs hold what is not recorded, and will do so or have done it."""
        return bool({"queued", "running", "finished", "failed"} & self.jobs.trials.keys())

    @property
    def runs(self) -> bool:
        """Whether anything works on it."""
        return self.driver is not None or bool({"queued", "running"} & self.jobs.trials.keys())

    @property
    def lacks(self) -> bool:
        """Whether the search was concluded from more trials than there are."""
        # While a driver runs its record may be ahead of the files that were just read.
        runs = self.searched.conclusion.runs if self.searched else 0
        return self.driver is None and runs > len(self.trials.searched)


def status(request: StatusRequest, watcher: Watcher) -> StatusAnswer:
    """Where the study stands; with `watch`, when its driver and its jobs have ended."""
    name, root = place_of(request.name, request.study, request.root)
    # Who watches at a terminal has often just typed the command in another one.
    until = time.monotonic() + STARTS_WITHIN * (request.watch and watcher.is_live)
    study, before = _appeared(name, root, watcher, until), None
    while True:
        answer = _read(root / study, alone=name is not None)
        # Once something has run, its end is the end of the watch.
        until = 0.0 if answer.runs else until
        waits = time.monotonic() < until
        if not request.watch or not (answer.runs or waits):
            return answer
        progress = answer.progress
        news = (answer.counts, answer.jobs.trials, progress and progress.done)
        watcher.look(replace(answer, waits=waits), news=news != before)
        before = news
        # A driver's progress is a file; without one only a scheduler's queue is asked, and seldom.
        time.sleep(10 if answer.runs and answer.driver is None else 2)


def _read(folder: Path, *, alone: bool) -> StatusAnswer:
    study, driver = StudyRecord.read(folder, curves=False), live_holder(folder)
    notices = [*study.notices]
    progress = driver_progress(folder, driver, notices)
    others = () if alone else (other for other in studies(folder.parent) if other != folder.name)
    return StatusAnswer(
        folder=folder,
        trials=trials_of(study),
        searched=read_searched(folder, notices),
        driver=driver,
        progress=progress,
        stopped=stopped_at(folder, []),
        jobs=Jobs.of(folder, progress),
        notices=tuple(notices),
        others=tuple(others),
    )


def _appeared(name: str | None, root: Path, watcher: Watcher, until: float) -> str:
    waits = False
    while True:
        try:
            return find_study(name, root)
        except BadInput:
            if time.monotonic() >= until:
                raise
        if not waits:
            watcher.tell(f"Waiting for the study to appear in {root}; Ctrl-C ends it.")
            waits = True
        time.sleep(0.5)
