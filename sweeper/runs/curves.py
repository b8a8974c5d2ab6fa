"""Loss curves of earlier runs, wherever they are: logs, tables with a row a step, trackers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sweeper.command.series import Series
from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.runs.log import LOGS, RunLog
from sweeper.runs.read import read, study_folder
from sweeper.runs.roles import LADDER_ROLES, LAW_ROLES
from sweeper.runs.run import Runs
from sweeper.runs.series import Objective, step_column
from sweeper.runs.study import final_runs
from sweeper.stats.estimate import Array
from sweeper.study.study import Study

BY_NAME = ("jsonl", "csv", "tensorboard", "wandb")
"""Kinds of `metric=` that read a run's folder."""
LEAST_LOSSES = 20
"""Of a run; shorter ones tell no curve."""
ROLES = {"params": LAW_ROLES["params"], "width": LADDER_ROLES["width"]}


@dataclass(frozen=True, eq=False)
class EarlierRun:
    """A finished run: its losses by step, and its size, parameters or width; None: not known."""

    name: str
    steps: Array
    losses: Array
    size: float | None = None


def earlier_runs(
    source: Any, metric: str, *, columns: str = "", where: str = "", root: Path | None = None
) -> list[EarlierRun]:
    """The runs of a source that have curves; BadInput where there are fewer than two.

    `metric` is where a run's loss is, as `follow` takes it: of every log or run below a folder.
    """
    if (study := study_folder(source, root)) is not None:
        runs = list(_of_study(study, where))
    elif isinstance(source, str | Path) and (Path(source).is_dir() or _is_project(source)):
        runs = list(_of_folder(str(source), metric, where, root))
    else:
        runs = list(_of_table(read(source, columns=columns, where=where, root=root)))
    told = [run for run in runs if len(run.losses) >= LEAST_LOSSES and _falls(run)]
    if len(told) < 2:
        raise BadInput(
            f"{source} has {len(told)} runs with {LEAST_LOSSES} losses or more, all of them "
            f"positive numbers, of {len(runs)}: a band needs several"
        )
    return told


def _is_project(source: object) -> bool:
    return str(source).startswith("wandb:")


def _falls(run: EarlierRun) -> bool:
    return bool((np.isfinite(run.losses) & (run.losses > 0)).all())


def _of_study(folder: Path, where: str) -> Iterator[EarlierRun]:
    """The runs of a study by which it predicts: each size at its best."""
    for result in final_runs(Study.read(folder), where)[0]:
        count, spec = len(result.curve), result.trial.spec
        middles = (np.arange(count) + 0.5) / max(count, 1) * result.steps
        yield EarlierRun(result.key, middles, np.array(result.curve, float), float(spec.width))


def _of_folder(source: str, metric: str, where: str, root: Path | None) -> Iterator[EarlierRun]:
    if metric.partition(":")[0] in BY_NAME and "(?P<" not in metric:
        series = metric.removeprefix("wandb:") if _is_project(source) else metric
        objective = Objective(series=series, whole=True)
        runs = read(source, where=where, root=root, objective=objective).with_roles(ROLES)
        for name, series_of, size in zip(
            runs.frame["run"], runs.frame["series"], _sizes(runs), strict=True
        ):
            yield _of_series(str(name), series_of, size)
        return
    if where:
        raise ConfigError(Keyword("where"), where, "nothing with logs, which have no columns")
    for log in _logs(Path(source)):
        series_of = Series()
        series_of.add(point for point in RunLog(metric=metric, place=log).readings())
        if len(series_of):
            yield _of_series(log.name, series_of, None)


def _logs(folder: Path) -> list[Path]:
    """The logs of a folder, or of the runs' folders in it."""
    for below in ("", "*/"):
        logs = sorted({p for pattern in LOGS for p in folder.glob(below + pattern)})
        if logs:
            return logs
    raise BadInput(f"{folder} has no logs ({', '.join(LOGS)}), nor has a folder in it")


def _of_series(name: str, series: Series, size: float | None) -> EarlierRun:
    return EarlierRun(name, np.array(series.steps, float), np.array(series.losses), size)


def _of_table(runs: Runs) -> Iterator[EarlierRun]:
    """Runs of a table with a row a step; BadInput where it has none."""
    runs = runs.with_roles({**ROLES, "loss": LAW_ROLES["loss"], "run": LAW_ROLES["run"]})
    step = step_column(runs)
    lacking = [role for role in ("run", "loss") if role not in runs.columns]
    if step is None or lacking:
        what = " and ".join([*lacking, *(["step"] if step is None else [])])
        raise BadInput(
            f"{runs.name or 'the table'} has no column of the {what}: a row is a step of a run; ",
            Keyword("columns", "run=COLUMN,loss=COLUMN"),
            " names the others",
        )
    names, steps = runs.frame[runs.columns["run"]].astype(str), runs.numbers(step)
    losses, sizes = runs.numbers(runs.columns["loss"]), np.array(_sizes(runs), object)
    for name in names.unique():
        places = np.flatnonzero((names == name).to_numpy() & ~np.isnan(losses))
        places = places[np.argsort(steps[places], kind="stable")]
        if len(np.unique(steps[places])) < len(places):
            raise BadInput(
                f"the run {name!r} of {runs.name or 'the table'} has two losses of one step: name "
                "the column that tells runs apart, or take some of its rows by ",
                Keyword("where", ...),
            )
        if len(places):
            yield EarlierRun(name, steps[places], losses[places], sizes[places[0]])


def _sizes(runs: Runs) -> list[float | None]:
    """Parameters, else the width, of every row."""
    column = runs.columns.get("params") or runs.columns.get("width")
    return [None] * len(runs) if column is None else [float(x) for x in runs.numbers(column)]
