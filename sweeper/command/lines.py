"""Lines of files that grow while they are read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

CHUNK = 1 << 22
"""Bytes of a file that one look takes in: a flood of output must not stop all else."""
LONGEST_LINE = 1 << 16
"""Bytes of a line; the rest of a longer one is passed over."""
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
"""What colours a text or moves the cursor, and is no part of what a reader sees."""


class Lines:
    """New lines of a growing file; half a line waits for its other half."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        """The file need not be there yet; of a `fresh` run what is there already is another's."""
        self.path, self._at, self._rest = path, 0, b""
        if fresh and path.exists():
            self._at = path.stat().st_size

    def skipped(self) -> bool:
        """Whether an earlier run's lines were passed over."""
        return self._at > 0

    def read(self, *, ended: bool = False) -> Iterator[str]:
        """Whole lines, carriage returns ending them too; when it `ended`, all that is left."""
        # What a process left behind goes on writing is not waited for.
        end = self.path.stat().st_size if ended and self.path.exists() else 0
        while data := self._chunk():
            yield from self._split(data)
            if self._at >= end:
                break
        if ended and self._rest:
            rest, self._rest = self._rest, b""
            yield rest.decode(errors="replace")

    def _chunk(self) -> bytes:
        try:
            if not self.path.is_file():  # a pipe would be waited for
                return b""
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self._at:  # it was begun anew
                    self._at, self._rest = 0, b""
                file.seek(self._at)
                data = file.read(CHUNK)
        except OSError:
            return b""
        self._at += len(data)
        return data

    def _split(self, data: bytes) -> list[str]:
        # \r too: progress bars rewrite a line by it, and end none for minutes.
        *whole, rest = re.split(rb"[\r\n]+", self._rest + data)
        self._rest = rest[:LONGEST_LINE]
        return [line[:LONGEST_LINE].decode(errors="replace") for line in whole if line]


def plain(line: str) -> str:
    """A line as a terminal shows it, without its colours."""
    return _ANSI.sub("", line)


def last_text(path: Path) -> list[str]:
    """The lines of a file's last `CHUNK`; none where it cannot be read."""
    if not path.is_file():
        return []
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - CHUNK))
            data = file.read(CHUNK)
    except OSError:
        return []
    return [x[:LONGEST_LINE].decode(errors="replace") for x in re.split(rb"[\r\n]+", data) if x]
