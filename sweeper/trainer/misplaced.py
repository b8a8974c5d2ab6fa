"""What a command's script does not mention: words of sweeper's behind `--`, a way to its loss."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.trainer.code import code_files

OPTIONS = (
    *("study", "root", "dry-run", "detach", "new-setup", "json", "config-dir"),
    *("to-width", "to-depth", "to-tokens", "to-batch", "validate", "strict"),
)
"""The long options of `search` and `transfer`."""


def misplaced(tree: Mapping[str, Any]) -> list[str]:
    """Words of a configuration's command that are options or keys of sweeper's alone.

    A word is the script's where its text mentions it. Where that mentions none of the other options
    either, they are read elsewhere, and nothing can be said; nor of keys that Hydra reads.
    """
    command: Sequence[str] = tree["runner"].get("command") or ()
    script = _text(command, Path(tree["runner"].get("cwd") or "."))
    options = [word for word in command if word.startswith("--") and word != "--"]
    ours = [word for word in options if "{" not in word and _name(word) in OPTIONS]
    if not any(_mentions(script, _name(word)) for word in options if word not in ours):
        return []
    found = [word for word in ours if not _mentions(script, _name(word))]
    if re.search(r"hydra|omegaconf", script):
        return found
    keys = [word for word in command if re.match(r"[a-z][\w.]*=[^{]*$", word)]
    lost = [word for word in keys if not _mentions(script, word.partition("=")[0].split(".")[-1])]
    return [*found, *(word for word in lost if _has(tree, word.partition("=")[0]))]


def tells_no_loss(tree: Mapping[str, Any]) -> bool:
    """Whether nothing says where a command's loss is, and its script's text knows of no report."""
    command: Sequence[str] = tree["runner"].get("command") or ()
    script = _text(command, Path(tree["runner"].get("cwd") or "."))
    metric = tree["runner"].get("metric")
    return metric is None and bool(script) and not re.search(r"SWEEPER|sweeper", script)


def _text(command: Sequence[str], cwd: Path) -> str:
    """The script's; empty where there is none, or no text."""
    files = code_files(command, None, cwd.expanduser())
    texts = [(cwd.expanduser() / name).read_bytes() for name in files]
    return "".join(text.decode(errors="replace") for text in texts if b"\0" not in text)


def _name(word: str) -> str:
    return word.removeprefix("--").partition("=")[0]


def _mentions(script: str, name: str) -> bool:
    return (
        re.search(rf"\b{'[-_]'.join(map(re.escape, re.split('[-_]', name)))}\b", script) is not None
    )


def _has(tree: Mapping[str, Any], key: str) -> bool:
    """Whether the configuration has a key."""
    node: Any = tree
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True
