"""Whether a job that waited in a queue still finds the code that it was submitted with."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import sweeper


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


@cache
def module_digest(name: str) -> str:
    """Digest of the module's file, as it was when first asked for; empty when there is none."""
    try:
        spec = importlib.util.find_spec(name)
        return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()  # type: ignore
    except (ImportError, AttributeError, TypeError, ValueError, OSError):
        return ""


def changed(submitted: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names of what is not as it was when the job was submitted."""
    return sorted(name for name in submitted if submitted[name] != now.get(name))
