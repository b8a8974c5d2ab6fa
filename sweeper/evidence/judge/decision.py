"""What a table of runs says of a transfer: the ladder's verdict, its ends, and what tells more.

The statistics are those of `sweeper/stats`; here a table's curves are brought to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sweeper.decide.ladder_verdict import worst
from sweeper.decide.target import prior_for
from sweeper.decide.verdict import judge_with_target
from sweeper.errors import BadInput, ConfigError, Keyword, Text, as_text
from sweeper.evidence.judge.next_runs import next_of_one_size, next_runs_of
from sweeper.evidence.judge.verdict import UNDECIDED, Edge, TableQuestion, TableVerdict
from sweeper.evidence.runs.cells import step_of
from sweeper.evidence.runs.grid import Grid, grid_of, ladders_of
from sweeper.evidence.runs.run import Runs, unit_of
from sweeper.evidence.runs.sizes import axis_name, axis_of_size
from sweeper.stats.curve import CurveFit, fit_curves
from sweeper.stats.ladder import LadderRule, LadderSize
from sweeper.table import counted


def judge_runs(runs: Runs, question: TableQuestion, command: str = "") -> TableVerdict:
    """The verdict on runs with the columns of a ladder; BadInput where they cannot be compared."""
    facts: dict[str, Any] = {
        "source": runs.name,
        "sha256": runs.sha256,
        "where": runs.where,
        "columns": runs.columns,
        "command": command,
    }
    verdicts, refused, left_out = list[TableVerdict](), list[BadInput](), list[Text]()
    parts = ladders_of(runs, question.reading)
    if (rest := len(runs) - sum(len(part) for _, _, part in parts)) > 0:
        left_out.append((f"{counted(rest, 'row')} left out, at sizes that make no ladder",))
    for axis, key, part in parts:
        reading = replace(question.reading, axis=axis if key else question.reading.axis)
        try:
            found = judge_grid(grid_of(part, reading), question)
        except BadInput as error:
            refused.append(error)
            sizes = ", ".join(f"{axis_name(role)} {value}" for role, value in key.items())
            left_out.append((f"left out, at {sizes}: ", *error.args))
            continue
        verdicts.append(replace(found, key=key, **facts))
    if not verdicts:
        raise refused[0]
    first = verdicts[0]
    told = _of_tokens(runs, first, question)
    if len(verdicts) == 1 and not refused:
        return replace(first, remarks=(*first.remarks, *told))
    return TableVerdict(
        answer=worst(verdict.answer for verdict in verdicts),
        finding="ladders",
        axis=first.axis,
        to=question.to,
        runs=sum(verdict.runs for verdict in verdicts),
        plain=first.plain,
        noise=first.noise,
        remarks=(*left_out, *told),
        ladders=tuple(verdicts),
        **facts,
    )


def _of_tokens(runs: Runs, first: TableVerdict, question: TableQuestion) -> list[Text]:
    """For how many tokens a target's rate is, where a column says how many runs had."""
    if question.to is None or first.axis != "width" or "tokens" not in runs.columns:
        return []
    if "tokens" in first.key:
        asks = (Keyword("to_width", question.to), " with ", Keyword("to_tokens", ...))
        return [("at other numbers of tokens than these, ", *asks, " tells the rate")]
    if (tokens := runs.only_value("tokens")) is None:
        return []
    return [(f"all runs saw {tokens} tokens, and what is said of the target is for as many",)]


def judge_grid(grid: Grid, question: TableQuestion) -> TableVerdict:
    """The verdict on the curves of a grid."""
    rule, ours = _rule(grid, question)
    # About 0 for now: the transferred value may itself be the base's fitted optimum.
    fits = fit_curves(grid.curves, 0.0)
    transferred = _transferred(grid, question, fits)
    edges = _edges(grid, fits)
    sides = {edge.size: edge.side or 1 for edge in edges}
    column = grid.columns.get("loss", "")
    common: dict[str, Any] = {
        "axis": grid.axis,
        "transferred_log2_eta": transferred,
        "bound": _bound(grid, question, edges),
        "curves": grid.curves,
        "edges": edges,
        "remarks": tuple(as_text(note) for note in grid.notes),
        "bits": "" if unit_of(column) == "nats" else column,
        "rounded": grid.rounded,
        "ours": ours,
        "noise": grid.noise,
        "runs": grid.runs,
        "plain": grid.plain,
        "study": str(grid.constants.get("study", "")),
        "parameterization": grid.parameterization,
    }
    if len(grid.curves) < 2:
        return TableVerdict(
            answer=UNDECIDED, finding="one_size", next_runs=next_of_one_size(grid, sides), **common
        )
    # Fits are not made again for the value: regrets alone depend on it.
    fits = {
        size: fit and replace(fit, regret=fit.loss_gap(transferred + fit.curve.planned_log2))
        for size, fit in fits.items()
    }
    prior = prior_for(grid.axis, grid.parameterization, question.theory)
    target = None
    if question.to is not None:
        # A target is named by its size along the axis; the rest of it is that of the largest run.
        largest = max(curve.size for curve in grid.curves)
        target = replace(largest, **{axis_of_size(grid.axis): question.to})
    verdict, trend = judge_with_target(
        *(grid.axis, grid.curves, fits, transferred, grid.base, rule, prior, target),
        is_named=question.eta is not None and target is not None,
    )
    predicted = None
    # Of a plan by a law the trend is of what the law leaves: no learning rate by itself.
    if trend is not None and verdict.target and not any(c.planned_log2 for c in grid.curves):
        predicted = trend.predicted_log2
    overrides = (*verdict.settle, *(verdict.target.settle if verdict.target else ()))
    next_runs = next_runs_of(grid, verdict, fits, rule, sides)
    if not ours:  # settings of a study mean nothing to somebody who has none
        plain = verdict.target and replace(verdict.target, settle=())
        verdict = replace(verdict, settle=(), target=plain)
    wrong = verdict.target is not None and verdict.target.code == "wrong_rate"
    return TableVerdict(
        # A named rate that is wrong at the target fails, whatever the ladder says of its own.
        answer="fails" if wrong else verdict.answer,
        finding="ladder",
        axes=(verdict,),
        trend=trend,
        to=question.to,
        predicted=predicted,
        next_runs=next_runs,
        overrides=overrides if ours else (),
        **common,
    )


def _rule(grid: Grid, question: TableQuestion) -> tuple[LadderRule, bool]:
    """The thresholds and the shape of the curves; those of our own study where the table has them.

    Whether it has them comes with it.
    """
    kept = {
        name.removeprefix("transfer."): float(value)
        for name, value in grid.constants.items()
        if name.startswith("transfer.")
    }
    # A table has no rule: its span and step are read off its curves, for advice in its own terms.
    reach = max((max(c.losses) - min(c.losses) for c in grid.curves if c.losses), default=4.0)
    step = float(np.median([step_of(curve) for curve in grid.curves]))
    # Bounds of a rule's own check: tables may have any step.
    step = min(max(kept.get("step", step), 2.0**-6), 16.0)
    rule = LadderRule(
        widths=tuple(max(1, int(c.size.width)) for c in grid.curves),
        seeds=max(1, grid.seeds),
        step=step,
        span=max(kept.get("span", reach / 2), step),
        extend=int(kept.get("extend", 4)),
        max_shift=kept.get("max_shift", question.max_shift),
        max_loss_gap=kept.get("max_loss_gap", question.max_loss_gap),
        correct=bool(kept.get("correct", False)),
    )
    return rule, bool(kept)


def _transferred(
    grid: Grid, question: TableQuestion, fits: Mapping[LadderSize, CurveFit | None]
) -> float:
    """The asked value, that of our study, or the base's optimum (log2)."""
    if question.eta is not None:
        if grid.plain and question.eta <= 0:
            raise ConfigError(Keyword("eta"), question.eta, "a positive learning rate")
        return math.log2(question.eta) if grid.plain else question.eta
    if grid.transferred is not None:
        return grid.transferred
    fit = fits[grid.base]
    if fit is not None:
        return fit.optimum.value
    # Every run of the base diverged: the middle of what was tried.
    curve = next(curve for curve in grid.curves if curve.size == grid.base)
    return float(np.median(list(curve.losses)))


def _bound(grid: Grid, question: TableQuestion, edges: tuple[Edge, ...]) -> str:
    """Where the base's optimum lies from the transferred value, if that is only a bound of it."""
    if question.eta is not None or grid.transferred is not None:
        return ""
    said = {-1: "at or below", 0: "anywhere around", 1: "at or above"}
    return next((said[edge.side] for edge in edges if edge.size == grid.base), "")


def _edges(grid: Grid, fits: Mapping[LadderSize, CurveFit | None]) -> tuple[Edge, ...]:
    """The curves whose best lies in their first or last value."""
    edges = []
    for curve in grid.curves:
        if (fit := fits[curve.size]) is None or not fit.at_end:
            continue
        best = min(sorted(curve.losses), key=lambda eta: float(np.mean(curve.losses[eta])))
        edges.append(Edge(size=curve.size, side=fit.side, log2=best))
    return tuple(edges)
