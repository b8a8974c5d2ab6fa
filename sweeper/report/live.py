"""`report.html` while a study runs: its driver writes it anew as results come, but seldom."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from sweeper.sweep.progress import PAGE_EVERY

SHARE = 0.05
"""The share of the driver's time that pages may take: after one of two seconds come 40 without."""


class LivePage:
    """The page of the study in `folder`; where it cannot be written, that is said once."""

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
        self._next = begun + took + max(PAGE_EVERY, took / SHARE)
