"""Where the losses of a cell are lowest, over the rate alone or over the rate and the batch.

Near its lowest point a cell's losses are a polynomial of the third degree in log2 of the rate and
the batch, by least squares; its four terms of the third degree are taken to be small. All cells
share the noise of a run, which is what the polynomials leave. Draws of the polynomial, whose errors
least squares tell, are searched on a grid of what was run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from sweeper.stats.estimate import Array, Estimate

WINDOW, NOISES = 0.01, 6.0
"""Runs tell of an optimum that lose at most this fraction of the least loss, or so many deviations
of a run. Chosen on StepLaw's 17 cells; tested on made-up ones with other valleys."""
DRAWS, POINTS = 500, 6561
"""Draws of a cell's polynomial, and points of the grid on which each is searched."""
AT_END = 0.1
"""A best of which so many draws lie at the end of what was run is a bound."""


@dataclass(frozen=True, eq=False)
class RateCell:
    """Runs of one model and horizon, whose `sizes` are by axis.

    `x` [run, 1 or 2] are log2 of the rate and of the batch; a loss of +inf diverged.
    """

    sizes: Mapping[str, int]
    x: Array
    losses: Array


@dataclass(frozen=True, eq=False)
class RateOptimum:
    """A cell's best: log2 of rate and batch [response], draws of it [DRAWS, response], its loss.

    `ends` say of each that it lies at the lowest (-1) or highest (1) value that was run. `noise` is
    a run's standard deviation; NaN where there are too few runs to tell it.
    """

    best: Array
    draws: Array
    ends: tuple[int, ...]
    loss: float
    noise: float

    @property
    def is_inside(self) -> bool:
        """Whether it has a value: the best lies between others."""
        return not any(self.ends)

    def bound(self, response: int) -> float:
        """The 95 % bound of a best at an end: of those called the end's a third lie inside."""
        value, side = float(self.best[response]), self.ends[response]
        of_draws = float(np.quantile(self.draws[:, response], 0.05 if side > 0 else 0.95))
        return min(value, of_draws) if side > 0 else max(value, of_draws)

    def estimate(self, response: int) -> Estimate:
        """The value with its interval, open to the side that a bound leaves open."""
        side = self.ends[response]
        if side:
            value = self.bound(response)
            return Estimate(
                value=value,
                low=value if side > 0 else -math.inf,
                high=value if side < 0 else math.inf,
            )
        value = float(self.best[response])
        if math.isnan(self.noise):
            return Estimate(value=value, low=-math.inf, high=math.inf)
        return Estimate.from_draws(value, self.draws[:, response])


def optima_of(
    cells: Sequence[RateCell], noise: float | None = None, draws: int = DRAWS
) -> list[RateOptimum | None]:
    """The optimum of each; None where too few runs are finite. `noise` is a run's, where known."""
    level = noise or 0.0
    fits: list[_Fit | None] = []
    # A window follows the noise, which the runs of all windows tell.
    for _ in range(4):
        fits = [_Fit.of(cell, level) for cell in cells]
        there = [fit for fit in fits if fit is not None]
        freedom = sum(fit.freedom for fit in there)
        if noise is not None:
            continue
        if freedom < 0.5:
            level = math.nan
            fits = [_Fit.of(cell, 0.0) for cell in cells]
            break
        level = math.sqrt(sum(fit.rest for fit in there) / freedom)
    generator = np.random.default_rng(len(cells))
    return [
        None if fit is None else _optimum(cell, fit, level, draws, generator)
        for cell, fit in zip(cells, fits, strict=True)
    ]


def _terms(x: Array, degree: int) -> Array:
    """The terms [point, term] up to a degree, of one variable or two, the lowest ones first."""
    powers = sorted(product(range(degree + 1), repeat=x.shape[1]), key=sum)
    kept = [np.array(power) for power in powers if sum(power) <= degree]
    return np.stack([np.prod(x**power, axis=1) for power in kept], axis=1)


@dataclass(frozen=True, eq=False)
class _Fit:
    """A polynomial near a cell's lowest run: its `terms`, and their covariance in variances."""

    x: Array
    centre: Array
    terms: Array
    spread: Array
    rest: float
    freedom: float

    @classmethod
    def of(cls, cell: RateCell, noise: float) -> _Fit | None:
        """The polynomial of the runs in a window that is wide enough for that noise."""
        finite = np.flatnonzero(np.isfinite(cell.losses))
        order = finite[np.argsort(cell.losses[finite], kind="stable")]
        x, losses = cell.x[order], cell.losses[order]
        if not len(order):
            return None
        window = max(WINDOW * abs(losses[0]), NOISES * noise, 1e-12)
        noise = max(noise, window / NOISES * 1e-3)
        second = _terms(x, 2).shape[1]
        count = int((losses <= losses[0] + window).sum())
        # As many as a polynomial has terms; and a row of one value tells nothing of its direction.
        count = max(count, _terms(x, 3).shape[1])
        while count < len(x) and _rank(x[:count]) < second:
            count += 1
        x, losses = x[:count], losses[:count]
        if _rank(x) < second:
            return None
        centre = x.mean(axis=0)
        rows = _terms(x - centre, 3)
        # A third of the window's height an octave^3 is what a term of the third degree may be.
        prior = np.zeros(rows.shape[1])
        prior[second:] = (3 * noise / window) ** 2
        spread = np.asarray(np.linalg.pinv(rows.T @ rows + np.diag(prior)), dtype=float)
        level = losses.mean()
        terms = spread @ (rows.T @ (losses - level))
        residuals = losses - level - rows @ terms
        # What the prior holds back of the terms is left to the noise.
        freedom = len(x) - float(np.trace(spread @ rows.T @ rows))
        terms[0] += level
        return cls(x, centre, terms, spread, float(residuals @ residuals), freedom)


def _rank(x: Array) -> int:
    return int(np.linalg.matrix_rank(_terms(x - x.mean(axis=0), 2), tol=1e-6))


def _optimum(
    cell: RateCell, fit: _Fit, noise: float, draws: int, generator: np.random.Generator
) -> RateOptimum:
    low, high = fit.x.min(axis=0), fit.x.max(axis=0)
    points = _grid(low, high, fit.x)
    rows = _terms(points - fit.centre, 3)
    losses = rows @ fit.terms
    best = points[int(losses.argmin())]
    scale = 0.0 if math.isnan(noise) else noise
    root = np.linalg.cholesky(fit.spread + 1e-15 * np.eye(len(fit.spread)))
    errors = scale * root @ generator.normal(size=(len(root), draws))
    values = losses[:, None] + rows @ errors
    drawn = points[values.argmin(axis=0)]
    ends = tuple(
        _end(cell.x[:, k], best[k], drawn[:, k], float(cell.x[int(np.argmin(cell.losses)), k]))
        for k in range(len(best))
    )
    return RateOptimum(best, drawn, ends, float(losses.min()), noise)


def _grid(low: Array, high: Array, runs: Array) -> Array:
    side = round(POINTS ** (1 / len(low)))
    axes = [np.linspace(a, b, side) for a, b in zip(low, high, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(low))
    gaps = [np.diff(np.unique(column)) for column in runs.T]
    spacing = np.array([max(1.0, gap.max(initial=0.0)) for gap in gaps])
    near = [
        (np.abs(points - run) <= spacing / 2 + 1e-9).all(axis=1) for run in np.unique(runs, axis=0)
    ]
    kept: Array = points[np.any(near, axis=0)]
    return kept


def _end(values: Array, best: float, draws: Array, lowest: float) -> int:
    """The end of the values that were run at which the best lies: -1, 1, or 0 for neither."""
    for side, end in ((-1, values.min()), (1, values.max())):
        at_end = np.abs(draws - end) < 1e-9 if len(draws) else np.zeros(1)
        if end in (best, lowest) or at_end.mean() > AT_END:
            return side
    return 0


@dataclass(frozen=True, eq=False)
class Ridge:
    """What a batch other than the best one takes and costs, by octaves from the best.

    The best rate goes as batch^slope, with one slope below the best batch and one above; the loss
    rises with the octaves' square. `slopes` and `costs` [1 + draws, 2]: as fitted, then of cells
    that are drawn again. `scatter` is how far a batch's best rate is off, in octaves.
    """

    slopes: Array
    costs: Array
    scatter: float

    @classmethod
    def of(
        cls, cells: Sequence[RateCell], optima: Sequence[RateOptimum], draws: int
    ) -> Ridge | None:
        """The ridge of cells whose best lies inside; None where no other batch has such a rate."""
        rows = [_rows(cell, optimum) for cell, optimum in zip(cells, optima, strict=True)]
        every = np.concatenate(rows)
        if not len(every):
            return None
        # Slope and cost are ratios of sums over rows, so that cells are drawn by their sums.
        sums = np.array([[_sums(cell_rows, side) for side in (-1, 1)] for cell_rows in rows])
        share, generator = np.full(len(cells), 1 / len(cells)), np.random.default_rng(len(cells))
        counts = np.vstack([np.ones(len(cells)), generator.multinomial(len(cells), share, draws)])
        drawn = np.einsum("dc,csk->dsk", counts, sums)
        # Where the drawn cells have no row on a side all cells tell, and if none has, the other.
        whole = np.where(drawn[0, :, 2:] > 0, drawn[0], drawn[0, ::-1])
        drawn = np.where(drawn[:, :, 2:] > 0, drawn, whole)
        slopes, costs = drawn[:, :, 0] / drawn[:, :, 2], drawn[:, :, 1] / drawn[:, :, 2]
        off = every[:, 1] - every[:, 0] * slopes[0, (every[:, 0] > 0).astype(int)]
        # The rate at the best batch is the best rate: there nothing scatters.
        scatter = math.sqrt(float(off @ off / np.minimum(1.0, every[:, 0] ** 2).sum()))
        return cls(slopes, np.maximum(costs, 0.0), scatter)

    def rate(self, offsets: Array, generator: np.random.Generator) -> Array:
        """Octaves of rate at each of `offsets` [draw], by another drawing of the cells each."""
        scatter = self.scatter * np.minimum(1.0, np.abs(offsets))
        rates = offsets * self._side(self.slopes, offsets)
        return rates + scatter * generator.normal(size=len(offsets))

    def cost(self, offsets: Array) -> Array:
        """The loss above the least at each of `offsets` [draw]."""
        return offsets**2 * self._side(self.costs, offsets)

    @staticmethod
    def _side(table: Array, offsets: Array) -> Array:
        of_side: Array = table[np.arange(len(offsets)) % len(table), (offsets > 0).astype(int)]
        return of_side


def _rows(cell: RateCell, optimum: RateOptimum) -> Array:
    """Rows [batch]: offset, octaves of rate, loss above, where its best rate lies inside."""
    batches = np.unique(cell.x[:, 1])
    rows = [cell.x[:, 1] == batch for batch in batches]
    fits = optima_of([RateCell({}, cell.x[row, :1], cell.losses[row]) for row in rows], draws=0)
    offsets = [
        (batch - optimum.best[1], fit.best[0] - optimum.best[0], fit.loss - optimum.loss)
        for batch, fit in zip(batches, fits, strict=True)
        if fit is not None and fit.is_inside and batch != optimum.best[1]
    ]
    return np.array(offsets).reshape(-1, 3)


def _sums(rows: Array, side: int) -> tuple[float, float, float]:
    """Over the rows of a side: octaves of rate by octaves of batch, losses, squared octaves."""
    offsets, rates, losses = rows[np.sign(rows[:, 0]) == side].T
    return float(offsets @ rates), float(losses.sum()), float(offsets @ offsets)
