"""Where a study's numbers come from: versions, machine, code."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from sweeper import __version__
from sweeper.mirror import redact

PACKAGES = ("torch", "numpy", "optuna", "hydra-core")


def provenance() -> dict[str, Any]:
    """Versions of what computes, the machine, the git commit worked in, the command."""
    return {
        "sweeper": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "machine": f"{platform.node()}, {platform.system()} {platform.machine()}",
        "git": _commit_at_first(Path.cwd()),
        "command": shlex.join(["sweeper", *map(redact, sys.argv[1:])]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


@cache
def _commit_at_first(folder: Path) -> str | None:
    """`git_commit`, asked once: what runs was read then, and a search says it after every batch."""
    return git_commit()


def git_commit() -> str | None:
    """The commit of the repository that the command is run in, "+changes" if it has any."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None
