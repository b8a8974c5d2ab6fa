"""Tables of runs that others made: a row a run, as pandas reads a file, a pipe, a DataFrame.

A table is data and no sheet: the first line names the columns, a cell is a number or a text. What
pandas would misread without a word is refused here, and so is what would take all memory: a table
of runs has at most `LARGEST` bytes and `MOST_COLUMNS` columns.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import json
import lzma
import math
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import numpy as np

from sweeper.errors import BadInput, ConfigError, Keyword, first_line
from sweeper.evidence.runs.numbers import is_empty
from sweeper.evidence.runs.run import Runs, without
from sweeper.evidence.runs.series import NESTED, NUMBER, Objective, flat, plain_value
from sweeper.files import parse_json

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

READERS = {
    ".csv": "CSV",
    ".tsv": "TSV",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".json": "JSON",
    ".parquet": "Parquet",
    ".xlsx": "Excel",
}
PACKAGES = {"Parquet": "pyarrow", "Excel": "openpyxl"}
"""What pandas reads a kind with; where it is lacking it names several, on several lines."""
UNPACKED: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
"""How compressed files are opened, which pandas reads as they are."""
ENDS = {"CSV": [b",", b";", b"\n"], "TSV": [b"\t", b"\n"], "Excel": [b"<c "], "Parquet": []}
"""What stands at each cell, in JSON a comma."""
LARGEST = 1 << 30
"""Bytes of a table, unpacked."""
MOST_CELLS = 5_000_000
"""Cells of a table, of JSON a fourth: a number of a digit takes 8 bytes, and more in JSON."""
MOST_COLUMNS = 5_000
LONGEST_NAME = 200
"""Characters of a column's name, which messages repeat."""
LONGEST_HEAD = 1 << 23
"""Characters of a table's first line, within which its columns are named."""
BLOCK = 1 << 17
"""Rows that are read at a time."""
SNIFFED = 50
"""Rows that are looked at before a table is read."""
LEAST_SUMMED = 4
"""Rows of which the last may say what the others come to."""


def file_runs(path: Path, objective: Objective) -> Runs:
    """The runs of a file; BadInput for one that is no table or cannot be read."""
    if objective.series:
        named = Keyword("columns", "loss=COLUMN")
        allowed = ("nothing with a table: ", named, " names its loss")
        raise ConfigError(Keyword("series"), objective.series, allowed)
    kind = kind_of(path)
    with _readable(path, kind):
        _check_size(path, kind)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        frame, blanks = _read(path, kind)
        _check_columns(len(frame.columns), frame.columns)
        frame = _rows_of_runs(frame.rename(columns=str))
    return Runs(frame, str(path), digest.hexdigest(), blanks=blanks)


def piped_runs(objective: Objective) -> Runs:
    """The runs that come by a pipe, as CSV."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "stdin.csv"
        with path.open("wb") as file:
            while block := sys.stdin.buffer.read(1 << 20):
                file.write(block)
                if file.tell() > LARGEST:
                    raise BadInput(f"stdin brings {_too_large()}")
        try:
            runs = file_runs(path, objective)
        except BadInput as error:
            name = str(path)
            parts = (p.replace(name, "stdin") if isinstance(p, str) else p for p in error.args)
            error.args = (*parts,)
            raise
        assert runs.blanks is not None
        blanks = runs.blanks([c for c in runs.frame if runs.frame[c].dtype.kind not in "iub"])
        # The file is gone when a cell is asked about.
        return replace(runs, name="stdin", blanks=blanks.__getitem__)


def frame_runs(frame: Any, name: str = "") -> Runs:
    """The runs of a DataFrame, or of columns by name; BadInput for what makes none."""
    import pandas

    if isinstance(frame, pandas.DataFrame):
        table = frame
    else:
        try:
            table = pandas.DataFrame(frame)
        except Exception as error:  # pandas raises nearly anything for what is no table
            raise BadInput(
                "runs are a DataFrame, columns by name, rows as dictionaries, or a place as a "
                f"text: {type(frame).__name__} is none ({first_line(error)[:200]})"
            ) from None
    if table.columns.nlevels > 1:
        raise BadInput("the table's columns have several levels: give each column one name")
    if table.columns.has_duplicates:
        raise BadInput(f"the column {table.columns[table.columns.duplicated()][0]!r} is twice")
    if not isinstance(table.index, pandas.RangeIndex) and {*table.index.names} != {None}:
        # What was grouped has its sizes in the index.
        fresh = [n for n in table.index.names if n is not None and n not in table.columns]
        table = table.reset_index(level=fresh) if fresh else table
    if not all(isinstance(column, str) for column in table.columns):
        table = table.rename(columns=str)
    digest = hashlib.sha256(table.to_csv(index=False).encode("utf-8", "replace")).hexdigest()
    _check_columns(len(table.columns), table.columns)
    return Runs(_unnested(table.reset_index(drop=True)), name, digest)


def kind_of(path: Path) -> str:
    """The format of a file, by its name; BadInput where it is no table, or not there."""
    suffixes = [end.lower() for end in path.suffixes if end.lower() not in UNPACKED]
    kind = READERS.get(suffixes[-1]) if suffixes else None
    if not path.exists():
        raise BadInput(f"{path}: there is no such file, no such folder, and no such study")
    if kind is None or not path.is_file():
        if path.is_file() and path.suffix == ".txt":
            with path.open("rb") as file:
                _check_printed(file.read(SNIFFED * SNIFFED).decode(errors="replace").splitlines())
        raise BadInput(f"{path}: a table of runs ends in one of {', '.join(READERS)}")
    return kind


def _check_printed(lines: Sequence[str]) -> None:
    """BadInput for a table as a screen has it, between lines or in columns parted by spaces."""
    first, below = [*(line for line in lines if line.strip()), "", ""][:2]
    columns, cells = len(first.split()), below.split()
    # A printed DataFrame has the number of a row before its cells.
    spaced = 1 < columns in (len(cells), len(cells) - 1) and not re.search(r"[,;\t]", first)
    # Polars prints a shape above its lines.
    lines_above = re.match(r"shape: \(|\s*[|+\u2500-\u257f][^,;\t]*$", first)
    if lines_above or (spaced and re.fullmatch(NUMBER, cells[-1])):
        raise BadInput(
            f"the first line, {shown_line(first)!r}, is that of a table as it is printed, whose "
            "numbers and names are cut: write the table itself, with commas, as DataFrame.to_csv "
            "does"
        )


def _too_large(most: str = f"{LARGEST / 1e9:.1f} GB") -> str:
    return (
        f"more than {most}, and a table of runs is read whole: take the columns and rows that "
        "matter out of it first"
    )


def unpacked_blocks(path: Path) -> Iterator[bytes]:
    """The content of a file, unpacked, block by block; OverflowError beyond `LARGEST`."""
    size = 0
    with UNPACKED.get(path.suffix.lower(), open)(path, "rb") as file:
        # An Excel file is an archive of files.
        archive = ZipFile(file) if path.suffix.lower() == ".xlsx" else None
        for part in map(archive.open, archive.namelist()) if archive else (file,):
            while block := part.read(1 << 16):
                size += len(block)
                if size > LARGEST:
                    raise OverflowError(f"it holds more than {LARGEST / 1e9:.1f} GB")
                yield block


def _check_size(path: Path, kind: str) -> None:
    if not path.stat().st_size:  # so are files of the kernel, which may have no end
        raise BadInput(f"{path} is empty")
    cells, most = 0, MOST_CELLS // (4 if kind.startswith("JSON") else 1)
    if kind == "Parquet":
        about = import_module("pyarrow.parquet").read_metadata(path)
        groups = map(about.row_group, range(about.num_row_groups))
        cells = sum(g.column(n).num_values for g in groups for n in range(g.num_columns))
    try:
        for block in unpacked_blocks(path):
            cells += sum(map(block.count, ENDS.get(kind, [b","])))
            if cells > most:
                break
    except OverflowError:
        raise BadInput(f"{path} holds {_too_large()}") from None
    if cells > most or (kind == "Excel" and _excel_cells(path) > most):
        raise BadInput(f"{path} holds {_too_large(f'{most:,} cells')}")


def _excel_cells(path: Path) -> int:
    """The cells that are read: all rows are as wide as the one whose last value is furthest."""
    seen = wide = tall = 0
    with closing(import_module("openpyxl").load_workbook(path, read_only=True)) as book:
        sheet = book.worksheets[0]
        sheet.reset_dimensions()
        for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
            seen += len(row)
            if filled := [place for place, cell in enumerate(row, 1) if cell is not None]:
                wide, tall = max(wide, filled[-1]), number
            if max(seen, wide * tall) > MOST_CELLS:
                break
    return max(seen, wide * tall)


def _check_columns(count: int, names: Iterable[object] = ()) -> None:
    if count > MOST_COLUMNS:
        raise BadInput(
            f"the table has {count:,} columns, and one of runs at most "
            f"{MOST_COLUMNS:,}: give those that say what a run was and its loss"
        )
    if long := next((name for name in map(str, names) if len(name) > LONGEST_NAME), ""):
        raise BadInput(
            f"a column, {shown_line(long)!r}..., is called by {len(long):,} characters: rename it, "
            f"to {LONGEST_NAME} at most"
        )


@contextmanager
def _readable(path: Path, kind: str) -> Iterator[None]:
    """BadInput in place of what a reader raises, which is nearly anything for a broken file."""
    try:
        yield
    except BadInput:
        raise
    except ImportError as error:
        lacking = error.name or PACKAGES.get(kind) or first_line(error)
        raise BadInput(
            f"{path}: {kind} needs another package, {lacking}: install it, or save the table as CSV"
        ) from error
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise BadInput(f"{path} cannot be read as {kind}: {reason}") from error


Blanks = Callable[[list[str]], "pandas.DataFrame"]
"""Which cells of columns are left empty, as they are written."""


def _read(path: Path, kind: str) -> tuple[pandas.DataFrame, Blanks | None]:
    import pandas

    match kind:
        case "CSV" | "TSV":
            return _separated(path, "," if kind == "CSV" else "\t")
        case "JSON" | "JSON lines":
            lines = kind == "JSON lines"
            return _unnested(_parsed_json(path, lines)), None
        case "Parquet":
            return _unnested(pandas.read_parquet(path)), None
        case _:
            again = partial(pandas.read_excel, path, dtype=object, keep_default_na=False)
            return pandas.read_excel(
                path
            ), lambda columns: again().rename(columns=str)[columns].map(is_empty)


def _parsed_json(path: Path, lines: bool) -> pandas.DataFrame:
    """Rows, or columns, as Python reads them: with whole numbers of any size, NaN as its word."""
    import pandas

    with UNPACKED.get(path.suffix.lower(), open)(path, "rb") as file:
        if lines:
            return pandas.DataFrame(_columns_of(_json_lines(file)))
        rows = parse_json(file.read(), _decoded)
    if isinstance(rows, dict) and {"columns", "data"} <= rows.keys():
        return pandas.DataFrame(rows["data"], columns=rows["columns"])
    if isinstance(rows, list):
        return pandas.DataFrame(_columns_of(rows))
    if not isinstance(rows, dict) or not all(isinstance(c, dict | list) for c in rows.values()):
        raise ValueError(NO_ROWS)
    return pandas.DataFrame(rows).reset_index(drop=True)


NO_ROWS = 'rows are [{"width": 64, ...}, ...], columns {"width": [64, ...], ...}'
_decoder = json.JSONDecoder(parse_constant=lambda word: word if word == "NaN" else float(word))


def _decoded(text: bytes) -> Any:
    return _decoder.decode(text.decode("utf-8-sig"))


def _json_lines(file: Iterable[bytes]) -> Iterator[Any]:
    for number, line in enumerate(file, 1):
        try:
            if line.strip():
                yield parse_json(line, _decoded)
        except ValueError as error:
            raise ValueError(f"line {number}: {first_line(error)}") from None


def _columns_of(rows: Iterable[Any]) -> dict[Any, list[Any]]:
    """The cells of rows by column, which take a third of the room; NaN where a row has none."""
    columns, count = dict[Any, list[Any]](), 0
    for row in rows:
        if not isinstance(row, dict | list):
            raise ValueError(NO_ROWS)
        for name, cell in row.items() if isinstance(row, dict) else enumerate(row):
            cells = columns.setdefault(name, [])
            cells += [math.nan] * (count - len(cells))
            cells.append(cell)
        count += 1
    for cells in columns.values():
        cells += [math.nan] * (count - len(cells))
    return columns


def _separated(path: Path, usual: str) -> tuple[pandas.DataFrame, Blanks]:
    """A file of separated values; ValueError for what pandas would misread without a word."""
    import pandas

    lines, comments = _head(path, usual)
    _check_columns(1 + max(map(lines[0].count, (usual, ";", "\t"))))
    _check_printed(lines)
    (names,) = csv.reader(lines[:1], delimiter=usual, skipinitialspace=True)
    # A header that is a single cell is separated by something else.
    other = re.search(r"[;\t,]", names[0]) if len(names) == 1 else None
    separator = other[0] if other else usual
    (names,) = csv.reader(lines[:1], delimiter=separator, skipinitialspace=True)
    named = [name for name in names if name.strip()]
    twice, most = max(Counter(named).items(), key=itemgetter(1), default=("", 0))
    if most > 1:
        places = [str(place + 1) for place, name in enumerate(names) if name == twice]
        raise ValueError(
            f"the columns {' and '.join(places)} are both called {twice!r}: rename one, or "
            "delete it"
        )
    options: dict[str, Any] = {"sep": separator, "skipinitialspace": separator != "\t"}
    options |= {"skiprows": comments} if comments else {}
    # Rows with more cells than the header would become an index without a word.
    if not isinstance(pandas.read_csv(path, **options, nrows=SNIFFED).index, pandas.RangeIndex):
        raise ValueError(
            f"its rows have more cells than its first line, {shown_line(lines[0])!r}, which is to "
            "name the columns"
        )
    # To the last digit, which later versions of pandas read by themselves, and warn if asked to.
    version = tuple(map(int, pandas.__version__.split(".")[:2]))
    exact = {} if version >= (3, 1) else {"float_precision": "round_trip"}

    # In blocks: all at once it takes three times the room that the table does.
    with pandas.read_csv(path, **options, **exact, chunksize=BLOCK) as blocks:
        frame = pandas.concat(blocks, ignore_index=True)
    for name in frame.select_dtypes("int64") if len(frame) > BLOCK else ():
        frame[name] = pandas.to_numeric(frame[name], downcast="integer")
    return (
        frame,
        lambda columns: pandas.read_csv(
            path, **options, usecols=columns, converters=dict.fromkeys(columns, is_empty)
        ),
    )


def shown_line(line: str) -> str:
    """The beginning of a line."""
    return line.strip()[:60]


def _head(path: Path, separator: str) -> tuple[Sequence[str], int]:
    """The first lines of a table from its header on, and how many comments stand before it.

    A line that begins with "#" is no comment where it names as many columns as the numbers below
    it are. ValueError for a first line without an end.
    """
    with (
        UNPACKED.get(path.suffix.lower(), open)(path, "rb") as packed,
        io.TextIOWrapper(packed, "utf-8-sig", newline="") as file,
    ):
        lines = [file.readline(LONGEST_HEAD)]
        if len(lines[0]) >= LONGEST_HEAD:
            raise ValueError(f"its first line has more than {LONGEST_HEAD:,} characters")
        while lines[-1].lstrip().startswith("#") and len(lines) < SNIFFED:
            lines.append(file.readline(LONGEST_HEAD))
        if len(lines) == 1:
            return [*lines, file.readline(LONGEST_HEAD)], 0
        *_, above, below = lines
        cells = below.split(separator)
        numeric = any(re.fullmatch(rf"\s*{NUMBER}\s*", cell) for cell in cells)
        is_header = numeric and len(cells) == len(above.split(separator))
    comments = len(lines) - 1 - is_header
    return lines[comments:], comments


def _rows_of_runs(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The rows that are not empty; ValueError for a title above the names, or a sum below."""
    unnamed = sum(column.startswith("Unnamed: ") for column in frame.columns)
    if unnamed and len(frame.columns) - unnamed <= 1:
        raise ValueError(
            f"its first line, {shown_line(str(frame.columns[0]))!r}, names no columns: delete "
            "what stands above their names"
        )
    empty = np.ones(len(frame), bool)
    for column in frame.columns:
        if empty.any():
            empty &= frame[column].isna().to_numpy()
    frame = without(frame, empty)
    if len(frame) > LEAST_SUMMED and _sums_up(frame):
        raise ValueError(
            f"its last row has the sums, or the means, of the {len(frame) - 1} above it, and is no "
            "run: delete it"
        )
    return frame


def _sums_up(frame: pandas.DataFrame) -> bool:
    """Whether each number of the last row is what those above it come to, in several columns."""
    summed = 0
    for name in frame.select_dtypes("number"):
        cells = frame[name].to_numpy(float, na_value=math.nan)
        above, last = cells[:-1], cells[-1]
        if np.isfinite(cells).all() and np.ptp(above) > 0:
            if not np.isclose([above.sum(), above.mean()], last, rtol=1e-3).any():
                return False
            summed += 1
    return summed > 1


def _unnested(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The table with columns of settings in place of mappings of them, and lists as texts."""
    import pandas

    # All at once: a table with a column more is a copy of it.
    nested, plain = dict[str, list[Any]](), dict[str, Any]()
    for column in [c for c in frame.columns if frame[c].dtype.kind == "O"]:
        cells = [*frame[column]]
        if not any(isinstance(cell, NESTED) for cell in cells):
            continue
        if all(isinstance(cell, dict) for cell in cells):
            nested[column] = [flat(cell) for cell in cells]
        else:
            plain[column] = [plain_value(cell) for cell in cells]
    if not nested and not plain:
        return frame
    columns = {c: plain.get(c, frame[c]) for c in frame.columns if c not in nested}
    for column, rows in nested.items():
        taken = columns.keys() | nested.keys() - {column}
        for name in dict.fromkeys(name for row in rows for name in row):
            cells = [row.get(name, math.nan) for row in rows]
            columns[f"{column}.{name}" if name in taken else name] = cells
    return pandas.DataFrame(columns, index=frame.index)
