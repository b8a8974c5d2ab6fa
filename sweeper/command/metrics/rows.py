"""Rows of files: JSON a line, columns of CSV, Lightning's tables, the state of a Trainer."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from sweeper.command.reading import (
    Below,
    Beyond,
    Files,
    InFile,
    Lines,
    MetricSource,
    Reading,
    RowReader,
    last_text,
)
from sweeper.errors import Keyword


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
        self._rows = RowReader(self.key)

    def read(self, *, ended: bool = False) -> Iterator[Reading]:
        """Lines that are no rows, or have no number under the key, are passed over."""
        for line in self.lines.read(ended=ended):
            record = self._row(line)
            if record is not None and (reading := self._rows.reading(record, line)) is not None:
                yield reading

    def beyond(self) -> Beyond:
        """Rows without the key."""
        return self._rows.beyond

    def _row(self, line: str) -> Mapping[str, Any] | None:
        return _record(line)


def _record(text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _keys(lines: Iterable[str]) -> list[str]:
    records = (_record(line) for line in reversed([*lines]))
    return [*next((record for record in records if record is not None), {})]


@dataclass(frozen=True)
class CsvColumn(InFile):
    """The numbers of a column of a file in the run's folder."""

    form: ClassVar[str] = "csv:FILE:COLUMN"
    called: ClassVar[str] = "columns"

    def open(self, folder: Path, log: Path, *, fresh: bool = False) -> MetricSource:
        """Rows of the file."""
        return CsvRows(Lines(folder / self.file, fresh=fresh), self.name)

    def names(self, path: Path) -> list[str]:
        """The names of its columns."""
        return columns(Lines(path).read())


@dataclass
class CsvRows(Rows):
    """Rows of a CSV file whose first row names the columns; the key is one of these."""

    _header: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """The first row of a table that an earlier run began is read alone."""
        super().__post_init__()
        if self.lines.skipped():
            with self.lines.path.open(newline="", errors="replace") as file:
                self._header = columns(file)

    def _row(self, line: str) -> Mapping[str, Any] | None:
        try:
            row = next(csv.reader([line]))
        except csv.Error:  # a field that is longer than any number
            return None
        if not self._header:
            self._header = [name.strip() for name in row]
            return None
        return dict(zip(self._header, row, strict=False))


def columns(lines: Iterable[str]) -> list[str]:
    """The names in the first row of a CSV file."""
    return [name.strip() for name in next(csv.reader(lines), [])]


@dataclass(frozen=True)
class Lightning(Below):
    """A column of `version_N/metrics.csv`, wherever it lies below the run's folder.

    Each start of a run writes a new version: a later one goes on where the one before was left.
    """

    form: ClassVar[str] = "lightning:COLUMN"
    files, file = "**/metrics.csv", "metrics.csv of Lightning's"
    place, called = "Lightning's metrics.csv", "columns"

    def open(self, folder: Path, log: Path, *, fresh: bool = False) -> MetricSource:
        """Every version, the older one first."""
        others = frozenset(folder.glob(self.files) if fresh else ())
        return Files(
            folder,
            self.files,
            lambda path: CsvRows(Lines(path), self.name),
            others=others,
            order=_version,
        )

    def names(self, path: Path) -> list[str]:
        """The names of the columns."""
        return columns(Lines(path).read(ended=True))


def _version(path: Path) -> tuple[int, str]:
    number = re.fullmatch(r"version_(\d+)", path.parent.name)
    return int(number[1]) if number else -1, str(path)


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
        return _record(path.read_text(errors="replace"))
    except OSError:
        return None


def _history(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    history = state.get("log_history")
    return [each for each in history if isinstance(each, dict)] if isinstance(history, list) else []
