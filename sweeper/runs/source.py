"""Tables of runs that others made: read, their columns found, their numbers checked.

pandas reads them; this file says which column is what, and refuses what would be misread.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from sweeper.errors import BadInput, ConfigError, Keyword, first_line, suggest
from sweeper.runs.condition import columns_text, rows_where
from sweeper.runs.trackers import (
    Objective,
    chart_frame,
    folder_frame,
    is_chart,
    project_frame,
    storage_frame,
    unpacked,
    unpivoted,
)
from sweeper.search.optuna.url import redact

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
READERS = {
    ".csv": "CSV",
    ".tsv": "TSV",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".json": "JSON",
    ".parquet": "Parquet",
    ".xlsx": "Excel",
}
PACKED = (".gz", ".bz2", ".xz")
"""Ends of compressed files that pandas reads as they are."""
JOURNALS = (".journal", ".log")
"""Ends of journals of Optuna."""


def unit_of(column: str) -> str:
    """The unit of a column's losses, by its name: bits per byte where it says so, else nats."""
    words = re.findall(r"[a-z]+", column.lower())
    return "bits/byte" if {"bpb", "bits"} & {*words} else "nats"


@dataclass(frozen=True, eq=False)
class Source:
    """A table: its `frame`, where it is from, its digest, and its rows as people count them.

    `notes` say how it was read, where that is not plain.
    """

    frame: pandas.DataFrame
    name: str
    sha256: str
    where: str = ""
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, place: str | Path, where: str = "", objective: Objective | None = None) -> Source:
        """Of a file, a folder of runs, `wandb:entity/project`, or a storage of Optuna by its URL.

        BadInput for what is none of them or cannot be read, or a filter that it cannot take.
        """
        text, path, wanted = str(place), Path(place), objective or Objective()
        if text.startswith("wandb:"):
            return cls._of_runs(text, project_frame(text.removeprefix("wandb:"), wanted), where)
        if "://" in text or (path.suffix in JOURNALS and path.is_file()):
            return cls._of_runs(redact(text), storage_frame(text, wanted), where)
        if path.is_dir():
            return cls._of_runs(text, folder_frame(path, wanted), where)
        kind = kind_of(path)
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        with readable(path, kind):
            frame, notes = _read(path, kind)
        frame, across = unpivoted(unpacked(frame))
        notes += across
        if is_chart([str(column) for column in frame.columns]):
            frame, read = chart_frame(frame, wanted)
            notes += read
        elif wanted.series:
            named = Keyword("columns", "loss=COLUMN")
            allowed = ("nothing with a table: ", named, " names its loss")
            raise ConfigError(Keyword("series"), wanted.series, allowed)
        return cls(frame, text, digest.hexdigest(), notes=tuple(notes))._only(where)

    @classmethod
    def piped(cls, where: str = "") -> Source:
        """Of what comes by a pipe, as CSV."""
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "stdin.csv"
            path.write_bytes(sys.stdin.buffer.read())
            return replace(cls.read(path, where), name="stdin")

    @classmethod
    def of_frame(cls, frame: Any, where: str = "", name: str = "") -> Source:
        """Of a DataFrame, or of columns by name."""
        import pandas

        table = frame if isinstance(frame, pandas.DataFrame) else pandas.DataFrame(frame)
        if table.columns.has_duplicates:
            raise BadInput(f"the column {table.columns[table.columns.duplicated()][0]!r} is twice")
        if not isinstance(table.index, pandas.RangeIndex) and {*table.index.names} != {None}:
            # What was grouped has its sizes in the index.
            fresh = [n for n in table.index.names if n is not None and n not in table.columns]
            table = table.reset_index(level=fresh) if fresh else table
        digest = hashlib.sha256(table.to_csv(index=False).encode()).hexdigest()
        table, notes = unpivoted(unpacked(table.reset_index(drop=True)))
        return cls(table, name, digest, notes=tuple(notes))._only(where)

    @classmethod
    def _of_runs(cls, name: str, read: tuple[pandas.DataFrame, list[str]], where: str) -> Source:
        """Of runs that a tracker has; the digest is that of their table."""
        frame, notes = read
        digest = hashlib.sha256(frame.to_csv(index=False).encode()).hexdigest()
        return cls(frame, name, digest, notes=tuple(notes))._only(where)

    def _only(self, where: str) -> Source:
        if self.frame.empty:
            raise BadInput(f"{self.name or 'the table'} has no rows")
        if not where:
            return self
        kept = self.frame[rows_where(self.frame, where)]
        if kept.empty:
            raise ConfigError(
                Keyword("where"), where, f"a condition that some of {len(self.frame)} rows meet"
            )
        return replace(self, frame=kept, where=where)

    def columns(self, given: str, roles: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Which column is what: as `given` ("params=N,loss=val"), else by the names in `roles`."""
        found: dict[str, str] = {}
        unused: set[str] = set()
        # A column's name may have commas: pairs are parted by those before another ROLE=.
        parts = re.split(r",(?=\s*\w*\s*=)", given)
        for pair in filter(None, (part.strip(" ,") for part in parts)):
            role, is_pair, column = (text.strip() for text in pair.partition("="))
            if not is_pair or role not in roles:
                known = ", ".join(roles)
                raise ConfigError(
                    Keyword("columns"),
                    pair,
                    f"ROLE=COLUMN with one of {known}; {suggest(role, roles)}",
                )
            if not column:  # "flops=": not in this table, whatever its columns are called
                unused.add(role)
                continue
            if column not in self.frame.columns:
                hint = suggest(column, [str(name) for name in self.frame.columns])
                raise ConfigError(
                    Keyword("columns"),
                    pair,
                    f"{role}=COLUMN with one of {columns_text(self.frame)}; {hint}",
                )
            found[role] = column
        free = {plain_name(column): str(column) for column in self.frame.columns}
        free = {plain: column for plain, column in free.items() if column not in found.values()}
        # Settings are nested: model.n_embd is n_embd where it is the only one.
        ends = [re.split(r"[./]", str(column))[-1] for column in self.frame.columns]
        for column, end in zip(self.frame.columns, ends, strict=True):
            if ends.count(end) == 1 and end != column and column not in found.values():
                free.setdefault(plain_name(end), str(column))
        for role, names in roles.items():
            plain_names = (plain_name(name) for name in names)
            match = next((free[plain] for plain in plain_names if plain in free), None)
            if role not in found and role not in unused and match is not None:
                found[role] = match
                free = {plain: column for plain, column in free.items() if column != match}
        return found

    def numbers(self, column: str) -> Array:
        """A column's numbers [rows]; BadInput names the first that is none. Empty cells are NaN."""
        import pandas

        values = self.frame[column]
        if values.dtype.kind in "iuf":
            return np.asarray(values.to_numpy(dtype=float, na_value=math.nan))
        if values.dtype == bool:
            values = values.astype(object).map(str)
        found = pandas.to_numeric(values, errors="coerce")
        bad = found.isna() & values.notna() & (values.astype(str).str.strip().str.lower() != "nan")
        if bad.any():
            place = int(np.flatnonzero(bad.to_numpy())[0])
            raise BadInput(
                f"{self.row(place)} has {values.iloc[place]!r} in the column {column!r}, which is "
                "no number"
            )
        return np.asarray(found.to_numpy(dtype=float, na_value=math.nan))

    def row(self, place: int) -> str:
        """A row as people find it: by its run, or the first below the header is row 1."""
        if self.name and "last_step" in self.frame and "run" in self.frame:
            return f"the run {self.frame['run'].iloc[place]!r} of {self.name}"
        return f"row {int(self.frame.index[place]) + 1}{f' of {self.name}' if self.name else ''}"


def plain_name(name: object) -> str:
    """A column's name without what spelling varies in: nEmbd, n_embd and N-EMBD are one."""
    return re.sub(r"[^a-z0-9]+", "", str(name).lower())


def kind_of(path: Path) -> str:
    """What a file holds by its name; BadInput where it is no table, or not there."""
    suffixes = [end.lower() for end in path.suffixes if end.lower() not in PACKED]
    kind = READERS.get(suffixes[-1]) if suffixes else None
    if not path.exists():
        raise BadInput(f"{path}: there is no such file, and no such folder")
    if kind is None or not path.is_file():
        known = ", ".join(READERS)
        raise BadInput(f"{path}: a table of runs ends in one of {known}")
    return kind


@contextmanager
def readable(path: Path, kind: str) -> Iterator[None]:
    """BadInput in place of what a reader raises."""
    try:
        yield
    except ImportError as error:
        lacking = error.name or first_line(error)
        raise BadInput(
            f"{path}: {kind} needs another package, {lacking}: install it, or save the table as CSV"
        ) from error
    except (ValueError, OSError, EOFError, KeyError, BadZipFile) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise BadInput(f"{path} cannot be read as {kind}: {reason}") from error


def _read(path: Path, kind: str) -> tuple[pandas.DataFrame, list[str]]:
    """A table, and what is to be said of it."""
    import pandas

    match kind:
        case "CSV" | "TSV":
            how = Separated.of(path, "," if kind == "CSV" else "\t")
            # To the last digit, as what was written is to give the same verdict: later versions
            # of pandas do so by themselves, and warn where they are asked to.
            version = tuple(map(int, pandas.__version__.split(".")[:2]))
            exact = {} if version >= (3, 1) else {"float_precision": "round_trip"}
            return pandas.read_csv(path, **how.options, **exact), how.notes
        case "JSON lines":
            return pandas.read_json(path, lines=True, precise_float=True), []
        case "JSON":
            return pandas.read_json(path, precise_float=True), []
        case "Parquet":
            return pandas.read_parquet(path), []
        case _:
            return pandas.read_excel(path), []


@dataclass(frozen=True, kw_only=True)
class Separated:
    """How a file of separated values is read: `options` for pandas, and what is said of them."""

    options: dict[str, Any]
    notes: list[str]
    names: tuple[str, ...]

    @classmethod
    def of(cls, path: Path, usual: str) -> Separated:
        """By its first rows; ValueError for what pandas would misread without a word.

        Spreadsheets of many countries write semicolons between columns, and commas in numbers.
        """
        import pandas

        def read(separator: str, rows: int) -> pandas.DataFrame:
            return pandas.read_csv(
                path, sep=separator, skipinitialspace=True, header=None, nrows=rows, dtype=str
            )

        separator, notes = usual, list[str]()
        names = read(usual, 1).iloc[0].dropna()
        if len(names) == 1 and (found := re.search(r"[;\t,]", names.iloc[0])):
            separator = found[0]
            names = read(separator, 1).iloc[0].dropna()
            shown = {"\t": "tabs", ";": "semicolons", ",": "commas"}[separator]
            notes.append(f"its columns are separated by {shown}")
        if names.duplicated().any():
            raise ValueError(f"the column {names[names.duplicated()].iloc[0]!r} is there twice")
        options: dict[str, Any] = {"sep": separator, "skipinitialspace": separator != "\t"}
        first = read(separator, 50).iloc[1:]
        cells = [str(cell).strip() for cell in first.to_numpy().ravel() if isinstance(cell, str)]
        if separator != "," and any(
            re.fullmatch(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?", c) for c in cells
        ):
            options["decimal"] = ","
            notes.append("its numbers have decimal commas")
        # Rows with more cells than the header would become an index without a word.
        frame = pandas.read_csv(path, **options, nrows=50)
        if not isinstance(frame.index, pandas.RangeIndex):
            raise ValueError("its rows have more cells than its header")
        return cls(options=options, notes=notes, names=tuple(map(str, frame.columns)))
