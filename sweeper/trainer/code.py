"""The files that a command runs, by content: an edited script makes another trial."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path

from sweeper.errors import ConfigError

_INTERPRETER = re.compile(r"python|torchrun|accelerate|deepspeed|bash$|sh$|env$|srun$|mpirun$")
MAX_FILES = 5_000
"""More files than this are a data folder that a pattern caught by mistake."""


def code_files(command: Sequence[str], patterns: Sequence[str] | None, cwd: Path) -> list[str]:
    """Paths, from `cwd`, of the files that count: those of `patterns`, or the command's script."""
    if patterns is None:
        return _script(command, cwd)
    found: list[str] = []
    for pattern in patterns:
        matched = sorted(glob(pattern, root_dir=cwd, recursive=True)) if pattern else []
        files = [name for name in matched if (cwd / name).is_file()]
        if not files:
            raise ConfigError("code", pattern, f"a pattern of files in {cwd}; none matches")
        found += files
    if len(found) > MAX_FILES:
        raise ConfigError("code", list(patterns), f"at most {MAX_FILES} files, not {len(found)}")
    return list(dict.fromkeys(found))


def _script(command: Sequence[str], cwd: Path) -> list[str]:
    """The first word that is a file and no interpreter, or the module after -m."""
    for before, word in zip(("", *command), command, strict=False):
        module = Path(*word.split(".")) if before == "-m" else None
        for path in (module.with_suffix(".py"), module / "__main__.py") if module else ():
            if (cwd / path).is_file():
                return [str(path)]
        is_program = before == "" and (_INTERPRETER.match(Path(word).name) or "/" not in word)
        if word and not is_program and (cwd / word).is_file():
            return [word]
    return []


def missing_script(command: Sequence[str], cwd: Path) -> str | None:
    """The script that Python is to run and that is not there.

    Other programs look for theirs elsewhere, or have words before it that may end alike.
    """
    word = next(iter(command[1:]), "-")
    if not re.fullmatch(r"python[\d.]*", Path(command[0]).name) or word.startswith("-"):
        return None
    return None if "{" in word or os.path.exists(cwd / word) else word


def digests(files: Sequence[str], cwd: Path) -> dict[str, str]:
    """SHA-256 of each file's content; ConfigError for one that cannot be read."""
    found = {}
    for name in files:
        try:
            found[name] = _digest(cwd / name)
        except OSError as error:
            raise ConfigError(
                "code", name, f"a file that can be read ({error.strerror})"
            ) from error
    return found


def changed_files(submitted: Mapping[str, str], cwd: str) -> list[str]:
    """Names of files whose content is not what it was."""
    changed = []
    for name, digest in submitted.items():
        now = None
        with suppress(OSError):
            now = _digest(Path(cwd) / name)
        if now != digest:
            changed.append(name)
    return changed


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
