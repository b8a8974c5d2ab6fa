"""The band: how the training losses of a ladder fall, carried on to the run to come.

Curves of all sizes, over progress t/T and divided by their own ends, fall on one another where
hyperparameters are right ("Scaling with Collapse", arXiv:2509.25087). Where they do not quite,
the shape is a line in log size, and what it misses is part of the width. Of run r, stretch i:

    z_ri = log L_ri = log(end) + shape_i(size) + deviation_ri

The deviation of a run, its level included, is a Gaussian process with the spread that seeds show,
correlated over the run as they show. What is between sizes is of shapes alone: how high a curve
lies is the law's, whose interval holds that doubt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sweeper.stats.power_law import Array
from sweeper.table import counted

SMOOTHED = 9
"""Stretches over which the seeds' spread is averaged."""
LENGTHS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0)
"""Of correlation, in shares of the run: a prior of equal weights, and for the smooth share too."""
SHARES = tuple(np.linspace(0.0, 0.95, 20))
MISFIT_LENGTH = 0.3
BEND = 0.3
"""Of what the line in log size says beyond the largest one: the standard deviation of its error."""
LEAST_POINTS = 20
"""Of a curve: shorter runs are left out."""
FEW_FREE = 3
"""Runs beyond one a size, without which no spread of seeds is known."""
LEAST_SPREAD = 1e-6
"""Of seeds, in log loss: copies of a run spread less, and tell nothing of another."""
MOST_WIDE = 0.1
"""Standard deviation of a shape, in log loss, beyond which the band says nothing."""


@dataclass(frozen=True, kw_only=True)
class Direction:
    """What may be off by one number of this standard deviation: `values` [stretches] per unit."""

    name: str
    deviation: float
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Band:
    """The band of a run to come over equal stretches: log losses less the log of the end.

    `steps` are the run's at the ladder's batch. `warmup` and `window` are shares of the run: the
    end is the mean loss over the last `window`, and `gap` what the objective lies above it (log),
    which it does where it is a held-out loss. `lr` are factors on the peak learning rate.
    `spread` is a run's standard deviation, `correlation` that of stretches by their distance, of
    which the share `white` is noise of each alone. `leverage`: the mean is a fit, whose doubt is
    this share of a run's variance. `rough` is the standard deviation of what single stretches have
    beyond that, such as the answer to a bad batch that all runs see.
    """

    steps: int
    warmup: float
    window: float
    schedule: str
    lr: tuple[float, ...]
    mean: tuple[float, ...]
    spread: tuple[float, ...]
    correlation: tuple[float, ...]
    white: float
    leverage: float
    rough: tuple[float, ...]
    misfit: float
    directions: tuple[Direction, ...] = ()
    gap: float = 0.0
    gap_deviation: float = 0.0
    freedom: int
    runs: int
    sizes: int
    places: tuple[float, ...] = ()
    """Where the readings of each stretch lay, as shares of the run; empty: around its middle."""

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def middles(self) -> Array:
        """Where each stretch's mean stands, as a share of the run [stretches]."""
        edges = self.edges
        return np.array(self.places) if self.places else 0.5 * (edges[1:] + edges[:-1])

    @property
    def end_weights(self) -> Array:
        """The weight of each stretch in the end [stretches]."""
        return end_weights(self.edges, self.window)

    @property
    def edges(self) -> Array:
        """Where stretches begin and end, as shares of the run [stretches + 1]."""
        return stretch_edges(self.steps, len(self))

    def covariance(self, level: float) -> tuple[Array, Array]:
        """The covariance of log losses without white noise, and that [stretches].

        `level`: standard deviation of the predicted log end, which holds the seed of that run.
        """
        count, weights = len(self), self.end_weights
        spread = np.array(self.spread)
        lags = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
        of_run = np.array(self.correlation)[lags] * np.outer(spread, spread)
        # The level is that of one run's end: what its stretches say of the end is in it already.
        # At least a hundredth of it, for a covariance that has an inverse.
        own = max(level**2 - float(weights @ of_run @ weights), (0.1 * level) ** 2)
        shapes = self.leverage * of_run
        # Smooth, other than a run's own path: a jump is no misfit of a size.
        shapes += self.misfit**2 * np.exp(-0.5 * (lags / (MISFIT_LENGTH * count)) ** 2)
        for direction in self.directions:
            values = direction.deviation * np.array(direction.values)
            shapes += np.outer(values, values)
        # Of curves divided by their ends: what shapes add to the end the level has already.
        relative = np.eye(count) - weights  # each row: a stretch less the end
        white = self.white * spread**2
        # White noise apart: of the run to come its own readings tell it.
        return of_run - np.diag(white) + own + relative @ shapes @ relative.T, white


@dataclass(frozen=True, eq=False)
class Curves:
    """Finished runs of a ladder, their training losses averaged over equal stretches."""

    log_params: Array
    log_tokens: Array
    cell: np.ndarray[tuple[int], np.dtype[np.int64]]
    """[runs]; of one cell are runs that differ in their seed alone."""
    curves: Sequence[Sequence[float]]
    steps: Sequence[int]
    objectives: Array
    eta_pairs: Sequence[tuple[Sequence[float], Sequence[float], float]] = ()
    """Curves of two runs that differ in eta alone, and by how many octaves the first is higher."""
    eta_deviation: float = 0.0
    """By how many octaves the eta of the run to come may be off."""


@dataclass(frozen=True, kw_only=True)
class TrainingCourse:
    """How all runs were trained, and the run to come will be; see `Band`."""

    steps: int
    warmup: float
    window: float
    schedule: str
    lr: Sequence[float]
    """Factors at equally many points of the run."""


def fit_band(curves: Curves, course: TrainingCourse, log_params: float, log_tokens: float) -> Band:
    """The band of a run of that size and horizon; ValueError says why there is none."""
    count = min(map(len, curves.curves), default=0)
    cells = int(curves.cell.max()) + 1 if count else 0
    free = len(curves.curves) - cells
    if count < LEAST_POINTS:
        raise ValueError(f"curves have {count} points, and {LEAST_POINTS} are needed")
    if free < FEW_FREE:
        raise ValueError(
            f"{counted(len(curves.curves), 'run')} of {counted(cells, 'size')}: how much seeds "
            f"differ is not seen. It takes {counted(cells + FEW_FREE, 'run')} of so many sizes, "
            "seeds that differ in nothing else"
        )
    edges = stretch_edges(course.steps, count)

    def logs_of(curve: Sequence[float], steps: int) -> Array:
        return np.log(rebinned(curve, stretch_edges(steps, len(curve)), edges))

    every = zip(curves.curves, curves.steps, strict=True)
    logs = np.array([logs_of(curve, steps) for curve, steps in every])
    weights = end_weights(edges, course.window)
    means = np.array([logs[curves.cell == cell].mean(0) for cell in range(cells)])
    ends = logs @ weights
    gaps = np.log(curves.objectives) - ends
    residuals = logs - means[curves.cell]
    if float(np.sqrt((residuals**2).sum(0) / free).max()) < LEAST_SPREAD:
        raise ValueError("runs of one size have the same losses: how much seeds differ is not seen")
    spread, correlation, white = _of_seeds(residuals, free)
    # What one stretch in a hundred would exceed (Wilson and Hilferty's quantile of chi squared).
    # Smoothed spreads hide single stretches at which all runs jump, and those would be an alarm.
    usual = (1 - 2 / (9 * free) + 2.33 * math.sqrt(2 / (9 * free))) ** 3
    variance = (residuals**2).sum(0) / free
    rough = np.where(variance > usual * spread**2, np.sqrt(variance), 0.0)

    # By least squares on log size; aim' (X'X)^-1 aim is the fit's variance, in those of one run.
    design, aim = _design(curves, log_params, log_tokens, cells)
    inverse = np.linalg.inv(design.T @ design)
    # Without their ends: how high a curve lies is the law's to say.
    shapes = logs - ends[:, None]
    fitted = inverse @ design.T @ shapes
    mean = aim @ fitted
    first = np.array([int(np.flatnonzero(curves.cell == cell)[0]) for cell in range(cells)])
    off = means - (means @ weights)[:, None] - design[first] @ fitted
    # The seeds' part of what sizes differ by, behind the warm-up; then the rest.
    inner = slice(round(course.warmup * count), None)
    seeds = np.bincount(curves.cell).mean()
    lags = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    relative = np.eye(count) - weights
    relative = relative @ (correlation[lags] * np.outer(spread, spread)) @ relative.T
    noise = np.diag(relative)[inner].mean() / seeds
    size_free = cells - design.shape[1]
    variance_left = float((off[:, inner] ** 2).sum(0).mean()) / max(size_free, 1) - noise
    # A line through as many sizes as it has terms leaves nothing to see a misfit by.
    misfit = math.sqrt(max(variance_left, 0.0)) if size_free else 0.0

    directions = _directions(curves, design, aim, fitted, weights, logs_of)
    band = Band(
        steps=course.steps,
        warmup=course.warmup,
        window=course.window,
        schedule=course.schedule,
        lr=tuple(rebinned(course.lr, stretch_edges(0, len(course.lr)), edges).tolist()),
        # A mean with an end of exactly 0, so that the level alone says where the end lies.
        mean=tuple((mean - weights @ mean).tolist()),
        spread=tuple(spread.tolist()),
        correlation=tuple(correlation.tolist()),
        white=white,
        leverage=float(aim @ inverse @ aim),
        rough=tuple(rough.tolist()),
        misfit=misfit,
        directions=tuple(directions),
        gap=float(gaps.mean()),
        # Objectives that are the training loss itself differ from it by rounding: no gap, no doubt.
        gap_deviation=float(gaps.std(ddof=1)) if np.abs(gaps).max() > 0.01 else 0.0,
        freedom=free,
        runs=len(logs),
        sizes=cells,
    )
    # Without the level's doubt: what remains is of the shape, which has to be known.
    wide = float(np.median(np.sqrt(np.diag(band.covariance(0.0)[0]))))
    if wide > MOST_WIDE:
        raise ValueError(
            f"normalized by their ends, curves of different sizes do not fall on one another: the "
            f"shape of the run to come is known to {wide:.0%} alone".replace("%", " %")
        )
    return band


def _directions(
    curves: Curves,
    design: Array,
    aim: Array,
    fitted: Array,
    weights: Array,
    logs_of: Callable[[Sequence[float], int], Array],
) -> list[Direction]:
    directions = list[Direction]()
    if design.shape[1] > 1:
        low, high = design.min(0), design.max(0)
        # How far beyond what was trained, on each axis; within it the line has its fit.
        beyond = np.where(aim > high, aim - high, np.where(aim < low, aim - low, 0.0))
        if beyond.any():
            bend = tuple((beyond @ fitted).tolist())
            directions.append(Direction(name="size", deviation=BEND, values=bend))
    if curves.eta_pairs and curves.eta_deviation:
        steps = []
        for *pair_of_curves, octaves in curves.eta_pairs:
            pair = np.array([logs_of(curve, 0) for curve in pair_of_curves])
            steps.append(np.subtract(*(pair - (pair @ weights)[:, None])) / octaves)
        # Seeds' noise is no part of what eta does.
        kernel = np.ones(SMOOTHED) / SMOOTHED
        smooth = np.convolve(np.pad(np.mean(steps, 0), SMOOTHED // 2, "edge"), kernel, "valid")
        directions.append(
            Direction(name="eta", deviation=curves.eta_deviation, values=tuple(smooth.tolist()))
        )
    return directions


def stretch_edges(steps: int, count: int) -> Array:
    """Where `count` stretches of a run begin and end [count + 1], as shares of it.

    They are as equal as whole steps allow, the first ones longer, as a study keeps curves.
    """
    if steps < count:
        return np.linspace(0, 1, count + 1)
    short, longer = divmod(steps, count)
    lengths = np.where(np.arange(count) < longer, short + 1, short) / steps
    return np.concatenate([[0.0], np.cumsum(lengths)])


def end_weights(edges: Array, window: float) -> Array:
    """The weight of each stretch in the mean over the last `window` of the run [stretches]."""
    weights = np.clip(edges[1:] - np.maximum(edges[:-1], edges[-1] - window), 0, None)
    return np.asarray(weights / weights.sum())


def rebinned(curve: Sequence[float], edges: Array, to: Array) -> Array:
    """Averages over stretches as averages over others; equal stretches stay as they are."""
    lengths, values = np.diff(edges), np.asarray(curve, float)
    if len(edges) == len(to) and np.allclose(edges, to):
        return values
    # A mean over any stretch is a difference of the sums up to its ends, straight in between.
    sums = np.concatenate([[0.0], np.cumsum(values * lengths)])
    return np.asarray(np.diff(np.interp(to, edges, sums)) / np.diff(to))


def _design(
    curves: Curves, log_params: float, log_tokens: float, cells: int
) -> tuple[Array, Array]:
    """Regressors [runs, regressors], and those of the run to come: 1, and what was varied."""
    columns, aim = [np.ones(len(curves.cell))], [1.0]
    axes = [(curves.log_params, log_params), (curves.log_tokens, log_tokens)]
    varied = [axis for axis in axes if np.ptp(axis[0]) > 1e-6]
    # Size and tokens that grew together are one direction: told apart they blow up beyond it.
    if len(varied) == 2 and abs(np.corrcoef(varied[0][0], varied[1][0])[0, 1]) > 0.98:
        varied = [(varied[0][0] + varied[1][0], varied[0][1] + varied[1][1])]
    for values, value in varied:
        # A regressor only where a size is left beside it: a line through two has no misfit.
        if cells > len(columns) + 1:
            middle = float(values.mean())
            columns.append(values - middle)
            aim.append(value - middle)
    return np.stack(columns, 1), np.array(aim)


def _of_seeds(residuals: Array, free: int) -> tuple[Array, Array, float]:
    """Spread [stretches], correlation by distance [stretches] and its white share, by the seeds.

    Kernels (1 - s) [i = j] + s exp(-|i - j| / length) are averaged by their likelihoods.
    """
    count = residuals.shape[1]
    variance = (residuals**2).sum(0) / free
    half = min(SMOOTHED, count // 2 * 2 - 1) // 2
    padded = np.pad(variance, half, "edge")
    spread = np.sqrt(np.convolve(padded, np.ones(2 * half + 1) / (2 * half + 1), "valid"))
    spread = np.maximum(spread, LEAST_SPREAD)
    # Residuals from their own size's mean: n of them have the likelihood of `free` whole runs,
    # -free/2 (log det K + tr K^-1 S) with S the residuals' second moment.
    scaled = residuals / spread
    moment = scaled.T @ scaled * (1.0 / free)
    lags = np.arange(count)
    matrix = np.abs(np.subtract.outer(lags, lags))
    kernels, shares, scores = [], [], []
    for length in LENGTHS:
        smooth = np.exp(-lags / (length * count))
        # One decomposition a length: eigenvalues of the sum are s w + (1 - s).
        values, vectors = np.linalg.eigh(smooth[matrix])
        power = ((vectors.T @ moment) * vectors.T).sum(1)
        for share in SHARES:
            total = share * values + 1 - share
            scores.append(-0.5 * free * float((np.log(total) + power / total).sum()))
            kernels.append(np.where(lags == 0, 1.0, share * smooth))
            shares.append(1 - share)
    likely = np.exp(np.array(scores) - max(scores))
    likely /= likely.sum()
    return spread, likely @ np.array(kernels), float(likely @ np.array(shares))
