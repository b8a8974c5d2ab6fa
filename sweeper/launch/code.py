"""The code that trials run, by its content: an edited model or script makes another trial.

Code is known in two ways, each file by the SHA-256 of its bytes (`file_digest`):

- by module, where a configuration names a class. `user_modules` follows its imports as far as they
  are the user's own files: what is installed, and sweeper itself, nobody edits between two trials
  (`NUMERICS` in a runner's file stands for the latter in a trial's key). What a notebook's cells
  define has no file: `main_code` digests what was compiled.
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
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from glob import glob
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from sweeper.errors import ConfigError

PACKAGES = {"site-packages", "dist-packages"}
INSTALLED = [
    Path(__file__).resolve().parents[1],
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib")),
]
"""What lies there is installed, or sweeper itself."""
INTERPRETER = re.compile(r"python|torchrun|accelerate|deepspeed|bash$|sh$|env$|srun$|mpirun$")
SHELL_SCRIPTS = (".sh", ".bash")
MAX_BYTES = 1_000_000
"""Of a shell script, as far as it is read."""
MAX_FILES = 5_000
"""More files than this are a data folder that a pattern caught by mistake."""


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content; OSError where it cannot be read."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


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
    _READ[name] = (first, digests[name], getattr(sys.modules.get(name), "__spec__", None))
    unread = [(name, first)]
    while unread:
        for imported in sorted(_imports(*unread.pop())):
            path = None if imported in digests else _file_of(imported)
            if path is not None and is_user_file(path):
                digests[imported] = file_digest(path)
                loaded = getattr(sys.modules.get(imported), "__spec__", None)
                _READ[imported] = (path, digests[imported], loaded)
                unread.append((imported, path))
    return dict(sorted(digests.items()))


_READ: dict[str, tuple[Path, str, object]] = {}
"""Modules whose files were read: the file, its digest, and the spec that the module then had."""


def edited_modules() -> list[str]:
    """User modules whose files are not as they were when read, and that nobody loaded again.

    What was loaded again is read again, too: a notebook's process outlives many edits.
    """
    edited = []
    for name, (path, digest, spec) in list(_READ.items()):
        if not path.is_file() or file_digest(path) != digest:
            # A reload gives a module a new spec.
            if getattr(sys.modules.get(name), "__spec__", None) is spec:
                edited.append(name)
            else:
                user_modules.cache_clear()
                del _READ[name]
    return edited


MAIN = "__main__"
"""The module of a notebook's cells, or of a script: no file stands for what it holds now."""


def main_code(target: str) -> dict[str, str]:
    """Digests of a class or function of `__main__` and of all that it uses by name; {} of others.

    What was defined in the same place counts by its compiled code, so that neither a comment nor
    another cell changes it; what it uses of the user's modules by these; and a constant by itself.
    """
    module, _, first = target.rpartition(".")
    if module != MAIN:
        return {}
    space, digests, unread = vars(sys.modules[MAIN]), dict[str, str](), [first]
    while unread:
        name = unread.pop()
        used = space.get(name)
        if f"{MAIN}.{name}" in digests or name not in space:
            continue
        if isinstance(used, ModuleType):
            digests |= _user_module(used.__name__)
        elif isinstance(used, type | FunctionType) and used.__module__ == MAIN:
            parts, names = _compiled(used)
            # Addresses of what is no constant differ from process to process.
            text = re.sub(" at 0x[0-9a-f]+", "", repr(parts))
            digests[f"{MAIN}.{name}"] = hashlib.sha256(text.encode()).hexdigest()
            unread += sorted(names)
        elif isinstance(used, type | FunctionType):
            digests |= _user_module(used.__module__)
        elif isinstance(used, int | float | str | bytes | None):
            digests[f"{MAIN}.{name}"] = hashlib.sha256(repr(used).encode()).hexdigest()
    return digests


def _user_module(name: str) -> dict[str, str]:
    path = _file_of(name)
    return user_modules(name) if path is not None and is_user_file(path) else {}


def _compiled(used: type | FunctionType) -> tuple[list[Any], set[str]]:
    """What a class or a function does, without places in files, and the names that it looks up."""
    parts: list[Any] = []
    names: set[str] = set()

    def read(code: CodeType) -> None:
        parts.extend([code.co_code, code.co_names, code.co_varnames, code.co_freevars])
        names.update(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                read(constant)
            else:
                # Of a frozenset the order differs from process to process.
                is_set = isinstance(constant, frozenset)
                parts.append(sorted(map(repr, constant)) if is_set else repr(constant))

    if isinstance(used, FunctionType):
        parts += [repr(used.__defaults__), repr(used.__kwdefaults__)]
        read(used.__code__)
        return parts, names
    parts += [f"{base.__module__}.{base.__qualname__}" for base in used.__bases__]
    names.update(base.__name__ for base in used.__bases__ if base.__module__ == MAIN)
    for name, value in sorted(vars(used).items()):
        inner = getattr(value, "__func__", getattr(value, "fget", value))
        parts.append(name)
        if isinstance(inner, FunctionType):
            more, more_names = _compiled(inner)
            parts, names = parts + more, names | more_names
        elif isinstance(value, int | float | str | tuple | None) and name not in UNREAD:
            parts.append(repr(value))
    return parts, names


UNREAD = {"__doc__", "__firstlineno__", "__module__", "__qualname__", "__static_attributes__"}
"""Of a class: what says where it stands, and nothing of what it does."""


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
    folder, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0{file_digest(path)}\0".encode())
    return digest.hexdigest()


def changed_modules(submitted: Mapping[str, str]) -> list[str]:
    """Names of those of `module_digests` that are not as they were when a job was submitted."""
    now = module_digests(submitted.keys() - {"sweeper"})
    return sorted(name for name in submitted if submitted[name] != now.get(name))


def command_files(command: Sequence[str], patterns: Sequence[str] | None, cwd: Path) -> list[str]:
    """Paths, from `cwd`, of the files that count: those of `patterns`, or the command's script."""
    if patterns is None:
        return [each for name in _script(command, cwd) for each in (name, *_started(name, cwd))]
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
    """The first argument that is a file and no interpreter, the module after -m, a -c's scripts."""
    for before, argument in zip(("", *command), command, strict=False):
        for path in _of_module(argument) if before == "-m" else ():
            if os.path.isfile(cwd / path):
                return [path]
        # A bare first word is looked up on PATH: a file of that name in `cwd` is not what runs.
        on_path = before == "" and (INTERPRETER.match(Path(argument).name) or "/" not in argument)
        # Of a text that is longer than a name may be `Path.is_file` raises an error.
        if argument and not on_path and os.path.isfile(cwd / argument):
            return [argument]
        if re.fullmatch(r"-\w*c", before) and re.search(r"sh$", command[0]):
            return _named(argument, cwd)
    return []


def _started(script: str, cwd: Path) -> list[str]:
    scripts = [os.path.normpath(script)]
    for name in scripts:
        data = b""
        with suppress(OSError), (cwd / name).open("rb") as file:
            data = file.read(MAX_BYTES)
        if name.endswith(SHELL_SCRIPTS) or re.match(rb"#!.*\b(ba|z|da)?sh\b", data):
            text = re.sub(r"^\s*#.*", "", data.decode(errors="replace"), flags=re.MULTILINE)
            scripts += [
                each for each in _named(text, cwd, Path(name).parent) if each not in scripts
            ]
    return scripts[1:]


def _named(text: str, cwd: Path, *folders: Path) -> list[str]:
    names = list[str]()
    for variable, name in re.findall(r"""(\$\w+|[})"'`]*)([\w./-]+\.(?:py|sh|bash)\b)""", text):
        # In "$HERE/train.py" nobody knows the folder: it is likely that of the script.
        names += [name, name.lstrip("/")] if variable and name[0] == "/" else [name]
    for module in re.findall(r"\s-m\s+([\w.]+)", text):
        names += _of_module(module)
    paths = (os.path.normpath(folder / name) for name in names for folder in (Path(), *folders))
    return [path for path in dict.fromkeys(paths) if os.path.isfile(cwd / path)]


def _of_module(name: str) -> list[str]:
    path = Path(*name.split("."))
    return [f"{path}.py", str(path / "__main__.py")]


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
