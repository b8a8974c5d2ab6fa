"""The modules of a user's own that a module imports, by their content: an edit is another model."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGES = {"site-packages", "dist-packages"}
PLACES = [
    Path(__file__).resolve().parent,
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib")),
]
"""What lies there is installed, or sweeper itself: no user edits it between two trials."""


@cache
def own_modules(name: str) -> dict[str, str]:
    """Digests of a module and of all that it imports of the user's own, by their dotted names.

    Imports are read from the text, those within functions too, and nothing is run but the packages
    that `name` lies in. Files are read as they are when this is first asked.
    """
    try:
        spec = importlib.util.find_spec(name)
        first = Path(spec.origin)  # type: ignore[union-attr, arg-type]
        found = {name: _digest(first)}
    except (ImportError, AttributeError, TypeError, ValueError, OSError):
        return {name: ""}
    if not is_own(first):
        return found
    waiting = [(name, first)]
    while waiting:
        for imported in sorted(_imports(*waiting.pop())):
            path = None if imported in found else _file(imported)
            if path is not None and is_own(path):
                found[imported] = _digest(path)
                waiting.append((imported, path))
    return dict(sorted(found.items()))


def is_own(path: Path) -> bool:
    """Whether a file of Python is neither installed nor sweeper's."""
    place = path.resolve()
    if place.suffix != ".py" or PACKAGES & {*place.parts}:
        return False
    return not any(place.is_relative_to(root) for root in PLACES)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _imports(name: str, path: Path) -> Iterator[str]:
    """Dotted names that a module may mean: of `from a import b` both a and a.b."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_packages(alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            start = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            yield from _with_packages(start)
            yield from (f"{start}.{alias.name}" for alias in node.names if alias.name != "*")


def _with_packages(name: str) -> Iterator[str]:
    """a, a.b and a.b.c of a.b.c: an import runs them all."""
    parts = name.split(".")
    yield from (".".join(parts[: i + 1]) for i in range(len(parts)) if all(parts))


def _file(name: str) -> Path | None:
    """Where a module's text lies, found without importing its packages; None where it has none."""
    top, *parts = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, AttributeError, ValueError):
        return None
    if spec is None or not parts:
        return Path(spec.origin) if spec and spec.has_location and spec.origin else None
    for place in spec.submodule_search_locations or ():
        below = Path(place, *parts)
        for path in (below / "__init__.py", below.with_suffix(".py")):
            if path.is_file():
                return path
    return None
