"""What a verb's end puts on one screen: what decides always, all else as far as there is room."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from sweeper.table import Table, paragraph

LINES = 25
"""What a terminal shows of a verb's end without scrolling."""
LEAST_ROWS, MANY_ROWS = 3, 8
"""So many rows of a table are left at least; and so many go before all else that can be spared."""
MEANING, A_NOTE = "what columns mean", "a note"
"""What parts are called that several tables have."""


class Spare(IntEnum):
    """How soon a part goes where there is no room; ASIDE is shown under --verbose alone."""

    MUST = 0
    ROWS = 1
    NEWS = 2
    LEGEND = 3
    NOTE = 4
    EXTRA = 5
    ASIDE = 6


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """A table or a paragraph of a screen; `whole`: in one piece, as what is to be copied.

    Of a table with Spare.ROWS rows go, those of the least weight first. `name` says what it is
    where it is left out. A legend is told once in a folder, by its `key`. With `commands` the
    content is the title that they stand behind, to be copied, and a `note` follows them.
    """

    content: Table | str
    spare: Spare = Spare.MUST
    style: str = ""
    whole: bool = False
    name: str = ""
    key: str = ""
    commands: Sequence[Sequence[str]] = ()
    note: str = ""

    def print(self, console: Console) -> None:
        """Print it, as far as the console is wide."""
        if isinstance(self.content, Table):
            console.print(self.content, crop=False)
        elif self.whole or self.commands:
            text = _copied(self.content, self.commands, console) if self.commands else self.content
            console.print(Text(text, style=self.style), soft_wrap=True)
        else:
            paragraph(console, self.content, self.style)
        if self.note:
            paragraph(console, self.note)

    def height(self, console: Console) -> int:
        """The lines of a terminal that it takes: what is wider than that goes on in the next."""
        with console.capture() as capture:
            self.print(console)
        lines = Text.from_ansi(capture.get()).plain.splitlines()
        return sum(max(1, math.ceil(cell_len(line) / console.width)) for line in lines)

    def dropped(self, width: int) -> list[str]:
        """The columns of a table that a console of `width` leaves out."""
        table = self.content
        return [c.name for c in table.dropped(width)] if isinstance(table, Table) else []


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


def table_parts(
    table: Table, spare: Spare = Spare.MUST, *, notes: Spare = Spare.NOTE, name: str = ""
) -> list[Part]:
    """A table, what explains it, and a list of its rows' notes and its remarks."""
    name = name or table.title
    parts = [Part(content=table, spare=spare, name=name)]
    key = table.key or table.title
    if table.brief:
        level = max(spare, Spare.LEGEND)
        parts.append(Part(content=table.brief, spare=level, key=key, name=MEANING))
    parts += [Part(content=line, spare=Spare.ASIDE, name=MEANING) for line in table.legend]
    said = [f"{row.subject or row.values[0]}: {row.note}" for row in table.rows if row.note]
    lines = [f"- {line}" for line in (*said, *table.remarks)]
    parts += [Part(content=line, spare=max(spare, notes), name=A_NOTE) for line in lines]
    return parts


@dataclass
class Screen:
    """Parts in their order, printed together when a verb ends.

    `told` are the legends that a reader of this study has seen; those shown now join them.
    """

    console: Console
    verbose: bool = False
    told: set[str] = field(default_factory=set)
    parts: list[Part] = field(default_factory=list)

    def add(self, *parts: Part) -> None:
        """Put parts below those that there are."""
        self.parts += parts

    def print(self, end: Sequence[Part] = ()) -> None:
        """Print the parts that fit, what is left out, and the verb's `end`; forget them."""
        parts, self.parts = self.parts, []
        if self.verbose:
            # A brief legend says no more than the long one.
            shown = [part for part in parts if not _is_told_at_length(part, parts)]
            left_out = ""
        else:
            shown, left_out = self._fitting(parts, end)
        self.told |= {part.key for part in shown if part.key}
        for part in shown:
            part.print(self.console)
        if left_out:
            paragraph(self.console, left_out, "dim")
        for part in end:
            part.print(self.console)

    def _fitting(self, parts: Sequence[Part], end: Sequence[Part]) -> tuple[list[Part], str]:
        """The parts that there is room for, and a line that names the others."""
        offered = [part for part in parts if not part.key or part.key not in self.told]
        shown = dict[int, Part]()

        # Rich lays a part out to tell its lines: once, however often it is asked whether all fit.
        @cache
        def height(part: Part) -> int:
            return part.height(self.console)

        @cache
        def dropped(part: Part) -> list[str]:
            return part.dropped(self.console.width)

        def line() -> str:
            hidden = [part for at, part in enumerate(offered) if at not in shown]
            columns = [name for part in shown.values() for name in dropped(part)]
            return _not_shown(hidden, list(shown.values()), offered, columns)

        def has_room() -> bool:
            said = Part(content=text).height(self.console) if (text := line()) else 0
            return sum(map(height, (*shown.values(), *end))) + said <= LINES

        # What decides, with few rows where it has many; then all else by what it tells.
        for at, part in enumerate(offered):
            if part.spare <= Spare.ROWS:
                shown[at] = _with_rows(part, MANY_ROWS)
        tables = [at for at, part in shown.items() if part.spare == Spare.ROWS]
        # Where all tables have but few rows left and it is still too much, they have one each, the
        # last one first.
        least_rows = [(at, LEAST_ROWS) for at in reversed(tables)]
        for at, least in least_rows + [(at, 1) for at in reversed(tables)]:
            count = _rows(shown[at])
            while not has_room() and count > least:
                count -= 1
                shown[at] = _with_rows(offered[at], count)
        order = sorted(range(len(offered)), key=lambda at: (offered[at].spare, at))
        for at in order:
            if at not in shown and offered[at].spare != Spare.ASIDE:
                shown[at] = offered[at]
                if not has_room():
                    del shown[at]
        for at in tables:
            while _rows(shown[at]) < _rows(offered[at]):
                fewer, shown[at] = shown[at], _with_rows(offered[at], _rows(shown[at]) + 1)
                if not has_room():
                    shown[at] = fewer
                    break
        return [shown[at] for at in sorted(shown)], line()


def _rows(part: Part) -> int:
    return len(part.content.rows) if isinstance(part.content, Table) else 0


def _with_rows(part: Part, count: int) -> Part:
    """The part with at most `count` rows, where it can spare rows."""
    if part.spare != Spare.ROWS or not isinstance(part.content, Table) or _rows(part) <= count:
        return part
    return replace(part, content=part.content.heaviest(count))


def _is_told_at_length(part: Part, parts: Sequence[Part]) -> bool:
    """Whether a brief legend stands beside a long one."""
    return part.spare == Spare.LEGEND and any(
        other.spare == Spare.ASIDE and other.name == part.name for other in parts
    )


def _rows_left_out(shown: Sequence[Part], offered: Sequence[Part]) -> list[str]:
    """How many rows of which table are left out; which, where there are several tables."""
    tables = [part for part in offered if isinstance(part.content, Table)]
    names = []
    for part in tables:
        kept = [other for other in shown if other.name == part.name and _rows(other)]
        if len(kept) == 1 and (rows := _rows(part) - _rows(kept[0])) > 0:
            of = f" of {_quoted(part.name)}" * (len(tables) > 1)
            names.append(f"{rows} row{'s' * (rows > 1)}{of}")
    return names


def _quoted(name: str) -> str:
    """A table's name within a sentence."""
    return f'"{name}"'


def _not_shown(
    hidden: Sequence[Part], shown: Sequence[Part], offered: Sequence[Part], columns: Sequence[str]
) -> str:
    """A line that names what is left out, `columns` of what is shown too; empty for nothing."""
    notes = sum(part.name == A_NOTE for part in hidden)
    names = _rows_left_out(shown, offered)
    names += [f"{notes} note{'s' * (notes > 1)}"] * bool(notes)
    is_told = any(part.key and part.name == MEANING for part in shown)
    left = (part.name for part in hidden if part.name not in ("", A_NOTE, MEANING * is_told))
    names = list(dict.fromkeys([*names, *left, *columns]))
    return f"Not shown: {', '.join(names)} (--verbose)." if names else ""
