"""Texts that are kept as files: `pytest --update-golden` rewrites them, and a diff is reviewed."""

from __future__ import annotations

import fcntl
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sweeper.errors import BadInput

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

    def says(self, text: str) -> None:
        """`text` is this test's next message; tests/a/test_b.py keeps in golden/a/b.txt."""
        text = self._portable(text).strip()
        self.said += 1
        test = self.test.nodeid.partition("::")[2].replace("::", ".")
        name = f"{test.encode('ascii', 'backslashreplace').decode()} {self.said}"
        place = self.test.path.relative_to(TESTS)
        path = FOLDER / place.with_name(f"{place.stem.removeprefix('test_')}.txt")
        if self.update:
            with alone(path):
                self._keep(path, name, text)
        elif (kept := messages(path).get(name, "")) != text:
            lines = diff(kept, text)
            pytest.fail(f"{path}, {name}; `pytest --update-golden` rewrites it:\n{lines}")

    def _portable(self, text: str) -> str:
        """Without what is another on each machine: the test's folder, the Python, digests."""
        text = text.encode("utf-8", "backslashreplace").decode()
        text = text.replace(sys.executable, "python")
        text = re.sub(r"\.py:\d+", ".py:LINE", text.replace(f"{TESTS.parent}/", ""))
        text = re.sub(r"/\S*?/pytest-of-[^/]+/pytest-\d+(/popen-gw\d+)?/[\w.-]+", "TMP", text)
        text = re.sub(r"\S*/lib/python3\.\d+/", "PYTHON/", text)
        return re.sub(r"\b[0-9a-f]{40,}\b", "DIGEST", text)

    def _keep(self, path: Path, name: str, text: str) -> None:
        """Keep a message, and of the others those whose test is still there."""
        source = self.test.path.read_text(encoding="utf-8")
        kept = {
            other: message
            for other, message in messages(path).items()
            if f"def {re.split(r'[ []', other)[0].rpartition('.')[2]}(" in source
            and not (self.said == 1 and other.rpartition(" ")[0] == name.rpartition(" ")[0])
        } | {name: text}
        sections = [f"[{name}]\n{message}\n" for name, message in sorted(kept.items())]
        path.write_text("\n".join(sections), encoding="utf-8")

    @contextmanager
    def error(self, kind: type[Exception] = BadInput) -> Iterator[pytest.ExceptionInfo[Exception]]:
        """What is within raises such an error, whose message is this test's next kept one."""
        with pytest.raises(kind) as caught:
            yield caught
        self.says(str(caught.value))


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
    """A short diff."""
    from difflib import unified_diff

    lines = unified_diff(kept.splitlines(), text.splitlines(), "kept", "now", lineterm="", n=0)
    return "\n".join(list(lines)[:60])
