"""A column of a CSV file whose first row names the columns."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from sweeper.command.lines import Lines
from sweeper.command.metrics.jsonl import file_and_name
from sweeper.command.reading import (
    IN_FOLDER,
    Beyond,
    Metric,
    Reading,
    RowReader,
    Source,
    present,
)
from sweeper.errors import Keyword


@dataclass(frozen=True)
class CsvColumn(Metric):
    """The numbers of a `column` of `file`, which lies in the run's folder."""

    file: str
    column: str

    form: ClassVar[str] = "csv:FILE:COLUMN"

    @classmethod
    def parse(cls, key: str | Keyword, rest: str) -> CsvColumn:
        """FILE:COLUMN."""
        return cls(*file_and_name(key, rest, cls.form))

    def describe(self) -> str:
        """The column and the file."""
        return f"{self.column} in {self.file} in the trial's folder, {{dir}}"

    def open(self, folder: Path, log: Path, *, fresh: bool = False) -> Source:
        """Rows of the file."""
        return CsvRows(Lines(folder / self.file, fresh=fresh), self.column)

    def contents(self, folder: Path, advice: str = IN_FOLDER) -> str:
        """The names of its columns."""
        if not (path := folder / self.file).is_file():
            return f"{self.file} is not there: {advice}"
        return present(self.file, "columns", columns(Lines(path).read()), self.column)


@dataclass
class CsvRows(Source):
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
