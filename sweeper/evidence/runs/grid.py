"""A table's runs as learning-rate curves: a curve a size, along the one size that differs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sweeper.errors import BadInput, ConfigError, Keyword, Text
from sweeper.evidence.runs.cells import curves_of, final_losses
from sweeper.evidence.runs.condition import where_equal
from sweeper.evidence.runs.divergence import HUGE
from sweeper.evidence.runs.roles import AXES, LADDER_ROLES, MODEL, PARAMS, ROLES, SIZES
from sweeper.evidence.runs.run import END_LOSS, Array, Runs, log2_of
from sweeper.evidence.runs.series import Objective, per_run
from sweeper.evidence.runs.settings import LADDER_RATES, LADDER_SIZES, check_alike
from sweeper.evidence.runs.sizes import Counts, axis_of, base_of, follows, size_maker, sizes_of
from sweeper.gone import gone
from sweeper.stats.ladder import JOINT_AXIS, LadderSize, SizeCurve
from sweeper.table import counted

ANY_SIZE = "or another size; --axis takes any column of whole numbers"
OPTIMA = frozenset(("optimum", "optimal_lr", "best_lr", "optimum_lr", "optimal_eta", "best_eta"))
"""Usual names of a column of best learning rates, which tell no transfer without losses."""
CELL_ROLES = ("eta", "log2_eta", "loss")
"""Roles beside sizes whose columns hold numbers that every run has."""


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """How curves are made of a table's runs: the axis, None is whichever size differs.

    `diverged`: a loss above it is that of a run that diverged. `noise`: a run's standard deviation
    in nats, where it is known.
    """

    axis: str | None = None
    diverged: float | None = None
    noise: float | None = None

    def __post_init__(self) -> None:
        for name in ("diverged", "noise"):
            value = getattr(self, name)
            if value is not None and not 1 / HUGE <= value <= HUGE:
                raise ConfigError(Keyword(name), value, "a positive number of nats")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Curves by size, ascending, of one `axis`; `notes` say what was done to the runs.

    `seeds` is the least number of runs a cell. `plain` tells that the table has learning rates,
    not their logarithms. `transferred` (log2) and `parameterization` where the table names them.
    """

    axis: str
    curves: tuple[SizeCurve, ...]
    base: LadderSize
    seeds: int
    runs: int
    plain: bool
    noise: str
    notes: tuple[str | Text, ...] = ()
    rounded: float = 0.0
    transferred: float | None = None
    parameterization: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)


def ladder_runs(runs: Runs, objective: Objective | None = None) -> Runs:
    """The runs with the columns of a ladder, a row a run; BadInput where a column is missing.

    Of a table with a row a step `objective` says what is a run's loss.
    """
    return per_run(_with_ladder_columns(runs), objective or Objective())


def _with_ladder_columns(runs: Runs) -> Runs:
    columns = {**runs.with_roles(LADDER_ROLES).columns}
    names = {str(column).lower(): str(column) for column in runs.frame.columns}
    if "loss" not in columns and (optima := names.keys() & OPTIMA):
        alone = f"{names[min(optima)]} has optima, and no column the losses of runs"
        raise BadInput(f"{alone}{gone('columns optimum')}")
    # The user's word goes before a usual name.
    if "log2_eta" in columns and "eta" in columns and "eta" in runs.asked:
        del columns["log2_eta"]
    ladder = replace(runs, columns=columns)
    wanted = {} if "log2_eta" in columns else {"eta": "the learning rate"}
    wanted |= END_LOSS
    if not MODEL & columns.keys():  # of nothing else a model's size is known by
        columns |= runs.with_roles(PARAMS).columns
    sized = {*AXES} & columns.keys() or columns.keys() - ROLES
    wanted |= {} if sized else {"width": ANY_SIZE}
    ladder.check_columns(wanted)
    nothing = ladder.left_empty(columns["loss"])
    nothing &= ladder.left_empty(columns.get("log2_eta") or columns["eta"])
    if nothing.any() and not nothing.all():  # such as the heads of sections
        rows = counted(int(nothing.sum()), "row")
        note = f"left out: {rows} without a learning rate and a loss, of no run"
        return replace(ladder, frame=ladder.frame[~nothing], notes=(*ladder.notes, note))
    return ladder


Key = Mapping[str, int]
"""Sizes beside a ladder's own, by role."""
KEYED_FIRST = ("width", "params", "tokens", "depth", "steps", "batch_size")
"""Axes that are tried where none was asked for and the usual one has no ladder."""


def ladders_of(runs: Runs, options: GridOptions) -> list[tuple[str, Key, Runs]]:
    """Axis, key and runs of each ladder: one a value of a further size, or all runs as one."""
    sizes = sizes_of(runs)
    axis = axis_of(sizes, options.axis)
    # Whether a size may be ignored `_check_ignored_sizes` says, of all runs together.
    if axis == JOINT_AXIS or any(runs.columns[role] in runs.ignore for role in sizes):
        return [(axis, {}, runs)]
    rates = runs.numbers(runs.columns.get("log2_eta") or runs.columns["eta"])
    tried = [axis]
    if options.axis is None:
        tried += [role for role in KEYED_FIRST if role in sizes and role != axis]
    for along in tried:
        ladders = _keyed(runs, along, sizes, rates)
        if len(ladders) > 1:
            return [(along, key, part) for key, part in ladders]
        # No further size differs: the usual axis is that of one ladder.
        if along == axis and not _keys(axis, sizes):
            break
    return [(axis, {}, runs)]


def _keys(axis: str, sizes: Mapping[str, Counts]) -> list[str]:
    """The sizes that differ beside the axis and do not follow from it and the others."""
    import pandas  # type: ignore[import-untyped]

    keys: list[str] = []
    # Those that others follow from come first.
    for role in ("params", "tokens", *SIZES):
        if role in (axis, *keys) or role not in sizes:
            continue
        counts = pandas.DataFrame({name: sizes[name] for name in (axis, *keys)})
        if not follows(sizes[role], counts.groupby([*counts.columns]).ngroup()):
            keys.append(role)
    return keys


def _keyed(
    runs: Runs, axis: str, sizes: Mapping[str, Counts], rates: Array
) -> list[tuple[Key, Runs]]:
    import pandas

    ladders: list[tuple[Key, Runs]] = []
    if not (keys := _keys(axis, sizes)):
        return ladders
    table = pandas.DataFrame({**{key: sizes[key] for key in keys}, "size": sizes[axis]})
    table["eta"] = rates
    for values, rows in table.groupby(keys):
        enough = rows.groupby("size")["eta"].nunique() >= LADDER_RATES
        if enough.sum() < LADDER_SIZES:
            continue
        # Sizes with fewer rates are no curves.
        kept = rows[rows["size"].isin(enough.index[enough])].index
        key = {role: int(value) for role, value in zip(keys, values, strict=True)}
        ladders.append((key, replace(runs, frame=runs.frame.iloc[kept.to_numpy()])))
    return ladders


def grid_of(runs: Runs, options: GridOptions) -> Grid:
    """The curves of a table's runs; BadInput where these cannot be compared."""
    import pandas

    columns = runs.columns
    notes: list[str | Text] = [*runs.notes]
    runs.check_numbers(
        [c for role, c in columns.items() if role in (*SIZES, *CELL_ROLES) or role not in ROLES]
    )
    sizes = sizes_of(runs)
    axis = axis_of(sizes, options.axis)
    _check_ignored_sizes(runs, sizes, axis)
    log2, how_read, plain = log2_of(runs, columns.get("log2_eta") or columns["eta"])
    notes += [how_read] if how_read and "log2_eta" not in columns else []
    check_alike(runs, axis, sizes, log2)
    keys = [*sizes]
    # Of a table of millions of rows each column counts: none is copied, or kept for longer.
    small = {key: sizes[key].astype(np.min_scalar_type(sizes[key].max())) for key in keys}
    numbers = {"eta": log2, "loss": runs.numbers(columns["loss"]), **small}
    table = pandas.DataFrame(numbers, copy=False)
    table["planned"] = runs.numbers(columns["planned"]) if "planned" in columns else np.int8(0)
    del log2, sizes, small, numbers
    table, kept, rounded = final_losses(runs, table, options.diverged, notes, axis)
    make = size_maker(axis, keys)
    base = base_of(runs, table, keys, make, axis)
    curves, noise = curves_of(table, keys, make, notes, axis, options.noise, rounded, runs.unit)
    if len(runs) > kept:
        notes.append(f"{len(runs) - kept} of {len(runs)} rows are not counted")
    return Grid(
        axis=axis,
        curves=tuple(curves),
        base=base,
        seeds=min((len(runs) for c in curves for runs in c.losses.values()), default=0),
        runs=kept,
        plain=plain,
        noise=noise,
        notes=tuple(notes),
        rounded=rounded,
        transferred=_only_number(runs, "transferred"),
        parameterization=str(runs.only_value("parameterization") or ""),
        columns=columns,
        constants=_constants(runs),
    )


def _check_ignored_sizes(runs: Runs, sizes: Mapping[str, Counts], axis: str) -> None:
    """ConfigError for an ignored size of several values: losses of two sizes are no repeats."""
    if axis == JOINT_AXIS:
        return
    for role, values in sizes.items():
        column = runs.columns[role]
        if column not in runs.ignore or role == axis or follows(values, sizes[axis]):
            continue
        first = runs.frame[column].iloc[0]
        remedies = (
            f"no size: runs of several values of {column} are several ladders, and ",
            where_equal({column: first}),
            " takes one, or ",
            Keyword("axis", role),
            " judges that size",
        )
        raise ConfigError(Keyword("ignore"), column, remedies)


def _only_number(runs: Runs, role: str) -> float | None:
    if role not in runs.columns:
        return None
    values = np.unique(runs.numbers(runs.columns[role]))
    return float(values[0]) if len(values) == 1 and math.isfinite(values[0]) else None


def _constants(runs: Runs) -> dict[str, Any]:
    """The columns that have one value, as a table of ours keeps the settings of its study."""
    frame = runs.frame
    named = [c for c in frame.columns if str(c).startswith("transfer.") or c == "study"]
    return {str(c): frame[c].iloc[0] for c in named if frame[c].nunique(dropna=False) == 1}
