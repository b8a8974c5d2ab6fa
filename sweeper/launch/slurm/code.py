"""Whether a job that waited in a queue still finds the code that it was submitted with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import sweeper
from sweeper.own_modules import own_modules


def code_digests(modules: Iterable[str]) -> dict[str, str]:
    """Digests of sweeper, of the user's `modules` and of what they import of the user's own."""
    digests = {"sweeper": package_digest()}
    for name in modules:
        if name not in digests:  # what one imports need not be followed again
            digests |= own_modules(name)
    return digests


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
