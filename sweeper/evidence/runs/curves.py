"""Loss curves of earlier runs, wherever they are: logs, tables with a row a step, trackers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sweeper.command.reading import end_of
from sweeper.command.series import Series
from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.evidence.runs.log import LOGS, RunLog
from sweeper.evidence.runs.read import is_journal, read, study_folder
from sweeper.evidence.runs.roles import LADDER_ROLES, LAW_ROLES
from sweeper.evidence.runs.run import Runs
from sweeper.evidence.runs.series import Objective, step_column
from sweeper.evidence.runs.trained import final_runs
from sweeper.stats.estimate import Array
from sweeper.study.study import StudyRecord
from sweeper.table import counted

UNLIKE = 0.05
"""Share of a run by which runs of one size may end earlier: as wide as the window of the end."""
BY_NAME = ("jsonl", "csv", "tensorboard", "wandb")
"""Kinds of `metric=` that read a run's folder."""
LEAST_LOSSES = 20
"""Of a run; shorter ones tell no curve."""
ROLES = {"params": LAW_ROLES["params"], "width": LADDER_ROLES["width"]}


@dataclass(frozen=True, eq=False)
class EarlierRun:
    """A finished run: its losses by step, and its size, parameters or width; None: not known.

    `whole_steps` are the steps of the whole run, where they are known beside those of its losses.
    """

    name: str
    steps: Array
    losses: Array
    size: float | None = None
    size_is: str = "params"
    whole_steps: int | None = None

    @property
    def length(self) -> int:
        """Its steps: as many as it logs from 0 on, or its last where it logs now and then."""
        if self.whole_steps is not None:
            return self.whole_steps
        dense = bool(self.steps[0] == 0 and np.median(np.diff(self.steps)) <= 1)
        return max(int(self.steps[-1]) + dense, 1)


def earlier_runs(
    source: Any, metric: str, *, columns: str = "", where: str = "", root: Path | None = None
) -> list[EarlierRun]:
    """The runs of a source that have curves; BadInput where there are fewer than two.

    `metric` is where a run's loss is, as `follow` takes it: of every log or run below a folder.
    """
    study = study_folder(source, root)
    place = isinstance(source, str | Path)
    is_folder = place and (Path(source).is_dir() or _is_project(source))
    if study is not None or is_folder or _is_log(source, metric):
        if columns:
            raise ConfigError(Keyword("columns"), columns, "given with a table")
        named = str(source)
        runs = list(_of_study(study, where) if study else _of_folder(named, metric, where, root))
    else:
        runs = list(_of_table(read(source, columns=columns, where=where, root=root)))
    if len(runs) < 2:
        raise BadInput(
            f"{_name(source)} has {counted(len(runs), 'run')}: a band needs several, such as the "
            "logs of several seeds in one folder, which is then named"
        )
    _check_alike(runs, _name(source))
    return runs


def _name(source: object) -> str:
    return str(source) if isinstance(source, str | Path) else "the table"


def _check_alike(runs: Sequence[EarlierRun], source: str) -> None:
    """BadInput for runs of one size that end at other steps, or are copies: they are no seeds."""
    for run in runs:
        if not (np.isfinite(run.steps) & (run.steps >= 0)).all():
            raise BadInput(f"{source}: steps of the run {run.name!r} are no numbers from 0 on")
        positive = (np.isfinite(run.losses) & (run.losses > 0)).all()
        if len(run.losses) < LEAST_LOSSES or not positive:
            raise BadInput(
                f"{source}: the run {run.name!r} has {len(run.losses)} losses; it takes "
                f"{LEAST_LOSSES}, all of them positive numbers: leave it out"
            )
    # The last of each size that is put in stays: its longest.
    longest = {run.size: run for run in sorted(runs, key=lambda run: run.length)}
    for run in runs:
        other = longest[run.size]
        if run.length < (1 - UNLIKE) * other.length:
            raise BadInput(
                f"{source}: the run {run.name!r} ends at step {run.length:,}, {other.name!r} of "
                f"the same size at step {other.length:,}: take finished runs of as many steps"
            )
    seen = dict[bytes, str]()
    for run in runs:
        first = seen.setdefault(run.losses.tobytes(), run.name)
        if first != run.name:
            raise BadInput(
                f"{source}: the runs {first!r} and {run.name!r} have the same losses: a copy is no "
                "other seed; take one of them"
            )


def _is_log(source: object, metric: str) -> bool:
    if not isinstance(source, str | Path) or metric.partition(":")[0] in BY_NAME:
        return False
    path = Path(source)
    return path.is_file() and any(map(path.match, LOGS)) and not is_journal(path)


def _is_project(source: object) -> bool:
    return str(source).startswith("wandb:")


def _of_study(folder: Path, where: str) -> Iterator[EarlierRun]:
    results = final_runs(StudyRecord.read(folder), where)[0]
    sizes = [(result.trial.spec.width, result.trial.spec.depth) for result in results]
    most = {
        size: max(run.steps for run, of in zip(results, sizes, strict=True) if of == size)
        for size in sizes
    }
    for result, (width, depth) in zip(results, sizes, strict=True):
        count, steps = len(result.curve), result.steps
        if steps < most[width, depth]:
            continue
        middles = (np.arange(count) + 0.5) / max(count, 1) * steps - 0.5
        # A study of a user's command has no number of parameters: width^2 x depth goes as they do.
        size = float(width if len({depth for _, depth in most}) == 1 else width**2 * depth)
        losses = np.array(result.curve, float)
        yield EarlierRun(result.key, middles, losses, size, "width", steps)


def _of_folder(source: str, metric: str, where: str, root: Path | None) -> Iterator[EarlierRun]:
    kind = metric.partition(":")[0]
    if _is_project(source) and metric and (kind != "wandb" or "(?P<" in metric):
        raise ConfigError(Keyword("metric"), metric, f"wandb:KEY with the runs of {source}")
    if not metric or (kind in BY_NAME and "(?P<" not in metric):
        series = metric.removeprefix("wandb:") if _is_project(source) else metric
        objective = Objective(series=series, whole=True)
        try:
            runs = read(source, where=where, root=root, objective=objective).with_roles(ROLES)
        except BadInput as error:
            raise _of_metric(error, source, metric) from error
        axis = _size_role(runs)
        for name, series_of, size in zip(
            runs.frame["run"], runs.frame["series"], _sizes(runs), strict=True
        ):
            yield _of_series(str(name), series_of, size, axis)
        return
    if where:
        raise ConfigError(Keyword("where"), where, "nothing with logs, which have no columns")
    logs, matched = _logs(Path(source)), False
    for log in logs:
        series_of = Series()
        series_of.add(point for point in RunLog(metric=metric, place=log).readings())
        if len(series_of):
            matched = True
            yield _of_series(log.name, series_of)
    if not matched:
        raise BadInput(
            f"no line of the {counted(len(logs), 'log')} of {source} has a loss as ",
            Keyword("metric", metric),
            f" names it; {end_of(logs[0])}",
        )


def _of_metric(error: BadInput, source: str, metric: str) -> BadInput:
    """The error, where what reads runs calls `series` what is `metric` here, or is not asked."""
    if not metric:
        return BadInput(
            f"{source} has no runs of a tracker whose loss is found by its name: give a table with "
            "a row a step, of the columns run, step and loss"
        )
    if isinstance(error, ConfigError) and error.key == "series":
        return ConfigError(Keyword("metric"), metric, error.remedy)
    series = [part for part in error.args if isinstance(part, Keyword) and part.name == "series"]
    if not series:
        return error
    return BadInput(*(Keyword("metric", p.value) if p in series else p for p in error.args))


def _logs(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    for below in ("", "*/"):
        logs = sorted({p for pattern in LOGS for p in folder.glob(below + pattern)})
        if logs:
            return logs
    raise BadInput(f"{folder} has no logs ({', '.join(LOGS)}), nor has a folder in it")


def _of_series(
    name: str, series: Series, size: float | None = None, axis: str = "params"
) -> EarlierRun:
    return EarlierRun(name, np.array(series.steps, float), np.array(series.losses), size, axis)


def _of_table(runs: Runs) -> Iterator[EarlierRun]:
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
            size = sizes[places[0]]
            yield EarlierRun(name, steps[places], losses[places], size, _size_role(runs))


def _size_role(runs: Runs) -> str:
    return "width" if "width" in runs.columns and "params" not in runs.columns else "params"


def _sizes(runs: Runs) -> list[float | None]:
    column = runs.columns.get(_size_role(runs))
    if column is None:
        return [None] * len(runs)
    sizes = runs.numbers(column)
    if len(wrong := sizes[~(np.isfinite(sizes) & (sizes > 0))]):
        raise BadInput(
            f"{runs.name or 'the table'} has {wrong[0]:g} in {column!r}: the size of a run is a "
            "positive number, in every row"
        )
    return [*sizes.tolist()]
