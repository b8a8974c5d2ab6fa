"""The files that a command runs, by content: an edited script makes another trial."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from sweeper.errors import ConfigError

MAX_FILES = 5_000
"""More files than this are a data folder that a pattern caught by mistake."""


def code_files(command: Sequence[str], patterns: Sequence[str] | None, cwd: Path) -> list[str]:
    """Paths, from `cwd`, of the files that count: those of `patterns`, or the command's script."""
    if patterns is None:
        return _script(command, cwd)
    found: list[str] = []
    for pattern in patterns:
        matched = sorted(str(p.relative_to(cwd)) for p in cwd.glob(pattern) if p.is_file())
        if not matched:
            raise ConfigError("code", pattern, f"a pattern of files in {cwd}; none matches")
        found += matched
    if len(found) > MAX_FILES:
        raise ConfigError("code", list(patterns), f"at most {MAX_FILES} files, not {len(found)}")
    return list(dict.fromkeys(found))


def _script(command: Sequence[str], cwd: Path) -> list[str]:
    """The first word that is a file in `cwd`, or the module after -m."""
    for before, word in zip(("", *command), command, strict=False):
        module = Path(*word.split(".")) if before == "-m" else None
        for path in (module.with_suffix(".py"), module / "__main__.py") if module else ():
            if (cwd / path).is_file():
                return [str(path)]
        if (cwd / word).is_file() and not os.path.isabs(word):
            return [word]
    absolute = (word for word in command if os.path.isabs(word) and word.endswith(".py"))
    return [word for word in absolute if Path(word).is_file()][:1]


def digests(files: Sequence[str], cwd: Path) -> dict[str, str]:
    """SHA-256 of each file's content; ConfigError for one that cannot be read."""
    found = {}
    for name in files:
        try:
            found[name] = hashlib.sha256((cwd / name).read_bytes()).hexdigest()
        except OSError as error:
            raise ConfigError(
                "code", name, f"a file that can be read ({error.strerror})"
            ) from error
    return found


def changed_files(submitted: Mapping[str, str], cwd: str) -> list[str]:
    """Names of files whose content is not what it was."""
    changed = []
    for name, digest in submitted.items():
        try:
            same = hashlib.sha256((Path(cwd) / name).read_bytes()).hexdigest() == digest
        except OSError:
            same = False
        if not same:
            changed.append(name)
    return changed
