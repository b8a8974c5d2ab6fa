"""Tables of runs that others made: read, their columns found, their numbers checked.

pandas reads them; this file says which column is what, and refuses what would be misread.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.errors import BadInput, ConfigError, first_line, suggest

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


@dataclass(frozen=True, eq=False)
class Source:
    """A table: its `frame`, where it is from, its digest, and its rows as people count them."""

    frame: pandas.DataFrame
    name: str
    sha256: str
    where: str = ""

    @classmethod
    def read(cls, path: Path, where: str = "") -> Source:
        """BadInput for a file that is no table, or a filter that it cannot take."""
        kind = READERS.get(path.suffix.lower())
        if kind is None:
            known = ", ".join(READERS)
            raise BadInput(f"{path}: a table of runs ends in one of {known}")
        if not path.is_file():
            raise BadInput(f"{path}: there is no such file")
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        try:
            frame = _read(path, kind)
        except ImportError as error:
            lacking = error.name or first_line(error)
            raise BadInput(
                f"{path}: {kind} needs another package, {lacking}: install it, or save the table "
                "as CSV"
            ) from error
        except (ValueError, OSError, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0][:200]
            raise BadInput(f"{path} cannot be read as {kind}: {reason}") from error
        return cls(frame, str(path), digest.hexdigest())._only(where)

    @classmethod
    def of_frame(cls, frame: Any, where: str = "") -> Source:
        """Of a DataFrame, or of columns by name."""
        import pandas

        table = frame if isinstance(frame, pandas.DataFrame) else pandas.DataFrame(frame)
        if table.columns.has_duplicates:
            raise BadInput(f"the column {table.columns[table.columns.duplicated()][0]!r} is twice")
        text = table.to_csv(index=False).encode()
        return cls(table.reset_index(drop=True), "", hashlib.sha256(text).hexdigest())._only(where)

    def _only(self, where: str) -> Source:
        if self.frame.empty:
            raise BadInput(f"{self.name or 'the table'} has no rows")
        if not where:
            return self
        try:
            # numexpr and python read the same language; python is always there.
            met = self.frame.eval(where, engine="python")
        except Exception as error:  # pandas raises nearly anything for an odd expression
            raise ConfigError(
                "--where",
                where,
                f"a condition on {self._columns()}, such as 'loss < 4' ({first_line(error)})",
            ) from error
        # Numbers would take the rows of these numbers.
        if str(getattr(met, "dtype", "")) != "bool" or met.shape != self.frame.shape[:1]:
            raise ConfigError(
                "--where", where, f"a condition on {self._columns()}, such as 'loss < 4'"
            )
        kept = self.frame[met]
        if kept.empty:
            raise ConfigError(
                "--where", where, f"a condition that some of {len(self.frame)} rows meet"
            )
        return Source(kept, self.name, self.sha256, where)

    def _columns(self) -> str:
        return ", ".join(str(column) for column in self.frame.columns)

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
                    "--columns", pair, f"ROLE=COLUMN with one of {known}; {suggest(role, roles)}"
                )
            if not column:  # "flops=": not in this table, whatever its columns are called
                unused.add(role)
                continue
            if column not in self.frame.columns:
                hint = suggest(column, [str(name) for name in self.frame.columns])
                raise ConfigError(
                    "--columns", pair, f"{role}=COLUMN with one of {self._columns()}; {hint}"
                )
            found[role] = column
        free = {_plain(column): str(column) for column in self.frame.columns}
        free = {plain: column for plain, column in free.items() if column not in found.values()}
        for role, names in roles.items():
            match = next((free[_plain(n)] for n in names if _plain(n) in free), None)
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
        """A row as people find it: the first below the header is row 1."""
        return f"row {int(self.frame.index[place]) + 1}{f' of {self.name}' if self.name else ''}"


def _plain(name: object) -> str:
    return re.sub(r"[^a-z0-9]+", "", str(name).lower())


def _read(path: Path, kind: str) -> pandas.DataFrame:
    import pandas

    match kind:
        case "CSV":
            return _separated(path, ",")
        case "TSV":
            return _separated(path, "\t")
        case "JSON lines":
            return pandas.read_json(path, lines=True, precise_float=True)
        case "JSON":
            return pandas.read_json(path, precise_float=True)
        case "Parquet":
            return pandas.read_parquet(path)
        case _:
            return pandas.read_excel(path)


def _separated(path: Path, separator: str) -> pandas.DataFrame:
    """ValueError for what pandas would read as something else, without a word."""
    import pandas

    frame = pandas.read_csv(path, sep=separator, skipinitialspace=separator == ",")
    header = pandas.read_csv(
        path, sep=separator, skipinitialspace=separator == ",", header=None, nrows=1, dtype=str
    )
    names = header.iloc[0].dropna()
    if names.duplicated().any():
        raise ValueError(f"the column {names[names.duplicated()].iloc[0]!r} is there twice")
    if not isinstance(frame.index, pandas.RangeIndex):
        raise ValueError("its rows have more cells than its header")
    if len(names) == 1 and (found := re.search(r"[;\t,]", names.iloc[0])):
        raise ValueError(f"its columns are separated by {found[0]!r}, not by {separator!r}")
    return frame
