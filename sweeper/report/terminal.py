"""An answer on a terminal: what is shown in its order, and a line that names what is left out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment, Segments
from rich.text import Text

from sweeper.errors import SHELL, Spelling, as_text, spelled
from sweeper.report.answer import (
    Commands,
    Drawing,
    Facts,
    Item,
    KeyNumbers,
    Progress,
    Sentence,
    Verbatim,
)
from sweeper.table import STYLES, Table, counted, paragraph, printable

LINES = 25
"""What a terminal shows of a verb's end without scrolling."""


class Room(NamedTuple):
    """How much is shown: rows of a table, notes on them, what columns mean, items of a list.

    `whole`: tables behind the first too, and asides.
    """

    rows: int
    notes: int
    explains: bool
    listed: int
    whole: bool = True


ROOMS = (
    Room(rows=8, notes=3, explains=True, listed=20),
    Room(rows=5, notes=2, explains=True, listed=12),
    Room(rows=3, notes=0, explains=True, listed=8),
    Room(rows=3, notes=0, explains=False, listed=5),
    # Rows that are open matter more than what else is told.
    Room(rows=3, notes=0, explains=False, listed=3, whole=False),
    Room(rows=2, notes=0, explains=False, listed=2, whole=False),
    Room(rows=1, notes=0, explains=False, listed=2, whole=False),
)
"""A verb's end has the first of these that leaves it on LINES, or the last."""


@dataclass
class Terminal:
    """A console, and whether all is shown on it: else a part of long tables, and no detail.

    `explained` are the tables, by their keys, of which a reader knows what the columns mean; `more`
    is where the rest is.
    """

    console: Console
    verbose: bool = False
    explained: set[str] = field(default_factory=set)
    spelling: Spelling = SHELL
    more: str = "--verbose"

    def print(self, items: Sequence[Item], end: Sequence[Item] = ()) -> None:
        """Print the items, what is left out, and the end of a verb: on LINES where they fit."""
        for room in ROOMS:
            # A print that is not shown tells nobody what columns mean, and marks none as explained.
            trial = replace(self, explained={*self.explained})
            with self.console.capture() as capture:
                trial._print(items, room)
                trial._print(end, room)
            if self.verbose or self._height(capture.get()) <= LINES:
                break
        self.explained.update(trial.explained)
        self.console.print(Segments([Segment(capture.get())]), crop=False, end="")

    def _height(self, text: str) -> int:
        """The lines that it takes: what is wider than the terminal goes on in the next."""
        lines = Text.from_ansi(text).plain.splitlines()
        # Rounded up, and an empty line is one as well.
        return sum(max(1, -(-cell_len(line) // self.console.width)) for line in lines)

    def _print(self, items: Sequence[Item], room: Room) -> None:
        hidden, rows, notes, listed = list[str](), 0, 0, 0
        first = next((item for item in items if isinstance(item, Table) and not item.detail), None)
        for item in items:
            if isinstance(item, Drawing):
                continue
            aside = (isinstance(item, Table) and item is not first) or getattr(item, "aside", False)
            if (item.detail or (aside and not room.whole)) and not self.verbose:
                title = _brief(str(getattr(item, "title", "")))
                hidden += [title] * bool(title)
                notes += not title
            elif isinstance(item, Table):
                shown = self._table(item, room)
                rows += shown.rows
                notes += shown.notes
                hidden += shown.columns
            elif self.verbose or not (isinstance(item, Sentence) and item.listed):
                self._item(item)
            else:
                listed += 1
                if listed <= room.listed:
                    self._item(item)
        notes += max(0, listed - room.listed)
        counts = [counted(n, what) for n, what in ((rows, "row"), (notes, "note")) if n]
        if hidden := [*counts, *hidden]:
            names = ", ".join(dict.fromkeys(hidden))
            paragraph(self.console, f"Not shown: {names} ({self.more}).", "dim")

    def _item(self, item: Item) -> None:
        if isinstance(item, Sentence):
            style = f"bold {STYLES[item.tone]}" if item.tone else ""
            text = spelled(as_text(item.text), self.spelling)
            paragraph(self.console, f"{'- ' * item.listed}{text}", style)
        elif isinstance(item, Facts):
            for name, value in item.values.items():
                paragraph(self.console, f"{name}: {value}")
        elif isinstance(item, KeyNumbers):
            for number in item.numbers:
                paragraph(self.console, f"{number.name}: {number.value} ({number.note})")
        elif isinstance(item, Progress):
            paragraph(self.console, item.text)
        elif isinstance(item, Verbatim):
            self.console.print(Text(printable(item.text)), soft_wrap=True)
        elif isinstance(item, Commands):
            text = _copied(item.title, item.commands, self.console)
            self.console.print(Text(printable(text)), soft_wrap=True)
            if item.note:
                paragraph(self.console, item.note)

    def _table(self, table: Table, room: Room) -> _LeftOut:
        """Print a table and what explains it."""
        shown = table
        if len(table.rows) > room.rows and not self.verbose:
            shown = table.heaviest(room.rows)
        for part in shown.parts(self.console.width) if self.verbose else [shown]:
            self.console.print(part, crop=False)
        for line in self._legend(table) if room.explains else ():
            paragraph(self.console, line)
        # Of a row that is left out nothing is said.
        rows = [f"{row.subject or row.values[0]}: {row.note}" for row in shown.rows if row.note]
        notes = [*rows, *table.remarks]
        near = notes if self.verbose else rows[: room.notes]
        for line in near:
            paragraph(self.console, f"- {line}")
        return _LeftOut(
            rows=len(table.rows) - len(shown.rows),
            notes=len(notes) - len(near),
            columns=[] if self.verbose else [c.name for c in shown.dropped(self.console.width)],
        )

    def _legend(self, table: Table) -> Sequence[str]:
        """What the columns mean: at length under --verbose, briefly to who was not told before."""
        if self.verbose and table.legend:
            return table.legend
        key = table.key or table.title
        if not table.brief or (key in self.explained and not self.verbose):
            return []
        self.explained.add(key)
        return [table.brief]


@dataclass(frozen=True, kw_only=True)
class _LeftOut:
    """How much of a table is not shown, and which columns."""

    rows: int
    notes: int
    columns: Sequence[str]


def _brief(title: str) -> str:
    """A title within a sentence: without what a colon or a bracket adds to it."""
    name = title.partition(":")[0].partition(" (")[0]
    return f"{name[:1].lower()}{name[1:]}"


def _copied(title: str, commands: Sequence[Sequence[str]], console: Console) -> str:
    """Commands behind their title, in lines that a shell takes as one where one is too long."""
    line = f"{title} {' && '.join(map(shlex.join, commands))}".strip()
    if fits(line, console):
        return line
    lines, room = [title] * bool(title), console.width - len("   \\")
    for count, words in enumerate(commands, 1):
        line = ""
        for word in map(shlex.quote, words):
            if line and cell_len(f"{line} {word}") > room:
                lines.append(f"  {line} \\")
                line = f"  {word}"
            else:
                line = f"{line} {word}" if line else word
        # A shell goes on behind "&&" by itself.
        lines.append(f"  {line}{' &&' * (count < len(commands))}")
    return "\n".join(lines)


def fits(line: str, console: Console) -> bool:
    """Whether a line is to be in one piece: it has room, or goes to a file."""
    return not console.is_terminal or cell_len(line) <= console.width
