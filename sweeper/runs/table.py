"""Tables of runs that others made: files of every usual kind, what a pipe brings, DataFrames.

pandas reads them whole. What it would misread without a word is refused here, and so is what would
take all memory: a table of runs has at most `LARGEST` bytes and `MOST_COLUMNS` columns.
"""

from __future__ import annotations

import ast
import bz2
import codecs
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.command.reading import Reading, as_number, as_step
from sweeper.command.series import Series
from sweeper.errors import BadInput, ConfigError, Keyword, first_line
from sweeper.runs.condition import Mask
from sweeper.runs.numbers import number_of
from sweeper.runs.roles import LADDER_ROLES, LAW_ROLES, SIZES
from sweeper.runs.run import Runs
from sweeper.runs.series import NUMBER, Objective, RunRows, choose, flat, named_values, plain_value
from sweeper.table import counted

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
    ".md": "Markdown",
}
UNPACKED: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
"""How compressed files are opened, which pandas reads as they are."""
LARGEST = 1 << 30
"""Bytes of a table, unpacked: some twenty million runs."""
PACKED = 100
"""Times as large as its file: losses pack to a fifth, and a bomb is found before it is unpacked."""
MOST_COLUMNS = 5_000
LONGEST_HEAD = 1 << 23
"""Characters of a table's first line, within which its columns are named."""
SUMMARIES = {
    *("average", "avg", "mean", "median", "total", "totals", "grand total", "sum", "std", "min"),
    *("max", "mittelwert", "durchschnitt", "summe", "gesamt", "moyenne", "somme", "promedio"),
    *("media", "suma", "gemiddelde", "totaal", "totale"),
}
"""What people write beside the runs of a sheet."""
MOST_REMARKS = 1000
SNIFFED = 50
"""Rows from which is read how numbers are written."""


def file_runs(path: Path, objective: Objective) -> Runs:
    """The runs of a file; BadInput for one that is no table or cannot be read."""
    kind = kind_of(path)
    digest = hashlib.sha256()
    with _readable(path, kind):
        _check_size(path)
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        frame, notes, blank = _read(path, kind)
        _check_columns(len(frame.columns))
        frame = frame.rename(columns=str)
        names = [*frame.columns]
        frame, of_sheet = _rows_of_sheet(frame)
        # Under names of another row a column is not found in the file again.
        blank = blank if [*frame.columns] == names else None
    frame, across = unpivoted(unpacked(frame))
    notes += of_sheet + across
    if is_chart([str(column) for column in frame.columns]):
        frame, of_chart = chart_frame(frame, objective)
        notes += of_chart
    elif objective.series:
        named = Keyword("columns", "loss=COLUMN")
        allowed = ("nothing with a table: ", named, " names its loss")
        raise ConfigError(Keyword("series"), objective.series, allowed)
    return Runs(
        frame, str(path), digest.hexdigest(), notes=tuple(notes), blank=None if across else blank
    )


def piped_runs(objective: Objective) -> Runs:
    """What comes by a pipe, as CSV."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "stdin.csv"
        with path.open("wb") as file:
            while block := sys.stdin.buffer.read(1 << 20):
                file.write(block)
                if file.tell() > LARGEST:
                    raise BadInput(f"stdin brings {_too_large()}")
        runs = file_runs(path, objective)
        # Which cells are empty is read again when it is asked about, and the file is gone then.
        return replace(runs, name="stdin", blank=None)


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
    _check_columns(len(table.columns))
    table, across = unpivoted(unpacked(table.reset_index(drop=True)))
    return Runs(table, name, digest, notes=tuple(across))


def kind_of(path: Path) -> str:
    """What a file holds by its name; BadInput where it is no table, or not there."""
    suffixes = [end.lower() for end in path.suffixes if end.lower() not in UNPACKED]
    kind = READERS.get(suffixes[-1]) if suffixes else None
    if not path.exists():
        raise BadInput(f"{path}: there is no such file, no such folder, and no such study")
    if kind is None or not path.is_file():
        raise BadInput(f"{path}: a table of runs ends in one of {', '.join(READERS)}")
    return kind


def _too_large(most: int = LARGEST) -> str:
    return (
        f"more than {most / 1e9:.1f} GB, and a table of runs is read whole: take the columns "
        "and rows that matter out of it first"
    )


def unpacked_blocks(path: Path) -> Iterator[bytes]:
    """The content of a compressed file, block by block; OverflowError beyond `most_of` it."""
    size, most = 0, most_of(path)
    with UNPACKED[path.suffix.lower()](path, "rb") as file:
        while block := file.read(1 << 22):
            size += len(block)
            if size > most:
                raise OverflowError(f"it holds more than {most / 1e9:.1f} GB")
            yield block


def most_of(path: Path) -> int:
    """Bytes that a compressed file may hold: it may be small, and take all memory or disk."""
    # A small file may pack better than losses do, and is no danger.
    return min(LARGEST, max(PACKED * path.stat().st_size, 1 << 26))


def _check_size(path: Path) -> None:
    """BadInput for a table that would take all memory, which a small compressed file may be."""
    size = path.stat().st_size
    if not size:  # so are files of the kernel, which may have no end
        raise BadInput(f"{path} is empty")
    if path.suffix.lower() not in UNPACKED:
        if size > LARGEST:
            raise BadInput(f"{path} holds {_too_large()}")
        return
    try:
        for _ in unpacked_blocks(path):
            pass
    except OverflowError:
        raise BadInput(f"{path} holds {_too_large(most_of(path))}") from None


def _check_columns(count: int) -> None:
    if count > MOST_COLUMNS:
        raise BadInput(
            f"the table has {count:,} columns, and one of runs at most "
            f"{MOST_COLUMNS:,}: give those that say what a run was and its loss"
        )


@contextmanager
def _readable(path: Path, kind: str) -> Iterator[None]:
    """BadInput in place of what a reader raises, which is nearly anything for a broken file."""
    try:
        yield
    except BadInput:
        raise
    except ImportError as error:
        lacking = error.name or first_line(error)
        raise BadInput(
            f"{path}: {kind} needs another package, {lacking}: install it, or save the table as CSV"
        ) from error
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise BadInput(f"{path} cannot be read as {kind}: {reason}") from error


def _read(
    path: Path, kind: str
) -> tuple[pandas.DataFrame, list[str], Callable[[str], Mask] | None]:
    """A table, what is to be said of it, and what tells its empty cells from NaN."""
    import pandas

    match kind:
        case "CSV" | "Markdown" if (rows := _piped_rows(path)) is not None:
            with tempfile.TemporaryDirectory() as temporary:
                plain = Path(temporary) / "table.csv"
                with plain.open("w", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerows(rows)
                how = Separated.of(plain, ",")
                # Its empty cells are asked about later, when the file is gone.
                return how.read(), ["its columns are separated by bars", *how.notes], None
        case "Markdown":
            raise ValueError("no line begins with a bar, as those of a table do")
        case "CSV" | "TSV":
            how = Separated.of(path, "," if kind == "CSV" else "\t")
            return how.read(), how.notes, how.blank
        case "JSON lines":
            return pandas.read_json(path, lines=True, precise_float=True), [], None
        case "JSON":
            return pandas.read_json(path, precise_float=True), [], None
        case "Parquet":
            return pandas.read_parquet(path), [], None
        case _:
            frame = pandas.read_excel(path)
            if len(frame) and sum(not str(c).startswith("Unnamed: ") for c in frame.columns) <= 1:
                # A title, and perhaps more such rows, above the names.
                above = int((frame.notna().sum(axis=1) > 2).to_numpy().argmax()) + 1
                frame = pandas.read_excel(path, header=above)
            return frame, [], None


@dataclass(frozen=True, kw_only=True)
class Separated:
    """How a file of separated values is read: `options` for pandas, and what is said of them."""

    path: Path
    options: dict[str, Any]
    notes: list[str]

    @classmethod
    def of(cls, path: Path, usual: str) -> Separated:
        """By its first rows; ValueError for what pandas would misread without a word.

        Spreadsheets of many countries write semicolons between columns, and commas in numbers.
        """
        import pandas

        encoding, notes = _encoding(path)
        head, comments = _head(path, usual, encoding)
        if (told := re.match(r"sep=(.)\r?\n", head)) is not None:
            # Excel's own line, which is none of the table.
            usual, comments = told[1], comments + 1
            head = head.split("\n", 1)[1]
        _check_columns(1 + max(map(head.partition("\n")[0].count, (usual, ";", "\t"))))

        def read(separator: str, rows: int) -> pandas.DataFrame:
            return pandas.read_csv(
                io.StringIO(head),
                sep=separator,
                skipinitialspace=True,
                header=None,
                nrows=rows,
                dtype=str,
            )

        separator = usual
        names = read(usual, 1).iloc[0].dropna()
        # A header that is a single cell is separated by something else.
        if len(names) == 1 and (other := re.search(r"[;\t,]", names.iloc[0])):
            separator = other[0]
            names = read(separator, 1).iloc[0].dropna()
            shown = {"\t": "tabs", ";": "semicolons", ",": "commas"}[separator]
            notes.append(f"its columns are separated by {shown}")
        if names.duplicated().any():
            twice = names[names.duplicated()].iloc[0]
            places = [str(place + 1) for place in np.flatnonzero(names == twice)]
            raise ValueError(
                f"the columns {' and '.join(places)} are both called {twice!r}: rename one, or "
                "delete it"
            )
        if comments:
            notes.append(f"{counted(comments, 'line')} before its header {_is(comments)} a comment")
        options: dict[str, Any] = {"sep": separator, "skipinitialspace": separator != "\t"}
        if comments:
            options["skiprows"] = comments
        if encoding != "utf-8":
            options["encoding"] = encoding
        lines = head.splitlines()[: SNIFFED + 1]
        first = read(separator, SNIFFED).iloc[1:] if len(lines) > 1 else pandas.DataFrame()
        cells = [str(cell).strip() for cell in first.to_numpy().ravel() if isinstance(cell, str)]
        if separator != "," and any(
            re.fullmatch(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?", c) for c in cells
        ):
            options["decimal"] = ","
            notes.append("its numbers have decimal commas")
        # Rows with more cells than the header would become an index without a word.
        frame = pandas.read_csv(path, **options, nrows=SNIFFED)
        if not isinstance(frame.index, pandas.RangeIndex):
            raise ValueError("its rows have more cells than its header")
        return cls(path=path, options=options, notes=notes)

    def read(self) -> pandas.DataFrame:
        """The table, to the last digit, as what was written is to give the same verdict."""
        import pandas

        # Later versions of pandas do so by themselves, and warn where they are asked to.
        version = tuple(map(int, pandas.__version__.split(".")[:2]))
        exact = {} if version >= (3, 1) else {"float_precision": "round_trip"}
        frame = pandas.read_csv(self.path, **self.options, **exact)
        if self.options.get("decimal") != ",":
            return frame
        # pandas reads the commas, but for columns with points between thousands, or with words.
        for column in [c for c in frame.columns if frame[c].dtype.kind not in "iufbM"]:
            cells = frame[column].dropna().astype(str).str.strip()
            digits = cells[cells.str.contains(r"\d")]
            if not len(digits) or not digits.str.fullmatch(_WITH_COMMA).all():
                continue
            plain = digits.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
            if len(digits) == len(cells):
                plain = pandas.to_numeric(plain)
            frame[column] = plain.reindex(frame.index).fillna(frame[column])
            if digits.str.contains(".", regex=False).any():
                self.notes.append(f"{column!r} has points between thousands")
        return frame

    def blank(self, column: str) -> Mask:
        """Of every row whether its cell in a column is empty; NaN is written there by name."""
        import pandas

        texts = pandas.read_csv(
            self.path, **self.options, usecols=[column], dtype=str, keep_default_na=False
        )[column]
        return np.asarray(texts.str.strip() == "")


_WITH_COMMA = re.compile(r"[-+]?(?:[1-9]\d{0,2}(?:\.\d{3})+|\d+)(?:,\d+)?(?:[eE][-+]?\d+)?")
"""A number with a decimal comma, and points between thousands or none; 0.004 has none."""


def _encoding(path: Path) -> tuple[str, list[str]]:
    """How a file's letters are written, and what is said of it: UTF-8, or as spreadsheets do."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with UNPACKED.get(path.suffix.lower(), open)(path, "rb") as file:
        block = file.read(1 << 22)
        if block[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16", ["its text is UTF-16"]
        try:
            while block:
                decoder.decode(block)
                block = file.read(1 << 22)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "cp1252", ["its text is no UTF-8, and is read as Windows-1252"]
    return "utf-8", []


def _piped_rows(path: Path) -> list[list[str]] | None:
    """The rows of a table with bars between its columns, as threads and notes have it."""
    if path.suffix.lower() in UNPACKED or path.stat().st_size > LONGEST_HEAD:
        return None
    rows, text = list[list[str]](), path.read_text(encoding="utf-8-sig", errors="replace")
    for line in map(str.strip, text.splitlines()):
        if line.startswith("|"):
            cells = [cell.strip().strip("*`") for cell in line.strip("|").split("|")]
            if not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
                rows.append(cells)
        # The table ends here; or prose comes first, which only a Markdown file may begin with.
        elif rows or (line and path.suffix.lower() != ".md"):
            break
    return rows if len(rows) > 1 else None


def _is(count: int) -> str:
    return "is" if count == 1 else "are each"


def _head(path: Path, separator: str, encoding: str) -> tuple[str, int]:
    """The first lines of a table from its header on, and how many comments stand before it.

    ValueError for a first line without an end. A line that begins with "#" is no comment where it
    names as many columns as the numbers below it are. A sheet's title is one cell above many.
    """
    encoding = "utf-8-sig" if encoding == "utf-8" else encoding
    with (
        UNPACKED.get(path.suffix.lower(), open)(path, "rb") as packed,
        io.TextIOWrapper(packed, encoding, "replace", newline="") as file,
    ):
        lines: list[str] = []
        left = LONGEST_HEAD
        while left > 0 and len(lines) <= 4 * SNIFFED and (line := file.readline(left)):
            left -= len(line)
            lines.append(line)
        if len(lines) == 1 and left <= 0:
            raise ValueError(f"its first line has more than {LONGEST_HEAD:,} characters")
    comments = 0
    while comments < len(lines) - 1:
        below = lines[comments + 1]
        if not lines[comments].lstrip().startswith("#"):
            if not _is_title(lines[comments:], separator):
                break
            comments += 1
            continue
        cells = below.split(separator)
        numeric = any(re.fullmatch(rf"\s*{NUMBER}\s*", cell) for cell in cells)
        if numeric and len(cells) == len(lines[comments].split(separator)):
            break
        comments += 1
    return "".join(lines[comments:]), comments


def _is_title(lines: Sequence[str], separator: str) -> bool:
    """Whether the first line is one filled cell at most, and a line of many follows such lines."""

    def filled(line: str) -> int:
        # A header that another sign separates is no title, however few cells it has by this one.
        ways = (next(csv.reader([line], delimiter=sign), []) for sign in {separator, ";", "\t"})
        return max(sum(bool(cell.strip()) for cell in cells) for cells in ways)

    header = next((line for line in lines if filled(line) > 1), "")
    return filled(lines[0]) <= 1 and filled(header) > 2


def _rows_of_sheet(frame: pandas.DataFrame) -> tuple[pandas.DataFrame, list[str]]:
    """Without rows that are empty, and without those that are a remark between runs."""
    if not len(frame.columns) or not len(frame):
        return frame, []
    frame, of_heads = _one_header(frame)
    frame, filled = _filled_down(frame)
    of_heads += filled
    empty = frame.isna().all(axis=1).to_numpy()
    sparse = frame.notna().sum(axis=1).to_numpy() <= max(1, len(frame.columns) // 2)
    remark = np.zeros(len(frame), bool)
    # Only of few rows that are mostly empty: a run may be called "#3", and a pooling "mean".
    places = np.flatnonzero(sparse & ~empty)
    for place in places if len(places) <= MOST_REMARKS else ():
        cells = [str(cell).strip(" :").lower() for cell in frame.iloc[place].dropna()]
        remark[place] = cells[0].startswith("#") or bool(SUMMARIES & {*cells})
    remark |= _named_summaries(frame)
    last = len(frame) - 1
    remark[last] |= not empty[last] and _sums_up(frame[~(empty | remark)])
    if not (of_heads or (empty | remark).any()):
        return frame, []
    kept = frame[~(empty | remark)].copy()
    for column in kept.columns:
        values = kept[column]
        # A remark made texts of numbers, an empty row floats of whole ones.
        if values.dtype.kind not in "iufbM":
            with suppress(ValueError):
                values = kept[column] = values.map(float).astype(float)
        if values.dtype.kind == "f" and len(values) and _are_whole(values):
            kept[column] = values.astype(np.int64)
    kinds = [f"{counted(int(empty.sum()), 'empty row')}"] * bool(empty.any())
    kinds += [f"{counted(int(remark.sum()), 'remark')}"] * bool(remark.any())
    passed = [f"passed over: {' and '.join(kinds)} between the runs"] * bool(kinds)
    return kept, [*of_heads, *passed]


def _named_summaries(frame: pandas.DataFrame) -> Mask:
    """Rows that are called min, or the like, where each other row has a name of its own."""
    texts = [c for c in frame.columns if frame[c].dtype.kind not in "iufbM"]
    if not texts:
        return np.zeros(len(frame), bool)
    names = frame[texts[0]].astype(str).str.strip(" :").str.lower()
    summed = names.isin(SUMMARIES).to_numpy()
    others = names[~summed & frame[texts[0]].notna().to_numpy()]
    # A pooling may be called "mean", too: but other runs have it as well, or another one.
    own = len(others) > 3 and others.is_unique
    return np.asarray(summed & own)


def _sums_up(frame: pandas.DataFrame) -> bool:
    """Whether the last row has what the numbers above it come to, or a word for that among them."""
    if not 3 < len(frame) <= MOST_SUMMED:
        return False
    sums = 0
    for column in frame.columns:
        cells = [number_of(cell)[0] for cell in frame[column]]
        *above, last = (math.nan if number is None else number for number in cells)
        word = str(frame[column].iloc[-1]).strip(" :").lower() in SUMMARIES
        numbers = np.array(above)[np.isfinite(above)]
        if cells[-1] is None and word and len(numbers) > len(above) / 2:
            return True
        if not math.isfinite(last) or not len(numbers):
            continue
        comes_to = (float(numbers.sum()), float(numbers.mean()))
        if not any(math.isclose(last, number, rel_tol=1e-3) for number in comes_to):
            return False
        sums += bool(np.ptp(numbers) > 1e-3 * abs(numbers.mean()))
    return sums > 1


MOST_SUMMED = 20_000
"""Rows of which the last may say what the others come to."""


def _one_header(frame: pandas.DataFrame) -> tuple[pandas.DataFrame, list[str]]:
    """Without a second header: names below groups of columns, units, or the same names again."""
    first = [str(cell).strip() for cell in frame.iloc[0]]
    named = [cell.lower() for cell in first if cell.lower() not in ("nan", "-")]
    notes = list[str]()
    usual = {name for names in (*LADDER_ROLES.values(), *LAW_ROLES.values()) for name in names}
    above = sum(str(column).strip().lower() in usual for column in frame.columns)
    # Numbers are no names: of a learning rate a column there is but one header.
    words = bool(named) and all(number_of(cell)[0] is None for cell in named)
    if (
        words
        and len({*first}) == len(first)
        and sum(name in usual for name in named) > max(1, above)
    ):
        frame = frame.iloc[1:].set_axis(first, axis=1)
        notes.append("its columns are named by its second line")
    elif words and above > 1 and len(frame) > 1 and _units(frame):
        frame = frame.iloc[1:]
        notes.append("its line of units is passed over")
    names = np.array([str(column).strip() for column in frame.columns])
    texts = [c for c in frame.columns if frame[c].dtype.kind not in "iufbM"]
    if texts:
        same = np.ones(len(frame), bool)
        for column in texts:
            cells = frame[column]
            same &= (
                cells.isna() | (cells.astype(str).str.strip() == str(column).strip())
            ).to_numpy()
        again = same & frame[texts].notna().any(axis=1).to_numpy() & (len(texts) == len(names))
        if again.any():
            frame = frame[~again]
            notes.append(f"its header is repeated in {counted(int(again.sum()), 'row')}")
    return frame, notes


def _filled_down(frame: pandas.DataFrame) -> tuple[pandas.DataFrame, list[str]]:
    """With a size, or a rate, in every row of a block: merged cells have it in their first alone.

    Where fewer than half are empty, something else is.
    """
    roles = (*SIZES, "eta")
    names = {
        name for of in (LADDER_ROLES, LAW_ROLES) for role in roles for name in of.get(role, ())
    }
    notes = list[str]()
    for column in frame.columns:
        gaps = frame[column].isna().to_numpy() & ~frame.isna().all(axis=1).to_numpy()
        known = str(column).strip().lower() in names and not gaps[0]
        if known and gaps.mean() > 0.5 and frame[column].nunique() > 1:
            frame = frame.assign(**{column: frame[column].ffill()})
            notes.append(f"empty cells of {column!r} have the value above them")
    return frame, notes


def _units(frame: pandas.DataFrame) -> bool:
    """Whether the first row has words alone where nearly all below it are numbers."""
    words = [c for c in frame.columns if isinstance(frame[c].iloc[0], str)]
    # Commas may be decimal ones: which they are is seen later, of the whole column.
    below = [
        np.mean(
            [
                any(number_of(of)[0] is not None for of in (cell, str(cell).replace(",", ".", 1)))
                for cell in frame[c].iloc[1:51]
            ]
        )
        for c in words
    ]
    return bool(words and min(below) > 0.9)


def _are_whole(values: pandas.Series) -> bool:
    finite = bool(np.isfinite(values).all())
    return finite and bool((values == np.round(values)).all() and values.abs().max() < 2**53)


# Tables that are not yet a row a run.


def unpacked(frame: pandas.DataFrame) -> pandas.DataFrame:
    """With columns of settings in the place of those whose cells hold them as JSON.

    As W&B's own example writes a project's runs: columns `config` and `summary`, each a mapping.
    """
    import pandas

    for column in list(frame.columns):
        values = frame[column]
        if values.dtype.kind in "iufbM" or not len(present := values.dropna()):
            continue
        first = present.iloc[0]
        if isinstance(first, list):  # no cell that could be compared
            frame = frame.assign(**{str(column): values.map(plain_value)})
        if not isinstance(first, dict) and not str(first).lstrip().startswith("{"):
            continue
        cells = [_mapping(value) for value in values]
        if any(cell is None for cell in cells):
            continue
        parts = pandas.DataFrame([flat(cell or {}) for cell in cells], index=frame.index)
        parts = parts[[name for name in parts.columns if not str(name).startswith("_wandb")]]
        taken = {*frame.columns} - {column}
        parts = parts.rename(columns={n: f"{column}.{n}" for n in parts.columns if n in taken})
        frame = pandas.concat([frame.drop(columns=column), parts], axis=1)
    return frame


def _mapping(value: object) -> dict[str, Any] | None:
    """A cell as a mapping, an empty one of an empty cell; None for one that is none."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, str) or not value.strip():
        return {}
    # What Python printed of a dict has single quotes, and is no JSON.
    for read in (json.loads, ast.literal_eval):
        try:
            cell = read(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return cell if isinstance(cell, dict) else None
    return None


def unpivoted(frame: pandas.DataFrame) -> tuple[pandas.DataFrame, list[str]]:
    """A row a run of a sheet with a column a learning rate, or a width; empty cells are no runs."""
    heads = [c for c in frame.columns if re.fullmatch(NUMBER, str(c).strip())]
    kept = [c for c in frame.columns if c not in heads]
    # A column may be called by a number by chance; such a sheet has several, and few others.
    if len(heads) < 3 or not 1 <= len(kept) <= 4:
        return frame, []
    rates = [
        c for c in kept if re.search(r"(?i)(^|[^a-z])(log2_?)?(lr|eta|learning.?rate)", str(c))
    ]
    across = "width" if rates else "lr"
    if across == "width" and not all(float(head).is_integer() for head in heads):
        return frame, []
    long = frame.melt(id_vars=kept, value_vars=heads, var_name=across, value_name="loss")
    long[across] = long[across].astype(str).map(plain_value)
    long = long[long["loss"].notna()].reset_index(drop=True)
    what = "a width" if rates else "a learning rate"
    return long, [f"its columns {heads[0]} to {heads[-1]} are taken for losses, each of {what}"]


_CHART = re.compile(r"(?P<run>.+) - (?P<key>.+?)(?P<end>__MIN|__MAX)?")
"""A column of a chart that W&B exported: its run and the key."""


def is_chart(columns: Sequence[str]) -> bool:
    """Whether columns are those of a chart of W&B: Step, then a run's series each."""
    charted = [name for name in columns if _CHART.fullmatch(name)]
    return len(charted) > 1 and len(columns) - len(charted) <= 1


def chart_frame(
    frame: pandas.DataFrame, objective: Objective
) -> tuple[pandas.DataFrame, list[str]]:
    """A row a run of a chart that W&B exported, hyperparameters by the names of the runs."""
    charted = {str(column): _CHART.fullmatch(str(column)) for column in frame.columns}
    keys = {m["key"] for m in charted.values() if m and not m["key"].startswith("_")}
    named = choose(keys, objective.series, "this chart")
    axis = next((column for column, match in charted.items() if match is None), None)
    steps = range(len(frame)) if axis is None else frame[axis]
    table = RunRows(objective)
    for column, match in charted.items():
        if match is None or match["end"] or match["key"] != named:
            continue
        pairs = zip(steps, frame[column], strict=True)
        series = Series()
        series.add(
            Reading(as_step(step), float(loss))
            for step, loss in pairs
            if as_number(loss) is not None and not (isinstance(loss, float) and math.isnan(loss))
        )
        table.add(match["run"], named_values(match["run"]), series)
    return table.frame(named, "this chart")
