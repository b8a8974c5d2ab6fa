"""The code that trials run, by its content: an edit makes another trial."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from glob import glob
from pathlib import Path

import sweeper
from sweeper.errors import ConfigError

# The modules of a user's own that a module imports, by their content: an edit is another model.


PACKAGES = {"site-packages", "dist-packages"}
PLACES = [
    Path(__file__).resolve().parents[1],
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


# Whether a job that waited in a queue still finds the code that it was submitted with.


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


# The files that a command runs, by content: an edited script makes another trial.


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
            found[name] = _code_digest(cwd / name)
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
            now = _code_digest(Path(cwd) / name)
        if now != digest:
            changed.append(name)
    return changed


def _code_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
