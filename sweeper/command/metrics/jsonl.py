"""A key in a file of JSON objects, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from sweeper.command.lines import Lines, last_text
from sweeper.command.reading import Beyond, InFile, MetricSource, Reading, RowReader


@dataclass(frozen=True)
class JsonRows(InFile):
    """The values of a key in the rows of a file in the run's folder."""

    form: ClassVar[str] = "jsonl:FILE:KEY"
    called: ClassVar[str] = "keys in its last line"

    def open(self, folder: Path, log: Path, *, fresh: bool = False) -> MetricSource:
        """Rows of the file."""
        return Rows(Lines(folder / self.file, fresh=fresh), self.name)

    def names(self, path: Path) -> list[str]:
        """The keys of its last row."""
        return _keys(last_text(path))


@dataclass
class Rows(MetricSource):
    """Rows of a file of JSON objects, one a line: those that have the key."""

    lines: Lines
    key: str
    _rows: RowReader = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is read yet."""
        self._rows = RowReader(self.key)

    def read(self, *, ended: bool = False) -> Iterator[Reading]:
        """Lines that are no JSON objects are passed over."""
        for line in self.lines.read(ended=ended):
            record = _record(line)
            if record is not None and (reading := self._rows.reading(record, line)) is not None:
                yield reading

    def beyond(self) -> Beyond:
        """Rows without the key."""
        return self._rows.beyond


def _record(line: str) -> dict[str, object] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _keys(lines: Iterable[str]) -> list[str]:
    """The keys of the last line that is a JSON object; none where none is."""
    records = (_record(line) for line in reversed([*lines]))
    return [*next((record for record in records if record is not None), {})]
