"""The learning rate and the batch for any model and horizon, by the optima of smaller ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from sweeper.errors import BadInput, Keyword, Text
from sweeper.evidence.rates.optima_law import Bound, OptimaLaw, fit_law
from sweeper.evidence.rates.reading import RateRuns, no_law, rate_runs
from sweeper.evidence.rates.surface import Ridge, Surface, fit_surfaces
from sweeper.evidence.runs.grid import GridOptions
from sweeper.evidence.runs.loss_runs import NEAR_A_LINE
from sweeper.evidence.runs.run import Runs
from sweeper.records import NOT_WRITTEN
from sweeper.stats.curve import BIAS, CurveFit, fit_curves
from sweeper.stats.estimate import Array, Estimate

BEYOND_LAW = 2
"""Cells with an optimum that a law takes beyond one for each exponent."""
OCTAVE = 1.0
"""How far off a rate is of which the cost is told."""
KEPT = 0.02
"""Where bounds leave a smaller share of the draws, they contradict the law."""
RIDGE = 2
"""Octaves of batch to both sides that are told."""
NO_BATCH = (
    "too few sizes have their best rate and batch inside what was run: the rate alone is told, at "
    "each batch"
)
Code = Literal["predicted", "law", "too_wide", "too_few_cells", "bounds_contradict"]
WIDEST = 4.0
"""Octaves: a rate whose interval is wider is known no better than by a grid of two on each side."""


@dataclass(frozen=True, kw_only=True)
class RateTarget:
    """The run that is asked about: parameters or width, tokens, and the batch, if it is named."""

    params: float | None = None
    width: float | None = None
    tokens: float | None = None
    batch: float | None = None


@dataclass(frozen=True, kw_only=True)
class CellOptimum:
    """A cell's best: log2 of rate and batch. At an end (-1, 1) it is a bound, and no value."""

    sizes: Mapping[str, int]
    eta: Estimate
    loss: float
    eta_end: int = 0
    batch: Estimate | None = None
    batch_end: int = 0


@dataclass(frozen=True, kw_only=True)
class Power:
    """An optimum goes as `axis` to this power; `bend` is what an octave changes it by.

    `curved`: the bend is no chance.
    """

    of: Literal["eta", "batch"]
    axis: str
    exponent: Estimate
    bend: Estimate | None
    curved: bool


@dataclass(frozen=True, kw_only=True)
class AtBatch:
    """What goes with a batch at the target: log2 of the rate, the loss above the plan's, steps."""

    batch: float
    eta: Estimate
    loss: Estimate
    steps: float
    times_steps: float


@dataclass(frozen=True, kw_only=True)
class Miss:
    """What is lost, in the loss's unit: by a rate an octave too low, too high, and by the plan."""

    too_low: Estimate
    too_high: Estimate
    plan: Estimate


@dataclass(frozen=True, kw_only=True)
class RatePrediction:
    """log2 of the rate and of the batch at the target, with prediction intervals."""

    model: float
    horizon: float
    eta: Estimate
    batch: Estimate | None
    miss: Miss
    at_batch: float | None = None
    ridge: tuple[AtBatch, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RateLaw:
    """What a table of rates over models and horizons says; `code` tells what it rests on.

    `scatter` is how far optima lie off the law, in octaves: the eta's, the batch's. `slopes` are
    what the rate changes by, in octaves, where the batch doubles, below the best one and above.
    `usable` cells have an optimum, of which `needed` are needed.
    """

    code: Code
    model: str
    horizon: str
    cells: tuple[CellOptimum, ...]
    usable: int
    needed: int
    powers: tuple[Power, ...] = ()
    scatter: tuple[Estimate, ...] = ()
    slopes: tuple[Estimate, ...] = ()
    noise: float = math.nan
    unit: str = "nats"
    runs: int = 0
    columns: Mapping[str, str] = field(default_factory=dict)
    prediction: RatePrediction | None = None
    law: OptimaLaw | None = field(default=None, repr=False, compare=False, metadata=NOT_WRITTEN)
    notes: tuple[str | Text, ...] = field(default=(), compare=False, metadata=NOT_WRITTEN)

    @property
    def answer(self) -> str:
        """In a word."""
        return "predicted" if self.code in ("predicted", "law") else "cannot say yet"


@dataclass(frozen=True, eq=False)
class RateOptima:
    """Of every cell its optimum [response], draws [draw, response], ends, and what a miss costs."""

    centres: Sequence[Array]
    draws: Sequence[Array]
    ends: Sequence[tuple[int, ...]]
    losses: Sequence[float]
    gaps: Sequence[Mapping[float, float]]
    noise: float

    def bound(self, cell: int, response: int) -> float:
        """Where a best that lies at an end is, at least or at most, with 95 %.

        The estimate is none: of those that are called the end's a third lie inside of it.
        """
        value, draws = float(self.centres[cell][response]), self.draws[cell][:, response]
        if self.ends[cell][response] > 0:
            return min(value, float(np.quantile(draws, 0.05)))
        return max(value, float(np.quantile(draws, 0.95)))


def rate_law(
    runs: RateRuns, target: RateTarget | None = None, noise: float | None = None
) -> RateLaw:
    """The law of the runs' optima, and what it says of the target; BadInput for what none says."""
    return law_of(runs, optima_of(runs, noise), target)


def law_of_runs(runs: Runs, options: GridOptions, target: RateTarget | None = None) -> RateLaw:
    """The law of a source's runs: of the batch, too, where enough sizes have their best inside."""
    cells = rate_runs(runs, options)
    law = rate_law(cells, target, options.noise)
    # With a batch a cell needs its best inside in two directions: more may tell the rate alone.
    if law.code != "too_few_cells" or not cells.surfaces:
        return law
    alone = rate_runs(runs, options, tells_batch=False)
    rates = rate_law(alone, target, options.noise)
    if rates.code == "too_few_cells":
        return law
    return replace(rates, notes=(*rates.notes, NO_BATCH))


def optima_of(runs: RateRuns, noise: float | None = None) -> RateOptima:
    """The optimum of every cell."""
    return _of_surfaces(runs, noise) if runs.surfaces else _of_curves(runs)


def law_of(runs: RateRuns, found: RateOptima, target: RateTarget | None = None) -> RateLaw:
    """The law of optima that are known, and what it says of the target."""
    cells = tuple(_cell(runs, i, found) for i in range(len(runs.sizes)))
    # A cell whose best lies at an end has no value; it still counts as a bound below.
    inside = [i for i, ends in enumerate(found.ends) if not any(ends) and len(found.draws[i])]
    needed = len(runs.varied) + BEYOND_LAW
    common: dict[str, Any] = {
        "model": runs.model,
        "horizon": runs.horizon,
        "cells": cells,
        "usable": len(inside),
        "needed": needed,
        "noise": found.noise,
        "unit": runs.unit,
        "runs": runs.runs,
        "columns": runs.columns,
        "notes": runs.notes,
    }
    # One optimum for each exponent lies on any plane: the rest tell how far optima lie off it.
    if len(inside) < needed:
        return RateLaw(code="too_few_cells", **common)
    x = np.array([runs.log2(size) for size in runs.sizes])
    centres = np.array([found.centres[i] for i in inside])
    errors = np.array([_covariance(found.draws[i]) for i in inside])
    # Thrown out, cells at an end would bend the law towards those whose grids happened to fit.
    bounds = [
        Bound(x[i], response, side, found.bound(i, response))
        for i, ends in enumerate(found.ends)
        for response, side in enumerate(ends)
        if side and len(found.draws[i])
    ]
    law = fit_law(x[inside], centres, errors, bounds)
    ridge = None
    if runs.surfaces:
        # The ridge is read off cells that have both optima: the others do not show where it lies.
        least = [found.losses[i] for i in inside]
        ridge = Ridge.of([runs.surfaces[i] for i in inside], [*centres], least)
    common |= {
        "powers": tuple(_powers(runs, law)),
        "scatter": tuple(_scatter(law, k) for k in range(centres.shape[1])),
        "slopes": () if ridge is None else tuple(ridge.slope(side) for side in (-1, 1)),
        "law": law,
    }
    # Draws that break bounds are thrown out: if hardly any is left, no such law holds.
    if law.kept < KEPT:
        return RateLaw(code="bounds_contradict", **common)
    if target is None:
        return RateLaw(code="law", **common)
    at, taken = _target(runs, target)
    common["notes"] = (*runs.notes, *taken)
    prediction = _predict(runs, law, ridge, at, target.batch, [found.gaps[i] for i in inside])
    wide = prediction.eta.high - prediction.eta.low > WIDEST
    return RateLaw(code="too_wide" if wide else "predicted", prediction=prediction, **common)


def _covariance(draws: Array) -> Array:
    """That of draws, and what no noise shows: how a drawn curve misplaces a real one's optimum."""
    return np.atleast_2d(np.cov(draws.T)) + BIAS**2 * np.eye(draws.shape[1])


def _of_surfaces(runs: RateRuns, noise: float | None) -> RateOptima:
    fits = fit_surfaces(runs.surfaces, noise)
    nothing = np.full(2, math.nan)
    return RateOptima(
        centres=[nothing if fit is None else fit.optimum for fit in fits],
        draws=[np.zeros((0, 2)) if fit is None else fit.draws for fit in fits],
        ends=[(0, 0) if fit is None else fit.ends for fit in fits],
        losses=[math.nan if fit is None else fit.least.value for fit in fits],
        gaps=[{} if fit is None else _surface_gaps(fit) for fit in fits],
        noise=next((fit.noise for fit in fits if fit is not None), math.nan),
    )


def _surface_gaps(fit: Surface) -> dict[float, float]:
    """What an octave off costs, where it was measured, else by the curvature."""
    gaps = {}
    for side in (-OCTAVE, OCTAVE):
        gap = fit.loss_gap(fit.optimum + np.array([side, 0.0]))
        gaps[side] = gap if math.isfinite(gap) else float(fit.hessian[0, 0]) * side**2 / 2
    return gaps


def _of_curves(runs: RateRuns) -> RateOptima:
    found = fit_curves(runs.curves, 0.0)
    fits = [found[curve.size] for curve in runs.curves]
    usable = [fit if fit is not None and not fit.noise_unknown else None for fit in fits]
    return RateOptima(
        centres=[np.array([math.nan if fit is None else fit.optimum.value]) for fit in fits],
        draws=[
            np.zeros((0, 1)) if fit is None else fit.free_optimum_draws[:, None] for fit in usable
        ],
        # A curve of one point has no side: both of its ends are open.
        ends=[(0,) if fit is None else (fit.side or int(fit.at_end),) for fit in fits],
        losses=[math.nan if fit is None else fit.loss.value for fit in fits],
        gaps=[{} if fit is None else _curve_gaps(fit) for fit in usable],
        noise=float(np.median([fit.noise for fit in usable if fit is not None] or [math.nan])),
    )


def _curve_gaps(fit: CurveFit) -> dict[float, float]:
    gaps = {}
    for side in (-OCTAVE, OCTAVE):
        # Where the curve was not measured so far the gap is a bound, and no cost.
        gap = fit.loss_gap(fit.optimum.value + side)
        if math.isfinite(gap.high):
            gaps[side] = gap.value
    return gaps


def _cell(runs: RateRuns, place: int, found: RateOptima) -> CellOptimum:
    size, draws, centre = runs.sizes[place], found.draws[place], found.centres[place]

    def told(response: int) -> Estimate:
        value, side = float(centre[response]), found.ends[place][response]
        if side and len(draws):
            value = found.bound(place, response)
        if side or not len(draws):
            low = value if side > 0 else -math.inf
            return Estimate(value=value, low=low, high=value if side < 0 else math.inf)
        return Estimate.from_draws(value, draws[:, response])

    ends = found.ends[place]
    return CellOptimum(
        sizes={axis: int(getattr(size, axis)) for axis in runs.axes},
        eta=told(0),
        eta_end=ends[0],
        batch=told(1) if len(ends) > 1 else None,
        batch_end=ends[1] if len(ends) > 1 else 0,
        loss=found.losses[place],
    )


def _powers(runs: RateRuns, law: OptimaLaw) -> list[Power]:
    names: tuple[Literal["eta", "batch"], ...] = ("eta", "batch")
    powers = []
    for of, bends, response in zip(names, law.bends, range(law.draws.shape[1]), strict=False):
        for axis, exponent, bend in zip(runs.axes, law.exponents(response), bends, strict=True):
            if axis in runs.varied:
                curved = bend is not None and (bend.low > 0 or bend.high < 0)
                power = Power(of=of, axis=axis, exponent=exponent, bend=bend, curved=curved)
                powers.append(power)
    return powers


def _scatter(law: OptimaLaw, response: int) -> Estimate:
    both = law.between[:, response, response] + law.within[:, response, response]
    # What models are off together and what runs of one model are off alone: both in a new one.
    deviations = np.sqrt(both)
    return Estimate.from_draws(float(np.median(deviations)), deviations)


def _target(runs: RateRuns, target: RateTarget) -> tuple[tuple[float, float], list[Text]]:
    """The model's size and the horizon, and what is said of one that was not asked for.

    It is what runs along one line have with such a model, else that of the largest cell.
    """
    for axis in ("params", "width"):
        if getattr(target, axis) is not None and axis != runs.model:
            raise BadInput(
                *(Keyword(f"to_{axis}", ...), f" names a model by its {axis}, and the runs are "),
                *(f"known by their {runs.model}: give ", Keyword(f"to_{runs.model}", ...)),
                " in its place",
            )
    if target.tokens is not None and runs.horizon != "tokens":
        raise BadInput(
            *(Keyword("to_tokens", ...), " needs the tokens of the runs, or steps and batches: "),
            *("name them by ", Keyword("columns", "tokens=COLUMN")),
        )
    largest = max(runs.sizes, key=lambda s: (getattr(s, runs.model), getattr(s, runs.horizon)))
    asked = {runs.model: getattr(target, runs.model), runs.horizon: target.tokens}
    if not runs.surfaces:
        asked["batch_size"] = target.batch
    for axis, value in asked.items():
        there = float(getattr(largest, axis))
        if value is not None and axis not in runs.varied and abs(value / there - 1) > 0.02:
            raise no_law(axis, there)
    model, horizon = (
        float(asked[axis] or getattr(largest, axis)) for axis in (runs.model, runs.horizon)
    )
    if target.tokens is not None or not {runs.model, runs.horizon} <= {*runs.varied}:
        return (model, horizon), []
    models, horizons = np.array([runs.log2(size)[:2] for size in runs.sizes]).T
    line = np.polyfit(models, horizons, 1)
    off = (np.polyval(line, models) - horizons) * math.log(2)
    as_runs = float(np.sqrt(np.mean(off**2))) < NEAR_A_LINE
    if as_runs:
        horizon = float(f"{2.0 ** np.polyval(line, math.log2(model)):.3g}")
    of = "as the runs have them with their models" if as_runs else "those of the largest model run"
    ratio = f", {horizon / model:.3g} a parameter" * (runs.model == "params")
    taken = f"the target's {runs.horizon} were not named: {horizon:.4g}{ratio}, {of}"
    if runs.horizon != "tokens":
        return (model, horizon), [(taken,)]
    return (model, horizon), [(f"{taken}; ", Keyword("to_tokens", ...), " names others")]


def _predict(
    runs: RateRuns,
    law: OptimaLaw,
    ridge: Ridge | None,
    at: tuple[float, float],
    batch: float | None,
    gaps: Sequence[Mapping[float, float]],
) -> RatePrediction:
    steps = 1 / runs.length if runs.length > 0 else math.nan
    low, high = (_spread([gap[side] for gap in gaps if side in gap]) for side in (-OCTAVE, OCTAVE))
    if ridge is None:
        taken = batch or float(runs.batches[1])
        drawn = law.at(np.log2([*at, taken]))
        eta = Estimate.mean_of(drawn[:, 0])
        # A quadratic through what an octave costs on both sides.
        lost = (low.value + high.value) / 2 * (drawn[:, 0] - eta.value) ** 2
        miss = Miss(too_low=low, too_high=high, plan=Estimate.mean_of(lost))
        at_batch = taken if "batch_size" in runs.varied else None
        return RatePrediction(
            model=at[0], horizon=at[1], eta=eta, batch=None, miss=miss, at_batch=at_batch
        )
    drawn = law.at(np.log2(at))
    best = Estimate.mean_of(drawn[:, 1])
    planned = math.log2(batch) if batch else best.value
    told = []
    generator = np.random.default_rng(len(runs.sizes))
    lowest = ridge.cost(planned - drawn[:, 1])
    nearest = round(planned)
    # Whole octaves around the planned batch, as batches are powers of two.
    for log2 in sorted({planned, *(float(nearest + k) for k in range(-RIDGE, RIDGE + 1))}):
        rates = drawn[:, 0] + ridge.rate(log2 - drawn[:, 1], generator)
        worse = ridge.cost(log2 - drawn[:, 1]) - lowest
        told.append(
            AtBatch(
                batch=2.0**log2,
                eta=Estimate.mean_of(rates),
                loss=Estimate.mean_of(worse),
                steps=at[1] * steps / 2.0**log2,
                times_steps=2.0 ** (planned - log2),
            )
        )
        if log2 == planned:
            eta = told[-1].eta
            # A quadratic through what an octave costs on both sides.
            lost = (low.value + high.value) / 2 * (rates - eta.value) ** 2 + lowest
    miss = Miss(too_low=low, too_high=high, plan=Estimate.mean_of(lost))
    return RatePrediction(
        model=at[0],
        horizon=at[1],
        eta=eta,
        batch=best,
        miss=miss,
        ridge=tuple(each for each in told if each.batch != 2.0**planned or batch),
    )


def _spread(values: Sequence[float]) -> Estimate:
    """The middle of cells, and what 95 % of them lie between."""
    if not values:
        return Estimate(value=math.nan, low=0.0, high=math.inf)
    return Estimate.from_draws(float(np.median(values)), np.array(values))
