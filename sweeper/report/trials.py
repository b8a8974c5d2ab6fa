"""Tables of a study's trials: one a row, and of a ladder a row a size, a column a point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean

from sweeper.stats.ladder import LADDER_AXES, LadderPoint, LadderSize, LadderSoFar
from sweeper.table import Cell, Column, Table, short
from sweeper.trial import Choice, Result

KEY = 10
"""Letters of a trial's key that tell it from others on a page."""
MOST_ROWS = 1500
"""So many trials are in the page's table, the last ones: a page stays below a megabyte."""


def trials_table(results: Sequence[Result], *, deep: bool) -> Table:
    """A row a trial, last ones first; `deep` where trials take a depth."""
    last = sorted(results, key=lambda result: -result.finished_at)[:MOST_ROWS]
    every = dict.fromkeys(name for r in last for name in (*r.trial.log2_hps, *r.trial.choices))
    values = {name: {str(r.trial.values.get(name)) for r in last} for name in every}
    # What all have in common would push the reason of a failure out of the page.
    names = [name for name in every if len(values[name]) > 1]
    shared = [f"{name} {_used(last[0], name)}" for name in every if name not in names]
    logged = any(r.trial.spec.runner.get("name") == "command" for r in last)
    has_errors = any(result.error for result in last)
    table = Table("All trials", [Column("trial", left=True)], detail=True)
    table.columns = [
        *table.columns,
        Column("status", left=True),
        Column("loss", form=".4f"),
        Column("phase", left=True),
        *(Column(name) for name in names),
        *(Column(name) for name in ("width", *["depth"] * deep, "seed", "steps")),
        Column("time"),
        *[Column("reason", left=True)] * has_errors,
        *[Column("log", left=True)] * logged,
    ]
    for result in last:
        trial = result.trial
        log = f"trials/{trial.key}/log.txt" if trial.spec.runner.get("name") == "command" else ""
        loss = "" if math.isnan(result.objective) else result.objective
        table.add(
            trial.key[:KEY],
            result.status,
            loss,
            trial.phase,
            *(_used(result, name) for name in names),
            *(trial.width, *[trial.spec.depth] * deep, trial.seed, result.steps),
            Cell(result.seconds, f"{result.seconds:.4g} s"),
            *[" ".join(result.error.split())[:300]] * has_errors,
            *[Cell(log, log, link=log) if log else ""] * logged,
        )
    remarks = [f"The last {len(last):,} of {len(results):,} trials."] * (len(last) < len(results))
    remarks += [f"All have {', '.join(shared)}."] * bool(shared)
    table.legend = [" ".join(remarks)] * bool(remarks)
    return table


def _used(result: Result, name: str) -> str | Choice | None:
    value = result.trial.values.get(name)
    return short(value) if isinstance(value, float) else value


WAITS = "-"
LATER = "·"
LADDER_LEGEND = (
    "A number: the mean loss of a point whose runs have all ended; * the least of a row that is "
    f"full. 2/4: runs that have ended, of those planned. {WAITS}: none has."
)


def ladder_table(ladder: LadderSoFar) -> Table:
    """What is measured of every point, by size and log2 of the hyperparameter."""
    sizes = sorted({*(point.size for point in ladder.points), *ladder.later})
    axes = [key for key in LADDER_AXES if len({getattr(size, key) for size in sizes}) > 1]
    axes = axes or ["width"]
    values = sorted({round(point.value, 6) for point in ladder.points})
    points = {(point.size, round(point.value, 6)): point for point in ladder.points}
    columns = [Column(f"{value:g}") for value in values]
    head = axes[0].replace("_", " ") if len(axes) == 1 else "size"
    done = sum(len(point.losses) for point in ladder.points)
    runs = sum(point.runs for point in ladder.points)
    title = f"The ladder: {done} of {runs} runs, by log2 {ladder.hyperparameter}"
    legend = [
        LADDER_LEGEND,
        *[f"Sizes whose row is empty ({LATER}) come later."] * bool(ladder.later),
    ]
    table = Table(title, [Column(head, left=True), *columns], legend=legend)
    for size in sizes:
        row = [points.get((size, value)) for value in values]
        trained = [point for point in row if point]
        whole = bool(trained) and all(point.complete for point in trained)
        least = min(map(_mean, trained)) if whole else math.nan
        if size in ladder.later:
            table.add(_label(size, axes), *(Cell(math.nan, LATER) for _ in row))
            continue
        table.add(_label(size, axes), *(_ladder_cell(point, least) for point in row))
    return table


def _label(size: LadderSize, axes: list[str]) -> str:
    if len(axes) == 1:
        return str(getattr(size, axes[0]))
    return " ".join(f"{key[0]}{value}" for key, value in asdict(size).items() if key in axes)


def _mean(point: LadderPoint) -> float:
    mean = fmean(point.losses)
    return math.inf if math.isnan(mean) else mean


def _ladder_cell(point: LadderPoint | None, least: float) -> Cell | None:
    if point is None:
        return None
    if not point.complete:
        done = len(point.losses)
        return Cell(math.nan, f"{done}/{point.runs}" if done else WAITS)
    mean = _mean(point)
    if math.isinf(mean):
        return Cell(mean, "div." if math.inf in point.losses else "failed")
    return Cell(mean, f"{mean:.3f}{'*' if mean == least else ' '}")
