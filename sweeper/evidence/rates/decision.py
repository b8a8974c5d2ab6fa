"""The learning rate and the batch for any model and horizon, by the optima of smaller ones.

log2 of the best rate and of the best batch are linear in log2 of the sizes, by least squares over
the cells; what cells are off that, rate and batch together, has a covariance S, drawn from the
inverse Wishart distribution that they leave (Gelman et al., Bayesian Data Analysis, 2013, 14.2):

    y = B' h(x) + e,    e ~ N(0, S),    S ~ IW(rest),    B ~ N(B^, (H'H)^-1 x S).

So intervals are Student's, with as many degrees of freedom as there are cells beyond the terms, and
hold what a cell is off the law and what its optimum is off by noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from sweeper.errors import BadInput, Keyword, Text
from sweeper.evidence.rates.optima import RateCell, RateOptimum, Ridge, optima_of
from sweeper.evidence.rates.reading import RateRuns, rate_runs
from sweeper.evidence.runs.grid import GridOptions
from sweeper.evidence.runs.loss_runs import NEAR_A_LINE, SAME
from sweeper.evidence.runs.run import Runs
from sweeper.records import NOT_WRITTEN
from sweeper.stats.estimate import UNKNOWN, Array, Estimate
from sweeper.stats.gp import shares

DRAWS = 4000
SCATTER, COUNTS_AS = 0.15, 4
"""Octaves that cells are off a law before anything is seen, and as how many cells that counts.
Chosen on StepLaw's 17 cells; tested on made-up laws, and on its ladders of one batch."""
SHARED = (0.0, 0.3, 0.6, 0.9)
"""Of the variance, what all cells of one model are off together: looked for among these."""
EXPONENT = 10.0
"""Standard deviation of an exponent before anything is seen, in scatters: it says little."""
BEYOND_LAW = 2
"""Cells with an optimum that a law takes beyond one for each exponent."""
KEPT = 0.02
"""Where bounds leave a smaller share of the draws, they contradict the law."""
RIDGE = 2
"""Octaves of batch to both sides that are told."""
WIDEST = 4.0
"""Octaves: a rate whose interval is wider is known no better than by a grid of two on each side."""
NO_BATCH = (
    "too few sizes have their best rate and batch inside what was run: the rate alone is told, at "
    "each batch"
)
Code = Literal["predicted", "law", "too_wide", "too_few_cells", "bounds_contradict"]


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

    @classmethod
    def of(cls, cell: RateCell, optimum: RateOptimum | None) -> CellOptimum:
        """The record of a cell's optimum; UNKNOWN where it has too few runs."""
        count = cell.x.shape[1]
        values, ends, loss = [UNKNOWN] * count, (0,) * count, math.nan
        if optimum is not None:
            values, ends, loss = [*map(optimum.estimate, range(count))], optimum.ends, optimum.loss
        rate = cls(sizes=cell.sizes, eta=values[0], eta_end=ends[0], loss=loss)
        return rate if count == 1 else replace(rate, batch=values[1], batch_end=ends[1])


@dataclass(frozen=True, kw_only=True)
class Power:
    """An optimum goes as `axis` to this power."""

    of: Literal["eta", "batch"]
    axis: str
    exponent: Estimate


@dataclass(frozen=True, kw_only=True)
class AtBatch:
    """A batch at the target with log2 of its rate, the loss above the plan's; steps if known."""

    batch: float
    eta: Estimate
    loss: Estimate
    steps: float


@dataclass(frozen=True, kw_only=True)
class RatePrediction:
    """log2 of rate, `at_batch` if said, and batch at the target, with prediction intervals."""

    model: float
    horizon: float
    eta: Estimate
    batch: Estimate | None
    at_batch: float | None = None
    ridge: tuple[AtBatch, ...] = ()


@dataclass(frozen=True, eq=False)
class PowerLaw:
    """Draws of a law [DRAWS, response, term], and of the covariance of what cells are off it.

    Terms are a constant and log2 of every size from `centre`. `kept` is the share of the draws
    that the bounds left, or, if that is less, the chance that the least likely was so unlikely.
    """

    centre: Array
    draws: Array
    scatter: Array
    kept: float = 1.0

    @classmethod
    def of(cls, x: Array, optima: Array) -> PowerLaw:
        """The law of `optima` [cell, response] at `x` [cell, axis], both log2."""
        from scipy.stats import invwishart

        count, responses = optima.shape
        centre, level = x.mean(axis=0), optima.mean(axis=0)
        basis = np.column_stack([np.ones(count), x - centre])
        freedom = COUNTS_AS + count - int(np.linalg.matrix_rank(basis, tol=1e-6)) + responses - 1
        prior = np.diag([0.0, *[EXPONENT**-2] * x.shape[1]])
        generator = np.random.default_rng(count)
        fits, scores = [], []
        for share in SHARED:
            # Runs of one model are off together: a law of four models has no sixteen cells.
            same = share * np.isclose(x[:, None, 0], x[:, 0], atol=SAME)
            root = np.linalg.inv(np.linalg.cholesky(same + (1 - share) * np.eye(count)))
            rows, values = root @ basis, root @ (optima - level)
            spread = np.linalg.inv(rows.T @ rows + prior)
            terms = spread @ rows.T @ values
            residuals = values - rows @ terms
            rest = COUNTS_AS * SCATTER**2 * np.eye(responses) + residuals.T @ residuals
            sizes = [np.linalg.slogdet(each)[1] for each in (root, spread, rest)]
            scores.append(responses * (sizes[0] + sizes[1] / 2) - freedom * sizes[2] / 2)
            terms[0] += level
            fits.append((terms, spread, rest))
        draws, scatters = [], []
        counts = generator.multinomial(DRAWS, shares(np.array(scores)))
        for drawn, (terms, spread, rest) in zip(counts, fits, strict=True):
            drawn_scatter = invwishart.rvs(freedom, rest, int(drawn) + 1, random_state=generator)
            scatter = np.reshape(drawn_scatter, (-1, responses, responses))[:drawn]
            normal = generator.normal(size=(drawn, responses, len(spread)))
            off = np.linalg.cholesky(scatter) @ normal @ np.linalg.cholesky(spread).T
            draws.append(terms.T + off)
            scatters.append(scatter)
        return cls(centre, np.concatenate(draws), np.concatenate(scatters))

    def middle(self, x: Array) -> Array:
        """Draws [DRAWS, response] of the law itself at a size, without scatter."""
        drawn: Array = self.draws @ np.append(1.0, np.asarray(x, dtype=float) - self.centre)
        return drawn

    def at(self, x: Array) -> Array:
        """Draws [DRAWS, response] of the optima of a size: log2, with their scatter."""
        generator = np.random.default_rng([1, len(self.draws)])
        normal = generator.normal(size=(*self.scatter.shape[:2], 1))
        return self.middle(x) + (np.linalg.cholesky(self.scatter) @ normal)[..., 0]

    def within(self, bounds: Sequence[tuple[Array, int, int, float]]) -> PowerLaw:
        """The draws by how likely they make all bounds: a size, response, side and value each."""
        from scipy.special import log_ndtr

        if not bounds:
            return self
        logs, least = np.zeros(len(self.draws)), 1.0
        for x, response, side, value in bounds:
            deviation = np.sqrt(self.scatter[:, response, response])
            # A bound is no value: it weighs a law by the chance that its optimum lies beyond.
            chance = log_ndtr(side * (self.middle(x)[:, response] - value) / deviation)
            logs += chance
            # A bound that no draw makes likely takes none of them out.
            least = min(least, float(np.exp(chance).mean()) * len(bounds))
        chances = np.exp(logs - logs.max())
        chances /= chances.sum()
        # Kish's effective sample size, as a share.
        kept = min(least, float(1 / (chances**2).sum() / len(chances)))
        taken = np.random.default_rng(len(bounds)).choice(len(chances), len(chances), p=chances)
        return replace(self, draws=self.draws[taken], scatter=self.scatter[taken], kept=kept)


@dataclass(frozen=True, kw_only=True)
class RateLaw:
    """What a table of rates says, and its `code`; `usable` cells have an optimum, of `needed`."""

    code: Code
    model: str
    horizon: str
    cells: tuple[CellOptimum, ...]
    usable: int
    needed: int
    powers: tuple[Power, ...] = ()
    noise: float = math.nan
    unit: str = "nats"
    runs: int = 0
    columns: Mapping[str, str] = field(default_factory=dict)
    prediction: RatePrediction | None = None
    law: PowerLaw | None = field(default=None, repr=False, compare=False, metadata=NOT_WRITTEN)
    notes: tuple[str | Text, ...] = field(default=(), compare=False, metadata=NOT_WRITTEN)

    @property
    def answer(self) -> str:
        """predicted, or cannot say yet."""
        return "predicted" if self.code in ("predicted", "law") else "cannot say yet"


def law_of_runs(runs: Runs, options: GridOptions, target: RateTarget | None = None) -> RateLaw:
    """The law of a source's runs: of the batch, too, where enough sizes have their best inside."""
    cells = rate_runs(runs, options)
    law = law_of(cells, optima_of(cells.cells, options.noise), target)
    # With a batch a cell needs its best inside in two directions: more may tell the rate alone.
    if law.code != "too_few_cells" or not cells.tells_batch:
        return law
    cells = rate_runs(runs, options, tells_batch=False)
    alone = law_of(cells, optima_of(cells.cells, options.noise), target)
    if alone.code == "too_few_cells":
        return law
    return replace(alone, notes=(*alone.notes, NO_BATCH))


def law_of(
    runs: RateRuns, cell_optima: Sequence[RateOptimum | None], target: RateTarget | None = None
) -> RateLaw:
    """The law of the cells' optima, and of the target; BadInput for what none says."""
    pairs = [
        (cell, optimum)
        for cell, optimum in zip(runs.cells, cell_optima, strict=True)
        if optimum is not None
    ]
    inside = [(cell, optimum) for cell, optimum in pairs if optimum.is_inside]
    law = RateLaw(
        code="too_few_cells",
        model=runs.model,
        horizon=runs.horizon,
        cells=tuple(map(CellOptimum.of, runs.cells, cell_optima)),
        usable=len(inside),
        needed=len(runs.varied) + BEYOND_LAW,
        noise=next((optimum.noise for _, optimum in pairs), math.nan),
        unit=runs.unit,
        runs=runs.runs,
        columns=runs.columns,
        notes=runs.notes,
    )
    # One optimum for each exponent lies on any plane: the rest tell how far optima lie off it.
    if len(inside) < law.needed:
        return law
    optima = np.array([optimum.best for _, optimum in inside])
    powers = PowerLaw.of(np.array([runs.log2(cell.sizes) for cell, _ in inside]), optima)
    # Thrown out, cells at an end would bend the law towards those whose grids happened to fit.
    powers = powers.within(
        [
            (runs.log2(cell.sizes), response, side, optimum.bound(response))
            for cell, optimum in pairs
            for response, side in enumerate(optimum.ends)
            if side
        ]
    )
    ridge = None
    if runs.tells_batch:
        # The ridge is read off cells that have both optima: the others do not show where it lies.
        ridge = Ridge.of([cell for cell, _ in inside], [optimum for _, optimum in inside], DRAWS)
    names: tuple[Literal["eta"], Literal["batch"]] = ("eta", "batch")
    law = replace(
        law,
        powers=tuple(
            Power(of=of, axis=axis, exponent=Estimate.mean_of(powers.draws[:, response, 1 + place]))
            for response, of in enumerate(names[: powers.draws.shape[1]])
            for place, axis in enumerate(runs.varied)
        ),
        law=powers,
    )
    # Draws that break bounds are thrown out: if hardly any is left, no such law holds.
    if powers.kept < KEPT:
        return replace(law, code="bounds_contradict")
    if target is None:
        return replace(law, code="law")
    at, taken = _target(runs, target)
    predicted = _predict(runs, powers, ridge, at, target.batch)
    wide = predicted.eta.high - predicted.eta.low > WIDEST
    return replace(
        law,
        code="too_wide" if wide else "predicted",
        prediction=predicted,
        notes=(*runs.notes, *taken),
    )


def _target(runs: RateRuns, target: RateTarget) -> tuple[dict[str, float], list[Text]]:
    """The sizes of the target by axis, and what is said of one that was not asked for.

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
    sizes = [cell.sizes for cell in runs.cells]
    largest = max(sizes, key=lambda size: (size[runs.model], size[runs.horizon]))
    asked = {runs.model: getattr(target, runs.model), runs.horizon: target.tokens}
    at = {axis: float(asked[axis] or largest[axis]) for axis in asked}
    if not runs.tells_batch:
        asked["batch_size"] = target.batch
        at["batch_size"] = target.batch or float(max(size["batch_size"] for size in sizes))
    for axis, value in asked.items():
        there = float(largest[axis])
        if value is not None and axis not in runs.varied and abs(value / there - 1) > 0.02:
            name = {"params": "to_params", "batch_size": "to_batch"}.get(axis, f"to_{axis}")
            raise BadInput(
                f"all runs have one value of {axis.replace('_', ' ')}, {there:.4g}: they say "
                "nothing of another; leave ",
                Keyword(name, ...),
                " out, or add runs that differ in it",
            )
    if target.tokens is not None or not {runs.model, runs.horizon} <= {*runs.varied}:
        return at, []
    models, horizons = np.log2([[size[runs.model], size[runs.horizon]] for size in sizes]).T
    line = np.polyfit(models, horizons, 1)
    off = (np.polyval(line, models) - horizons) * math.log(2)
    of = "those of the largest model run"
    if float(np.sqrt(np.mean(off**2))) < NEAR_A_LINE:
        at[runs.horizon] = float(f"{2.0 ** np.polyval(line, math.log2(at[runs.model])):.3g}")
        of = "as the runs have them with their models"
    horizon = at[runs.horizon]
    ratio = f", {horizon / at[runs.model]:.3g} a parameter" * (runs.model == "params")
    taken = f"the target's {runs.horizon} were not named: {horizon:.4g}{ratio}, {of}"
    if runs.horizon != "tokens":
        return at, [(taken,)]
    return at, [(f"{taken}; ", Keyword("to_tokens", ...), " names others")]


def _predict(
    runs: RateRuns,
    law: PowerLaw,
    ridge: Ridge | None,
    at: Mapping[str, float],
    batch: float | None,
) -> RatePrediction:
    drawn = law.at(runs.log2(at))
    common: dict[str, Any] = {"model": at[runs.model], "horizon": at[runs.horizon]}
    eta = Estimate.mean_of(drawn[:, 0])
    best = Estimate.mean_of(drawn[:, 1]) if runs.tells_batch else None
    if ridge is None or best is None:
        at_batch = at["batch_size"] if "batch_size" in runs.varied else None
        return RatePrediction(eta=eta, batch=best, at_batch=at_batch, **common)
    planned = math.log2(batch) if batch else best.value
    lowest = ridge.cost(planned - drawn[:, 1])
    steps = at[runs.horizon] / runs.length if runs.length > 0 else math.nan
    ridge_rows = []
    generator = np.random.default_rng(len(runs.cells))
    # Whole octaves around the planned batch, as batches are powers of two.
    near = [float(round(planned) + k) for k in range(-RIDGE, RIDGE + 1)]
    for log2 in sorted({planned, *near}):
        away = log2 - drawn[:, 1]
        rates = drawn[:, 0] + ridge.rate(away, generator)
        each = AtBatch(
            batch=2.0**log2,
            eta=Estimate.mean_of(rates),
            loss=Estimate.mean_of(ridge.cost(away) - lowest),
            steps=steps / 2.0**log2,
        )
        if log2 == planned:
            eta = each.eta
        if log2 != planned or batch:
            ridge_rows.append(each)
    return RatePrediction(eta=eta, batch=best, at_batch=batch, ridge=tuple(ridge_rows), **common)
