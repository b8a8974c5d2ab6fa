"""The standard library's own sources: real text that every machine with Python has."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sweeper.data.text import NotUtf8, TextFiles, decoded_blocks
from sweeper.errors import BadInput

SKIPPED_NAMES = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
"""Directories that are no part of the library proper; `tests` has lib2to3's test data, too."""
GENERATED_PREFIXES = ("config-", "_sysconfigdata")
"""How names begin that a build writes: they differ between machines with the same Python."""


@dataclass(frozen=True, kw_only=True)
class Stdlib(TextFiles):
    """The `.py` sources of the running interpreter's standard library.

    They differ between versions of Python, and the corpus's digest tells such texts apart.
    """

    def files(self) -> list[Path]:
        """The sources, shuffled; BadInput for an interpreter that comes without any."""
        root = Path(sysconfig.get_path("stdlib"))
        # The order is that of hashed names: the same everywhere, and yet a shuffle, so that the
        # held-out tail is representative of the whole and not the packages from x to z.
        by_name = {path.relative_to(root).as_posix(): path for path in sources(root)}
        shuffled = (by_name[name] for name in sorted(by_name, key=shuffle_key))
        files = [path for path in shuffled if is_utf8(path)]
        if not files:
            raise BadInput(f"this Python has no sources in {root}; use data=text or data=tokens")
        return files


def sources(root: Path) -> Iterator[Path]:
    """All `.py` files below `root` but those in `SKIPPED_NAMES` and `GENERATED_PREFIXES`."""
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if is_library_name(name)]
        texts = (name for name in names if name.endswith(".py") and is_library_name(name))
        yield from (Path(folder, name) for name in texts)


def is_library_name(name: str) -> bool:
    """Whether a file or directory of this name belongs to the text."""
    return name not in SKIPPED_NAMES and not name.startswith(GENERATED_PREFIXES)


def shuffle_key(name: str) -> bytes:
    """A key that sorts names in an arbitrary but fixed order."""
    return hashlib.sha256(name.encode()).digest()


def is_utf8(path: Path) -> bool:
    """Whether a file can be part of the text: some versions have a few in other encodings."""
    try:
        for _ in decoded_blocks(path):
            pass
    except NotUtf8:
        return False
    return True
