"""A table's runs by model and horizon: in each cell losses over the rate and, if varied, the batch.

At a fixed number of tokens a batch has an optimum as the rate has one. Where too few batches were
run for that, each is a cell of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sweeper.errors import Text
from sweeper.evidence.rates.optima import RateCell
from sweeper.evidence.runs.cells import final_losses
from sweeper.evidence.runs.grid import GridOptions
from sweeper.evidence.runs.loss_runs import NEAR_A_LINE, SAME, groups_of, positive
from sweeper.evidence.runs.roles import LADDER_ROLES, LAW_ROLES
from sweeper.evidence.runs.run import END_LOSS, Array, Runs, log2_of
from sweeper.evidence.runs.settings import check_alike
from sweeper.evidence.runs.sizes import Counts, follows
from sweeper.stats.ladder import JOINT_AXIS

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

ROLES = {
    **{role: LADDER_ROLES[role] for role in ("width", "depth", "batch_size", "steps")},
    **{role: LAW_ROLES[role] for role in ("params", "tokens")},
    **{role: LADDER_ROLES[role] for role in ("log2_eta", "eta", "decay", "loss", "seed")},
    **{role: LADDER_ROLES[role] for role in ("status", "first", "reached", "parameterization")},
}
COUNTS = ("params", "width", "depth", "batch_size", "steps", "tokens")
FEWEST = 3
"""Rates, and batches of a cell, that a parabola takes; so many cells must have them."""
LEAST_CELLS = 4
"""Models and horizons from which both can be told apart."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RateRuns:
    """The cells of a table, over the rate alone or over the rate and the batch.

    `model` and `horizon` are the roles by which these are known. `length` are the tokens of an
    example, where steps, batch and tokens say them; NaN else.
    """

    model: str
    horizon: str
    cells: tuple[RateCell, ...]
    tells_batch: bool
    length: float
    runs: int
    unit: str
    columns: Mapping[str, str]
    notes: tuple[str | Text, ...]

    @property
    def varied(self) -> tuple[str, ...]:
        """The sizes that differ between cells, of which optima are a law."""
        axes = [*self.cells[0].sizes] if self.cells else []
        return tuple(a for a in axes if len({cell.sizes[a] for cell in self.cells}) > 1)

    def log2(self, sizes: Mapping[str, float]) -> Array:
        """Log2 of a cell's sizes along these axes."""
        return np.log2([float(sizes[axis]) for axis in self.varied])


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
    cells = cells[rates >= FEWEST]
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
    notes += _check(runs, sizes, log2)
    table = pandas.DataFrame({"eta": log2, "loss": runs.numbers(columns["loss"]), **sizes})
    table["decay"] = table["planned"] = 0.0
    table, _, _ = final_losses(runs, table, options.diverged, notes, JOINT_AXIS)
    model = "params" if "params" in sizes else "width"
    horizon = "tokens" if "tokens" in sizes else "steps"
    table = table.assign(batch_size=1) if "batch_size" not in table else table
    tells_batch = tells_batch and _tells_batch(table, model, horizon)
    axes, x = [model, horizon, "batch_size"], table[["eta"]].to_numpy()
    if tells_batch:
        axes, x = axes[:2], np.column_stack([table["eta"], np.log2(table["batch_size"])])
    losses = table["loss"].to_numpy(dtype=float)
    cells = [
        RateCell(dict(zip(axes, map(int, key), strict=True)), x[places], losses[places])
        for key, places in table.groupby(axes).indices.items()
    ]
    # Tokens of an example, where a table says them.
    length = math.nan
    if "tokens" in columns and {"steps", "batch_size"} <= sizes.keys():
        length = float(np.median(sizes["tokens"] / (sizes["steps"] * sizes["batch_size"])))
    return RateRuns(
        model=model,
        horizon=horizon,
        cells=tuple(cells),
        tells_batch=tells_batch,
        length=length,
        runs=len(table),
        unit=runs.unit,
        columns=columns,
        notes=tuple(notes),
    )


def _sizes(runs: Runs) -> dict[str, Counts]:
    counts: dict[str, Array] = {}
    for role in COUNTS:
        if role in runs.columns:
            scale = runs.scale(role) if role in ("params", "tokens") else 1.0
            counts[role] = positive(runs, runs.columns[role], role) * scale
    if "tokens" not in counts and {"steps", "batch_size"} <= counts.keys():
        counts["tokens"] = counts["steps"] * counts["batch_size"]
    if "tokens" in counts:
        # Horizons that differ by what whole steps leave are one: the middle of those.
        levels, of = np.unique(counts["tokens"], return_inverse=True)
        groups = groups_of(np.log(levels), SAME)
        middles = np.array([np.median(levels[groups == g]) for g in range(groups[-1] + 1)])
        counts["tokens"] = middles[groups[of]]
    return {role: np.round(values).astype(np.int64) for role, values in counts.items()}


def _check(runs: Runs, sizes: Mapping[str, Counts], log2: Array) -> list[str]:
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


def _tells_batch(table: pandas.DataFrame, model: str, horizon: str) -> bool:
    # At a fixed number of steps a larger batch sees more tokens, and has no optimum.
    if horizon == "steps":
        return False
    finite = table[np.isfinite(table["loss"])]
    batches = finite.groupby([model, horizon])["batch_size"].nunique()
    rates = finite.groupby([model, horizon, "batch_size"])["eta"].nunique()
    full = (batches >= FEWEST) & (rates.groupby(level=[0, 1]).mean() >= FEWEST)
    return bool(full.sum() >= min(FEWEST, len(full)) and 2 * full.sum() >= len(full) > 0)
