"""Arguments as trainers take them: as flags of several kinds, or in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
import yaml  # type: ignore[import-untyped]

from sweeper.trainer.template import written

Style = Literal["equals", "spaces", "hydra", "json", "yaml", "toml"]
"""`--key=value`, `--key value` and bare booleans, `key=value`, or a file of all arguments."""


def float_text(style: Style) -> Callable[[float], str]:
    """How a style writes floats: Python's shortest text that reads back to the same float.

    Where YAML reads it the mantissa gets a point: PyYAML takes 1e-05 for a text.
    """
    return _with_point if style in ("hydra", "yaml") else repr


def _with_point(value: float) -> str:
    mantissa, e, exponent = repr(value).partition("e")
    return f"{mantissa}.0{e}{exponent}" if e and "." not in mantissa else repr(value)


def words(
    style: Style, arguments: Mapping[str, Any], folder: Path, *, write: bool = True
) -> list[str]:
    """The words that hand `arguments` to a command; a file of them goes to `folder`, if `write`."""
    if style in _FILES:
        if not arguments:
            return []
        path = folder / f"arguments.{style}"
        if write:
            path.write_text(_FILES[style](_nested(arguments)), encoding="utf-8")
        return [str(path)]
    return [word for key, value in arguments.items() for word in _FLAGS[style](key, value)]


def _equals(key: str, value: Any) -> list[str]:
    return [f"--{key}={written(value)}"]


def _spaces(key: str, value: Any) -> list[str]:
    if isinstance(value, bool) or value is None:
        return [f"--{key}"] if value else []
    items = value if isinstance(value, list | tuple) else [value]
    return [f"--{key}", *map(written, items)]


def _hydra(key: str, value: Any) -> list[str]:
    if isinstance(value, str | float) and not isinstance(value, bool):
        return [f"{key}={written(value, float_text('hydra'))}"]
    return [f"{key}={json.dumps(value)}"]


_FLAGS: Mapping[str, Callable[[str, Any], list[str]]] = {
    "equals": _equals,
    "spaces": _spaces,
    "hydra": _hydra,
}
_FILES: Mapping[str, Callable[[Any], str]] = {
    "json": lambda tree: json.dumps(tree, indent=1, allow_nan=False) + "\n",
    "yaml": lambda tree: str(yaml.safe_dump(tree, sort_keys=False)),
    "toml": tomli_w.dumps,
}


def _nested(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`a.b` as a key `b` within `a`."""
    tree: dict[str, Any] = {}
    for key, value in arguments.items():
        *path, last = key.split(".")
        inner = tree
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return tree
