"""What a source of losses holds in place of the one that was asked for."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

MOST = 20
"""Names that a sentence lists."""


def held(spec: str, folder: Path) -> str:
    """What the source that `spec` names holds in a trial's `folder`; empty for the log."""
    kind, _, rest = spec.partition(":")
    match kind:
        case "jsonl" | "csv":
            name, _, wanted = rest.rpartition(":")
            return _of_file(kind, name, folder / name, wanted)
        case "tensorboard":
            return _of_tracker("event file", sorted(folder.glob("**/*tfevents*")), _tags, rest)
        case "wandb":
            return _of_tracker("offline run", sorted(folder.glob("**/*.wandb")), _history, rest)
    return ""


def _of_file(kind: str, name: str, path: Path, wanted: str) -> str:
    """Its columns, or the keys of its last line."""
    if not path.is_file():
        return f"{name} is not there: the command must write it to its own folder, {{dir}}"
    lines = path.read_text(errors="replace").splitlines()
    what = "columns" if kind == "csv" else "keys in its last line"
    names = _columns(lines) if kind == "csv" else _keys(lines)
    return _sentence(name, what, names, wanted)


def _columns(lines: Iterable[str]) -> list[str]:
    return [name.strip() for name in next(csv.reader(lines), [])]


def _keys(lines: list[str]) -> list[str]:
    """Of the last line that is a JSON object."""
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            return [*record]
    return []


def _of_tracker(
    kind: str, paths: list[Path], names: Callable[[Path], Iterable[str]], wanted: str
) -> str:
    if not paths:
        return f"there is no {kind} below the trial's own folder, {{dir}}"
    found = sorted({name for path in paths for name in names(path)})
    return _sentence(f"the {kind}", "tags" if names is _tags else "keys", found, wanted)


def _tags(path: Path) -> Iterable[str]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [
        value.tag for event in EventFileLoader(str(path)).Load() for value in event.summary.value
    ]


def _history(path: Path) -> Iterable[str]:
    """W&B's own keys begin with a line below."""
    from sweeper.trainer.wandb_file import history

    return [key for row in history(path) for key in row if not key.startswith("_")]


def _sentence(where: str, what: str, names: Sequence[str], wanted: str) -> str:
    if wanted in names:
        return f"{where} has {wanted}, but no number under it"
    listed = ", ".join([*names[:MOST], *(["..."] if len(names) > MOST else [])])
    return f"{where} has no {wanted}; {what}: {listed or 'none'}"
