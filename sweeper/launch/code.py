"""The code that trials run, by its content: an edited model or script makes another trial.

Code is known in two ways, each file by the SHA-256 of its bytes (`file_digest`):

- by module, where a configuration names a class. `user_modules` follows its imports as far as they
  are the user's own files: what is installed, and sweeper itself, nobody edits between two trials
  (`NUMERICS` in a runner's file stands for the latter in a trial's key).
- by file, where the trial is a command. `command_files` finds its script, or what the user names.

Digests enter a trial's key, and travel with a job that waits: `changed_modules` and `changed_files`
say what was edited meanwhile, since its results would belong to another key.
"""

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

PACKAGES = {"site-packages", "dist-packages"}
INSTALLED = [
    Path(__file__).resolve().parents[1],
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib")),
]
"""What lies there is installed, or sweeper itself."""
INTERPRETER = re.compile(r"python|torchrun|accelerate|deepspeed|bash$|sh$|env$|srun$|mpirun$")
MAX_FILES = 5_000
"""More files than this are a data folder that a pattern caught by mistake."""


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content; OSError where it cannot be read."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# Modules: what a class of the user's imports.


@cache
def user_modules(name: str) -> dict[str, str]:
    """Digests of the module `name` and of all user modules that it imports, by their dotted names.

    Imports are read from the text, those within functions too, and nothing is run but the packages
    that `name` lies in. Files are read as they are when this is first asked. A module that is not
    found, or is no file, has the digest "".
    """
    try:
        spec = importlib.util.find_spec(name)
        first = Path(spec.origin)  # type: ignore[union-attr, arg-type]
        digests = {name: file_digest(first)}
    except (ImportError, AttributeError, TypeError, ValueError, OSError):
        return {name: ""}
    if not is_user_file(first):
        return digests
    unread = [(name, first)]
    while unread:
        for imported in sorted(_imports(*unread.pop())):
            path = None if imported in digests else _file_of(imported)
            if path is not None and is_user_file(path):
                digests[imported] = file_digest(path)
                unread.append((imported, path))
    return dict(sorted(digests.items()))


def is_user_file(path: Path) -> bool:
    """Whether a file of Python is neither installed nor sweeper's."""
    place = path.resolve()
    if place.suffix != ".py" or PACKAGES & {*place.parts}:
        return False
    return not any(place.is_relative_to(root) for root in INSTALLED)


def _imports(name: str, path: Path) -> Iterator[str]:
    """Dotted names of all that the module `name` may import.

    An import of a.b.c runs a, a.b and a.b.c; `from a import b` may mean both a and a.b.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return
    package = (name if path.name == "__init__.py" else name.rpartition(".")[0]).split(".")
    for node in ast.walk(tree):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # One dot is this package, each further one the package above.
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            modules = [module]
            yield from (f"{module}.{alias.name}" for alias in node.names if alias.name != "*")
        for module in modules:
            parts = module.split(".")
            yield from (".".join(parts[: i + 1]) for i in range(len(parts)) if all(parts))


def _file_of(name: str) -> Path | None:
    """The file of a module, found without importing its packages; None where it has none."""
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


def module_digests(modules: Iterable[str]) -> dict[str, str]:
    """Digests of sweeper, of `modules` and of all user modules that they import."""
    digests = {"sweeper": package_digest()}
    for name in modules:
        if name not in digests:  # else an earlier one imports it: it was followed
            digests |= user_modules(name)
    return digests


@cache
def package_digest() -> str:
    """Digest of all of sweeper's Python files, as they were when first asked for."""
    folder, digest = Path(sweeper.__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0{file_digest(path)}\0".encode())
    return digest.hexdigest()


def changed_modules(submitted: Mapping[str, str]) -> list[str]:
    """Names of those of `module_digests` that are not as they were when a job was submitted."""
    now = module_digests(submitted.keys() - {"sweeper"})
    return sorted(name for name in submitted if submitted[name] != now.get(name))


# Files: what a command runs.


def command_files(command: Sequence[str], patterns: Sequence[str] | None, cwd: Path) -> list[str]:
    """Paths, from `cwd`, of the files that count: those of `patterns`, or the command's script."""
    if patterns is None:
        return _script(command, cwd)
    files: list[str] = []
    for pattern in patterns:
        matched = sorted(glob(pattern, root_dir=cwd, recursive=True)) if pattern else []
        matched = [name for name in matched if (cwd / name).is_file()]
        if not matched:
            raise ConfigError("code", pattern, f"a pattern of files in {cwd}; none matches")
        files += matched
    if len(files) > MAX_FILES:
        raise ConfigError("code", list(patterns), f"at most {MAX_FILES} files, not {len(files)}")
    return list(dict.fromkeys(files))


def _script(command: Sequence[str], cwd: Path) -> list[str]:
    """The first argument that is a file and no interpreter, or the module after -m."""
    for before, argument in zip(("", *command), command, strict=False):
        module = Path(*argument.split(".")) if before == "-m" else None
        for path in (module.with_suffix(".py"), module / "__main__.py") if module else ():
            if (cwd / path).is_file():
                return [str(path)]
        # A bare first word is looked up on PATH: a file of that name in `cwd` is not what runs.
        on_path = before == "" and (INTERPRETER.match(Path(argument).name) or "/" not in argument)
        if argument and not on_path and (cwd / argument).is_file():
            return [argument]
    return []


def missing_script(command: Sequence[str], cwd: Path) -> str | None:
    """The script that Python is to run and that is not there.

    Other programs look for theirs elsewhere, or have arguments before it that may end alike.
    """
    # "-" stands for no script: so does an option, behind which Python's own may follow.
    script = next(iter(command[1:]), "-")
    if not re.fullmatch(r"python[\d.]*", Path(command[0]).name) or script.startswith("-"):
        return None
    return None if "{" in script or os.path.exists(cwd / script) else script


def file_digests(files: Sequence[str], cwd: Path) -> dict[str, str]:
    """Digests of `files`, by name; ConfigError for one that cannot be read."""
    digests = {}
    for name in files:
        try:
            digests[name] = file_digest(cwd / name)
        except OSError as error:
            allowed = f"a file that can be read ({error.strerror})"
            raise ConfigError("code", name, allowed) from error
    return digests


def changed_files(submitted: Mapping[str, str], cwd: str | Path) -> list[str]:
    """Names of those of `file_digests` whose content is not what it was, or cannot be read."""
    changed = []
    for name, digest in submitted.items():
        now = None
        with suppress(OSError):
            now = file_digest(Path(cwd, name))
        if now != digest:
            changed.append(name)
    return changed
