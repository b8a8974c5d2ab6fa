"""A column of a CSV file whose first row names the columns."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from sweeper.command.lines import Lines
from sweeper.command.reading import Beyond, InFile, MetricSource, Reading, RowReader


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
class CsvRows(MetricSource):
    """A column of a CSV file whose first row names the columns."""

    lines: Lines
    column: str
    _header: list[str] = field(default_factory=list)
    _rows: RowReader = field(init=False)

    def __post_init__(self) -> None:
        """Of a table that an earlier run began its first row is read alone."""
        self._rows = RowReader(self.column)
        if self.lines.skipped():
            with self.lines.path.open(newline="", errors="replace") as file:
                self._header = columns(file)

    def read(self, *, ended: bool = False) -> Iterator[Reading]:
        """Rows without a number in the column are passed over."""
        for line in self.lines.read(ended=ended):
            try:
                row = next(csv.reader([line]))
            except csv.Error:  # a field that is longer than any number
                continue
            if not self._header:
                self._header = [name.strip() for name in row]
                continue
            record = dict(zip(self._header, row, strict=False))
            if (reading := self._rows.reading(record, line)) is not None:
                yield reading

    def beyond(self) -> Beyond:
        """Rows without a number in the column."""
        return self._rows.beyond


def columns(lines: Iterable[str]) -> list[str]:
    """The names in the first row of a CSV file."""
    return [name.strip() for name in next(csv.reader(lines), [])]
