"""A table of optima alone: what their trend says of a transfer without any losses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sweeper.decide.movement import Movement, SizeOptimum
from sweeper.decide.next_runs import NextRuns
from sweeper.decide.table_verdict import UNDECIDED, OptimaFinding, TableQuestion, TableVerdict
from sweeper.decide.target import predict, prior_for
from sweeper.decide.transfer import Answer
from sweeper.errors import BadInput, ConfigError, Keyword, as_text
from sweeper.runs.condition import shown_value, take_alike
from sweeper.runs.roles import AXES
from sweeper.runs.run import Runs, log2_of
from sweeper.runs.settings import is_identifier, is_one_number
from sweeper.runs.sizes import whole_numbers
from sweeper.stats.estimate import UNKNOWN, Array, Estimate
from sweeper.stats.ladder import LadderSize


def judge_optima(source: Runs, roles: Mapping[str, str], question: TableQuestion) -> TableVerdict:
    """By the trend of the optima: each known to half of the grid's step, its noise unknown."""
    import pandas  # type: ignore[import-untyped]

    axis = _axis_of_optima(source, roles, question)
    log2, note, plain = log2_of(source, roles["optimum"])
    _one_kind(source, roles, question, axis)
    sizes = whole_numbers(source, axis)
    grouped = pandas.DataFrame({"size": sizes, "optimum": log2}).groupby("size")["optimum"]
    # Several optima of a size, as of seeds, count by their mean; an interval is the grid's alone.
    x, values = grouped.mean().index.to_numpy(), grouped.mean().to_numpy()
    step = _step_of_optima(log2, question)
    base = int(x.min()) if question.reading.base is None else int(question.reading.base)
    if base not in x:
        raise ConfigError(Keyword("base"), base, f"one of {', '.join(map(str, x))}")
    start = float(values[list(x).index(base)])
    transferred = start
    if question.eta is not None:
        # Below 0 it is a log2 already, in either kind of table.
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
        "remarks": (as_text(note),) if note else (),
        "runs": len(log2),
        "plain": plain,
    }
    finding = OptimaFinding(
        slope=UNKNOWN,
        step=step,
        step_asked=question.grid_step is not None,
        sizes=tuple(map(int, x)),
    )
    if len(x) < 2:
        return TableVerdict(answer=UNDECIDED, finding="one_optimum", of_optima=finding, **common)
    slope = _slope_of_optima(x, values, step)
    # Shifts are from the base's optimum, not from the value that is judged: of the transfer alone.
    shifts = {int(size): float(value) - start for size, value in zip(x, values, strict=True)}
    farthest = max(shifts, key=lambda size: abs(shifts[size]))
    failing = _failing(shifts, slope, step, question.max_shift)
    answer: Answer = UNDECIDED if failing is None else "fails"
    finding = replace(
        finding,
        slope=slope,
        means_of=len(log2) * bool((grouped.size() > 1).any()),
        farthest=(farthest, shifts[farthest]),
        failing=failing,
    )
    if question.to is not None and math.isfinite(step):
        error = step / math.sqrt(12)
        predicted = _predicted_optimum(x, values, error, question, axis, roles, source)
        common |= {"to": question.to, "predicted": predicted}
        off = predicted.moved(-transferred)
        beyond = max(off.low, -off.high) > question.max_shift
        finding = replace(finding, at_target=beyond or answer == "fails")
    todo = tuple(
        NextRuns(
            size={axis: int(size)},
            etas=tuple(float(value) + k * step for k in (-1, 0, 1)),
            runs=2,
            code="losses",
        )
        for size, value in zip(x, values, strict=True)
    )
    return TableVerdict(
        answer=answer,
        finding="optima",
        of_optima=finding,
        movements=(Movement(name="the learning rate", slope=slope, code="drifts"),),
        next_runs=todo if answer == UNDECIDED and math.isfinite(step) else (),
        **common,
    )


def _step_of_optima(log2: Array, question: TableQuestion) -> float:
    """The spacing of the grid that the optima lie on: as asked, else the least that two show."""
    if question.grid_step is not None:
        return question.grid_step
    # Optima that are nearer than this are one cell of the grid, written with other digits.
    apart = np.diff(np.unique(np.round(log2, 2)))
    return float(apart[apart > 0.02].min()) if (apart > 0.02).any() else math.nan


def _failing(
    shifts: Mapping[int, float], slope: Estimate, step: float, max_shift: float
) -> tuple[int, float, float] | None:
    """The size whose optimum has moved too far whatever the grid leaves open, and by how much."""
    # A slope that may be 0 by the grid alone is none, however far one size lies off.
    if not (math.isfinite(step) and (slope.low > 0 or slope.high < 0)):
        return None
    # Two optima each within half a step have a shift within a whole one.
    least = {size: max(0.0, abs(shift) - step) for size, shift in shifts.items()}
    worst = max(least, key=lambda size: (least[size], size))
    return (worst, shifts[worst], least[worst]) if least[worst] > max_shift else None


def _axis_of_optima(source: Runs, roles: Mapping[str, str], question: TableQuestion) -> str:
    """The asked size, or the first that differs."""
    there = [role for role in AXES if role in roles]
    varied = (role for role in there if len(np.unique(whole_numbers(source, role))) > 1)
    axis = question.reading.axis or next(varied, there[0])
    if axis not in roles:
        raise ConfigError(Keyword("axis"), axis, f"a size that the table has: {', '.join(roles)}")
    return axis


def _size_on(axis: str, value: int) -> LadderSize:
    """A size known by its `value` on the axis alone; tokens and parameters stand as steps."""
    sizes = dict.fromkeys(("width", "depth", "batch_size", "steps"), 1)
    return LadderSize(**{**sizes, "steps" if axis in ("tokens", "params") else axis: value})


def _slope_of_optima(x: Array, values: Array, step: float) -> Estimate:
    """Octaves of the optimum a doubling of the size, by least squares.

    The error of a rounded value is uniform over a step: its deviation is step / sqrt(12). Where the
    optima scatter about the line by more, that counts.
    """
    logs = np.log2(x.astype(float))
    weights = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
    value = float(weights @ values)
    residuals = values - values.mean() - value * (logs - logs.mean())
    # Of two optima no scatter can be seen: the grid's step is what counts.
    scatter = math.sqrt(float(residuals @ residuals) / max(1, len(x) - 2))
    wide = 1.96 * max(step / math.sqrt(12), scatter) * math.sqrt(float(weights @ weights))
    return Estimate(value=value, low=value - wide, high=value + wide)


def _predicted_optimum(
    sizes: Any,
    values: Array,
    error: float,
    question: TableQuestion,
    axis: str,
    roles: Mapping[str, str],
    source: Runs,
) -> Estimate:
    """Log2 of the optimum at the target, by the trend of the others."""
    assert question.to is not None
    kinds = source.frame[roles["parameterization"]] if "parameterization" in roles else [""]
    prior = prior_for(axis, str(next(iter(kinds))), question.theory)
    errors = np.full(len(values), error)
    return predict([float(size) for size in sizes], values, errors, question.to, prior).estimate()


def _one_kind(source: Runs, roles: Mapping[str, str], question: TableQuestion, axis: str) -> None:
    """BadInput where optima of several settings stand in one table."""
    used = {roles[axis], roles["optimum"], roles.get("seed"), *source.ignore}
    for column in source.frame.columns:
        values = source.frame[column]
        if column in used or values.nunique(dropna=False) < 2 or is_identifier(values):
            continue
        if is_one_number(values):
            continue
        size = axis.replace("_", " ")
        kinds = [shown_value(value) for value in values.drop_duplicates().iloc[:3]]
        raise BadInput(
            f"the optima differ in {column} ({', '.join(kinds)}) beside {size}: ",
            *take_alike({column: values.dropna().iloc[0]}, [column]),
        )
