"""A column of the metrics.csv that Lightning's CSVLogger writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from sweeper.command.lines import Lines
from sweeper.command.metrics.csv import CsvRows, columns
from sweeper.command.reading import (
    IN_FOLDER,
    Beyond,
    Metric,
    Reading,
    Source,
    present_below,
)
from sweeper.errors import ConfigError, Keyword

FILES = "**/metrics.csv"


@dataclass(frozen=True)
class Lightning(Metric):
    """A `column` of `version_N/metrics.csv`, wherever it lies below the run's folder.

    Each start of a run writes a new version: a later one goes on where the one before was left.
    """

    column: str

    form: ClassVar[str] = "lightning:COLUMN"

    @classmethod
    def parse(cls, key: str | Keyword, rest: str) -> Lightning:
        """COLUMN."""
        if not rest:
            raise ConfigError(key, rest, f"{cls.form}, such as lightning:train_loss")
        return cls(rest)

    def describe(self) -> str:
        """The column."""
        return f"{self.column} in Lightning's metrics.csv below the trial's folder, {{dir}}"

    def open(self, folder: Path, log: Path, *, fresh: bool = False) -> Source:
        """Every version, the older one first."""
        return Versions(folder, self.column, frozenset(folder.glob(FILES) if fresh else ()))

    def contents(self, folder: Path, advice: str = IN_FOLDER) -> str:
        """The names of the columns."""
        file = "metrics.csv of Lightning's"
        return present_below(folder, FILES, file, "columns", _columns, self.column)


@dataclass
class Versions(Source):
    """The tables of all versions; `others` are those of earlier runs."""

    folder: Path
    column: str
    others: frozenset[Path]
    _tables: dict[Path, CsvRows] = field(default_factory=dict)

    def read(self, *, ended: bool = False) -> Iterator[Reading]:
        """What is new in each."""
        for path in sorted(set(self.folder.glob(FILES)) - self.others, key=_version):
            table = self._tables.setdefault(path, CsvRows(Lines(path), self.column))
            yield from table.read(ended=ended)

    def beyond(self) -> Beyond:
        """Of the last version."""
        paths = sorted(self._tables, key=_version)
        return self._tables[paths[-1]].beyond() if paths else Beyond()


def _version(path: Path) -> tuple[int, str]:
    number = re.fullmatch(r"version_(\d+)", path.parent.name)
    return int(number[1]) if number else -1, str(path)


def _columns(path: Path) -> list[str]:
    return columns(Lines(path).read(ended=True))
