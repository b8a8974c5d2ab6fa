"""Whether a job that waited in a queue still finds the code that it was submitted with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import sweeper
from sweeper.plugin import module_digest


def code_digests(modules: Iterable[str]) -> dict[str, str]:
    """Digests of sweeper and of the user's `modules`."""
    return {"sweeper": package_digest(), **{name: module_digest(name) for name in modules}}


@cache
def package_digest() -> str:
    """Digest of all of sweeper's Python files, as they were when first asked for."""
    folder, digest = Path(sweeper.__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def changed(submitted: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names of what is not as it was when the job was submitted."""
    return sorted(name for name in submitted if submitted[name] != now.get(name))
