"""The table of a study's trials."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sweeper.table import Cell, Column, Table, short
from sweeper.trial import Choice, Result, Trial

KEY = 10
"""Letters of a trial's key that tell it from others on a page."""
MOST_ROWS = 1500
"""So many trials are in the page's table, the last ones: a page stays below a megabyte."""


def trials_table(results: Sequence[Result], *, deep: bool) -> Table:
    """A row a trial, the last ones first: what it was, how it ended, where its files lie.

    Not `deep`: trials take no depth.
    """
    shown = sorted(results, key=lambda result: -result.finished_at)[:MOST_ROWS]
    every = dict.fromkeys(name for r in shown for name in (*r.trial.log2_hps, *r.trial.choices))
    values = {name: {str(in_use_of(r.trial).get(name)) for r in shown} for name in every}
    # What all have in common would push the reason of a failure out of the page.
    names = [name for name in every if len(values[name]) > 1]
    shared = [f"{name} {_used(shown[0], name)}" for name in every if name not in names]
    logged = any(r.trial.spec.runner.get("name") == "command" for r in shown)
    told = any(result.error for result in shown)
    table = Table("All trials", [Column("trial", left=True)], detail=True)
    table.columns = [
        *table.columns,
        Column("status", left=True),
        Column("loss", form=".4f"),
        Column("phase", left=True),
        *(Column(name) for name in names),
        *(Column(name) for name in ("width", *["depth"] * deep, "seed", "steps")),
        Column("time"),
        *[Column("reason", left=True)] * told,
        *[Column("log", left=True)] * logged,
    ]
    for result in shown:
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
            *[" ".join(result.error.split())[:300]] * told,
            *[Cell(log, log, link=log) if log else ""] * logged,
        )
    said = [f"The last {len(shown):,} of {len(results):,} trials."] * (len(shown) < len(results))
    said += [f"All have {', '.join(shared)}."] * bool(shared)
    table.legend = [" ".join(said)] * bool(said)
    return table


def _used(result: Result, name: str) -> str | Choice | None:
    value = in_use_of(result.trial).get(name)
    return short(value) if isinstance(value, float) else value


def in_use_of(trial: Trial) -> dict[str, Choice]:
    """A trial's hyperparameters as they are used: plain numbers, and choices."""
    return {**trial.hps, **trial.choices}
