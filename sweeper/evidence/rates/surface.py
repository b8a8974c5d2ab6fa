"""The optimum of losses over two hyperparameters at once, with draws that carry its error.

The surfaces of a table share a level of noise and how far they are off a quadratic; each has its
own quadratic. An estimate is that of a Gaussian process whose mean is the quadratic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import InitVar, dataclass

import numpy as np

from sweeper.stats.estimate import Array, Estimate

DRAWS = 900
"""Draws of every surface's optimum, as many of each window."""
WINDOW = 0.01
"""The runs that tell of an optimum lose at most this fraction of the least loss."""
WINDOWS = (0.7, 1.0, 1.4)
"""Windows around it: an optimum that moves with them is no surer than that."""
NOISES = 6.0
"""Or so many standard deviations of a run, where these are more."""
FEWEST, MOST = 10, 400
"""Runs of a window: a quadratic takes six; of more than the last the lowest ones."""
MISFITS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""How far a surface may be off its quadratic, in standard deviations of a run's noise."""
LENGTHS = (1.0, 1.5, 2.0, 3.0)
"""Octaves over which it is off in one direction."""
LENGTH_PRIOR = 0.5
"""Standard deviation of the logarithm of that length, around two octaves."""
GRID = 17
"""Points a side of the grid on which an optimum is drawn."""
AT_END = 0.1
"""An optimum of which so many draws lie at the end of what was measured is a bound."""
NEAR_END = 0.05
"""Octaves from that end which are at it."""
REACH = 0.75
"""Octaves to both sides of an optimum over which its curvature is taken."""


@dataclass(frozen=True, eq=False)
class SurfaceRuns:
    """Runs of one size: `x` [run, 2] are log2 of the hyperparameters; a loss of +inf diverged."""

    x: Array
    losses: Array


@dataclass(frozen=True, eq=False)
class Surface:
    """What the runs of one size tell.

    `optimum` [2] and `draws` [DRAWS, 2] are log2; `ends` tell of each hyperparameter that the best
    lies at its lowest (-1) or highest (1) value, `span` [2, 2] is what was measured. `hessian` is
    in nats an octave and octave. `grid` [point, 2] has the `losses` of the estimate.
    """

    optimum: Array
    draws: Array
    least: Estimate
    ends: tuple[int, int]
    span: Array
    hessian: Array
    noise: float
    grid: Array
    losses: Array

    def loss_gap(self, at: Array) -> float:
        """What training at `at` loses above the least, by the estimate; NaN where none was near."""
        away = np.abs(self.grid - at).max(axis=1)
        if away.min() > 0.5:
            return math.nan
        return float(self.losses[((self.grid - at) ** 2).sum(axis=1).argmin()] - self.losses.min())


def fit_surfaces(
    cells: Sequence[SurfaceRuns], noise: float | None = None, seed: int = 0
) -> list[Surface | None]:
    """The surface of each; None where too few runs are finite. `noise` is a run's, where known."""
    level = noise or 0.0
    shared = None
    for _ in range(2):  # the window follows the noise, which the window's runs tell
        windows = [_window(cell, level) for cell in cells]
        shared = _shared([w for w in windows if w is not None], noise)
        level = shared[0]
    assert shared is not None
    generator = np.random.default_rng([seed, len(cells)])
    return [_surface(cell, shared, generator) for cell in cells]


def _window(cell: SurfaceRuns, noise: float, times: float = 1.0) -> SurfaceRuns | None:
    """The runs near the best one, lowest first; None where no quadratic goes through them."""
    finite = np.flatnonzero(np.isfinite(cell.losses))
    if len(finite) < FEWEST:
        return None
    order = finite[np.argsort(cell.losses[finite], kind="stable")]
    losses = cell.losses[order]
    limit = times * max(WINDOW * abs(losses[0]), NOISES * noise)
    count = min(max(int((losses <= losses[0] + limit).sum()), FEWEST), MOST)
    # A row of one value tells nothing of its direction: further runs are taken in.
    while count < min(len(order), MOST) and _rank(cell.x[order[:count]]) < 6:
        count += 1
    kept = order[:count]
    if _rank(cell.x[kept]) < 6:
        return None
    return SurfaceRuns(cell.x[kept], cell.losses[kept])


def _rank(x: Array) -> int:
    return int(np.linalg.matrix_rank(_quadratic(x - x.mean(axis=0)), tol=1e-6))


def _quadratic(x: Array) -> Array:
    """The terms [point, 6] of a quadratic."""
    a, b = x.T
    return np.stack([np.ones_like(a), a, b, a * a, a * b, b * b], axis=1)


def _kernel(x: Array, y: Array, length: float) -> Array:
    squares = ((x[:, None] - y[None]) ** 2).sum(axis=-1)
    likeness: Array = np.exp(-0.5 * squares / length**2)
    return likeness


Shared = tuple[float, float, float]
"""The standard deviation of a run, the misfit in these, and its length."""


def _shared(windows: Sequence[SurfaceRuns], noise: float | None) -> Shared:
    """What all surfaces share, by the likelihood of what their quadratics leave (REML)."""
    best, found = -math.inf, (noise or 0.0, 0.0, LENGTHS[2])
    for misfit in MISFITS:
        # Without a misfit no length changes anything.
        for length in LENGTHS if misfit else LENGTHS[2:3]:
            rest, freedom, score = 0.0, 0, -0.5 * (math.log(length / 2) / LENGTH_PRIOR) ** 2
            for window in windows:
                matrix = misfit**2 * _kernel(window.x, window.x, length) + np.eye(len(window.x))
                root = np.linalg.cholesky(matrix)
                # REML: what a window's own quadratic explains tells of neither noise nor misfit.
                terms = np.linalg.solve(root, _quadratic(window.x - window.x.mean(axis=0)))
                losses = np.linalg.solve(root, window.losses - window.losses.mean())
                q, r = np.linalg.qr(terms)
                off = losses - q @ (q.T @ losses)
                rest += float(off @ off)
                freedom += len(losses) - terms.shape[1]
                # Half the log determinants of the covariance, and of the quadratic's information.
                score -= float(np.log(np.diag(root)).sum() + np.log(np.abs(np.diag(r))).sum())
            if freedom < 1:
                continue
            variance = max(rest / freedom, 1e-18) if noise is None else noise**2
            score -= 0.5 * (freedom * math.log(variance) + rest / variance)
            if score > best:
                best, found = score, (math.sqrt(variance), misfit, length)
    return found


def _surface(cell: SurfaceRuns, shared: Shared, generator: np.random.Generator) -> Surface | None:
    estimates = [
        _Estimate(window, shared, generator)
        for times in WINDOWS
        if (window := _window(cell, shared[0], times)) is not None
    ]
    if not estimates:
        return None
    middle = estimates[len(estimates) // 2]
    # Draws of all windows together: what an optimum moves by with its window is in its error.
    draws = np.concatenate([one.draws[:: len(estimates)] for one in estimates])
    least = np.concatenate([one.least[:: len(estimates)] for one in estimates])
    optimum: Array = np.mean([one.optimum for one in estimates], axis=0)
    span = np.stack([cell.x.min(axis=0), cell.x.max(axis=0)])
    return Surface(
        optimum=optimum,
        draws=draws,
        least=Estimate.from_draws(float(middle.losses.min()), least),
        ends=_ends(cell, optimum, draws, span),
        span=span,
        hessian=middle.hessian(optimum),
        noise=shared[0],
        grid=middle.grid,
        losses=middle.losses,
    )


@dataclass(eq=False)
class _Estimate:
    """The estimate of a surface from the runs of one window."""

    window: SurfaceRuns
    shared: Shared
    generator: InitVar[np.random.Generator]

    def __post_init__(self, generator: np.random.Generator) -> None:
        """With its optimum drawn."""
        noise = self.shared[0]
        self.centre = self.window.x.mean(axis=0)
        # Universal kriging: the quadratic by generalized least squares, and what it
        # leaves of the runs spreads to points near them.
        terms = _quadratic(self.window.x - self.centre)
        matrix = self._common(self.window.x, self.window.x)
        # Losses that were computed have no noise, and a covariance without any may be singular.
        self.inverse = np.linalg.inv(matrix + max(noise, 1e-12) ** 2 * np.eye(len(terms)))
        self.spread = np.linalg.inv(terms.T @ self.inverse @ terms)
        self.explained = self.inverse @ terms
        self.quadratic = self.spread @ (self.explained.T @ self.window.losses)
        self.rest = self.inverse @ (self.window.losses - terms @ self.quadratic)
        self._draw(generator)

    def _common(self, points: Array, others: Array) -> Array:
        noise, misfit, length = self.shared
        return (noise * misfit) ** 2 * _kernel(points, others, length)

    def _parts(self, points: Array) -> tuple[Array, Array]:
        """What points have in common with the runs, and of the terms what these do not tell."""
        near = self._common(points, self.window.x)
        return near, _quadratic(points - self.centre) - near @ self.explained

    def at(self, points: Array) -> Array:
        """The estimated losses."""
        near = self._common(points, self.window.x)
        return _quadratic(points - self.centre) @ self.quadratic + near @ self.rest

    def covariance(self, points: Array, others: Array) -> Array:
        """That of their errors."""
        near, own = self._parts(points)
        near_others, own_others = self._parts(others)
        # What the runs tell, less what they leave open of the quadratic.
        known = near @ self.inverse @ near_others.T - own @ self.spread @ own_others.T
        return self._common(points, others) - known

    def _draw(self, generator: np.random.Generator) -> None:
        low, high = self.window.x.min(axis=0), self.window.x.max(axis=0)
        # In two steps: a coarse grid says where the optimum may be, a finer one is drawn.
        points = _grid(low, high, self.window.x)
        losses = self.at(points)
        # Only where the estimate is not surely above its least may the optimum be.
        near, own = self._parts(points)
        noise, misfit, _ = self.shared
        variances = (noise * misfit) ** 2 - ((near @ self.inverse) * near).sum(axis=1)
        variances += ((own @ self.spread) * own).sum(axis=1)
        lowest = int(losses.argmin())
        to_least = self.covariance(points, points[lowest : lowest + 1])[:, 0]
        apart = np.sqrt(np.maximum(variances + variances[lowest] - 2 * to_least, 0.0))
        may = points[losses - losses[lowest] <= 4 * apart + 1e-12]
        step = (high - low) / (GRID - 1)
        box = np.maximum(may.min(axis=0) - step, low), np.minimum(may.max(axis=0) + step, high)
        fine = _grid(*box, self.window.x)
        means, error = self.at(fine), self.covariance(fine, fine)
        values, vectors = np.linalg.eigh((error + error.T) / 2)
        roots = vectors * np.sqrt(np.maximum(values, 0.0))
        # Whole surfaces: errors of neighbours are alike, and move a minimum less.
        drawn = means + generator.normal(size=(DRAWS, len(fine))) @ roots.T
        # Within a cell of the grid any point is as good.
        within = (box[1] - box[0]) / (GRID - 1) * generator.uniform(-0.5, 0.5, (DRAWS, 2))
        self.draws = np.clip(fine[drawn.argmin(axis=1)] + within, low, high)
        self.least, self.optimum = drawn.min(axis=1), fine[int(means.argmin())]
        self.grid = np.concatenate([points, fine])
        self.losses = np.concatenate([losses, means])

    def hessian(self, optimum: Array) -> Array:
        """Second derivatives over `REACH` around an optimum, made positive."""
        offsets = np.linspace(-REACH, REACH, 7)
        points = np.stack(np.meshgrid(offsets, offsets, indexing="ij"), axis=-1).reshape(-1, 2)
        there, runs = points + optimum, self.window.x
        inside = ((there >= runs.min(axis=0)) & (there <= runs.max(axis=0))).all(axis=1)
        points = points[inside] if inside.sum() >= 12 else points
        terms = np.linalg.pinv(_quadratic(points)) @ self.at(points + optimum)
        matrix = np.array([[2 * terms[3], terms[4]], [terms[4], 2 * terms[5]]])
        values, vectors = np.linalg.eigh(matrix)
        # Over a flat ridge noise may bend an estimate downwards.
        positive: Array = (vectors * np.maximum(values, 1e-9)) @ vectors.T
        return positive


def _grid(low: Array, high: Array, runs: Array) -> Array:
    """Points [point, 2] of a box that are not farther from a run than its neighbours are."""
    axes = [np.linspace(a, b, GRID) for a, b in zip(low, high, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    spacings = [_spacing(column) for column in runs.T]
    away = np.abs(points[:, None] - runs[None]) / spacings
    near: Array = points[(away.max(axis=-1) <= 0.5 + 1e-9).any(axis=1)]
    return near if len(near) else points


def _spacing(values: Array) -> float:
    """The largest gap between neighbours, an octave at least."""
    gaps = np.diff(np.unique(np.round(values, 6)))
    return max(1.0, float(gaps.max()) if len(gaps) else 1.0)


def _ends(cell: SurfaceRuns, best: Array, draws: Array, span: Array) -> tuple[int, int]:
    """At which end of what was measured the best lies, of each hyperparameter."""
    raw, sides = cell.x[int(np.argmin(cell.losses))], []
    for axis in range(2):
        side = 0
        for sign, end in zip((-1, 1), span[:, axis], strict=True):
            near = np.abs(np.array([raw[axis], best[axis]]) - end).min() < NEAR_END
            if near or (np.abs(draws[:, axis] - end) < NEAR_END).mean() > AT_END:
                side = sign
        sides.append(side)
    return sides[0], sides[1]


# The ridge of rate and batch: which rate goes with a batch that is not the best, and its cost.
# Below the best batch of a size its best rate falls with the batch, above it hardly rises: no line
# tells both. What rows of one batch show, from the best of their size, is alike over sizes.


ROW_REACH = 1.0
"""Octaves around a row's lowest loss in which runs tell of its best rate."""
WIDTH = 0.6
"""Octaves of batch over which rows tell of each other."""
FAR, POINTS = 6.0, 49
"""Octaves of batch to both sides that are tabulated, and at how many points."""
AGAIN = 200
"""Times that sizes are drawn again."""


@dataclass(frozen=True, eq=False)
class Ridge:
    """By octaves of batch from the best, `offsets` [point]: octaves of rate, and loss above least.

    `rates` and `costs` [1 + AGAIN, point]: as fitted, then of sizes drawn again; rows `scatter`.
    """

    offsets: Array
    rates: Array
    costs: Array
    scatter: float

    @classmethod
    def of(
        cls, cells: Sequence[SurfaceRuns], optima: Sequence[Array], least: Sequence[float]
    ) -> Ridge:
        """The ridge of sizes with these optima [rate and batch, log2] and least losses."""
        rows = [
            _rows(cell, optimum, loss)
            for cell, optimum, loss in zip(cells, optima, least, strict=True)
        ]
        offsets = np.linspace(-FAR, FAR, POINTS)
        generator = np.random.default_rng([len(cells), AGAIN])
        taken = [np.arange(len(rows))]
        # Whole sizes are drawn: all rows of one are measured from its optimum, and share its error.
        taken += [generator.integers(0, len(rows), len(rows)) for _ in range(AGAIN)]
        smooth = [_smooth(offsets, np.concatenate([rows[i] for i in each])) for each in taken]
        rates, costs = (np.array([one[k] for one in smooth]) for k in (0, 1))
        every = np.concatenate(rows)
        off = every[:, 1] - np.interp(every[:, 0], offsets, rates[0])
        # Near the best, rows lie on the ridge by construction and hardly scatter.
        away = np.abs(every[:, 0]) > 0.25
        # Half of the rows lie within 0.67 deviations of a normal scatter.
        scatter = float(np.median(np.abs(off[away]))) / 0.6745 if away.any() else 0.0
        return cls(offsets=offsets, rates=rates, costs=costs, scatter=scatter)

    def rate(self, offsets: Array, generator: np.random.Generator | None = None) -> Array:
        """Octaves of rate at each of `offsets` [draw], by another drawing of the sizes each.

        With a generator rows scatter, as far from the best as they do.
        """
        rates = self._drawn(self.rates, offsets)
        if generator is None:
            return rates
        # The rate at the best batch is the best rate: there nothing scatters.
        share = np.minimum(1.0, np.abs(offsets))
        return rates + self.scatter * share * generator.normal(size=len(rates))

    def cost(self, offsets: Array) -> Array:
        """The loss above the least at each of `offsets` [draw]."""
        return self._drawn(self.costs, offsets)

    def slope(self, side: int) -> Estimate:
        """Octaves of rate an octave of batch, within two below (-1) or above (1) the best."""
        at = np.array([0.0, 2.0 * side])
        ends = np.array([np.interp(at, self.offsets, row) for row in self.rates])
        slopes = (ends[:, 1] - ends[:, 0]) / (2.0 * side)
        return Estimate.from_draws(float(slopes[0]), slopes[1:])

    def _drawn(self, table: Array, offsets: Array) -> Array:
        """A table's row by turns, the fitted one first, at the offset of each draw."""
        # Beyond its ends the table goes on as its last piece does.
        place = (np.asarray(offsets, dtype=float) + FAR) / (2 * FAR) * (POINTS - 1)
        left = np.clip(place.astype(int), 0, POINTS - 2)
        row, share = np.arange(len(place)) % len(table), place - left
        values: Array = (1 - share) * table[row, left] + share * table[row, left + 1]
        return values


def _rows(cell: SurfaceRuns, optimum: Array, least: float) -> Array:
    """Of each batch whose best rate lies inside its rates: offset, octaves of rate, loss above."""
    found = [(0.0, 0.0, 0.0)]  # the best itself
    for batch in np.unique(cell.x[:, 1]):
        here = (cell.x[:, 1] == batch) & np.isfinite(cell.losses)
        rates, of = np.unique(cell.x[here, 0], return_inverse=True)
        if len(rates) < 3:
            continue
        means = np.bincount(of, cell.losses[here]) / np.bincount(of)
        lowest = int(means.argmin())
        if lowest in (0, len(rates) - 1):
            continue
        reach = max(ROW_REACH, *np.diff(rates[lowest - 1 : lowest + 2]))
        near = np.abs(rates - rates[lowest]) <= reach + 1e-9
        a, b, c = np.polyfit(rates[near] - rates[lowest], means[near], 2)
        # No valley, or one whose bottom, at -b / (2 a), lies outside of the runs that tell of it.
        if a <= 0 or abs(b) > 2 * a * reach:
            continue
        best = rates[lowest] - b / (2 * a)
        found.append((batch - optimum[1], best - optimum[0], c - b * b / (4 * a) - least))
    return np.array(found)


def _smooth(offsets: Array, rows: Array) -> tuple[Array, Array]:
    """Lines through the rows near each offset: octaves of rate and loss, both 0 at the best."""
    away = rows[None, :, 0] - offsets[:, None]
    # Beyond the rows the nearest ones tell.
    width = np.maximum(WIDTH, np.sort(np.abs(away), axis=1)[:, min(5, len(rows) - 1)])[:, None]
    weights = np.exp(-0.5 * (away / width) ** 2)
    total = weights.sum(axis=1)
    middle = (weights * away).sum(axis=1) / total
    spread = (weights * (away - middle[:, None]) ** 2).sum(axis=1) + 1e-6 * total
    told = []
    for values in (rows[:, 1], rows[:, 2]):
        mean = weights @ values / total
        slope = (weights * (away - middle[:, None])) @ values / spread
        fitted = mean - slope * middle
        # Smoothing leaves a little at the best, where both are 0 by definition.
        told.append(fitted - np.interp(0.0, offsets, fitted))
    return told[0], np.maximum(told[1], 0.0)
