"""Shell completion of group names, their options and studies; imports nothing heavy."""

from __future__ import annotations

import os
from pathlib import Path

from sweeper.catalog import groups, home


def complete_override(incomplete: str) -> list[str]:
    """Words that `incomplete` may become: `group=option`, or a top-level key.

    Bash breaks words at "=", so that it completes what follows it alone: there the option is
    offered without its group.
    """
    group, equals, start = _split(incomplete)
    if not equals:
        keys = [*(f"{name}=" for name in groups()), *_keys()]
        return [key for key in keys if key.startswith(group)]
    options = [option for option in groups().get(group, []) if option.startswith(start)]
    return options if _breaks_at_equals() else [f"{group}={option}" for option in options]


def complete_study(incomplete: str) -> list[str]:
    """Names of studies in `runs/`."""
    names = sorted(path.parent.name for path in Path("runs").glob("*/config.yaml"))
    return [name for name in names if name.startswith(incomplete)]


def _keys() -> list[str]:
    """Top-level keys of the root configuration that are no group, by its text alone."""
    lines = (home() / "config.yaml").read_text().splitlines()
    keys, section = ["study="], ""
    for line in lines:
        name, colon, _ = line.strip().partition(":")
        if not colon or name.startswith(("#", "-")) or name == "defaults":
            continue
        if not line.startswith(" "):
            section = name
            if line.partition("#")[0].strip() != f"{name}:":
                keys.append(f"{name}=")
        else:
            keys.append(f"{section}.{name}=")
    return keys


def _breaks_at_equals() -> bool:
    """Whether the shell that asks is bash."""
    return any("complete_bash" in os.environ.get(name, "") for name in _COMPLETE_VARIABLES)


_COMPLETE_VARIABLES = ("_SWEEPER_COMPLETE",)


def _split(incomplete: str) -> tuple[str, str, str]:
    """Group, "=" if there is one, and the start of the option."""
    if not _breaks_at_equals():
        return incomplete.partition("=")
    words = os.environ.get("COMP_WORDS", "").split()
    index = int(os.environ.get("COMP_CWORD", "0") or 0)
    current = words[index] if index < len(words) else ""
    if current == "=":
        return words[index - 1], "=", ""
    if index >= 2 and words[index - 1] == "=":
        return words[index - 2], "=", current
    return incomplete.partition("=")
