"""A table's runs by model and horizon: in each cell losses over the rate and, if varied, the batch.

At a fixed number of tokens a batch has an optimum as the rate has one. Where too few batches were
run for that, each is a cell of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.errors import BadInput, Keyword, Text
from sweeper.evidence.rates.surface import FEWEST, SurfaceRuns
from sweeper.evidence.runs.cells import curves_of, final_losses
from sweeper.evidence.runs.grid import GridOptions
from sweeper.evidence.runs.loss_runs import NEAR_A_LINE, SAME, groups_of, positive
from sweeper.evidence.runs.roles import LADDER_ROLES, LAW_ROLES
from sweeper.evidence.runs.run import END_LOSS, Array, Runs, log2_of
from sweeper.evidence.runs.settings import check_alike
from sweeper.evidence.runs.sizes import Counts, TokenSize, follows
from sweeper.stats.ladder import JOINT_AXIS, LadderSize, SizeCurve

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

ROLES = {
    **{role: LADDER_ROLES[role] for role in ("width", "depth", "batch_size", "steps")},
    **{role: LAW_ROLES[role] for role in ("params", "tokens")},
    **{role: LADDER_ROLES[role] for role in ("log2_eta", "eta", "decay", "loss", "seed")},
    **{role: LADDER_ROLES[role] for role in ("status", "first", "reached", "parameterization")},
}
COUNTS = ("params", "width", "depth", "batch_size", "steps", "tokens")
BATCHES, RATES = 3, 3
"""Batches of a cell, and rates at each on the average, from which a batch has an optimum."""
LEAST_CELLS = 4
"""Models and horizons from which both can be told apart."""
CELLS = 3
"""Cells that have as many, where the batch is told as the rate is."""


@dataclass(frozen=True, kw_only=True, order=True)
class CellSize(TokenSize):
    """A cell: model and horizon, and the batch where it is none of what is told."""

    params: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class RateRuns:
    """Cells by size, and their runs: `surfaces` over rate and batch, or `curves` over the rate.

    `model` is the role by which a model is known, `varied` the roles that differ between cells.
    `length` are the tokens of an example, where steps, batch and tokens say them; NaN else.
    """

    model: str
    horizon: str
    varied: tuple[str, ...]
    sizes: tuple[LadderSize, ...]
    surfaces: tuple[SurfaceRuns, ...]
    curves: tuple[SizeCurve, ...]
    batches: tuple[int, int]
    length: float
    runs: int
    unit: str
    noise: str
    columns: Mapping[str, str]
    notes: tuple[str | Text, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """Of what optima are a law: the model, the horizon, and the batch unless it is told."""
        return (self.model, self.horizon, *(["batch_size"] * (not self.surfaces)))

    def log2(self, size: LadderSize) -> Array:
        """Log2 of a cell's size along the axes."""
        return np.log2([float(getattr(size, axis)) for axis in self.axes])


def of_two_sizes(runs: Runs) -> bool:
    """Whether a table varies its rate over models and horizons, not both along one line."""
    runs = runs.with_roles(ROLES)
    if not {"eta", "log2_eta"} & {*runs.columns} or "loss" not in runs.columns:
        return False
    # Of these columns only: another may hold what cannot be counted.
    sized = {"params", "width", "tokens", "steps"} & {*runs.columns}
    differing = {role for role in sized if runs.frame[runs.columns[role]].nunique() > 1}
    sizes = [
        next((role for role in roles if role in differing), None)
        for roles in (("params", "width"), ("tokens", "steps"))
    ]
    if None in sizes:
        return False
    rate = runs.columns.get("log2_eta") or runs.columns["eta"]
    numbers = [runs.numbers(runs.columns[str(role)]) for role in sizes]
    tried = np.unique(np.stack([*numbers, runs.numbers(rate)], axis=1), axis=0)
    cells, rates = np.unique(tried[:, :2], axis=0, return_counts=True)
    cells = cells[rates >= RATES]
    if len(cells) < LEAST_CELLS or not (np.isfinite(cells) & (cells > 0)).all():
        return False
    # Along one line model and horizon are one axis, and the runs a ladder.
    model, horizon = np.log(cells).T
    line = np.polyval(np.polyfit(model, horizon, 1), model)
    return bool(np.sqrt(np.mean((horizon - line) ** 2)) > NEAR_A_LINE)


def rate_runs(runs: Runs, options: GridOptions, *, tells_batch: bool = True) -> RateRuns:
    """The cells, one a batch without `tells_batch`; BadInput for what is missing or differs."""
    import pandas

    runs = runs.with_roles(ROLES)
    columns = runs.columns
    wanted = {} if "log2_eta" in columns else {"eta": "the learning rate"}
    wanted |= END_LOSS
    wanted |= {} if "steps" in columns else {"tokens": "or steps"}
    wanted |= {} if "width" in columns else {"params": "or width"}
    runs.check_columns(wanted)
    notes: list[str | Text] = [*runs.notes]
    log2, how_read, _ = log2_of(runs, columns.get("log2_eta") or columns["eta"])
    notes += [how_read] if how_read and "log2_eta" not in columns else []
    sizes = _sizes(runs)
    model = "params" if "params" in sizes else "width"
    # Runs that have one of the sizes alone may differ in others, which go with it.
    notes += _check(runs, sizes, log2)
    table = pandas.DataFrame({"eta": log2, "loss": runs.numbers(columns["loss"]), **sizes})
    table["decay"] = table["planned"] = 0.0
    table, _, rounded = final_losses(runs, table, options.diverged, notes, JOINT_AXIS)
    horizon = "tokens" if "tokens" in sizes else "steps"
    cell = [model, horizon]
    kept: dict[str, Any] = {"model": model, "horizon": horizon, "batches": (1, 1)}
    if "batch_size" in sizes:
        kept["batches"] = int(table["batch_size"].min()), int(table["batch_size"].max())
    surfaces, curves, noise = list[SurfaceRuns](), list[SizeCurve](), ""
    made: list[LadderSize] = []
    if tells_batch and _tells_batch(table, cell):
        for values, rows in table.groupby(cell):
            x = np.stack([rows["eta"], np.log2(rows["batch_size"])], axis=1)
            surfaces.append(SurfaceRuns(x, rows["loss"].to_numpy(dtype=float)))
            made.append(_size(dict(zip(cell, values, strict=True))))
        noise = "by what smooth surfaces leave"
    else:
        keys = [*cell, *(["batch_size"] * ("batch_size" in sizes))]
        curves, noise = curves_of(
            table, keys, _size, notes, JOINT_AXIS, options.noise, rounded, runs.unit
        )
        made = [curve.size for curve in curves]
    axes = (model, horizon, *([] if surfaces else ["batch_size"]))
    return RateRuns(
        varied=tuple(axis for axis in axes if len({getattr(size, axis) for size in made}) > 1),
        sizes=tuple(made),
        surfaces=tuple(surfaces),
        curves=tuple(curves),
        length=_length(runs, sizes),
        runs=len(table),
        unit=runs.unit,
        noise=noise,
        columns=columns,
        notes=tuple(notes),
        **kept,
    )


def _size(values: Mapping[str, Any]) -> CellSize:
    """A size of a row's values; what a table does not have is 1."""
    sizes = dict.fromkeys(("width", "depth", "batch_size", "steps", "tokens", "params"), 1)
    return CellSize(**{**sizes, **{key: int(values[key]) for key in sizes if key in values}})


def _sizes(runs: Runs) -> dict[str, Counts]:
    """Whole numbers by role; the tokens are those of a column, else steps times batch."""
    found: dict[str, Array] = {}
    for role in COUNTS:
        if role in runs.columns:
            scale = runs.scale(role) if role in ("params", "tokens") else 1.0
            found[role] = positive(runs, runs.columns[role], role) * scale
    if "tokens" not in found and {"steps", "batch_size"} <= found.keys():
        found["tokens"] = found["steps"] * found["batch_size"]
    if "tokens" in found:
        found["tokens"] = _together(found["tokens"])
    return {role: np.round(values).astype(np.int64) for role, values in found.items()}


def _together(values: Array) -> Array:
    """Horizons that differ by what whole steps leave, each as the middle one of those."""
    levels, of = np.unique(values, return_inverse=True)
    groups = groups_of(np.log(levels), SAME)
    middles = np.array([np.median(levels[groups == g]) for g in range(groups[-1] + 1)])
    return middles[groups[of]]


def _check(runs: Runs, sizes: Mapping[str, Counts], log2: Array) -> list[str]:
    """BadInput for settings that differ within a cell; what goes with the cells is named."""
    import pandas

    place = pandas.DataFrame(sizes).groupby([*sizes]).ngroup().to_numpy()
    roles = {*runs.columns.values()}
    beside = [
        str(column)
        for column in runs.frame.columns
        if column not in roles
        and column not in runs.ignore
        and runs.frame[column].nunique(dropna=False) > 1
        and follows(runs.frame[column], place)
    ]
    taken = replace(runs, ignore=(*runs.ignore, *beside))
    check_alike(taken, JOINT_AXIS, sizes, log2)
    return [f"one for each size: {', '.join(beside)}"] if beside else []


def _tells_batch(table: pandas.DataFrame, cell: list[str]) -> bool:
    """Whether enough cells have batches enough, each with rates enough."""
    # At a fixed number of steps a larger batch sees more tokens, and has no optimum.
    if "batch_size" not in table or cell[1] == "steps":
        return False
    finite = table[np.isfinite(table["loss"])]
    groups = finite.groupby(cell)
    batches, points = groups["batch_size"].nunique(), groups.size()
    rates = finite.groupby([*cell, "batch_size"])["eta"].nunique().groupby(level=[0, 1]).mean()
    full = (batches >= BATCHES) & (rates >= RATES) & (points >= FEWEST)
    return bool(full.sum() >= min(CELLS, len(full)) and 2 * full.sum() >= len(full))


def _length(runs: Runs, sizes: Mapping[str, Counts]) -> float:
    """Tokens of an example, where a table says them."""
    if "tokens" not in runs.columns or not {"steps", "batch_size"} <= sizes.keys():
        return math.nan
    lengths = sizes["tokens"] / (sizes["steps"] * sizes["batch_size"])
    return float(np.median(lengths))


def no_law(axis: str, value: float) -> BadInput:
    """That a target differs in what the runs do not."""
    return BadInput(
        f"all runs have one value of {axis.replace('_', ' ')}, {value:.4g}: they say nothing of "
        "another; leave ",
        Keyword({"params": "to_params", "batch_size": "to_batch"}.get(axis, f"to_{axis}"), ...),
        " out, or add runs that differ in it",
    )
