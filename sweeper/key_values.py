"""The values that a class's fields may have, read off its source: nothing is imported for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def values_of(target: str) -> dict[str, list[str]]:
    """Words for each field of sweeper's class at the dotted path `target` that takes few values.

    Of literals their words, of a bool true and false, null where None is taken. Fields of the
    classes that it inherits from are among them. Empty for a class that is not sweeper's.
    """
    module, _, name = target.rpartition(".")
    found = _definition(module, name)
    if found is None or not isinstance(found[1], ast.ClassDef):
        return {}
    module, defined = found[0], found[1]
    fields: dict[str, list[str]] = {}
    for base in defined.bases:
        if isinstance(base, ast.Name) and (where := _definition(module, base.id)):
            fields |= values_of(f"{where[0]}.{base.id}")
    for line in defined.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            words = list(dict.fromkeys(_words(module, line.annotation)))
            if words and words != ["null"]:
                fields[line.target.id] = words
    return fields


def _words(module: str, annotation: ast.expr) -> Iterator[str]:
    """The values that an annotation in `module` names; none for numbers and texts."""
    match annotation:
        case ast.Constant(value=None):
            yield "null"
        case ast.Name(id="bool"):
            yield from ("true", "false")
        case ast.Name(id=name):
            found = _definition(module, name)
            if found is not None and isinstance(found[1], ast.Assign):
                yield from _words(found[0], found[1].value)
        case ast.BinOp(left=left, right=right):
            yield from _words(module, left)
            yield from _words(module, right)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            listed = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            yield from (str(one.value) for one in listed if isinstance(one, ast.Constant))


def _definition(module: str, name: str) -> tuple[str, ast.stmt] | None:
    """The statement that defines `name`, and its module: `module` or one that it imports from."""
    for line in _statements(module):
        match line:
            case ast.ClassDef(name=defined) if defined == name:
                return module, line
            case ast.Assign(targets=[ast.Name(id=defined)]) if defined == name:
                return module, line
            case ast.ImportFrom(module=source, names=names) if source:
                if any(name == (one.asname or one.name) for one in names):
                    return _definition(source, name)
    return None


@cache
def _statements(module: str) -> list[ast.stmt]:
    """The statements of one of sweeper's modules; none of any other."""
    package, *parts = module.split(".")
    path = PACKAGE.joinpath(*parts)
    if package != PACKAGE.name:
        return []
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return ast.parse(file.read_text(encoding="utf-8")).body
    return []
