"""What a table of runs says of a transfer: the ladder's verdict, its ends, and what tells more.

The statistics are those of `sweeper/stats`; here a table's curves are brought to them, and their
advice, which speaks of a study's keys, becomes a list of cells to run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from sweeper.decide.target import predict, prior_for
from sweeper.decide.transfer import NO_SEEDS, SAME_SEEDS, Answer, Verdict, judge_ladder
from sweeper.decide.trend import Trend, judge_joint_target, judge_target
from sweeper.errors import SHELL, BadInput, ConfigError, Keyword, as_text, spelled
from sweeper.records import to_json
from sweeper.runs.cells import DecayCell, step_of
from sweeper.runs.condition import shown_value, where_equal
from sweeper.runs.grid import Grid, GridOptions, grid_of
from sweeper.runs.rates import log2_of
from sweeper.runs.roles import AXES
from sweeper.runs.run import Array, Runs, unit_of
from sweeper.runs.settings import is_kept, is_one_number
from sweeper.runs.sizes import name_size, whole_numbers
from sweeper.stats.curve import CurveFit, fit_curves
from sweeper.stats.estimate import UNKNOWN, Estimate
from sweeper.stats.ladder import JOINT_AXIS, LadderRule, LadderSize, SizeCurve, describe_size
from sweeper.table import counted

UNDECIDED: Answer = "cannot say yet"
MOST_CELLS = 200
"""More cells than this are no list that anybody runs by hand: the rest is counted."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of a table: how to read it, the target, the value to judge, the thresholds.

    `eta` is the transferred learning rate, None: the base's optimum. `grid_step` is the grid's, in
    octaves, of a table of optima alone. `theory`: whether the runs are of a parameterization whose
    optima converge, None: by the column of that name.
    """

    reading: GridOptions = field(default_factory=GridOptions)
    to: int | None = None
    eta: float | None = None
    grid_step: float | None = None
    max_shift: float = 1.0
    max_loss_gap: float = 0.01
    theory: bool | None = None

    def __post_init__(self) -> None:
        """ConfigError for a number that is none."""
        for name, flag in FLAGS.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(flag, value, "a positive number")
        if self.eta is not None and not math.isfinite(self.eta):
            raise ConfigError(
                Keyword("eta"), self.eta, "a learning rate, or its log2 where it is negative"
            )


FLAGS = {
    "to": "--to-width",
    "grid_step": "--grid-step",
    "max_shift": "--max-shift",
    "max_loss_gap": "--max-loss-gap",
}


@dataclass(frozen=True, kw_only=True)
class NextRuns:
    """Runs of one size that would tell more: `runs` more at each of `etas` (log2), and why."""

    size: Mapping[str, int]
    etas: tuple[float, ...]
    runs: int
    why: str


@dataclass(frozen=True, kw_only=True)
class SizeOptimum:
    """The best cell of one size: log2 of learning rate and decay, with what the steps leave open.

    `decay` is UNKNOWN where none was varied, `ends` says at which ends of the grid it lies.
    """

    size: LadderSize
    eta: Estimate
    decay: Estimate = UNKNOWN
    loss: float = math.nan
    ends: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Movement:
    """How an optimum goes with the size: octaves a doubling, and what may be said of it."""

    name: str
    slope: Estimate
    answer: str


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What `judge.json` holds: the answer in `sentences`, and the verdict behind it, if any.

    `ends` name curves whose optimum is not bracketed, `notes` what made the curves unlike a
    ladder's, `next_runs` what would tell more. `curves` are what was judged. `bound` is set where
    the transferred value is the base's best and the base's optimum lies "at or above" or "at or
    below" it. `predicted` is log2 of the best learning rate at the target `to`, where it is asked
    about and the optima tell it.
    """

    answer: Answer
    sentences: tuple[str, ...]
    axis: str
    hyperparameter: str = "eta"
    transferred_log2_eta: float = math.nan
    bound: str = ""
    to: int | None = None
    predicted: Estimate | None = None
    axes: tuple[Verdict, ...] = ()
    trend: Trend | None = None
    curves: tuple[SizeCurve, ...] = ()
    optima: tuple[SizeOptimum, ...] = ()
    movements: tuple[Movement, ...] = ()
    cells: tuple[DecayCell, ...] = ()
    ends: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    next_runs: tuple[NextRuns, ...] = ()
    overrides: tuple[str, ...] = ()
    noise: str = ""
    runs: int = 0
    plain: bool = True
    source: str = ""
    sha256: str = ""
    where: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    study: str = ""
    parameterization: str = ""
    command: str = ""

    @property
    def verdict(self) -> Verdict | None:
        """That of the ladder; None where there is none, as with one size."""
        return self.axes[0] if self.axes else None

    @property
    def record(self) -> dict[str, Any]:
        """Plain JSON, in the form of a study's validation where it says the same."""
        found: dict[str, Any] = to_json(self)
        return found


def judge_runs(runs: Runs, question: Question, command: str = "") -> Judged:
    """The verdict on runs with the columns of a ladder; BadInput where they cannot be compared."""
    facts: dict[str, Any] = {
        "source": runs.name,
        "sha256": runs.sha256,
        "where": runs.where,
        "columns": runs.columns,
        "command": command,
    }
    if "optimum" in runs.columns and "loss" not in runs.columns:
        return replace(_judge_optima(runs, runs.columns, question), **facts)
    return replace(judge_grid(grid_of(runs, question.reading), question), **facts)


def judge_grid(grid: Grid, question: Question) -> Judged:
    """The verdict on the curves of a grid."""
    rule, ours = _rule(grid, question)
    fits = fit_curves(grid.curves, 0.0)
    transferred = _transferred(grid, question, fits)
    ends, sides = _ends(grid, fits)
    movements, optima = _moves(grid) if grid.cells else ((), ())
    common: dict[str, Any] = {
        "axis": grid.axis,
        "transferred_log2_eta": transferred,
        "bound": _bound(grid, question, sides),
        "curves": grid.curves,
        "cells": grid.cells,
        "optima": optima,
        "movements": movements,
        "ends": ends,
        "notes": (
            *(spelled(as_text(note), SHELL) for note in grid.notes),
            *_unit(grid.columns.get("loss", "")),
        ),
        "noise": grid.noise,
        "runs": grid.runs,
        "plain": grid.plain,
        "study": str(grid.constants.get("study", "")),
        "parameterization": grid.parameterization,
    }
    moved = tuple(f"{one.name} {one.answer}" for one in movements)
    if len(grid.curves) < 2:
        sentences = [f"There is one {_said(grid.axis)}, so nothing transfers: {_only(grid)}"]
        if not grid.noise:
            sentences.append("There is one seed a cell: nothing shows the noise")
        return Judged(
            answer=UNDECIDED,
            sentences=tuple(sentences),
            next_runs=_one_size(grid, sides),
            **common,
        )
    verdict = judge_ladder(grid.axis, grid.curves, transferred, grid.base, rule)
    trend = None
    if grid.axis == JOINT_AXIS:
        if question.to is not None:
            target = replace(max(curve.size for curve in grid.curves), width=question.to)
            verdict = replace(verdict, target=judge_joint_target(verdict, target))
    else:
        to = question.to or max(int(getattr(c.size, grid.axis)) for c in grid.curves)
        prior = prior_for(grid.axis, grid.parameterization, question.theory)
        answer, trend = judge_target(verdict, fits, transferred, to, rule, prior)
        if question.to is not None and to != getattr(grid.base, grid.axis):
            verdict = replace(verdict, target=answer)
    predicted = None
    # Of a plan by a law the trend is of what the law leaves: no learning rate by itself.
    if trend is not None and verdict.target and not any(c.planned_log2 for c in grid.curves):
        predicted = trend.predicted_log2
    overrides = (*verdict.settle, *(verdict.target.settle if verdict.target else ()))
    next_runs = _next_runs(grid, verdict, fits, rule, sides)
    if not ours:  # keys of a study mean nothing to somebody who has none
        verdict = _plain_advice(verdict, grid, next_runs)
    return Judged(
        answer=verdict.answer,
        sentences=moved,
        axes=(verdict,),
        trend=trend,
        to=question.to,
        predicted=predicted,
        next_runs=next_runs,
        overrides=overrides if ours else (),
        **common,
    )


def _said(axis: str) -> str:
    return axis.replace("_", " ")


def _rule(grid: Grid, question: Question) -> tuple[LadderRule, bool]:
    """The thresholds and the shape of the curves; those of our own study where the table has them.

    Whether it has them comes with it.
    """
    kept = {
        name.removeprefix("transfer."): float(value)
        for name, value in grid.constants.items()
        if name.startswith("transfer.")
    }
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
    grid: Grid, question: Question, fits: Mapping[LadderSize, CurveFit | None]
) -> float:
    """The asked value, that of our study, or the base's optimum (log2)."""
    if question.eta is not None:
        return math.log2(question.eta) if grid.plain and question.eta > 0 else question.eta
    if grid.transferred is not None:
        return grid.transferred
    fit = fits[grid.base]
    if fit is not None:
        return fit.optimum.value
    curve = next(curve for curve in grid.curves if curve.size == grid.base)
    return float(np.median(list(curve.losses)))


def _bound(grid: Grid, question: Question, sides: Mapping[LadderSize, int]) -> str:
    """Where the base's optimum lies from the transferred value, if that is only a bound of it."""
    if question.eta is not None or grid.transferred is not None:
        return ""
    return {-1: "at or below", 1: "at or above"}.get(sides.get(grid.base, 0), "")


def value_text(log2: float, *, plain: bool = True) -> str:
    """A learning rate as the table has it: 0.05, or 2^-4.3."""
    return f"{2.0**log2:.3g}" if plain else f"2^{log2:.4g}"


def _only(grid: Grid) -> str:
    fixed = name_size(grid.curves[0].size, grid.axis)
    return f"{fixed} alone"


def _ends(
    grid: Grid, fits: Mapping[LadderSize, CurveFit | None]
) -> tuple[tuple[str, ...], dict[LadderSize, int]]:
    """The curves whose best lies in their first or last value, and on which side (-1, 1)."""
    places, sides = dict[str, list[str]](), dict[LadderSize, int]()
    for curve in grid.curves:
        if (fit := fits[curve.size]) is None or not fit.at_end:
            continue
        etas = sorted(curve.losses)
        best = min(etas, key=lambda eta: float(np.mean(curve.losses[eta])))
        sides[curve.size] = -1 if best == etas[0] and len(etas) > 1 else 1
        side = "at or below" if sides[curve.size] < 0 else "at or above"
        where = value_text(best, plain=grid.plain)
        if len(etas) == 1:
            side, where = "anywhere around", f"{where}, the only value"
        places.setdefault(f"{side} {where}", []).append(name_size(curve.size, grid.axis))
    sentences = []
    if not grid.cells:
        sentences = [
            f"the optimum at {listed(names)} is not bracketed: it lies {place}"
            for place, names in places.items()
        ]
        if len(places) > 1:
            sentences.append(
                f"{len(sides)} of {len(grid.curves)} curves have their best in the first or last "
                "value"
            )
    for size in sorted({cell.size for cell in grid.cells}):
        sentences += _decay_ends(grid, size)
    return tuple(sentences), sides


def _decay_ends(grid: Grid, size: LadderSize) -> list[str]:
    """Of a grid over two: in how many columns the best learning rate is its first or last value."""
    cells, sentences = [cell for cell in grid.cells if cell.size == size], []
    name = name_size(size, grid.axis)
    for of, along, what in (("decay", "eta", "learning rate"), ("eta", "decay", "weight decay")):
        columns: dict[float, list[DecayCell]] = {}
        for cell in cells:
            columns.setdefault(getattr(cell, of), []).append(cell)
        at: dict[str, list[float]] = {"at or above": [], "at or below": []}
        for column in columns.values():
            values = sorted(getattr(cell, along) for cell in column)
            best = getattr(min(column, key=lambda cell: cell.loss), along)
            if len(values) > 1 and best in (values[0], values[-1]):
                at["at or above" if best == values[-1] else "at or below"].append(best)
        other = "weight decay" if of == "decay" else "learning rate"
        for side, found in at.items():
            # A decay of 0 is no end: there is nothing below it.
            found = [value for value in found if value > 0 or along == "eta"]
            if not found:
                continue
            whole = len(found) == len(columns)
            count = f"all {len(columns)}" if whole else f"{len(found)} of {len(columns)}"
            level = min(found) if side == "at or above" else max(found)
            where = (
                "in every column"
                if whole and of == "decay"
                else f"in {count} values of the {other}"
            )
            if whole and of == "decay":
                where += f" ({len(columns)} values of the {other})"
            sentences.append(
                f"the optimum of the {what} at {name} is not bracketed: it lies {side} "
                f"{level:.3g}, {where}"
            )
    return sentences


# Learning rate and weight decay together.


def _moves(grid: Grid) -> tuple[tuple[Movement, ...], tuple[SizeOptimum, ...]]:
    """Every size's best cell, and whether rate, decay, product or ratio goes with the size.

    A best cell is known to half a step on each side. A line through intervals [y - h, y + h] has a
    slope between sum w (y - sign(w) h) and sum w (y + sign(w) h), w its least-squares weights.
    """
    optima = []
    for size in sorted({cell.size for cell in grid.cells}):
        cells = [cell for cell in grid.cells if cell.size == size]
        finite = [cell for cell in cells if math.isfinite(cell.loss)]
        if not finite:
            continue
        best = min(finite, key=lambda cell: cell.loss)
        estimates, ends = {}, []
        for name in ("eta", "decay"):
            values = sorted({getattr(cell, name) for cell in cells if getattr(cell, name) > 0})
            here = getattr(best, name)
            estimates[name] = _best_of(values, here)
            if here in values and here in (values[0], values[-1]):
                ends.append(f"{name} {'last' if here == values[-1] else 'first'}")
        optima.append(SizeOptimum(size=size, loss=best.loss, ends=tuple(ends), **estimates))
    usable = [one for one in optima if math.isfinite(one.decay.value)]
    if len(usable) < 2 or grid.axis == JOINT_AXIS:
        return (), tuple(optima)
    x = np.log2([float(getattr(one.size, grid.axis)) for one in usable])
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    eta, decay = ([getattr(one, key) for one in usable] for key in ("eta", "decay"))
    combined = {
        "the learning rate": [(e.value, e.low, e.high) for e in eta],
        "the weight decay": [(d.value, d.low, d.high) for d in decay],
        "their product": [
            (e.value + d.value, e.low + d.low, e.high + d.high)
            for e, d in zip(eta, decay, strict=True)
        ],
        "their ratio": [
            (e.value - d.value, e.low - d.high, e.high - d.low)
            for e, d in zip(eta, decay, strict=True)
        ],
    }
    found = []
    for name, values in combined.items():
        y, low, high = np.array(values).T
        slope = Estimate(
            value=float(weights @ y),
            low=_sum(np.where(weights > 0, weights * low, weights * high)),
            high=_sum(np.where(weights > 0, weights * high, weights * low)),
        )
        if slope.low > 0 or slope.high < 0:
            said = f"moves by {slope.value:+.2f} octaves a doubling "
            said += f"({slope.low:+.2f} to {slope.high:+.2f})"
        elif math.isfinite(slope.low) and math.isfinite(slope.high):
            said = (
                f"is not seen to move: {slope.value:+.2f} octaves a doubling, and the grid's steps "
                f"leave {slope.low:+.2f} to {slope.high:+.2f}"
            )
        else:
            said = "may move or not: an optimum lies at the end of its grid"
        found.append(Movement(name=name, slope=slope, answer=said))
    return tuple(found), tuple(optima)


def _sum(values: Array) -> float:
    return float(np.sum(values)) if not np.isnan(values).any() else math.nan


def _best_of(values: Sequence[float], best: float) -> Estimate:
    """Log2 of the best of a grid's values, to half a step on each side; open at an end."""
    if best not in values:  # a decay of 0
        return UNKNOWN
    logs, at = np.log2(values), values.index(best)
    low = (logs[at] + logs[at - 1]) / 2 if at else -math.inf
    high = (logs[at] + logs[at + 1]) / 2 if at + 1 < len(values) else math.inf
    return Estimate(value=float(logs[at]), low=float(low), high=float(high))


# What to run next.


def _key(size: LadderSize, axis: str) -> dict[str, int]:
    if axis != JOINT_AXIS:
        return {axis: int(getattr(size, axis))}
    return {key: int(value) for key, value in asdict(size).items() if key in AXES and value > 1}


def _near(curve: SizeCurve, reach: float = 1.0) -> tuple[float, ...]:
    """The values of a curve within so many octaves of its best, its neighbours at least."""
    etas = sorted(curve.losses)
    at = min(range(len(etas)), key=lambda i: float(np.mean(curve.losses[etas[i]])))
    return tuple(
        eta for i, eta in enumerate(etas) if abs(i - at) <= 1 or abs(eta - etas[at]) <= reach + 1e-9
    )


def _beyond(curve: SizeCurve, side: int, count: int = 2) -> tuple[float, ...]:
    """As many values more beyond one end of a curve, in its own steps."""
    etas, step = sorted(curve.losses), max(step_of(curve), 0.25)
    if len(etas) == 1:  # it has no side
        return tuple(etas[0] + step * i for i in range(-count, count + 1) if i)
    end = etas[-1] if side > 0 else etas[0]
    return tuple(sorted(end + side * step * (i + 1) for i in range(count)))


def _one_size(grid: Grid, sides: Mapping[LadderSize, int]) -> tuple[NextRuns, ...]:
    """Beyond the end of the one curve, and curves of two sizes more."""
    (curve,) = grid.curves
    seeds, found = max(2, grid.seeds), []
    etas = tuple(sorted(curve.losses))
    if curve.size in sides:
        beyond = _beyond(curve, sides[curve.size])
        found.append(
            NextRuns(
                size=_key(curve.size, grid.axis),
                etas=beyond,
                runs=seeds,
                why="the optimum is not bracketed",
            )
        )
        etas = tuple(sorted((*_near(curve), *beyond)))
    if grid.seeds < 2 and not grid.noise:
        why = "one seed shows no noise"
        found.append(NextRuns(size=_key(curve.size, grid.axis), etas=_near(curve), runs=1, why=why))
    for times in (2, 4):
        size = {key: times * value for key, value in _key(curve.size, grid.axis).items()}
        found.append(NextRuns(size=size, etas=etas, runs=seeds, why="a ladder takes sizes"))
    return tuple(found)


def _next_runs(
    grid: Grid,
    verdict: Verdict,
    fits: Mapping[LadderSize, CurveFit | None],
    rule: LadderRule,
    sides: Mapping[LadderSize, int],
) -> tuple[NextRuns, ...]:
    """The cells that would settle an open answer, by the verdict's advice; none if settled."""
    target_open = verdict.target is not None and verdict.target.answer == UNDECIDED
    if verdict.answer == "fails" or (verdict.answer == "holds" and not target_open):
        return ()
    # Where the noise is known one run a cell does, as in the table.
    axis, seeds = grid.axis, rule.seeds if grid.noise else max(2, rule.seeds)
    curves = {curve.size: curve for curve in grid.curves}
    found = [
        NextRuns(
            size=_key(size, axis),
            etas=_beyond(curves[size], side),
            runs=seeds,
            why="the optimum is not bracketed",
        )
        for size, side in sides.items()
    ]
    unknown = [size for size, fit in fits.items() if fit is not None and fit.noise_unknown]
    found += [
        NextRuns(
            size=_key(size, axis), etas=_near(curves[size]), runs=1, why="nothing shows the noise"
        )
        for size in unknown
    ]
    if found:
        return tuple(found)
    if verdict.seed_advice is not None:
        needed = verdict.seed_advice.sizes
        return tuple(
            NextRuns(
                size=_key(size, axis),
                etas=_near(curve, 2.0),
                runs=max(needed.get(describe_size(size, axis), 0), min(needed.values()))
                - rule.seeds,
                why="its interval reaches beyond a threshold",
            )
            for size, curve in curves.items()
            if describe_size(size, axis) in needed or size == grid.base
        )
    settle = dict(
        text.partition("=")[::2]
        for text in (*verdict.settle, *(verdict.target.settle if verdict.target else ()))
    )
    widest = curves[max(curves, key=lambda size: (getattr(size, axis, 0), size))]
    for key, value in settle.items():
        name = key.removeprefix("transfer.")
        if value.startswith("["):
            asked = [int(one) for one in value.strip("[]").split(",")]
            new = [one for one in asked if one not in {getattr(s, axis) for s in curves}]
            found += [
                NextRuns(
                    size={axis: one}, etas=_near(widest, 2.0), runs=seeds, why="a longer ladder"
                )
                for one in new
            ]
        elif name == "seeds":
            more = max(1, int(value) - rule.seeds)
            found += [
                NextRuns(size=_key(s, axis), etas=_near(c, 2.0), runs=more, why="smaller errors")
                for s, c in curves.items()
            ]
        elif name == "step":
            for size, curve in curves.items():
                etas = _near(curve)
                between = tuple((a + b) / 2 for a, b in pairwise(etas))
                found.append(
                    NextRuns(size=_key(size, axis), etas=between, runs=seeds, why="a finer grid")
                )
        elif name in ("span", "extend"):
            found += [
                NextRuns(size=_key(s, axis), etas=_beyond(c, side), runs=seeds, why="longer curves")
                for s, c in curves.items()
                for side in (-1, 1)
            ]
    return tuple(found)


def runs_text(next_runs: Sequence[NextRuns]) -> str:
    """How many runs, of which sizes, in a clause; empty without any."""
    if not next_runs:
        return ""
    total = sum(one.runs * len(one.etas) for one in next_runs)
    sizes = dict.fromkeys(
        " ".join(f"{_said(k)} {v}" for k, v in one.size.items()) for one in next_runs
    )
    return f"{counted(total, 'run')} more, at {listed([*sizes])}"


def listed(names: Sequence[str]) -> str:
    """Sizes in words, what they are sizes of said once: width 128, 256 and 512."""
    first, *others = names
    what = f"{first.rpartition(' ')[0]} "
    if len(names) > 1 and all(re.fullmatch(f"{re.escape(what)}\\d+", name) for name in names):
        others = [name.removeprefix(what) for name in others]
    return " and ".join(filter(None, (", ".join([first, *others[:-1]]), *others[-1:])))


_KEYS = re.compile(r"(: (?:raise |lower )?|, or )(?:transfer|train)\..*$")


_WITH_TREND = "train with the learning rate that the trend predicts"


def _plain_advice(verdict: Verdict, grid: Grid, next_runs: Sequence[NextRuns]) -> Verdict:
    """The advice without the keys of a study, and what one seed means said in full."""
    said = runs_text(next_runs)
    todo = _KEYS.sub("", verdict.todo)
    if said:  # the list has the cells near the optimum alone, a study's ladder all
        todo = re.sub(r", [\d,]+ more runs? on this ladder", "", todo)
    if verdict.answer == UNDECIDED and not grid.noise and not verdict.todo.startswith("extend"):
        todo = (
            f"nothing shows the noise: {said} would (the cells are listed), or --noise with the "
            "standard deviation of a run in nats"
        )
        cells = {
            size.size: replace(size, reason="nothing shows the noise: there is one run a cell")
            if size.answer == UNDECIDED and "too few seeds" in size.reason
            else size
            for size in verdict.sizes
        }
        verdict = replace(verdict, sizes=tuple(cells.values()))
    elif todo and grid.rounded and any(size.reason == SAME_SEEDS for size in verdict.sizes):
        todo = f"losses with more digits: rounded to {grid.rounded:g}, seeds cannot be told apart"
    elif said and verdict.todo.startswith(NO_SEEDS) and "lower transfer.step" in verdict.todo:
        # What the list has: a finer grid. Runs with less noise are no cells of it.
        hopeless = verdict.todo.partition(". ")[0]
        todo = (
            f"{hopeless}. A finer grid helps ({said}), and so do runs with less noise (more steps, "
            "larger batches)"
        )
    elif todo and said and verdict.answer == UNDECIDED:
        # The advice names the sizes itself where their curves are too short.
        todo += f" ({said.partition(',')[0] if verdict.todo.startswith('extend') else said})"
    target = verdict.target
    if target is not None:
        advice = _KEYS.sub("", target.todo).replace("plan with the trend", _WITH_TREND)
        sentence = target.sentence.replace("the plan's eta", "the transferred learning rate")
        target = replace(target, todo=advice, settle=(), sentence=sentence)
    return replace(verdict, todo=todo, settle=(), target=target)


# A table of optima alone.


def _judge_optima(source: Runs, roles: Mapping[str, str], question: Question) -> Judged:
    """By the trend of the optima: each known to half of the grid's step, its noise unknown."""
    import pandas  # type: ignore[import-untyped]

    axis = _axis_of_optima(source, roles, question)
    log2, said, plain = log2_of(source, roles["optimum"])
    _one_kind(source, roles, question, axis)
    sizes = whole_numbers(source, axis)
    grouped = pandas.DataFrame({"size": sizes, "optimum": log2}).groupby("size")["optimum"]
    x, values = grouped.mean().index.to_numpy(), grouped.mean().to_numpy()
    notes = [said] if said else []
    step = _step_of_optima(log2, question, notes)
    base = int(x.min()) if question.reading.base is None else int(question.reading.base)
    if base not in x:
        raise ConfigError(Keyword("base"), base, f"one of {', '.join(map(str, x))}")
    start = float(values[list(x).index(base)])
    transferred = start
    if question.eta is not None:
        transferred = math.log2(question.eta) if plain and question.eta > 0 else question.eta
    common: dict[str, Any] = {
        "axis": axis,
        "transferred_log2_eta": transferred,
        "optima": tuple(
            SizeOptimum(
                size=_size_on(axis, int(size)),
                eta=Estimate(value=value, low=value - step / 2, high=value + step / 2),
            )
            for size, value in zip(x, map(float, values), strict=True)
        ),
        "notes": tuple(notes),
        "runs": len(log2),
        "plain": plain,
    }
    if len(x) < 2:
        only = f"There is one {_said(axis)}, {x[0]}, so nothing transfers"
        return Judged(answer=UNDECIDED, sentences=(only,), **common)
    slope = _slope_of_optima(x, values, step)
    spread = f"{slope.value:+.2f} octaves a doubling of the {_said(axis)}"
    if math.isfinite(slope.low):
        spread += f" ({slope.low:+.2f} to {slope.high:+.2f})"
    trend = f"The optimum goes as {_said(axis)}^{slope.value:.2f}: {spread}"
    if (grouped.size() > 1).any():
        trend += f", by the means of {len(log2)} optima"
    shifts = {int(size): float(value) - start for size, value in zip(x, values, strict=True)}
    answer, why = _answer_of_optima(axis, shifts, slope, step, question.max_shift)
    sentences = [trend, why]
    if question.to is not None and math.isfinite(step):
        error = step / math.sqrt(12)
        predicted = _predicted_optimum(x, values, error, question, axis, roles, source)
        common |= {"to": question.to, "predicted": predicted}
        sentences.append(_optima_target(predicted, question, transferred, axis, answer))
    todo = tuple(
        NextRuns(
            size={axis: int(size)},
            etas=tuple(float(value) + k * step for k in (-1, 0, 1)),
            runs=2,
            why="the losses around its optimum, of two seeds",
        )
        for size, value in zip(x, values, strict=True)
    )
    movement = Movement(name="the learning rate", slope=slope, answer=f"goes by {spread}")
    return Judged(
        answer=answer,
        sentences=tuple(sentences),
        movements=(movement,),
        next_runs=todo if answer == UNDECIDED and math.isfinite(step) else (),
        **common,
    )


def _axis_of_optima(source: Runs, roles: Mapping[str, str], question: Question) -> str:
    """The asked size, or the first that differs."""
    there = [role for role in AXES if role in roles]
    varied = (role for role in there if len(np.unique(whole_numbers(source, role))) > 1)
    axis = question.reading.axis or next(varied, there[0])
    if axis not in roles:
        raise ConfigError(Keyword("axis"), axis, f"a size that the table has: {', '.join(roles)}")
    return axis


def _size_on(axis: str, value: int) -> LadderSize:
    """A size of which nothing but `value` on the axis is known; tokens stand as steps."""
    sizes = dict.fromkeys(("width", "depth", "batch_size", "steps"), 1)
    return LadderSize(**{**sizes, "steps" if axis == "tokens" else axis: value})


def _unit(column: str) -> list[str]:
    """What is said of losses in another unit than nats, which the sentences name."""
    if unit_of(column) == "nats":
        return []
    return [f"{column!r} is in bits per byte: so is what sentences give in nats"]


def _step_of_optima(log2: Array, question: Question, notes: list[str]) -> float:
    """The spacing of the grid that the optima lie on: as asked, else the least that two show."""
    if question.grid_step is not None:
        return question.grid_step
    # Optima that are nearer than this are one cell of the grid, written with other digits.
    apart = np.diff(np.unique(np.round(log2, 2)))
    step = float(apart[apart > 0.02].min()) if (apart > 0.02).any() else math.nan
    notes.append(
        f"the optima are taken to lie on a grid of {step:.2g} in log2, the least difference "
        "between two; --grid-step says another"
        if math.isfinite(step)
        else "all optima are the same, and nothing shows the grid's step: --grid-step names it"
    )
    return step


def _slope_of_optima(x: Array, values: Array, step: float) -> Estimate:
    """Octaves of the optimum a doubling of the size, by least squares.

    The error of a rounded value is uniform over a step: its deviation is step / sqrt(12). Where the
    optima scatter about the line by more, that counts.
    """
    logs = np.log2(x.astype(float))
    weights = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
    value = float(weights @ values)
    residuals = values - values.mean() - value * (logs - logs.mean())
    scatter = math.sqrt(float(residuals @ residuals) / max(1, len(x) - 2))
    wide = 1.96 * max(step / math.sqrt(12), scatter) * math.sqrt(float(weights @ weights))
    return Estimate(value=value, low=value - wide, high=value + wide)


def _answer_of_optima(
    axis: str, shifts: Mapping[int, float], slope: Estimate, step: float, max_shift: float
) -> tuple[Answer, str]:
    """That it fails where an optimum has moved too far whatever the grid leaves open, else open."""
    # Two optima each within half a step have a shift within a whole one.
    least = {size: max(0.0, abs(shift) - step) for size, shift in shifts.items()}
    if math.isfinite(step) and (slope.low > 0 or slope.high < 0):
        worst = max(least, key=lambda size: (least[size], size))
        if least[worst] > max_shift:
            return "fails", (
                f"The transfer over {_said(axis)} fails: at {_said(axis)} {worst} the optimum lies "
                f"{shifts[worst]:+.2f} octaves from the base's, at least {least[worst]:.2f} "
                "whatever the grid's step leaves open"
            )
    far = max(shifts, key=lambda size: abs(shifts[size]))
    leaves = (
        f"the grid's step alone leaves {step / 2:.2g} octaves on each side of an optimum"
        if math.isfinite(step)
        else "nothing shows the grid's step"
    )
    return UNDECIDED, (
        f"Cannot say whether the transfer over {_said(axis)} holds: {leaves}, and with no "
        "losses nothing shows the noise, nor what a shift costs (the largest is "
        f"{shifts[far]:+.2f}, at {_said(axis)} {far})"
    )


def _predicted_optimum(
    sizes: Any,
    values: Array,
    error: float,
    question: Question,
    axis: str,
    roles: Mapping[str, str],
    source: Runs,
) -> Estimate:
    """Log2 of the optimum at the target, by the trend of the others."""
    assert question.to is not None
    kinds = source.frame[roles["parameterization"]] if "parameterization" in roles else [""]
    prior = prior_for(axis, str(next(iter(kinds))), question.theory)
    errors = np.full(len(values), error)
    return predict([float(one) for one in sizes], values, errors, question.to, prior).estimate()


def _optima_target(
    predicted: Estimate, question: Question, transferred: float, axis: str, answer: Answer
) -> str:
    low, high = predicted.low - transferred, predicted.high - transferred
    said = (
        "fails" if max(low, -high) > question.max_shift or answer == "fails" else "cannot be said"
    )
    return (
        f"At {_said(axis)} {question.to} the transfer {said}: its optimum lies {low:+.2f} to "
        f"{high:+.2f} octaves from the transferred learning rate, by the trend"
    )


def _one_kind(source: Runs, roles: Mapping[str, str], question: Question, axis: str) -> None:
    """BadInput where optima of several settings stand in one table."""
    used = {roles[axis], roles["optimum"], roles.get("seed"), *source.ignore}
    for column in source.frame.columns:
        values = source.frame[column]
        if column in used or values.nunique(dropna=False) < 2 or is_kept(str(column), values):
            continue
        if is_one_number(values):
            continue
        kinds = [shown_value(one) for one in values.drop_duplicates().iloc[:3]]
        raise BadInput(
            f"the optima differ in {column} ({', '.join(kinds)}) beside {_said(axis)}: ",
            where_equal({column: values.dropna().iloc[0]}),
            " takes those alike, ",
            Keyword("ignore", column),
            " says that it does not matter",
        )
