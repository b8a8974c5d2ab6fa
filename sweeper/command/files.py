"""Files of a tracker, some of which a process of its own goes on writing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.command.reading import Reading, Source

SETTLE_SECONDS = 10.0
"""How long a tracker may go on writing after the command has ended."""


@dataclass
class Files(Source):
    """A tracker's files: those that a pattern finds, each opened by `scan` where it was left.

    A tracker may write a file in a process of its own, until it `is_whole`. `others` are files of
    earlier runs.
    """

    folder: Path
    glob: str
    scan: Callable[[Path], Callable[[], Iterator[Reading]]]
    is_whole: Callable[[Path], bool] = lambda path: True
    others: frozenset[Path] = frozenset()
    _open: dict[Path, Callable[[], Iterator[Reading]]] = field(default_factory=dict)

    def read(self, *, ended: bool = False) -> list[Reading]:
        """What is new in all files, the older file first."""
        readings: list[Reading] = []
        for path in sorted(self.folder.glob(self.glob), key=lambda p: (p.stat().st_mtime_ns, p)):
            if path in self.others:
                continue
            deadline = time.monotonic() + (SETTLE_SECONDS if ended else 0.0)
            while time.monotonic() < deadline and not self.is_whole(path):
                time.sleep(0.05)
            if path not in self._open:
                self._open[path] = self.scan(path)
            readings += self._open[path]()
        return readings
