"""An answer on a terminal: every row in its order, and a line that names what is left out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from sweeper.errors import SHELL, Spelling, as_text, printable, spelled
from sweeper.report.sections import (
    Commands,
    Drawing,
    Facts,
    Item,
    Progress,
    Sentence,
    Verbatim,
    tone_of,
)
from sweeper.table import STYLES, Table, counted, paragraph


@dataclass
class Terminal:
    """A console, which shows details if `verbose`; `more` says where they are."""

    console: Console
    verbose: bool = False
    spelling: Spelling = SHELL
    more: str = "--verbose"
    _legends: set[str] = field(default_factory=set, init=False)

    def print(self, items: Sequence[Item]) -> None:
        """Print the items, and what is left out."""
        hidden, notes = list[str](), 0
        for item in items:
            if isinstance(item, Drawing):
                continue
            if item.detail and not self.verbose:
                title = str(getattr(item, "title", "")).partition(":")[0].partition(" (")[0]
                hidden += [f"{title[:1].lower()}{title[1:]}"] * bool(title)
                notes += not title
            elif isinstance(item, Table):
                self._table(item)
            else:
                self._item(item)
        if hidden := [*[counted(notes, "note")] * bool(notes), *hidden]:
            names = ", ".join(dict.fromkeys(hidden))
            paragraph(self.console, f"Not shown: {names} ({self.more}).", "dim")

    def _item(self, item: Item) -> None:
        if isinstance(item, Sentence):
            style = f"bold {STYLES[tone_of(item.code)]}" if item.code else ""
            text = spelled(as_text(item.text), self.spelling)
            paragraph(self.console, f"{'- ' * item.listed}{text}", style)
        elif isinstance(item, Facts):
            for name, value in item.values.items():
                paragraph(self.console, f"{name}: {value}")
        elif isinstance(item, Progress):
            paragraph(self.console, item.text)
        elif isinstance(item, Verbatim):
            self.console.print(Text(printable(item.text)), soft_wrap=True)
        elif isinstance(item, Commands):
            text = _copied(item.title, item.commands, self.console)
            self.console.print(Text(printable(text)), soft_wrap=True)
            if item.note:
                paragraph(self.console, item.note)

    def _table(self, table: Table) -> None:
        for part in table.parts(self.console.width):
            self.console.print(part, crop=False)
        for line in table.legend:
            if line not in self._legends:  # tables alike have the same
                paragraph(self.console, line)
        self._legends |= {*table.legend}
        notes = [f"{row.subject or row.values[0]}: {row.note}" for row in table.rows if row.note]
        for line in [*notes, *table.remarks]:
            paragraph(self.console, f"- {line}")


def _copied(title: str, commands: Sequence[Sequence[str]], console: Console) -> str:
    """Commands behind their title, in lines that a shell takes as one where one is too long."""
    line = f"{title} {' && '.join(map(shlex.join, commands))}".strip()
    if fits(line, console):
        return line
    lines, room = [title] * bool(title), console.width - len("   \\")
    for count, command in enumerate(commands, 1):
        line = ""
        for word in map(shlex.quote, command):
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
