"""One table for every place: the terminal, the page, CSV, a DataFrame and JSON show its rows."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from sweeper.errors import printable
from sweeper.records import as_number
from sweeper.stats.estimate import Estimate

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]


def short(value: float) -> str:
    """Four significant digits."""
    return f"{value:.4g}"


def number(value: float, form: str = ".4f") -> str:
    """A number for people; what is not finite in words."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "diverged" if value > 0 else "-inf"
    return format(value, form).replace("%", " %")


def power(log2: float) -> str:
    """A base-2 logarithm as a power: 2^-8, 2^0.5."""
    return f"2^{log2:g}"


def within(estimate: Estimate, form: str = ".2f") -> str:
    """A value with the larger half of its 95 % interval: 0.51 ±0.22; alone without an interval.

    A sign in `form` is that of the value alone.
    """
    # The larger half, since intervals need not be symmetric: ± then claims no more than is known.
    half = max(estimate.high - estimate.value, estimate.value - estimate.low)
    if not math.isfinite(estimate.value):
        return "-"
    value = number(estimate.value, form)
    if math.isfinite(half):
        return f"{value} ±{number(half, form.lstrip('+z'))}"
    return f"≥{value}" if estimate.low > 0 and math.isinf(estimate.high) else value


def interval(estimate: Estimate, form: str = ".2f") -> tuple[str, str]:
    """A value, and its 95 % interval from end to end; "none" of what is not known."""
    if not math.isfinite(estimate.value):
        return "none", ""
    value, low, high = (number(x, form) for x in (estimate.value, estimate.low, estimate.high))
    if math.isfinite(estimate.low) and math.isfinite(estimate.high):
        return value, f"{low.removesuffix(' %')} to {high}"
    if math.isfinite(estimate.low):
        return value, f"at least {low}"
    return value, f"at most {high}" if math.isfinite(estimate.high) else "no interval"


def counted(count: int, noun: str) -> str:
    """A count of things: 1 run, 45 runs."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """`a, b and c`; of many the first, and how many more; of none nothing."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def duration(seconds: float) -> str:
    """Seconds as people say them: 40 s, 3 min 20 s, 2 h 5 min, 3 d 4 h; "not known" of NaN."""
    if not math.isfinite(seconds):
        return "not known"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole < 600 else f"{whole // 60} min"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


Tone = Literal["", "good", "bad", "open"]
TONES: dict[str, Tone] = {
    "holds": "good",
    "pass": "good",
    "fails": "bad",
    "fail": "bad",
    "hit": "good",
    "failed": "bad",
    "base": "",
}
STYLES = {"": "", "good": "green", "bad": "red", "open": "yellow"}
"""Colours of the terminal; the page has its own."""
WIDEST = 10_000
"""More columns of letters than any table has."""
_PLAIN = Console(file=StringIO(), width=WIDEST, color_system=None, force_jupyter=False)
"""Measures tables, and prints them as plain text."""


@dataclass(frozen=True, kw_only=True)
class BaseToTarget:
    """A value at the base and at the target."""

    base: str | float
    target: str | float


@dataclass(frozen=True)
class Cell:
    """A `value` with more to it than its column's form shows.

    `text` is what stands for it: everywhere for plain values, of an Estimate or a Change on the
    terminal alone. `detail` follows it. The page alone shows
    `small` letters beside the text, which it makes a `link`.
    """

    value: Any
    text: str = ""
    detail: str = ""
    tone: Tone = ""
    link: str = ""
    small: str = ""


def answer(value: str, detail: str = "") -> Cell:
    """The answer of a verdict or a check, in its colour."""
    # All other answers, such as "cannot say", leave it open.
    return Cell(value, value, detail, TONES.get(value, "open"))


Value = str | int | float | Estimate | BaseToTarget | Cell | None


@dataclass(frozen=True)
class Column:
    """A column of numbers of one `form` (a format specification), or of text where `left`.

    What is `secondary` stands on the page alone: a terminal has those that decide.
    The page adds the `unit` to the name; what a terminal must say of it stands in the legend. It
    gives intervals by their ends; as terminals do, with ±, where `half`.
    """

    name: str
    unit: str = ""
    form: str = ".4g"
    left: bool = False
    secondary: bool = False
    half: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """Values, one a column, and a sentence on them: `subject` is what it is on, in a list."""

    values: Sequence[Value]
    note: str = ""
    subject: str = ""


@dataclass
class Table:
    """Rows under columns, whose names differ, with a title and what explains them.

    `legend` are paragraphs, `remarks` the lines of a list below it.
    A `detail` is shown under --verbose alone, and folded on a page.
    """

    title: str
    columns: Sequence[Column]
    legend: Sequence[str] = ()
    remarks: Sequence[str] = ()
    detail: bool = False
    rows: list[Row] = field(default_factory=list)
    section_ends: set[int] = field(default_factory=set)

    def add(self, *values: Value, note: str = "", subject: str = "") -> None:
        """Add a row, a value for each column."""
        self.rows.append(Row(values=values, note=note, subject=subject))

    def end_section(self) -> None:
        """Draw a line under the last row."""
        self.section_ends.add(len(self.rows))

    def __str__(self) -> str:
        with _PLAIN.capture() as capture:
            _PLAIN.print(self._rich(range(len(self.columns))), crop=False)
        # A box has an edge, a blank here.
        lines = (line[1:].rstrip() for line in capture.get().splitlines())
        return "\n".join(line for line in (self.title, *lines) if line)

    def parts(self, width: int) -> list[Table]:
        """What a terminal of `width` shows: all but secondary columns, below each other if need be.

        Each part begins with the first column.
        """
        widths, groups = self._widths(), list[list[int]]([[]])
        first, *rest = (i for i, column in enumerate(self.columns) if not column.secondary)
        for index in rest:
            if groups[-1] and _across(widths, [first, *groups[-1], index]) > width:
                groups.append([])
            groups[-1].append(index)
        return [
            replace(
                self,
                title=self.title * (not part),
                columns=[self.columns[i] for i in (first, *group)],
                rows=[replace(r, values=[r.values[i] for i in (first, *group)]) for r in self.rows],
            )
            for part, group in enumerate(groups)
        ]

    def _widths(self) -> list[int]:
        return [
            max(
                cell_len(line)
                for text in (
                    printable(column.name),
                    *(_terminal_text(row.values[index], column).plain for row in self.rows),
                )
                for line in text.splitlines() or [""]
            )
            for index, column in enumerate(self.columns)
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The title and the columns; no cell is ever broken.

        Where they do not fit, the first column's cells are lines of their own above the others.
        Print it with crop=False: what is still too wide goes on in the terminal's next line.
        """
        if self.title:
            yield Text(printable(self.title), style="bold", overflow="ignore", no_wrap=True)
        above, kept, widths = list[Text](), [*range(len(self.columns))], self._widths()
        if _across(widths, kept) > options.max_width and len(kept) > 1:
            kept = kept[1:]
            above = [_terminal_text(row.values[0], self.columns[0]) for row in self.rows]
        # As wide as it is: within the terminal's width rich would break cells.
        wide = options.update(width=_across(widths, kept), height=None)
        # Rich draws a blank edge above the head, and the rule below it.
        _, head, rule, *rows = console.render_lines(self._rich(kept), wide, pad=False)
        names = iter(above)
        for line in (head, rule, *rows):
            if line is not head and line is not rule and above and _is_written(line):
                yield Text(" ", no_wrap=True, overflow="ignore") + next(names)
            yield from (*line, Segment.line())

    def _rich(self, kept: Sequence[int]) -> RichTable:
        table = RichTable(box=box.SIMPLE_HEAD, show_edge=True, padding=(0, 1, 0, 0))
        for column in (self.columns[index] for index in kept):
            justify: Literal["left", "right"] = "left" if column.left else "right"
            table.add_column(Text(printable(column.name)), justify=justify, no_wrap=True)
        for count, row in enumerate(self.rows, 1):
            cells = [_terminal_text(row.values[index], self.columns[index]) for index in kept]
            table.add_row(*cells, end_section=count in self.section_ends)
        return table

    def page_rows(self) -> Iterator[tuple[list[Cell], str]]:
        """The cells of each row for the page, and its note."""
        for row in self.rows:
            pairs = zip(row.values, self.columns, strict=True)
            yield [_page_cell(value, column) for value, column in pairs], row.note

    def records(self) -> list[dict[str, Any]]:
        """A flat record a row, of the values themselves: numbers are not rounded.

        An Estimate is three fields, NAME, NAME low and NAME high; a Change NAME and NAME base.
        """
        records: list[dict[str, Any]] = [{} for _ in self.rows]
        # Ends are those of the whole column: where one row has an interval, all have its fields.
        for index, column in enumerate(self.columns):
            fields = [_fields(row.values[index]) for row in self.rows]
            ends = dict.fromkeys(end for row in fields for end in row)
            for record, values in zip(records, fields, strict=True):
                record |= {f"{column.name}{end}": values.get(end) for end in ends}
        return records

    def to_frame(self) -> pandas.DataFrame:
        """The records as a pandas DataFrame."""
        import pandas  # which `--help` need not wait for

        return pandas.DataFrame(self.records())

    def _repr_html_(self) -> str:
        """All columns, as a notebook shows a table; the page has a look of its own."""
        head = "".join(f"<th>{escape(column.name)}</th>" for column in self.columns)
        rows = [
            "".join(
                f"<td>{escape(cell_text(value, column.form)).replace(chr(10), '<br>')}</td>"
                for value, column in zip(row.values, self.columns, strict=True)
            )
            for row in self.rows
        ]
        body = "".join(f"<tr>{cells}</tr>" for cells in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Records of the same fields as CSV, under one head.

    A text that a spreadsheet would take for a formula, and run, has an apostrophe before it.
    """
    names, text = list(records[0]) if records else [], StringIO()
    writer = csv.writer(text, lineterminator="\n")  # by default csv ends lines in \r\n
    writer.writerow(map(_no_formula, names))
    writer.writerows([_no_formula(record[name]) for name in names] for record in records)
    return text.getvalue()


def _no_formula(value: Any) -> Any:
    if not isinstance(value, str) or isinstance(as_number(value), int | float):
        return value
    # Not \r: within a text csv takes it for the end of a row.
    text = value.replace("\r", "\n")
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\n") else text


def paragraph(console: Console, text: str, style: str = "") -> None:
    """A line for people: wrapped between words on a terminal, in one piece elsewhere."""
    console.print(Text(printable(text), style=style), soft_wrap=not console.is_terminal)


def _across(widths: Sequence[int], kept: Sequence[int]) -> int:
    """How wide a table of some columns is; rich would measure every cell anew.

    It has a blank at both edges, one behind each cell and one between columns.
    """
    return min(sum(widths[index] for index in kept) + 2 * len(kept) + 1, WIDEST)


def _is_written(line: Sequence[Segment]) -> bool:
    return any(segment.text.strip() for segment in line)


def _fields(value: Value) -> dict[str, Any]:
    """A value for a record, in parts by the ends of their names."""
    plain = value.value if isinstance(value, Cell) else value
    if isinstance(plain, Estimate):
        return {"": plain.value, " low": plain.low, " high": plain.high}
    if isinstance(plain, BaseToTarget):
        return {"": plain.target, " base": plain.base}
    return {"": plain}


def cell_text(value: Value, form: str) -> str:
    """A value as a terminal shows it, without its detail."""
    if isinstance(value, Cell):
        return value.text or cell_text(value.value, form)
    if isinstance(value, BaseToTarget):
        return cell_text(value.target, form)
    if isinstance(value, Estimate):
        return within(value, form)
    if isinstance(value, float):
        return number(value, form)
    return "" if value is None else str(value)


def _terminal_text(value: Value, column: Column) -> Text:
    text = Text(printable(cell_text(value, column.form)))
    if isinstance(value, Cell):
        text.stylize(STYLES[value.tone])
        text.append(printable(f": {value.detail}") if value.detail else "")
    return text


def _page_cell(value: Value, column: Column) -> Cell:
    cell = value if isinstance(value, Cell) else Cell(value)
    text, small = "", cell.small
    if isinstance(cell.value, Estimate) and not column.half:
        text, small = interval(cell.value, column.form)
    elif isinstance(cell.value, BaseToTarget):
        base, text = (cell_text(end, column.form) for end in (cell.value.base, cell.value.target))
        text = text if base == text else f"{base} → {text}"
    else:
        text = cell_text(cell, column.form)
    return replace(cell, text=text, small=small)
