"""A desk that gives a launcher its work and keeps what comes back, as the loop does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sweeper.launch.launcher import Launcher, Work
from sweeper.trial import Result, Trial
from tests.training.helpers import corpus


class Desk:
    """Trials that are wanted until they have a result; `told` is what the user would read."""

    def __init__(self, trials: Iterable[Trial], folder: Path, **options: Any) -> None:
        self.trials, self.folder = list(trials), folder
        self.results: list[Result] = []
        self.told: list[str] = []
        self.watch: Callable[[float], None] = options.pop("watch", lambda share: None)
        self.options = options

    def pending(self) -> list[Trial]:
        known = {result.key for result in self.results}
        return [trial for trial in self.trials if trial.key not in known]

    def work(self) -> Work:
        return Work(
            corpus=corpus(self.folder),
            folder=self.folder,
            pending=self.pending,
            watch=self.watch,
            tell=self.told.append,
            **self.options,
        )

    def run(self, launcher: Launcher) -> list[Result]:
        for results in launcher.run(self.work()):
            self.results += results
        return self.results
