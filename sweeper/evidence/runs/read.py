"""The one way to read finished runs, whoever made them: all verbs take the same sources."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.errors import BadInput, ConfigError, Keyword, near_misses
from sweeper.evidence.runs.condition import columns_text
from sweeper.evidence.runs.roles import asked_columns, axis_column
from sweeper.evidence.runs.run import Runs, recorded
from sweeper.evidence.runs.series import LOSSES, Objective
from sweeper.evidence.runs.table import file_runs, frame_runs, piped_runs
from sweeper.evidence.runs.trackers import folder_frame, project_frame, storage_frame
from sweeper.evidence.runs.trained import EVERY_LADDER, study_runs
from sweeper.files import is_path
from sweeper.search.optuna.url import redact
from sweeper.study.folder import is_study

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

JOURNALS = (".journal", ".log")
"""Ends of journals of Optuna."""


__all__ = ["EVERY_LADDER", "read", "study_folder"]


def read(
    source: Any,
    *,
    columns: str = "",
    where: str = "",
    ignore: Sequence[str] = (),
    root: Path | None = None,
    objective: Objective | None = None,
    axis: str | None = None,
) -> Runs:
    """The finished runs of a source; BadInput for what is none, or cannot be read.

    A source is a table's file, "-" for a table that comes by a pipe, a folder of runs of
    TensorBoard or W&B, "wandb:ENTITY/PROJECT", a storage of Optuna by its URL or its journal, a
    study's folder or its name in `root`, a DataFrame, or columns by name.

    `columns` name columns by role, `where` is a condition on rows, and runs may differ in the
    columns of `ignore`. `objective`: what of a series is a run's loss, where that can be asked. Of
    a study with several validated ladders that over `axis` is read, or with `EVERY_LADDER` all.
    """
    try:
        runs = _read(source, root, objective or Objective(), axis)
    except BadInput as error:
        named = {part.name for part in error.args if isinstance(part, Keyword)}
        if objective is None and named & {"series", "study"}:
            raise BadInput(
                f"{redact(str(source))}: of a tracker's runs the loss is found by a usual name "
                f"alone, such as {LOSSES[0]}, and of a storage the only study: give a table with a "
                "row a run"
            ) from error
        raise
    names = [str(column) for column in runs.frame.columns]
    for name in ignore:
        if name not in names:
            allowed = f"columns of the table: {columns_text(runs.frame)}{near_misses(name, names)}"
            raise ConfigError(Keyword("ignore"), name, allowed[:2000])
    asked = {**axis_column(runs.frame, axis), **asked_columns(runs.frame, columns)}
    return replace(runs, asked=asked, ignore=(*runs.ignore, *ignore)).only(where)


def study_folder(source: Any, root: Path | None) -> Path | None:
    """The folder of the study that a source names, by its path or its name in `root`."""
    if not isinstance(source, str | Path) or str(source) in ("-", ".", ".."):
        return None
    if not (str(source) and is_path(source)):
        raise BadInput(f"{str(source)[:100]!r} is no path, and no name of a study")
    if "://" in (text := str(source)) or text.startswith("wandb:"):
        return None
    path = Path(source)
    if is_study(path):
        return path
    # A file or a folder of that name goes before a study of it.
    if root is None or path.exists() or len(path.parts) != 1:
        return None
    return root / path if is_study(root / path) else None


def _read(source: Any, root: Path | None, objective: Objective, axis: str | None) -> Runs:
    if not isinstance(source, str | Path):
        for name in ("series", "study"):
            if value := getattr(objective, name):
                raise ConfigError(Keyword(name), value, "given with a tracker's runs or a storage")
        return frame_runs(source)
    text, path = str(source), Path(source)
    if text == "-":
        return piped_runs(objective)
    if (folder := study_folder(source, root)) is not None:
        return study_runs(folder, axis)
    if text.startswith("wandb:"):
        return _tracked(text, project_frame(text.removeprefix("wandb:"), objective))
    if "://" in text or is_journal(path):
        return _tracked(redact(text), storage_frame(text, objective))
    if path.is_dir():
        return _tracked(text, folder_frame(path, objective))
    return file_runs(path, objective)


def is_journal(path: Path) -> bool:
    """Whether a file is a journal of Optuna's; one that ends in .log may be any program's log."""
    if path.suffix not in JOURNALS or not path.is_file():
        return False
    with path.open("rb") as file:
        return path.suffix != ".log" or b'"op_code"' in file.read(1000)


def _tracked(name: str, tracked: tuple[pandas.DataFrame, list[str]]) -> Runs:
    frame, notes = tracked
    digest = hashlib.sha256(frame.to_csv(index=False).encode("utf-8", "replace")).hexdigest()
    return Runs(frame, name, digest, notes=tuple(notes), ignore=recorded(frame))
