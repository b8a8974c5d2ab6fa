"""A watcher that keeps what it is told, and shows nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sweeper.errors import Call, Keyword, spelled
from sweeper.report.output import Output
from sweeper.report.progress_bar import SweepProgress
from sweeper.sweep.progress import TimeLeft
from sweeper.verbs.answer import VerbAnswer
from tests.cli.screens import terminal


@dataclass
class Kept:
    is_live: bool = False
    remarks: list[str] = field(default_factory=list)
    looks: list[tuple[Any, bool]] = field(default_factory=list)

    def tell(self, *text: str | Keyword | Call) -> None:
        self.remarks.append(spelled(text))

    def look(self, answer: VerbAnswer, *, news: bool = True) -> None:
        self.looks.append((answer, news))

    def progress(
        self, folder: Any, job: str, *, seconds: Any, at_once: float = 1, **more: Any
    ) -> SweepProgress:
        more.pop("page", None)
        output = Output(people=terminal(80), watchers=terminal(80))
        return SweepProgress(folder, output, job, time_left=TimeLeft(seconds, at_once), **more)
