"""Runs of TensorBoard, W&B and storages of Optuna; series are read as `metric=` reads them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.command.metrics import metric_of, tracker_files
from sweeper.command.reading import Files, Reading, as_number, as_step
from sweeper.command.series import Series
from sweeper.errors import BadInput, ConfigError, Keyword, first_line
from sweeper.evidence.runs.series import (
    Objective,
    RunRows,
    choose,
    flat,
    name_without_values,
    named_values,
)
from sweeper.files import MOST_YAML, parse_json, parse_yaml, read_bounded
from sweeper.search.optuna.url import redact

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]


CONFIGS = (
    *(f"{place}.yaml" for place in (".hydra/config", "files/config", "config")),
    "config.json",
    "args.yaml",
    "args.json",
    "params.json",
    "hparams.yaml",
    "hparams.json",
)
"""Files beside a run that hold its hyperparameters; a later one is believed before an earlier."""


def _config_of(folder: Path, root: Path, notes: list[str]) -> dict[str, Any]:
    """The settings in files beside a run, in its folder or in one above it up to `root`."""
    settings: dict[str, Any] = {}
    between = [folder, *folder.parents]
    # From the root down: what stands nearer to the run overrides the rest.
    for place in reversed(between[: between.index(root) + 1]):
        for path in (place / name for name in CONFIGS):
            if not path.is_file():
                continue
            try:
                parse = parse_json if path.suffix == ".json" else parse_yaml
                read = parse(read_bounded(path, MOST_YAML))
            except (OSError, ValueError) as error:
                notes.append(f"{path} cannot be read and is passed over ({first_line(error)})")
                continue
            if isinstance(read, Mapping):
                settings |= flat(
                    {k: v for k, v in read.items() if k not in ("_wandb", "wandb_version")}
                )
    return settings


def folder_frame(folder: Path, objective: Objective) -> tuple[pandas.DataFrame, list[str]]:
    """The runs below a folder, with notes; BadInput where there are none, or not the series.

    A series is a tag, a key, or as `metric=` has it: tensorboard:TAG, wandb:KEY, jsonl:FILE:KEY,
    csv:FILE:COLUMN.
    """
    kind, colon, name = objective.series.partition(":")
    if colon and kind in ("jsonl", "csv"):
        metric_of(objective.series, Keyword("series"))
        return _files_frame(folder, objective)
    if not (colon and kind in ("tensorboard", "wandb")):
        kind, name = "", objective.series
    if kind != "tensorboard" and (paths := sorted(folder.glob("**/*.wandb"))):
        return _wandb_frame(folder, paths, name, objective)
    if kind != "wandb" and (paths := sorted(folder.glob("**/*tfevents*"))):
        if find_spec("tensorboard") is None:
            needs = "pip install 'sweeper[tensorboard]'"
            raise BadInput(f"{folder}: its runs need another package: {needs}")
        return _tensorboard_frame(folder, paths, name, objective)
    raise BadInput(
        f"{folder} holds no runs that can be read: no event file of TensorBoard (*tfevents*), no "
        "offline run of W&B (*.wandb); ",
        Keyword("series", "jsonl:FILE:KEY"),
        " or csv:FILE:COLUMN names a file that every run's folder has",
    )


def _tensorboard_frame(
    folder: Path, paths: Sequence[Path], asked: str, objective: Objective
) -> tuple[pandas.DataFrame, list[str]]:
    table = RunRows(objective)
    by_run: dict[Path, list[Path]] = {}
    for path in paths:
        by_run.setdefault(path.parent, []).append(path)
    # Tags are found by reading a file whole: some files tell the usual one, and only
    # where no run has it all are read, for the message.
    named = asked or choose(
        (t for p in paths[:8] for t in tracker_files.tags(p)), asked, str(folder)
    )
    series: dict[Path, Series] = {}
    for run in by_run:
        series[run] = Series()
        series[run].add(Files(run, "*tfevents*", partial(tracker_files.Scalars, named)).read())
    if not any(map(len, series.values())):
        choose((t for p in paths for t in tracker_files.tags(p)), asked, str(folder))
    # SummaryWriter.add_hparams writes into a folder below its run's, Keras above the series'.
    settings: dict[Path, dict[str, Any]] = {}
    for run, files in by_run.items():
        values = {
            key: value for path in files for key, value in tracker_files.hparams(path).items()
        }
        above = next((p for p in run.parents if p in series and len(series[p])), run)
        place = run if len(series[run]) or above == run else above
        settings[place] = settings.get(place, {}) | flat(values)
    used = {place for place, values in settings.items() if values}
    for run, losses in series.items():
        name = str(run.relative_to(folder))
        if not len(losses):
            if run not in used and not any(p in series and len(series[p]) for p in run.parents):
                table.lacking.append(name)
            continue
        facts = named_values(name if name != "." else folder.name)
        facts |= _config_of(run, folder, table.notes)
        for place in reversed((run, *run.parents)):
            facts |= settings.get(place, {})
        table.add(name, facts, losses)
    return table.frame(named, str(folder))


def _wandb_frame(
    folder: Path, paths: Sequence[Path], asked: str, objective: Objective
) -> tuple[pandas.DataFrame, list[str]]:
    table = RunRows(objective)
    named = asked or choose(
        (k for p in paths[:8] for k in tracker_files.history_keys(p)), asked, str(folder)
    )
    for path in paths:
        name, config, state = tracker_files.facts(path)
        series = Series()
        series.add(Files(path.parent, path.name, partial(tracker_files.OfflineRun, named)).read())
        table.add(name, {**named_values(name), **flat(config), "state": state}, series)
    if not table.rows:
        choose((k for p in paths for k in tracker_files.history_keys(p)), asked, str(folder))
    return table.frame(named, str(folder))


def _files_frame(folder: Path, objective: Objective) -> tuple[pandas.DataFrame, list[str]]:
    table = RunRows(objective)
    file = objective.series.partition(":")[2].rpartition(":")[0]
    for path in sorted(folder.glob(f"**/{file}")):
        run = path.parents[len(Path(file).parts) - 1]
        series = Series()
        series.add(metric_of(objective.series).open(run, run / "log").read(ended=True))
        name = str(run.relative_to(folder))
        facts = named_values(name if name != "." else folder.name)
        # Of a run without the series nobody needs to know what else cannot be read.
        table.add(
            name, facts | (_config_of(run, folder, table.notes) if len(series) else {}), series
        )
    return table.frame(objective.series, str(folder))


def project_frame(path: str, objective: Objective) -> tuple[pandas.DataFrame, list[str]]:
    """The runs of `entity/project`; BadInput where it cannot be reached, or lacks the series."""
    import wandb as client

    table, asked = RunRows(objective), objective.series.removeprefix("wandb:")
    try:
        runs = list(client.Api().runs(path))
        if not runs:
            raise BadInput(f"the project wandb:{path} has no runs")
        keys = [k for run in runs for k in dict(run.summary) if not k.startswith("_")]
        named = choose(keys, asked, f"wandb:{path}")
        for run in runs:
            series = Series()
            series.add(_project_series(run, named, objective))
            config = {key: value for key, value in dict(run.config).items() if key != "_wandb"}
            facts = {**named_values(run.name), **flat(config), "state": run.state}
            table.add(run.name, facts, series)
    except (BadInput, ConfigError):
        raise
    except Exception as error:  # the client raises whatever its layers of HTTP raise
        raise BadInput(f"wandb:{path} cannot be read: {first_line(error)}") from error
    return table.frame(named, f"wandb:{path}")


def _project_series(run: Any, named: str, objective: Objective) -> Iterator[Reading]:
    """A run's series; of its end alone what its summary has, which needs no further request."""
    if not objective.window:
        loss = as_number(dict(run.summary).get(named))
        rows: Iterable[Mapping[str, Any]] = (
            [] if loss is None else [{named: loss, "_step": dict(run.summary).get("_step", 0)}]
        )
    else:
        rows = run.scan_history(keys=["_step", named])
    for row in rows:
        if (loss := as_number(row.get(named))) is not None:
            yield Reading(as_step(row.get("_step")), loss)


OURS = frozenset({"key", "phase", "result", "choices"})
"""Attributes of trials of ours that are no settings."""


def storage_frame(url: str, objective: Objective) -> tuple[pandas.DataFrame, list[str]]:
    """The trials of a study in a storage of Optuna, or of several that `objective.study` names.

    BadInput for a storage that cannot be read, a study that is not there or that maximizes.
    """
    import pandas

    from sweeper.search.optuna.storage import read_storage

    place = redact(url)
    with read_storage(url) as (names, load):
        patterns = [part.strip() for part in objective.study.split(",") if part.strip()]
        chosen = [n for n in names if any(n == p or fnmatch(n, p) for p in patterns)]
        if not patterns and len(names) == 1:
            chosen = names
        listed = ", ".join(names[:20]) + ", ..." * (len(names) > 20) or "there is none"
        if not chosen:
            allowed = f"studies of {place}, by names or patterns such as 'w*,base': {listed}"
            raise ConfigError(Keyword("study"), objective.study, allowed)
        rows = []
        for name in chosen:
            study = load(name)
            directions = [direction.name.lower() for direction in study.directions]
            if directions != ["minimize"]:
                raise BadInput(
                    f"the study {name!r} of {place} does not minimize one value "
                    f"({', '.join(directions)}): a verdict takes a loss"
                )
            for trial in study.get_trials(deepcopy=False):
                own = trial.user_attrs
                if {"key", "phase"} <= own.keys():
                    own = {key: value for key, value in own.items() if key not in OURS}
                attributes = flat(study.user_attrs) | flat(own)
                facts = named_values(name) | attributes | dict(trial.params)
                # What of its name says no hyperparameter may be what several studies differ in.
                facts |= {"study": name_without_values(name)}
                loss = trial.values[0] if trial.values else math.nan
                state = {"state": trial.state.name.lower(), "trial": trial.number, "value": loss}
                rows.append(facts | state)
    if not rows:
        raise BadInput(f"the studies {', '.join(chosen)} of {place} have no trials")
    return pandas.DataFrame(rows), [f"trials of {', '.join(chosen)} in {place}"]
