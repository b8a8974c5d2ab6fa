"""Runs that trackers keep, a row a run: folders of TensorBoard and W&B, projects of W&B, Optuna.

Series are read as `metric=` reads those of a command; hyperparameters are from what a tracker or a
configuration beside it says, else from the names of folders, such as `lr=0.01_w=128`.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.command.files import Files
from sweeper.command.metrics import check_source, make_source, tensorboard, wandb
from sweeper.command.reading import Reading, as_number, as_step
from sweeper.command.series import Series
from sweeper.errors import BadInput, ConfigError, Keyword, first_line, suggest
from sweeper.table import counted

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

    from sweeper.runs.source import Source

LOSSES = (
    "val_loss",
    "eval_loss",
    "validation_loss",
    "val/loss",
    "eval/loss",
    "validation/loss",
    "loss/val",
    "loss/eval",
    "loss/validation",
    "test_loss",
    "test/loss",
    "loss",
    "train_loss",
    "train/loss",
    "loss/train",
    "training_loss",
    "objective",
)
"""Series that are usually the loss, held-out ones first."""
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
SHORT = {"w": "width", "s": "seed", "bs": "batch_size", "log2lr": "log2_lr"}
"""Abbreviations in names of runs."""
BARE = "log2_?lr|n_embd|d_model|n_layer|hidden|width|depth|layers|batch|seed|lr|eta|wd|bs|w|s"
"""What may stand in a run's name without a sign of equality: w128_lr0.01."""
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_PAIR = re.compile(
    r"([A-Za-z][\w.]*?)\s*[=:]\s*([^=:,/\s]+?)(?=[_,\-\s&;+]+[A-Za-z][\w.]*\s*[=:]|[,/\s]|$)"
)
_BARE = re.compile(rf"(?<![A-Za-z0-9.])({BARE})[-_]?({NUMBER})(?=$|[_\-,/\s])", re.IGNORECASE)
_FIRST = re.compile(
    rf"(?!(?:base|min|max|final|init|warmup)_)[A-Za-z].*_(?P<key>{BARE})", re.IGNORECASE
)
MOST_NAMED = 5
"""Runs that a note names."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Which series is a run's loss, and over which last share of its steps it is averaged.

    An empty `series` is the first of `LOSSES` that there is; with a `window` of 0 the last value
    counts. `study` names studies of Optuna, by patterns with commas between them.
    """

    series: str = ""
    window: float = 0.1
    study: str = ""

    def __post_init__(self) -> None:
        """ConfigError for a window that is no share."""
        if not 0 <= self.window <= 1:
            raise ConfigError(
                Keyword("window"), self.window, "a share of a run's steps, from 0 to 1"
            )

    def sentence(self, series: str) -> str:
        """How the loss was read."""
        if not self.window:
            return f"a run's loss is the last value of its series {series!r}"
        return (
            f"a run's loss is the mean of its series {series!r} over the last {self.window:.0%} of "
            "its steps"
        )

    def of(self, series: Series) -> dict[str, float]:
        """A run's loss, its first one, and its last step; the loss is infinite where one is not."""
        steps = series.last_step() + 1
        stretch = max(1, math.ceil(self.window * steps))
        mean = float(series.dense(steps, whole=True)[-stretch:].mean())
        loss = mean if series.finite() else math.inf
        return {"loss": loss, "first_loss": series.losses[0], "last_step": series.last_step()}


@dataclass
class Table:
    """Rows of runs, and what is to be said of how they were read."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self, name: str, facts: Mapping[str, Any], objective: Objective, series: Series
    ) -> None:
        """A run by its hyperparameters and its losses."""
        own = {"run", "loss", "first_loss", "last_step"}
        facts = {f"config.{key}" if key in own else key: value for key, value in facts.items()}
        self.rows.append({"run": name, **facts, **objective.of(series)})

    def frame(self, lacking: Sequence[str], series: str, where: str) -> pandas.DataFrame:
        """The rows; BadInput without any. Runs that are `lacking` the series are named."""
        import pandas

        if not self.rows:
            raise BadInput(f"no run of {where} has values in the series {series!r}")
        if lacking:
            names = ", ".join(lacking[:MOST_NAMED]) + ", ..." * (len(lacking) > MOST_NAMED)
            self.notes.append(
                f"left out: {counted(len(lacking), 'run')} without {series!r}: {names}"
            )
        return pandas.DataFrame(self.rows)


# Hyperparameters, from whatever says them.


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as columns by dotted names; texts that read as numbers are numbers."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            # W&B's own config.yaml: every value in a mapping with a description.
            plain = value["value"] if {*value} <= {"value", "desc"} and "value" in value else value
            if plain is not value and not isinstance(plain, Mapping):
                found[f"{prefix}{key}"] = plain_value(plain)
            else:
                found |= flat(plain, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = plain_value(value)
    return found


def plain_value(value: object) -> object:
    """A setting as a cell of a table: YAML takes 1e-3 for a text, and a list is no cell."""
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(r"[-+]?\d{1,18}", text):
            return int(text)
        return float(text) if re.fullmatch(NUMBER, text) else value
    if isinstance(value, list | tuple | Mapping):
        return json.dumps(value, default=str)
    return value


def named_values(name: str) -> dict[str, Any]:
    """Hyperparameters in the name of a run: lr=0.01_w=128, width: 128, w128-lr3e-4."""
    found: dict[str, Any] = {}
    for part in re.split(r"[/\\]", name):
        pairs = _PAIR.findall(part) or _BARE.findall(part)
        for place, (key, value) in enumerate(pairs):
            # What stands before the first is the name of the run: mup_width=128.
            first = _FIRST.fullmatch(key) if place == 0 else None
            key = first["key"] if first else key
            found[SHORT.get(key.lower(), key)] = plain_value(value.strip("_").rstrip("-"))
    return found


def _config_of(folder: Path, root: Path, notes: list[str]) -> dict[str, Any]:
    """What files beside a run say, in its folder or in one above it up to `root`."""
    import yaml  # type: ignore[import-untyped]

    found: dict[str, Any] = {}
    between = [folder, *folder.parents]
    for place in reversed(between[: between.index(root) + 1]):
        for path in (place / name for name in CONFIGS):
            if not path.is_file():
                continue
            try:
                text = path.read_text(encoding="utf-8")
                read = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
            except (OSError, ValueError, yaml.YAMLError) as error:
                notes.append(f"{path} cannot be read and is passed over ({first_line(error)})")
                continue
            if isinstance(read, Mapping):
                found |= flat(
                    {k: v for k, v in read.items() if k not in ("_wandb", "wandb_version")}
                )
    return found


# Folders of runs.


def folder_frame(folder: Path, objective: Objective) -> tuple[pandas.DataFrame, list[str]]:
    """The runs below a folder, with notes; BadInput where there are none, or not the series.

    A series is a tag, a key, or as `metric=` has it: tensorboard:TAG, wandb:KEY, jsonl:FILE:KEY,
    csv:FILE:COLUMN.
    """
    kind, colon, name = objective.series.partition(":")
    if colon and kind in ("jsonl", "csv"):
        check_source(Keyword("series"), objective.series)
        return _files_frame(folder, objective)
    if not (colon and kind in ("tensorboard", "wandb")):
        kind, name = "", objective.series
    if kind != "tensorboard" and (paths := sorted(folder.glob("**/*.wandb"))):
        _needs("wandb", folder)
        return _wandb_frame(folder, paths, name, objective)
    if kind != "wandb" and (paths := sorted(folder.glob("**/*tfevents*"))):
        _needs("tensorboard", folder)
        return _tensorboard_frame(folder, paths, name, objective)
    raise BadInput(
        f"{folder} holds no runs that can be read: no event file of TensorBoard (*tfevents*), no "
        "offline run of W&B (*.wandb); ",
        Keyword("series", "jsonl:FILE:KEY"),
        " or csv:FILE:COLUMN names a file that every run's folder has",
    )


def _needs(tracker: str, folder: Path) -> None:
    from importlib.util import find_spec

    if find_spec(tracker) is None:
        raise BadInput(f"{folder}: its runs need another package: pip install 'sweeper[{tracker}]'")


def choose(names: Iterable[str], asked: str, where: str) -> str:
    """The asked series, else the usual one; BadInput with those there are."""
    present = sorted({*names})
    if asked in present or (not asked and len(present) == 1):
        return asked or present[0]
    usual = {one.lower(): one for one in reversed(present)}
    if not asked and (found := next((usual[x] for x in LOSSES if x in usual), None)):
        return found
    shown = ", ".join(present[:20]) + ", ..." * (len(present) > 20)
    hint = f"; {suggest(asked, present)}" if asked and present else ""
    raise ConfigError(
        Keyword("series"),
        asked,
        f"a series of the runs in {where}: {shown or 'there is none'}{hint}",
    )


def _tensorboard_frame(
    folder: Path, paths: Sequence[Path], asked: str, objective: Objective
) -> tuple[pandas.DataFrame, list[str]]:
    table, lacking = Table(), list[str]()
    by_run: dict[Path, list[Path]] = {}
    for path in paths:
        by_run.setdefault(path.parent, []).append(path)
    named = asked or choose((t for p in paths[:8] for t in tensorboard.tags(p)), asked, str(folder))
    series: dict[Path, Series] = {}
    for run in by_run:
        series[run] = Series()
        series[run].add(Files(run, "*tfevents*", tensorboard.scalars(named)).read())
    if not any(map(len, series.values())):
        choose((t for p in paths for t in tensorboard.tags(p)), asked, str(folder))
    # SummaryWriter.add_hparams writes into a folder of its own below its run's; Keras writes them
    # above the folders of a run's series.
    settings: dict[Path, dict[str, Any]] = {}
    for run, files in by_run.items():
        said = {key: value for path in files for key, value in tensorboard.hparams(path).items()}
        above = next((p for p in run.parents if p in series and len(series[p])), run)
        place = run if len(series[run]) or above == run else above
        settings[place] = settings.get(place, {}) | flat(said)
    used = {place for place, said in settings.items() if said}
    for run, found in series.items():
        name = str(run.relative_to(folder))
        if not len(found):
            if run not in used and not any(p in series and len(series[p]) for p in run.parents):
                lacking.append(name)
            continue
        facts = named_values(name if name != "." else folder.name)
        facts |= _config_of(run, folder, table.notes)
        for place in reversed((run, *run.parents)):
            facts |= settings.get(place, {})
        table.add(name, facts, objective, found)
    frame = table.frame(lacking, named, str(folder))
    return frame, [objective.sentence(named), *table.notes]


def _wandb_frame(
    folder: Path, paths: Sequence[Path], asked: str, objective: Objective
) -> tuple[pandas.DataFrame, list[str]]:
    table, lacking = Table(), list[str]()
    named = asked or choose(
        (k for p in paths[:8] for k in wandb.history_keys(p)), asked, str(folder)
    )
    for path in paths:
        name, config, state = wandb.facts(path)
        series = Series()
        series.add(Files(path.parent, path.name, wandb.values(named)).read())
        if not len(series):
            lacking.append(name)
            continue
        table.add(name, {**named_values(name), **flat(config), "state": state}, objective, series)
    if not table.rows:
        choose((k for p in paths for k in wandb.history_keys(p)), asked, str(folder))
    frame = table.frame(lacking, named, str(folder))
    return frame, [objective.sentence(named), *table.notes]


def _files_frame(folder: Path, objective: Objective) -> tuple[pandas.DataFrame, list[str]]:
    """Runs that each have a file of one name: rows of JSON, or a table with a row a step."""
    table, lacking = Table(), list[str]()
    file = objective.series.partition(":")[2].rpartition(":")[0]
    for path in sorted(folder.glob(f"**/{file}")):
        run = path.parents[len(Path(file).parts) - 1]
        series = Series()
        series.add(make_source(objective.series, run, run / "log").read(ended=True))
        name = str(run.relative_to(folder))
        if not len(series):
            lacking.append(name)
            continue
        facts = named_values(name if name != "." else folder.name)
        table.add(name, facts | _config_of(run, folder, table.notes), objective, series)
    frame = table.frame(lacking, objective.series, str(folder))
    return frame, [objective.sentence(objective.series), *table.notes]


# A project of W&B, by its API.


def project_frame(path: str, objective: Objective) -> tuple[pandas.DataFrame, list[str]]:
    """The runs of `entity/project`; BadInput where it cannot be reached, or lacks the series."""
    try:
        import wandb as client
    except ImportError as error:
        raise BadInput(
            f"wandb:{path} needs another package: pip install 'sweeper[wandb]'"
        ) from error
    table, lacking, asked = Table(), list[str](), objective.series.removeprefix("wandb:")
    try:
        runs = list(client.Api().runs(path))
        if not runs:
            raise BadInput(f"the project wandb:{path} has no runs")
        keys = [k for run in runs for k in dict(run.summary) if not k.startswith("_")]
        named = choose(keys, asked, f"wandb:{path}")
        for run in runs:
            series = Series()
            series.add(_project_series(run, named, objective))
            if not len(series):
                lacking.append(run.name)
                continue
            config = {key: value for key, value in dict(run.config).items() if key != "_wandb"}
            facts = {**named_values(run.name), **flat(config), "state": run.state}
            table.add(run.name, facts, objective, series)
    except (BadInput, ConfigError):
        raise
    except Exception as error:  # the client raises whatever its layers of HTTP raise
        raise BadInput(f"wandb:{path} cannot be read: {first_line(error)}") from error
    frame = table.frame(lacking, named, f"wandb:{path}")
    return frame, [objective.sentence(named), *table.notes]


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


# Studies of Optuna.


OURS = frozenset({"key", "phase", "finished_at", "heldout", "seconds", "choices"})
"""Attributes of a copy of a study of ours that are no settings."""


def storage_frame(url: str, objective: Objective) -> tuple[pandas.DataFrame, list[str]]:
    """The trials of a study in a storage of Optuna, or of several that `objective.study` names.

    BadInput for a storage that cannot be read, a study that is not there or that maximizes.
    """
    import pandas

    from sweeper.study.optuna_copy import read_storage, redact

    shown = redact(url)
    with read_storage(url) as (names, load):
        patterns = [part.strip() for part in objective.study.split(",") if part.strip()]
        chosen = [n for n in names if any(n == p or fnmatch(n, p) for p in patterns)]
        if not patterns and len(names) == 1:
            chosen = names
        listed = ", ".join(names[:20]) + ", ..." * (len(names) > 20) or "there is none"
        if not chosen:
            allowed = f"studies of {shown}, by names or patterns such as 'w*,base': {listed}"
            raise ConfigError(Keyword("study"), objective.study, allowed)
        rows = []
        for name in chosen:
            study = load(name)
            directions = [one.name.lower() for one in study.directions]
            if directions != ["minimize"]:
                raise BadInput(
                    f"the study {name!r} of {shown} does not minimize one value "
                    f"({', '.join(directions)}): a verdict takes a loss"
                )
            for trial in study.get_trials(deepcopy=False):
                said = flat(study.user_attrs) | flat(trial.user_attrs)
                if {"key", "finished_at"} <= said.keys():
                    said = {key: value for key, value in said.items() if key not in OURS}
                facts = named_values(name) | said | dict(trial.params)
                # What of its name says no hyperparameter may be what several studies differ in.
                facts |= {"study": _BARE.sub("", _PAIR.sub("", name)).strip("_-,/ ")}
                loss = trial.values[0] if trial.values else math.nan
                state = {"state": trial.state.name.lower(), "trial": trial.number, "value": loss}
                rows.append(facts | state)
    if not rows:
        raise BadInput(f"the studies {', '.join(chosen)} of {shown} have no trials")
    return pandas.DataFrame(rows), [f"trials of {', '.join(chosen)} in {shown}"]


# Tables that are not yet a row a run.


def unpacked(frame: pandas.DataFrame) -> pandas.DataFrame:
    """With columns of settings in the place of those whose cells hold them as JSON.

    As W&B's own example writes a project's runs: columns `config` and `summary`, each a mapping.
    """
    import pandas

    for column in list(frame.columns):
        values = frame[column]
        if values.dtype.kind in "iufbM" or not len(present := values.dropna()):
            continue
        first = present.iloc[0]
        if isinstance(first, list):  # no cell that could be compared
            frame = frame.assign(**{str(column): values.map(plain_value)})
        if not isinstance(first, dict) and not str(first).lstrip().startswith("{"):
            continue
        cells = [_mapping(value) for value in values]
        if any(cell is None for cell in cells):
            continue
        parts = pandas.DataFrame([flat(cell or {}) for cell in cells], index=frame.index)
        parts = parts[[name for name in parts.columns if not str(name).startswith("_wandb")]]
        taken = {*frame.columns} - {column}
        parts = parts.rename(columns={n: f"{column}.{n}" for n in parts.columns if n in taken})
        frame = pandas.concat([frame.drop(columns=column), parts], axis=1)
    return frame


def _mapping(value: object) -> dict[str, Any] | None:
    """A cell as a mapping, an empty one of an empty cell; None for one that is none."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, str) or not value.strip():
        return {}
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return found if isinstance(found, dict) else None
    return None


def unpivoted(frame: pandas.DataFrame) -> tuple[pandas.DataFrame, list[str]]:
    """A row a run of a spreadsheet that has a column a learning rate, or a column a width.

    Empty cells are runs that there are not.
    """
    heads = [c for c in frame.columns if re.fullmatch(NUMBER, str(c).strip())]
    kept = [c for c in frame.columns if c not in heads]
    if len(heads) < 3 or not 1 <= len(kept) <= 4:
        return frame, []
    rates = [
        c for c in kept if re.search(r"(?i)(^|[^a-z])(log2_?)?(lr|eta|learning.?rate)", str(c))
    ]
    across = "width" if rates else "lr"
    if across == "width" and not all(float(head).is_integer() for head in heads):
        return frame, []
    long = frame.melt(id_vars=kept, value_vars=heads, var_name=across, value_name="loss")
    long[across] = long[across].astype(str).map(plain_value)
    long = long[long["loss"].notna()].reset_index(drop=True)
    what = "a width" if rates else "a learning rate"
    return long, [f"its columns {heads[0]} to {heads[-1]} are taken for losses, each of {what}"]


_CHART = re.compile(r"(?P<run>.+) - (?P<key>.+?)(?P<end>__MIN|__MAX)?")
"""A column of a chart that W&B exported: its run and the key."""


def is_chart(columns: Sequence[str]) -> bool:
    """Whether columns are those of a chart of W&B: Step, then a run's series each."""
    charted = [name for name in columns if _CHART.fullmatch(name)]
    return len(charted) > 1 and len(columns) - len(charted) <= 1


def chart_frame(
    frame: pandas.DataFrame, objective: Objective
) -> tuple[pandas.DataFrame, list[str]]:
    """A row a run of a chart that W&B exported, hyperparameters by the names of the runs."""
    found = {str(column): _CHART.fullmatch(str(column)) for column in frame.columns}
    keys = {m["key"] for m in found.values() if m and not m["key"].startswith("_")}
    named = choose(keys, objective.series, "this chart")
    axis = next((column for column, match in found.items() if match is None), None)
    steps = range(len(frame)) if axis is None else frame[axis]
    table, lacking = Table(), list[str]()
    for column, match in found.items():
        if match is None or match["end"] or match["key"] != named:
            continue
        pairs = zip(steps, frame[column], strict=True)
        series = Series()
        series.add(
            Reading(as_step(step), float(loss))
            for step, loss in pairs
            if as_number(loss) is not None and not (isinstance(loss, float) and math.isnan(loss))
        )
        if not len(series):
            lacking.append(match["run"])
            continue
        table.add(match["run"], named_values(match["run"]), objective, series)
    return table.frame(lacking, named, "this chart"), [objective.sentence(named), *table.notes]


RUNS = ("run_id", "run", "run_name", "name", "id", "trial")
"""Columns that name the run that a row is of, the surest first."""


def by_run(
    source: Source, step: str, loss: str, settings: Sequence[str], objective: Objective
) -> tuple[pandas.DataFrame, list[str]]:
    """A row a run of a table with a row a step; the table itself where it has a row a run.

    A run is what has one name in a column of `RUNS`, else one value in each of `settings`.
    """
    frame = source.frame
    names = {str(column).lower().replace(" ", "_"): str(column) for column in frame.columns}
    run = next((names[one] for one in RUNS if one in names), None)
    keys = [run] if run is not None and frame[run].notna().all() else []
    if not keys or frame.duplicated([*keys, step]).any():
        keys = [*keys, *settings]
    if not keys or not frame.duplicated(keys).any() or frame.duplicated([*keys, step]).any():
        return frame, []
    groups = frame.groupby(keys, sort=False, dropna=False)
    changing = groups[[*settings]].nunique(dropna=False)
    if moving := [column for column in settings if (changing[column] > 1).any()]:
        raise BadInput(
            f"the table has a row a step, and {', '.join(moving)} changes within its runs: it is "
            "what a schedule says there; ",
            Keyword("columns", "eta=COLUMN"),
            " names the column of a run's peak",
        )
    # Sorted by run and step, runs are slices.
    losses, steps, number = source.numbers(loss), source.numbers(step), groups.ngroup().to_numpy()
    order = np.lexsort((steps, number))
    ends = np.flatnonzero(np.diff(number[order], append=-1)) + 1
    rows = []
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        places = order[begin:end]
        logged = places[~np.isnan(losses[places])]  # an evaluation is not at every step
        read = {"loss": math.nan}
        if len(logged):
            read = objective.of(Series.of(steps[logged], losses[logged]))
        rows.append((places[-1], read))
    last = frame.iloc[[place for place, _ in rows]].copy()
    last[loss] = [read["loss"] for _, read in rows]
    last["first_loss"] = [read.get("first_loss", math.nan) for _, read in rows]
    last["last_step"] = steps[[place for place, _ in rows]]
    return last.drop(columns=step), [f"the table has a row a step: {objective.sentence(loss)}"]
