"""The rule by which a run of a table has diverged, and what its loss counts as then.

One rule for all tables. A run that diverged has a loss of +inf: it bounds a curve, and no mean or
fit takes it for a loss. A run that was not made, that failed or still goes on says nothing, and is
left out.
"""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING

import numpy as np

from sweeper.errors import BadInput, Keyword, Text
from sweeper.evidence.runs.condition import Mask, shown_value, where_none_of
from sweeper.evidence.runs.numbers import is_empty
from sweeper.evidence.runs.roles import EXIT_CODES, SIZES, plain_name
from sweeper.evidence.runs.run import MOST_LEFT_OUT, Runs, in_own_order, without
from sweeper.evidence.runs.sizes import axis_name
from sweeper.table import counted

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

UNFINISHED = (
    *("failed", "crashed", "killed", "running", "pruned", "fail", "waiting", "pending", "queued"),
    *("preempted", "preempting", "cancelled", "canceled", "timeout", "interrupted", "error", "oom"),
)
"""States of runs whose loss is not that of their end."""
FINISHED = (
    *("finished", "complete", "completed", "done", "success", "successful", "succeeded", "ok"),
    "true",
)
"""States of runs that trained to their end; one that is not listed here is asked about."""
EXPLODED = 10.0
"""A loss above so many times the median of its size is that of a run that diverged."""
HUGE = 1e30
"""Nothing that trains has such a loss, nor its inverse: it is what an overflow left behind."""
EARLY = 0.9
"""A run that ended before this share of the steps of others of its size did not finish."""


def ended_runs(runs: Runs, table: pandas.DataFrame, notes: list[str | Text]) -> pandas.DataFrame:
    """The table without runs that failed, still run or stopped early."""
    unfinished, diverged = by_status(runs, notes)
    if diverged.any():
        table["loss"] = table["loss"].mask(diverged, math.inf)
    return _whole_runs(runs, without(table, unfinished), notes)


def by_status(runs: Runs, notes: list[str | Text]) -> tuple[Mask, Mask]:
    """Which runs [rows] did not end and which diverged; BadInput for a status that says neither."""
    column = runs.columns.get("status")
    # Ray's `done` is of the last report alone: where steps say how far a run came, they say it.
    by_steps = column == "done" and "reached" in runs.columns
    if column is None or column in runs.ignore or by_steps:
        return np.zeros(len(runs), bool), np.zeros(len(runs), bool)
    cells = runs.frame[column]
    status = cells.map(_state).to_numpy()
    is_code = plain_name(column) in map(plain_name, EXIT_CODES)
    # A cell that was left empty says nothing against its run. Slurm's codes end in a signal's.
    ended = np.isin(status, (*FINISHED, *(("0", "0.0", "0:0") if is_code else ()), ""))
    diverged = status == "diverged"
    failed = [is_code and re.fullmatch(r"-?\d+(\.0|:\d+)?", cell) for cell in status]
    unfinished = (np.isin(status, UNFINISHED) | np.array(failed, bool)) & ~ended
    unknown = ~(unfinished | diverged | ended)
    if unknown.any():
        kinds = [*dict.fromkeys(cells[unknown])]
        parts: list[str | Keyword] = [
            f"{column!r} has {', '.join(map(shown_value, kinds[:MOST_LEFT_OUT]))}: nothing says "
            "whether such a run trained to its end; "
        ]
        if not unknown.all() and len(kinds) <= MOST_LEFT_OUT:
            parts += [where_none_of({column: kinds}), " leaves these out, "]
        raise BadInput(*parts, Keyword("ignore", column), " takes every run as finished")
    if unfinished.all():
        raise BadInput(f"no run of {runs.name or 'the table'} has ended")
    if unfinished.any():
        kinds = sorted({*status[unfinished]})
        notes.append(
            f"{counted(int(unfinished.sum()), 'run')} did not end ({', '.join(kinds)}): left out"
        )
    return unfinished, diverged


def _state(cell: object) -> str:
    return sys.intern("" if is_empty(cell) else str(cell).strip().lower())


def _whole_runs(runs: Runs, table: pandas.DataFrame, notes: list[str | Text]) -> pandas.DataFrame:
    if "reached" not in runs.columns:
        return table
    reached = runs.numbers(runs.columns["reached"])[table.index.to_numpy()]
    sizes = [role for role in SIZES if role in table]
    furthest = table.assign(reached=reached).groupby(sizes)["reached"].transform("max").to_numpy()
    # A run that diverged ends early for that reason, and is not left out.
    early = (reached < EARLY * furthest) & np.isfinite(table["loss"].to_numpy())
    if early.any():
        notes.append(
            f"left out: {counted(int(early.sum()), 'run')} that ended before "
            f"{EARLY:.0%} of the steps of others of the size"
        )
    return without(table, early)


def with_diverged(
    runs: Runs, table: pandas.DataFrame, threshold: float | None, notes: list[str | Text], axis: str
) -> pandas.DataFrame:
    """The table with a loss of +inf for every run that diverged, without runs that have none.

    A cell that was left empty is a run that was not made. Where a table cannot tell that from a
    NaN, the rates do: a run diverges by a learning rate that is too high, and where a higher one
    trained all runs of its size, nothing was measured. `threshold`: a loss above it diverged.
    """
    table = _made_runs(runs, table, notes)
    loss = table["loss"].to_numpy()
    strange = (loss < -HUGE) | ((loss != 0) & (np.abs(loss) < 1 / HUGE))
    if strange.any():
        at = int(np.flatnonzero(strange)[0])
        row = runs.row(int(table.index[at]))
        raise BadInput(f"{row} has a loss of {loss[at]:g}, which nothing trains to")
    unknown, gone, counts = np.isnan(loss), ~(loss <= HUGE), dict[str, int]()
    if threshold is not None:
        high = ~gone & (loss > threshold)
        counts[f"a loss above {threshold:g}"] = int(high.sum())
    elif "first" in runs.columns:
        first = runs.numbers(runs.columns["first"])[table.index.to_numpy()]
        high = ~gone & (loss > first)
        counts["a loss above the first one"] = int(high.sum())
    else:
        finite = table["loss"].where(~gone)
        along = [role for role in (axis,) if role in table] or [r for r in SIZES if r in table]
        typical = finite.groupby([table[role] for role in along]).transform("median").to_numpy()
        high = ~gone & (loss > EXPLODED * typical) & (typical > 0)
        rule = f"a loss above {EXPLODED:g} times the median of its {axis_name(axis)}"
        counts[rule] = int(high.sum())
    high |= gone
    if high.all():
        raise BadInput("no run of the table has a finite loss")
    if high.any():
        table["loss"] = table["loss"].mask(high, math.inf)
    lost = unknown
    if unknown.any():
        # The highest rate at which all runs of a size have a loss: below it none diverges.
        alone = [table[role] for role in dict.fromkeys((axis, *SIZES)) if role in table]
        worst = table.groupby([*alone, table["eta"]])["loss"].transform("max")
        trained = table["eta"].where(np.isfinite(worst)).groupby(alone).transform("max").to_numpy()
        lost = unknown & (table["eta"].to_numpy() < trained)
    if count := int(lost.sum()):
        notes.append(
            f"left out, with no loss: {count} of the runs, of learning rates below one at which "
            "all runs of the size have a loss; write inf for those that diverged"
        )
    counts["a loss that is NaN or infinite"] = int((gone & ~lost).sum())
    kinds = [f"{count} by {why}" for why, count in counts.items() if count]
    if kinds:
        notes.append(f"diverged: {', '.join(kinds)}; its loss counts as infinite")
    return in_own_order(without(table, lost))


def _made_runs(runs: Runs, table: pandas.DataFrame, notes: list[str | Text]) -> pandas.DataFrame:
    if not np.isnan(table["loss"]).any():
        return table
    # One that diverged by its status may have no loss.
    empty = np.isnan(table["loss"].to_numpy())
    empty &= runs.left_empty(runs.columns["loss"])[table.index.to_numpy()]
    if empty.any():
        what = counted(int(empty.sum()), "run")
        notes.append(f"left out: {what} whose loss is empty, which were not made or did not end")
    if empty.all():
        raise BadInput("no run of the table has a loss")
    return without(table, empty)
