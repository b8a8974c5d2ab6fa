"""Shell completion of group names, their options, keys and studies; imports nothing heavy."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sweeper.catalog import OVERLAYS, TARGET, conf_folder, groups, studies
from sweeper.errors import BadInput
from sweeper.key_values import values_of

_VARIABLE = "_SWEEPER_COMPLETE"
"""Where the shell's script tells which shell it is."""
_SECTIONS = {
    "train.": "sweeper.train_settings.TrainSettings",
    "transfer.": "sweeper.transfer.ladder.LadderRule",
    "check.": "sweeper.transfer.coordinates.CheckRule",
}
"""The classes of the sections that are no plugins."""


def complete_override(incomplete: str, config_dir: Path | None = None) -> list[str]:
    """Words that `incomplete` may become: `group=option`, or `key=` and `key=default`.

    A key has two words so that the shell stops at the "=", without a space behind it. Nothing
    typed yet gets the groups and sections alone.
    """
    with suppress(BadInput, OSError):
        cut, typed = _typed(incomplete)
        words = {word for word in _words(config_dir) if word.startswith(typed) and word != cut}
        if not typed:
            words = {re.split(r"(?<=[.=])", word)[0] for word in words}
        return sorted(word.removeprefix(cut) for word in words)
    return []


def complete_study(incomplete: str, root: Path = Path("runs")) -> list[str]:
    """Names of studies in `root`."""
    return [name for name in studies(root) if name.startswith(incomplete)]


def _words(config_dir: Path | None) -> Iterator[str]:
    """All overrides that can be named: of the root, of every group, and of every option's keys."""
    for group, options in groups(config_dir).items():
        yield from (f"{group}={option}" for option in options)
    yield from ("study=", *(f"study={name}" for name in complete_study("")))
    for folder in (conf_folder(), config_dir):
        if folder is not None:
            yield from _keys(_read(folder / "config.yaml"))
            for path in sorted(folder.glob("[!.]*/[!.]*.yaml")):
                if path.parent.name not in OVERLAYS:
                    yield from _keys(_read(path), f"{path.parent.name}.")


def _keys(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every key of a config, with and without its values: the default, and all where few are."""
    allowed = values_of(str(tree.get(TARGET) or _SECTIONS.get(prefix, "")))
    for name, value in tree.items():
        if name in ("defaults", TARGET):
            continue
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")
            continue
        yield f"{prefix}{name}="
        yield from (f"{prefix}{name}={word}" for word in allowed.get(name, ()))
        if value != "???":
            plain = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            yield f"{prefix}{name}={plain}"


def _read(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML file; empty where there is none: completion complains of nothing."""
    import yaml  # type: ignore[import-untyped]

    with suppress(OSError, ValueError, yaml.YAMLError):
        content = yaml.safe_load(path.read_text())
        return content if isinstance(content, Mapping) else {}
    return {}


def _typed(incomplete: str) -> tuple[str, str]:
    """What the shell has cut off the override at hand, and the whole of it as typed so far.

    Bash breaks words at "=", and completes what follows it alone.
    """
    if "complete_bash" not in os.environ.get(_VARIABLE, ""):
        return "", incomplete
    words = re.split(r"\n" if "\n" in os.environ["COMP_WORDS"] else r" +", os.environ["COMP_WORDS"])
    index = int(os.environ["COMP_CWORD"])
    current = words[index] if index < len(words) else ""
    if current == "=":
        return f"{words[index - 1]}=", f"{words[index - 1]}="
    if index >= 2 and words[index - 1] == "=":
        return f"{words[index - 2]}=", f"{words[index - 2]}={current}"
    return "", incomplete
