"""Texts that are kept as files: `pytest --update-golden` rewrites them, and a diff is reviewed."""

from __future__ import annotations

import fcntl
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FOLDER = TESTS / "golden"


class Golden:
    """Compares texts of one test with the kept ones; with `update`, keeps them instead."""

    def __init__(self, test: pytest.Function, *, update: bool) -> None:
        self.test, self.update, self.said = test, update, 0

    def check(self, name: str, text: str) -> None:
        """`text` is exactly what `tests/golden/NAME.txt` holds."""
        path, text = FOLDER / f"{name}.txt", self._portable(text).rstrip("\n") + "\n"
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        kept = path.read_text(encoding="utf-8") if path.is_file() else ""
        if kept != text:
            lines = diff(kept, text)
            pytest.fail(f"{path} differs; `pytest --update-golden` rewrites it:\n{lines}")

    def says(self, message: object) -> None:
        """`message`, or what a caught error says, is this test's next kept message.

        tests/a/test_b.py keeps in golden/a/b.txt.
        """
        message = message.value if isinstance(message, pytest.ExceptionInfo) else message
        text = re.sub(r" +$", "", self._portable(str(message)).strip(), flags=re.MULTILINE)
        self.said += 1
        path, name = message_file(self.test.path), f"{section_of(self.test)} {self.said}"
        if self.update:
            rewrite(path, lambda kept: kept | {name: text})
            return
        kept = messages(path)
        if name not in kept:
            pytest.fail(f"{path} has no {name}; `pytest --update-golden` adds it:\n{text}")
        if kept[name] != text:
            lines = diff(kept[name], text)
            pytest.fail(f"{path}, {name}; `pytest --update-golden` rewrites it:\n{lines}")

    def _portable(self, text: str) -> str:
        """Without what is another on each machine: the test's folder, the Python, digests."""
        text = text.encode("utf-8", "backslashreplace").decode()
        text = text.replace(sys.executable, "python")
        text = re.sub(r"\.py:\d+", ".py:LINE", text.replace(f"{TESTS.parent}/", ""))
        text = re.sub(r"/\S*?/pytest-of-[^/]+/pytest-\d+(/popen-gw\d+)?/[\w.-]+", "TMP", text)
        text = re.sub(r"\S*/lib/python3\.\d+/", "PYTHON/", text)
        return re.sub(r"\b[0-9a-f]{32,}\b", "DIGEST", text)


def message_file(test: Path) -> Path:
    """Where a test file's messages are kept."""
    place = test.relative_to(TESTS)
    return FOLDER / place.with_name(f"{place.stem.removeprefix('test_')}.txt")


def section_of(test: pytest.Item) -> str:
    """What the sections of a test's messages are called, before their number."""
    name = test.nodeid.partition("::")[2].replace("::", ".")
    return name.encode("ascii", "backslashreplace").decode()


def rewrite(path: Path, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    """Keep what `change` makes of the messages of a file, which goes when none is left."""
    with alone(path):
        if kept := change(messages(path)):
            sections = [f"[{name}]\n{message}\n" for name, message in sorted(kept.items())]
            path.write_text("\n".join(sections), encoding="utf-8")
        else:
            path.unlink(missing_ok=True)


def no_other(path: Path, is_said: Callable[[str, int], bool], *, update: bool) -> None:
    """Of a file's messages all are said, by section and number; with `update`, others go."""

    def said(name: str) -> bool:
        section, _, number = name.rpartition(" ")
        return is_said(section, int(number))

    if unsaid := [name for name in messages(path) if not said(name)]:
        if not update:
            pytest.fail(f"{path}: no test says {unsaid}; `pytest --update-golden` removes them")
        rewrite(path, lambda kept: {name: kept[name] for name in kept if said(name)})


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Only this process changes `path`: tests run in several."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def messages(path: Path) -> dict[str, str]:
    """The kept messages by test and number; none where there is no file."""
    if not path.is_file():
        return {}
    heading = r"^\[((?:Test\w+\.)?test_.* \d+)\]\n"
    sections = re.split(heading, path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        name: text.strip("\n") for name, text in zip(sections[1::2], sections[2::2], strict=True)
    }


def diff(kept: str, text: str) -> str:
    from difflib import unified_diff

    lines = unified_diff(kept.splitlines(), text.splitlines(), "kept", "now", lineterm="", n=0)
    return "\n".join(list(lines)[:60])
