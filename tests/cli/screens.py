"""How the end of a verb looks on a terminal: every one that a test brings about is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from rich.console import Console
from rich.text import Text

from sweeper import files
from sweeper.report import output
from sweeper.report.output import Output
from sweeper.report.sections import Shown
from sweeper.table import Table

WIDTHS = (80, 100)


def terminal(width: int) -> Console:
    """A terminal of so many columns, whose text is kept."""
    return Console(file=StringIO(), width=width, force_terminal=True, legacy_windows=False)


def text_of(console: Console) -> str:
    """What stands on it, without colours."""
    assert isinstance(console.file, StringIO)
    plain = Text.from_ansi(console.file.getvalue()).plain
    return "\n".join(line.rstrip() for line in plain.splitlines())


def faults(text: str, width: int) -> list[str]:
    result = []
    for line in text.splitlines():
        # Only a word that nothing can break, such as a path, is as long as that.
        if len(line) > width and max(map(len, line.split())) < width // 2:
            result.append(f"a broken line: {line!r}")
        if "…" in line:
            result.append(f"a cut line: {line!r}")
    return result


@contextmanager
def counted_ends(
    found: list[str], seen: dict[int, str], widths: Sequence[int] = WIDTHS
) -> Iterator[None]:
    """Within, every end of a verb is shown on terminals, too: `found` gets what is wrong with it.

    `seen` keeps the latest end as it looks at a width.
    """
    real, damaged = Output.end, dict[Path, str]()

    def take_damaged() -> dict[Path, str]:
        return dict(damaged)

    def end(self: Output, shown: Shown) -> None:
        # Taken once, and to be said by every end of this verb.
        damaged.clear()
        damaged.update(files.take_damaged())
        for width in widths if not self.verbose else ():
            screen = Output(people=terminal(width))
            tables = [item for item in shown.items if isinstance(item, Table) and not item.detail]
            found.extend(
                f"at {width} columns: a table of two lines a row:\n{table}"
                for table in tables
                if any(_breaks(part, width) for part in table.parts(width))
            )
            real(screen, replace(shown, before=(), document={}, folder=None))
            seen[width] = text_of(screen.people)
            why = faults(seen[width], width)
            found.extend(f"at {width} columns: {each}\n{seen[width]}" for each in why)
        real(self, shown)

    with patch.object(Output, "end", end), patch.object(output, "take_damaged", take_damaged):
        yield


def _breaks(table: Table, width: int) -> bool:
    """Whether its columns do not fit beside each other."""
    console = terminal(width)
    console.print(table, crop=False)
    return len(text_of(console).splitlines()) > len(table.rows) + len(table.section_ends) + 3
