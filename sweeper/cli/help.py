"""The text of `--help`: usage, what it is, and a panel for each group of options or verbs.

rich would draw it alike, and takes longer to load than all else of a `--help`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence

Rows = Sequence[tuple[str, str]]
"""Names, as of an option and its value, and what they mean."""
NARROWEST = 24
"""A text of fewer columns beside its names stands below them."""
_COLOURS = {r"(?<=^│ )[a-z]+(?=  )|(?<![\w<-])--?[a-z][\w-]*": "1;36", r"<[^<>]+>": "33"}
"""Of verbs and options, and of the types of their values."""


def page(usage: str, text: str, panels: Mapping[str, Rows], epilog: str) -> str:
    """The whole help, as wide as the terminal, in its colours."""
    width = max(20, shutil.get_terminal_size().columns)
    first, _, others = text.partition("\n\n")
    blocks = [usage, " ".join(first.split()), *map(_paragraph, others.split("\n\n"))]
    lines = [line for block in blocks if block for line in (*_wrapped(block, width), "")]
    for title, rows in panels.items():
        lines += _panel(title, rows, width)
    lines += ["", *_wrapped(epilog, width)] if epilog else []
    return "\n".join(map(_coloured, lines)) if _colours() else "\n".join(lines)


def _paragraph(text: str) -> str:
    """Prose in one line, as it was broken for its author's screen; an example begins a new one."""
    return re.sub(r"(?<!:)\s*\n\s*(?!sweeper )", " ", text)


def _wrapped(text: str, width: int) -> list[str]:
    return [
        f" {part}" for line in text.splitlines() for part in _parts(line.strip(), width - 2) or [""]
    ]


def _parts(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


def _panel(title: str, rows: Rows, width: int) -> Iterator[str]:
    """A box around a title and rows of names and their meaning."""
    utf = (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    across, down, *corners = list("─│╭╮╰╯" if utf else "-|++++")
    inner, named = width - 4, max(len(name) for name, _ in rows)
    yield f"{corners[0]}{across} {title} ".ljust(width - 1, across) + corners[1]
    for name, meaning in rows:
        beside = inner - named - 2
        if beside >= NARROWEST:
            cells = _parts(meaning, beside) or [""]
            names = [name, *[""] * (len(cells) - 1)]
            shown = [f"{name:{named}}  {cell}" for name, cell in zip(names, cells, strict=True)]
        else:
            shown = [*_parts(name, inner), *(f"  {c}" for c in _parts(meaning, inner - 2))]
        yield from (f"{down} {line:{inner}} {down}" for line in shown)
    yield corners[2] + across * (width - 2) + corners[3]


def _colours() -> bool:
    """Whether a terminal is to get colours; from other streams click takes them away."""
    return "NO_COLOR" not in os.environ and os.environ.get("TERM") not in ("dumb", "unknown")


def _coloured(line: str) -> str:
    for pattern, colour in _COLOURS.items():
        line = re.sub(pattern, rf"\033[{colour}m\g<0>\033[0m", line)
    return line
