"""The commands that the documentation shows, as lists of words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "AGENTS.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
_MARK = re.compile(r"<!-- parsed: (cluster|gpu|minutes|network|own|trainer) -->")
_VARIABLE = re.compile(r'^(?:\$ )?(?:export )?(\w+)="([^"]*)"$', re.MULTILINE)
_INLINE = re.compile(r"`(sweeper [a-z][^`]*)`")
_PLACEHOLDERS = {"...": [], "…": [], "OVERRIDES": [], "N": ["64"]}
"""Words that stand for others, and words that may."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its text, the mark above it (why it is not run), its line and language."""

    text: str
    mark: str
    line: int
    language: str = ""


@dataclass(frozen=True)
class Command:
    """A command of sweeper's: its words after `sweeper`, and the output shown below it.

    `mark` says why it is only parsed: the block's mark, or "inline" within a sentence.
    """

    page: Path
    line: int
    words: tuple[str, ...]
    mark: str
    output: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def commands(page: Path) -> Iterator[Command]:
    """Every command of a page: those of its blocks, then those within sentences."""
    text = page.read_text(encoding="utf-8")
    variables: dict[str, str] = {}
    for block in blocks(text):
        variables |= {match[1]: match[2] for match in _VARIABLE.finditer(block.text)}
        for offset, line, output in _typed(block.text):
            for name, value in variables.items():
                line = line.replace(f"${name}", " ".join(value.split()))
            yield Command(page, block.line + offset, words_of(line), block.mark, output)
    for match in _INLINE.finditer(_sentences(text)):
        line_number = text[: match.start()].count("\n") + 1
        yield Command(page, line_number, words_of(match[1]), "inline")


def blocks(text: str) -> Iterator[Block]:
    lines = text.splitlines()
    fences = [i for i, line in enumerate(lines) if line.lstrip().startswith("```")]
    for start, end in zip(fences[::2], fences[1::2], strict=True):
        above = next((line for line in reversed(lines[:start]) if line.strip()), "")
        mark = _MARK.search(above)
        indent = len(lines[start]) - len(lines[start].lstrip())
        language = lines[start].strip("` ")
        body = "\n".join(
            line[indent:].rstrip() if language == "python" else line.strip()
            for line in lines[start + 1 : end]
        )
        yield Block(body, mark[1] if mark else "", start + 2, language)


def scripts(page: Path) -> Iterator[tuple[str, ...]]:
    """Words of the lines in a page's blocks that call a script of the repository, or make."""
    for block in blocks(page.read_text(encoding="utf-8")):
        for line in block.text.replace("\\\n", " ").splitlines():
            if match := re.match(r"(?:\$ )?(?:python (scripts/.*)|(make .*))", line):
                yield tuple(shlex.split(match[1] or match[2], comments=True))


def _typed(text: str) -> Iterator[tuple[int, str, str]]:
    """Lines of a block that call sweeper, each with its offset and the output that follows it."""
    prompted = re.search(r"^\$ ", text, re.MULTILINE)
    call = r"(?:\w+=\S+ )*(?:\.venv/bin/)?sweeper ((?:.*\\\n)*.*)\n?"
    if prompted:
        call = rf"\$ {call}((?:(?!\$ ).*\n?)*)"
    for match in re.finditer(rf"^{call}", text, re.MULTILINE):
        yield text[: match.start()].count("\n"), match[1], match[2] if prompted else ""


def words_of(line: str) -> tuple[str, ...]:
    """The words of a command line as a shell reads them, placeholders replaced."""
    line = re.sub(r"\\\n", " ", line).removeprefix("sweeper ")
    words = shlex.split(line, comments=True)
    filled = [new for word in words for new in _PLACEHOLDERS.get(word, [word])]
    if len(filled) < len(words) and "--" in filled:  # what was left out holds the width
        filled.insert(1, "model.width=64")
    return tuple(filled)


def _sentences(text: str) -> str:
    """A page without its blocks, of the same length and lines."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    return re.sub(r"^ *```.*?^ *```", blank, text, flags=re.MULTILINE | re.DOTALL)
