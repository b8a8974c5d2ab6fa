"""A key in a file of JSON objects, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import ClassVar

from sweeper.command.lines import Lines, last_text
from sweeper.command.reading import (
    IN_FOLDER,
    Beyond,
    Metric,
    Reading,
    RowReader,
    Source,
    present,
)
from sweeper.errors import ConfigError, Keyword


@dataclass(frozen=True)
class JsonRows(Metric):
    """The value of `name` in the rows of `file`, which lies in the run's folder."""

    file: str
    name: str

    form: ClassVar[str] = "jsonl:FILE:KEY"

    @classmethod
    def parse(cls, key: str | Keyword, rest: str) -> JsonRows:
        """FILE:KEY."""
        return cls(*file_and_name(key, rest, cls.form))

    def describe(self) -> str:
        """The key and the file."""
        return f"{self.name} in {self.file} in the trial's folder, {{dir}}"

    def open(self, folder: Path, log: Path, *, fresh: bool = False) -> Source:
        """Rows of the file."""
        return Rows(Lines(folder / self.file, fresh=fresh), self.name)

    def contents(self, folder: Path, advice: str = IN_FOLDER) -> str:
        """The keys of its last row."""
        if not (path := folder / self.file).is_file():
            return f"{self.file} is not there: {advice}"
        return present(self.file, "keys in its last line", _keys(last_text(path)), self.name)


@dataclass
class Rows(Source):
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


def file_and_name(key: str | Keyword, rest: str, form: str) -> tuple[str, str]:
    """FILE and NAME of `FILE:NAME`; ConfigError where one lacks, or lies elsewhere."""
    file, colon, name = rest.rpartition(":")
    path = PurePath(file)
    if not (file and colon and name) or path.is_absolute() or ".." in path.parts:
        raise ConfigError(key, rest, f"{form}, the file within the trial's folder")
    return file, name


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
