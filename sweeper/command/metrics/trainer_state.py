"""The `trainer_state.json` of transformers' Trainer: one document, rewritten at every save."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from sweeper.command.reading import Below, Beyond, MetricSource, Reading, RowReader
from sweeper.errors import Keyword


@dataclass(frozen=True)
class TrainerState(Below):
    """The entries of `log_history` that have `name`: `loss` where none is named, or `eval_loss`.

    The document lies in the run's folder and in that of each checkpoint: the one that came furthest
    counts.
    """

    form: ClassVar[str] = "trainer_state[:KEY]"
    files, file, place = "**/trainer_state.json", "trainer_state.json", "trainer_state.json"

    @classmethod
    def parse(cls, key: str | Keyword, rest: str) -> Self:
        """KEY, or nothing."""
        return cls(rest or "loss")

    def open(self, folder: Path, log: Path, *, fresh: bool = False) -> MetricSource:
        """All that lie below the folder; those of an earlier run count once they are rewritten."""
        before = {path: _stamp(path) for path in folder.glob(self.files)} if fresh else {}
        return States(folder, self.files, before, RowReader(self.name))

    def names(self, path: Path) -> list[str]:
        """The keys of the log's entries."""
        return [key for entry in _history(_document(path) or {}) for key in entry]


@dataclass
class States(MetricSource):
    """What is new in the documents below `folder`, as they were looked at last: `stamps`."""

    folder: Path
    files: str
    stamps: dict[Path, tuple[int, int]]
    rows: RowReader
    _taken: int = field(default=0)

    def read(self, *, ended: bool = False) -> Iterator[Reading]:
        """Entries behind those that were read before."""
        changed = {}
        for path in self.folder.glob(self.files):
            stamp = _stamp(path)
            # Half of one, which is just being written, is looked at again.
            if self.stamps.get(path) != stamp and (state := _document(path)) is not None:
                self.stamps[path], changed[path] = stamp, _history(state)
        history = max(changed.values(), key=len, default=[])
        for entry in history[self._taken :]:
            reading = self.rows.reading(entry, json.dumps(entry))
            if reading is not None:
                yield reading
        self._taken = max(self._taken, len(history))

    def beyond(self) -> Beyond:
        """Entries without the key."""
        return self.rows.beyond


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0)
    return status.st_mtime_ns, status.st_size


def _document(path: Path) -> dict[str, Any] | None:
    try:
        state = json.loads(path.read_text(errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None
    return state if isinstance(state, dict) else None


def _history(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    history = state.get("log_history")
    return [each for each in history if isinstance(each, dict)] if isinstance(history, list) else []
