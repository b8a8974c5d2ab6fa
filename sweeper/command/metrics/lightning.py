"""A column of the metrics.csv that Lightning's CSVLogger writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from sweeper.command.lines import Lines
from sweeper.command.metrics.csv import CsvRows, columns
from sweeper.command.reading import Below, Beyond, MetricSource, Reading
from sweeper.errors import ConfigError, Keyword


@dataclass(frozen=True)
class Lightning(Below):
    """A column of `version_N/metrics.csv`, wherever it lies below the run's folder.

    Each start of a run writes a new version: a later one goes on where the one before was left.
    """

    form: ClassVar[str] = "lightning:COLUMN"
    files, file = "**/metrics.csv", "metrics.csv of Lightning's"
    place, called = "Lightning's metrics.csv", "columns"

    @classmethod
    def parse(cls, key: str | Keyword, rest: str) -> Self:
        """COLUMN."""
        if not rest:
            raise ConfigError(key, rest, f"{cls.form}, such as lightning:train_loss")
        return cls(rest)

    def open(self, folder: Path, log: Path, *, fresh: bool = False) -> MetricSource:
        """Every version, the older one first."""
        others = frozenset(folder.glob(self.files) if fresh else ())
        return Versions(folder, self.files, self.name, others)

    def names(self, path: Path) -> list[str]:
        """The names of the columns."""
        return columns(Lines(path).read(ended=True))


@dataclass
class Versions(MetricSource):
    """The tables of all versions; `others` are those of earlier runs."""

    folder: Path
    files: str
    column: str
    others: frozenset[Path]
    _tables: dict[Path, CsvRows] = field(default_factory=dict)

    def read(self, *, ended: bool = False) -> Iterator[Reading]:
        """What is new in each."""
        for path in sorted(set(self.folder.glob(self.files)) - self.others, key=_version):
            table = self._tables.setdefault(path, CsvRows(Lines(path), self.column))
            yield from table.read(ended=ended)

    def beyond(self) -> Beyond:
        """Of the last version."""
        paths = sorted(self._tables, key=_version)
        return self._tables[paths[-1]].beyond() if paths else Beyond()


def _version(path: Path) -> tuple[int, str]:
    number = re.fullmatch(r"version_(\d+)", path.parent.name)
    return int(number[1]) if number else -1, str(path)
