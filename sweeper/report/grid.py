"""Tables for terminals of any width: words stay whole, columns go by importance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

WIDEST = 10_000
"""More columns of letters than any table has."""


@dataclass
class Grid:
    """A table; its first `left` columns are text, the others numbers.

    Where it is wider than the terminal, the columns named in `spare` are left out, the first of
    them first, and a line says so. No cell is ever broken. Print it with crop=False: what is
    still too wide goes on in the terminal's next line.
    """

    title: str
    columns: Sequence[str]
    left: int = 1
    spare: Sequence[str] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)
    sections: set[int] = field(default_factory=set)

    def add_row(self, *cells: str) -> None:
        """Add a row, a cell for each column."""
        self.rows.append(cells)

    def add_section(self) -> None:
        """Draw a line under the last row."""
        self.sections.add(len(self.rows))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The title, the table that fits, and what was left out of it."""
        dropped: list[str] = []
        shown = self._table(dropped)
        for name in (name for name in self.spare if name in self.columns):
            if _width(console, shown) <= options.max_width:
                break
            dropped.append(name)
            shown = self._table(dropped)
        if self.title:
            yield Text(self.title, style="bold", overflow="ignore", no_wrap=True)
        yield from console.render(shown, options.update(width=_width(console, shown)))
        if dropped:
            yield Text(f"Too narrow here for: {', '.join(dropped)}.", style="dim")

    def _table(self, dropped: Sequence[str]) -> Table:
        """The table without some of its columns."""
        table = Table(box=box.SIMPLE_HEAD, show_edge=True)
        kept = [index for index, name in enumerate(self.columns) if name not in dropped]
        for index in kept:
            justify = "left" if index < self.left else "right"
            table.add_column(self.columns[index], justify=justify, no_wrap=True)  # type: ignore[arg-type]
        for number, row in enumerate(self.rows, 1):
            table.add_row(*(row[index] for index in kept), end_section=number in self.sections)
        return table


def _width(console: Console, table: Table) -> int:
    """How wide a table is with every cell on a line of its own."""
    return Measurement.get(console, console.options.update(width=WIDEST), table).maximum
