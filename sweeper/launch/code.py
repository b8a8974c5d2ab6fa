"""Whether a job that waited in a queue still finds the code that it was submitted with."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import sweeper
from sweeper.trial import TrialSpec


def code_of(spec: TrialSpec, corpus: Mapping[str, Any]) -> dict[str, str]:
    """Digests of sweeper and of the user's modules that a specification and a corpus name."""
    names = [plugin.name for plugin in spec.plugins]
    targets = [*names, *_targets([*(plugin.arguments for plugin in spec.plugins), corpus])]
    modules = {target.rpartition(".")[0] for target in targets}
    own = sorted(name for name in modules if name and name.split(".")[0] != "sweeper")
    return {"sweeper": package_digest(), **{name: module_digest(name) for name in own}}


def _targets(value: Any) -> Iterator[str]:
    """All `_target_` anywhere in plain JSON."""
    if isinstance(value, Mapping):
        if isinstance(value.get("_target_"), str):
            yield value["_target_"]
        for item in value.values():
            yield from _targets(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _targets(item)


@cache
def package_digest() -> str:
    """Digest of all of sweeper's Python files, as they were when first asked for."""
    folder, found = Path(sweeper.__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        found.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


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
