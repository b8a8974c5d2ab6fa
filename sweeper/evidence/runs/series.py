"""Runs from series of losses: what of a series is a run's loss, and where runs are named.

Hyperparameters are from what a tracker or a configuration says, else from names of folders, such
as `lr=0.01_w=128`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.command.reading import STEP_NAMES
from sweeper.command.series import Series
from sweeper.errors import BadInput, ConfigError, Keyword, suggest
from sweeper.evidence.runs.roles import LADDER_ROLES, SIZES, plain_name
from sweeper.evidence.runs.run import Runs
from sweeper.table import counted, listed

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

LOSSES = (
    *("val_loss", "eval_loss", "validation_loss", "val/loss", "eval/loss", "validation/loss"),
    *("loss/val", "loss/eval", "loss/validation", "test_loss", "test/loss"),
    *("loss", "train_loss", "train/loss", "loss/train", "training_loss", "objective"),
)
"""Series that are usually the loss, held-out ones first."""
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


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Which series is a run's loss, and over which last share of its steps it is averaged.

    An empty `series` is the first of `LOSSES` that there is; with a `window` of 0 the last value
    counts. `study` names studies of Optuna, by patterns with commas between them. `whole` series
    are kept beside the loss.
    """

    series: str = ""
    window: float = 0.1
    study: str = ""
    whole: bool = False

    def __post_init__(self) -> None:
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

    def of(self, series: Series) -> dict[str, Any]:
        """A run's loss, its first one, and its last step; the loss is infinite where one is not."""
        steps = series.last_step() + 1
        stretch = max(1, math.ceil(self.window * steps))
        mean = float(series.dense(steps, whole=True)[-stretch:].mean())
        loss = mean if series.finite() else math.inf
        facts = {"loss": loss, "first_loss": series.losses[0], "last_step": series.last_step()}
        return {**facts, "series": series} if self.whole else facts


@dataclass
class RunRows:
    """Rows of runs, those that lack the series, and what is said of how they were read."""

    objective: Objective
    rows: list[dict[str, Any]] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, facts: Mapping[str, Any], series: Series) -> None:
        """A run by its hyperparameters and its losses; without any it lacks the series."""
        if not len(series):
            self.lacking.append(name)
            return
        # A configuration may have a key of these names, which is not what the run gave.
        own = {"run", "loss", "first_loss", "last_step"}
        facts = {f"config.{key}" if key in own else key: value for key, value in facts.items()}
        self.rows.append({"run": name, **facts, **self.objective.of(series)})

    def frame(self, series: str, where: str) -> tuple[pandas.DataFrame, list[str]]:
        """The rows, with notes; BadInput without any."""
        import pandas

        if not self.rows:
            raise BadInput(f"no run of {where} has values in the series {series!r}")
        notes, lacking = [self.objective.sentence(series), *self.notes], self.lacking
        if lacking:
            runs = f"{counted(len(lacking), 'run')} without {series!r}: {listed(lacking)}"
            notes.append(f"left out: {runs}")
        return pandas.DataFrame(self.rows), notes


def choose(names: Iterable[str], asked: str, where: str) -> str:
    """The asked series, else the usual one; BadInput with those there are."""
    present = sorted({*names})
    if asked in present or (not asked and len(present) == 1):
        return asked or present[0]
    # In reverse, so that of names that differ in case alone the first stays.
    usual = {name.lower(): name for name in reversed(present)}
    first = next((usual[name] for name in LOSSES if name in usual), None)
    if not asked and first is not None:
        return first
    listing = ", ".join(present[:20]) + ", ..." * (len(present) > 20)
    hint = f"; {suggest(asked, present)}" if asked and present else ""
    raise ConfigError(
        Keyword("series"),
        asked,
        f"a series of the runs in {where}: {listing or 'there is none'}{hint}",
    )


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as columns by dotted names; texts that read as numbers are numbers."""
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            # W&B's own config.yaml: every value in a mapping with a description.
            plain = value["value"] if {*value} <= {"value", "desc"} and "value" in value else value
            if plain is not value and not isinstance(plain, Mapping):
                settings[f"{prefix}{key}"] = plain_value(plain)
            else:
                settings |= flat(plain, f"{prefix}{key}.")
        else:
            settings[f"{prefix}{key}"] = plain_value(value)
    return settings


NESTED = list, tuple, set, Mapping, np.ndarray
"""What is no cell."""


def plain_value(value: object) -> object:
    """A setting as a cell of a table: YAML takes 1e-3 for a text, and a list is no cell."""
    if isinstance(value, str):
        text = value.strip()
        # With more digits it would not fit into the 64 bits of a column.
        if re.fullmatch(r"[-+]?\d{1,18}", text):
            return int(text)
        return float(text) if re.fullmatch(NUMBER, text) else value
    if isinstance(value, NESTED):
        return json.dumps(value, default=lambda v: [*v] if isinstance(v, np.ndarray) else str(v))
    return value


def named_values(name: str) -> dict[str, Any]:
    """Hyperparameters in the name of a run: lr=0.01_w=128, width: 128, w128-lr3e-4."""
    settings: dict[str, Any] = {}
    for part in re.split(r"[/\\]", name):
        pairs = _PAIR.findall(part) or _BARE.findall(part)
        for place, (key, value) in enumerate(pairs):
            # What stands before the first is the name of the run: mup_width=128.
            first = _FIRST.fullmatch(key) if place == 0 else None
            key = first["key"] if first else key
            settings[SHORT.get(key.lower(), key)] = plain_value(value.strip("_").rstrip("-"))
    return settings


def name_without_values(name: str) -> str:
    """A run's name without its hyperparameters."""
    return _BARE.sub("", _PAIR.sub("", name)).strip("_-,/ ")


RUN_NAMES = ("run_id", "run", "run_name", "name", "id", "trial")
"""Columns that name the run that a row is of, the surest first."""


def per_run(runs: Runs, objective: Objective) -> Runs:
    """A row a run of a table with a row a step; the runs as they are where each has its row.

    A run is what has one name in a column of `RUN_NAMES`, else one value in each setting.
    """
    step, loss = step_column(runs), runs.columns.get("loss")
    if step is None or loss is None:
        return runs
    frame = runs.frame
    roles = (*SIZES, "eta", "log2_eta", "decay", "seed")
    settings = [runs.columns[role] for role in roles if role in runs.columns]
    names = {str(column).lower().replace(" ", "_"): str(column) for column in frame.columns}
    run = next((names[name] for name in RUN_NAMES if name in names), None)
    keys = [run] if run is not None and frame[run].notna().all() else []
    # A name that several runs have does not tell them apart; with their settings it may.
    if not keys or frame.duplicated([*keys, step]).any():
        keys = [*keys, *settings]
    # Each row is a run, or a run would have two rows of one step: no table of steps.
    if not keys or not frame.duplicated(keys).any() or frame.duplicated([*keys, step]).any():
        return runs
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
    losses, steps, number = runs.numbers(loss), runs.numbers(step), groups.ngroup().to_numpy()
    order, empty = np.lexsort((steps, number)), runs.left_empty(loss)
    ends = np.flatnonzero(np.diff(number[order], append=-1)) + 1
    rows = []
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        places = order[begin:end]
        logged = places[~empty[places]]  # an evaluation is not at every step
        facts = {"loss": math.nan}
        if len(logged):
            facts = objective.of(Series.of(steps[logged], losses[logged]))
        rows.append((places[-1], facts))
    last = frame.iloc[[place for place, _ in rows]].copy()
    last[loss] = [facts["loss"] for _, facts in rows]
    last["first_loss"] = [facts.get("first_loss", math.nan) for _, facts in rows]
    last["last_step"] = steps[[place for place, _ in rows]]
    note = f"the table has a row a step: {objective.sentence(loss)}"
    return replace(
        runs, frame=last.drop(columns=step), notes=(*runs.notes, note), blanks=None
    ).with_roles(LADDER_ROLES)


def step_column(runs: Runs) -> str | None:
    """The column that may say at which step of its run a row was written."""
    steps = {plain_name(name) for name in STEP_NAMES}
    taken = {c for role, c in runs.columns.items() if role != "reached" or role in runs.asked}
    free = (column for column in runs.frame.columns if str(column) not in taken)
    named = (column for column in free if plain_name(column) in steps)
    return next((str(c) for c in named if runs.frame[c].dtype.kind in "iuf"), None)
