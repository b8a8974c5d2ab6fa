"""The lines of a log that tell why a command failed."""

from __future__ import annotations

import re
from collections.abc import Sequence

LINES = 12
"""Of the log, that a failure quotes."""
ERROR_LINES = 3
"""Of the error, where a launcher's own words follow it."""
_RANK = re.compile(r"\[\w+\]: ?")
_BEGIN = "Traceback (most recent call last):"
_UNTRACED = re.compile(r"(Syntax|Indentation|Tab)Error: ")
_OF_LAUNCHERS = re.compile(r"torch\.distributed\.elastic\.\S*Error\b")


def last_lines(lines: Sequence[str], *, failed: bool) -> list[str]:
    """The last lines, and before them the last error of Python's if they lack that of a failure.

    What a launcher such as torchrun says of the end of its processes is no error of theirs.
    """
    tail = list(lines[-LINES:])
    at = _last_error(lines) if failed else None
    if at is None or at >= len(lines) - LINES:
        return tail
    return [*lines[at : at + ERROR_LINES], "...", *tail[ERROR_LINES + 1 :]]


def _last_error(lines: Sequence[str]) -> int | None:
    """The place of the line that ends the last traceback; those of several ranks may mix."""
    found: int | None = None
    traced: set[str] = set()
    for at, line in enumerate(lines):
        match = _RANK.match(line)
        rank = match[0].strip() if match else ""
        text = line[match.end() :] if match else line
        if text.rstrip() == _BEGIN:
            traced.add(rank)
        elif _UNTRACED.match(text) or (rank in traced and text[:1].strip()):
            traced.discard(rank)
            found = found if _OF_LAUNCHERS.match(text) else at
    return found
