"""Laws of the loss over parameters N and tokens D: their forms, and how they are fitted.

    L(N, D) = E + A/N^alpha + B/D^beta                        (Hoffmann et al., arXiv:2203.15556)

and its relatives. What lies above the floor E is a sum of terms, or, where size and tokens are
coupled, their p-norm, ((A/N^alpha)^p + (B/D^beta)^p)^(1/p): with p = 1 the sum, with p = 1 / beta
and exponents alike that of Kaplan et al. (arXiv:2001.08361, 1.5), with p = inf the larger term
alone. A, B, alpha and beta keep their meaning: A/N^alpha is what is left at D = inf.

For given exponents the amplitudes of a sum are linear, and none is negative. A fit starts there:
exponents from a grid, amplitudes by non-negative least squares. From the best starts all parameters
are refined together. Residuals are those of log L, under Huber's loss, so that a stray run pulls
little. All is computed for many weightings of the runs at once, [weightings, runs]: a bootstrap of
a thousand costs as much as some fits one by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Index = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

EXPONENTS = (0.02, 0.04, 0.07, 0.11, 0.16, 0.22, 0.29, 0.37, 0.46, 0.56, 0.68, 0.82, 1.0, 1.3)
"""Where exponents are searched. Published ones lie between 0.05 and 0.8."""
WIDTH_EXPONENTS = np.geomspace(0.05, 4.0, 240)
"""Powers of the size that are tried; a best one at an end is only a bound."""
COUPLINGS = (0.7, 1.0, 1.6, 3.0)
"""Where p starts."""
ABSENT = -18.0
"""The log of an amplitude, as a loss, that counts as 0: 1.5e-8."""
BOUNDS = {"amplitude": (ABSENT, 50.0), "exponent": (0.005, 4.0), "coupling": (0.25, 20.0)}
"""Of log amplitudes, exponents and p. A power below 0.005 cannot be told from the floor."""
USUAL = {"E": (0.5, 1.0), "amplitude": (0.2, 1.5), "exponent": (0.33, 0.5), "p": (1.2, 0.4)}
"""Of published laws the middle, and the standard deviation of the log; amplitudes in the loss."""
FIXED = 1e-4
"""The standard deviation of the log of a parameter that the user knows."""
ROBUST = 1.345
"""Huber's threshold in standard deviations: 95 % efficient where noise is normal (Huber, 1964)."""
CLIPPED, CLIPPED_ROUNDS = 3.0, 10
"""Standard deviations that a residual counts at most in their own estimate, and its rounds."""
STARTS = 6
"""Of the grid's exponents, how many are refined."""
ITERATIONS = 400
"""At most; least squares take some ten, Huber's loss with a threshold below the noise a hundred."""


@dataclass(frozen=True)
class LawForm:
    """A form of the law.

    `terms` are amplitude and exponent of each term above the floor, and the powers of N and D in
    units of the exponent: ("A", "alpha", 1, 0) is A/N^alpha. `coupled`: they are joined by a
    p-norm in place of their sum.
    """

    name: str
    formula: str
    terms: tuple[tuple[str, str, int, int], ...]
    coupled: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        """Amplitudes, exponents, and p."""
        amplitudes, exponents, *_ = zip(*self.terms, strict=True)
        return ("E", *amplitudes, *exponents, *("p",) * self.coupled)

    @property
    def amplitudes(self) -> int:
        """How many, the floor's with them."""
        return 1 + len(self.terms)

    @property
    def powers(self) -> Array:
        """Of N and D [terms, 2]."""
        return np.array([term[2:] for term in self.terms], float)


ADDITIVE = LawForm(
    "additive", "E + A/N^alpha + B/D^beta", (("A", "alpha", 1, 0), ("B", "beta", 0, 1))
)
COUPLED = LawForm(
    "coupled", "E + ((A/N^alpha)^p + (B/D^beta)^p)^(1/p)", ADDITIVE.terms, coupled=True
)
SIZE = LawForm("size", "E + A/N^alpha", (("A", "alpha", 1, 0),))
TOKENS = LawForm("tokens", "E + B/D^beta", (("B", "beta", 0, 1),))
COMPUTE = LawForm("compute", "E + A/(N D)^gamma", (("A", "gamma", 1, 1),))
"""Along a line of N and D varied together: the compute is N D but for a constant."""
FORMS = {form.name: form for form in (ADDITIVE, COUPLED, SIZE, TOKENS, COMPUTE)}


@dataclass(frozen=True, eq=False)
class Fits:
    """Fits of `form`, one a weighting: `values` [weightings, parameters] are logs.

    N and D are in units of `centre`, the geometric means of the runs fitted: amplitudes are then
    losses at the centre, and the fit is as well conditioned as its data allow. `objectives` are
    sums of Huber's loss of the residuals of log L.
    """

    form: LawForm
    values: Array
    objectives: Array
    centre: tuple[float, float]

    def loss(self, params: Array | float, tokens: Array | float) -> Array:
        """L [weightings, points] at points (N, D)."""
        logs = _logs(np.atleast_1d(params), np.atleast_1d(tokens), self.centre)
        return _Losses(self.form, self.values, logs).total

    def natural(self) -> dict[str, Array]:
        """Every parameter by name [weightings], with N and D as they are."""
        form, values = self.form, self.values.copy()
        exponents = np.exp(values[:, form.amplitudes : form.amplitudes + len(form.terms)])
        # In units of the centre N0 the amplitude of A/N^alpha is A/N0^alpha.
        values[:, 1 : form.amplitudes] += exponents * (form.powers @ np.log(self.centre))
        return dict(zip(form.parameters, np.exp(values).T, strict=True))


def fit(
    form: LawForm,
    params: Array,
    tokens: Array,
    loss: Array,
    *,
    threshold: float | None = None,
    iterations: int = ITERATIONS,
) -> Fits:
    """The best fit of `form` to runs (N, D, L), all [runs]: one weighting.

    `threshold` is Huber's, on residuals of log L; None: 1.345 times their own spread.
    """
    centre = float(np.exp(np.log(params).mean())), float(np.exp(np.log(tokens).mean()))
    logs, target = _logs(params, tokens, centre), np.log(loss)
    starts, residuals = _starts(form, logs, loss), _Residuals(form, logs, target)
    weights = np.ones((len(starts), len(loss)))
    if threshold is None:
        # Least squares first: the best one's residuals say how wide Huber's threshold should be.
        starts, squares = _refine(residuals, starts, weights, math.inf, iterations)
        best = _Losses(form, starts[[np.argmin(squares)]], logs)
        # Losses that a law computed have no spread: of 0 no run would have any weight.
        threshold = ROBUST * max(spread(best.log[0] - target, len(form.parameters)), 1e-6)
    values, objectives = _refine(residuals, starts, weights, threshold, iterations)
    best_of = [int(np.argmin(objectives))]
    return Fits(form, values[best_of], objectives[best_of], centre)


def refit(
    best: Fits, params: Array, tokens: Array, loss: Array, weights: Array, *, threshold: float
) -> Fits:
    """Fits from `best` for weightings [weightings, runs] of losses [runs] or [weightings, runs]."""
    logs = _logs(params, tokens, best.centre)
    start = awake(best.form, best.values).repeat(len(weights), 0)
    residuals = _Residuals(best.form, logs, np.log(loss))
    values, objectives = _refine(residuals, start, weights, threshold)
    return Fits(best.form, values, objectives, best.centre)


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of a form's parameters before any run: of their logs `middle` and `inverse`.

    That is 1 / standard deviation, both [parameters]; amplitudes are losses at the runs' centre.
    """

    middle: Array
    inverse: Array

    @classmethod
    def of(cls, form: LawForm, loss: Array, fixed: Mapping[str, float]) -> Known:
        """That of published laws whose runs have such losses; `fixed` are known by name."""
        middle, deviation = np.zeros(len(form.parameters)), np.zeros(len(form.parameters))
        for index, name in enumerate(form.parameters):
            kind = "exponent" if index >= form.amplitudes else "amplitude"
            value, deviation[index] = USUAL[name if name in USUAL else kind]
            middle[index] = math.log(value)
            if name in fixed:
                middle[index], deviation[index] = math.log(fixed[name]), FIXED
            # `USUAL` has amplitudes as fractions of the loss.
            elif index < form.amplitudes:
                middle[index] += float(np.log(loss).mean())
        return cls(middle, 1 / deviation)

    @property
    def evidence(self) -> float:
        """The log of what a law gains in likelihood that expects its parameters there."""
        return float(np.log(self.inverse).sum())


def regress(
    best: Fits,
    params: Array,
    tokens: Array,
    logs_of_loss: Array,
    whiten: Array,
    known: Known,
    *,
    start: Array | None = None,
    middle: Array | None = None,
    iterations: int = ITERATIONS,
) -> Fits:
    """Generalized least squares of log losses [runs] or [weightings, runs] from `best`.

    Residuals are independent under `whiten`; what is known of the parameters counts as runs do.
    `start` and `middle` [weightings, parameters] are others than those of `best` and `known`.
    """
    logs = _logs(params, tokens, best.centre)
    first = awake(best.form, best.values) if start is None else start
    middles = np.broadcast_to(known.middle if middle is None else middle, first.shape)
    residuals = _Correlated(best.form, logs, logs_of_loss, whiten, middles, known.inverse)
    weights = np.ones((len(first), 1))
    values, objectives = _refine(residuals, first, weights, math.inf, iterations)
    return Fits(best.form, values, objectives, best.centre)


def floored_power_law(sizes: Array, rows: Array) -> tuple[Array, Array, Array]:
    """Exponent, floor and amplitude of every row of losses [rows, sizes], by least squares.

    The quick way for few sizes along one axis, where `fit` has runs along two, strays among them,
    and needs a start: with three sizes any refinement would go to where it began. For one exponent
    the other two are a straight line. At the ends the exponent is 0 or +inf, and
    the floor of exponent 0 is -inf; the first row keeps its numbers, to be drawn.
    """
    # Relative to the first size: of large sizes the powers themselves would be next to 0.
    powers = (sizes / sizes[0]) ** -WIDTH_EXPONENTS[:, None]
    middles = powers.mean(axis=1)
    centred = powers - middles[:, None]
    # A line explains (rows . x)^2 / (x . x) of the squares: the best exponent explains most.
    products, squares = rows @ centred.T, (centred**2).sum(axis=1)
    best = (products**2 / squares).argmax(axis=1)
    slopes = products[np.arange(len(rows)), best] / squares[best]
    exponents = WIDTH_EXPONENTS[best]
    floors = rows.mean(axis=1) - slopes * middles[best]
    amplitudes = slopes * sizes[0] ** exponents
    drawn = np.arange(len(rows)) > 0
    lowest, highest = exponents == WIDTH_EXPONENTS[0], exponents == WIDTH_EXPONENTS[-1]
    floors[drawn & lowest], exponents[drawn & lowest] = -math.inf, 0.0
    exponents[drawn & highest] = math.inf
    return exponents, floors, amplitudes


def slopes(fits: Fits, params: Array, tokens: Array) -> Array:
    """D log L / d parameter of every fit [weightings, parameters, points]."""
    return _Losses(fits.form, fits.values, _logs(params, tokens, fits.centre)).jacobian()


def residuals(fits: Fits, params: Array, tokens: Array, loss: Array) -> Array:
    """Log of predicted over measured [weightings, runs]."""
    return np.log(fits.loss(params, tokens)) - np.log(loss)


def spread(off: Array, parameters: int) -> float:
    """The standard deviation of residuals, freedom allowed for; strays count as three of it.

    It begins at the median's, which is robust, and of a few runs too rough by itself.
    """
    size, free = np.abs(off), max(len(off) - parameters, 1)
    deviation = 1.4826 * float(np.median(size)) * math.sqrt(len(off) / free)
    for _ in range(CLIPPED_ROUNDS):
        clipped = np.minimum(size, CLIPPED * deviation)
        deviation = math.sqrt(float((clipped**2).sum()) / free)
    return deviation


def _logs(params: Array, tokens: Array, centre: tuple[float, float]) -> Array:
    """Log N and log D [2, points] from the centre."""
    points = np.stack([np.asarray(params, float), np.asarray(tokens, float)])
    logs: Array = np.log(points) - np.log(np.array(centre))[:, None]
    return logs


class _Losses:
    """The law at points, for many parameters: `total` and `log` of it [weightings, points]."""

    def __init__(self, form: LawForm, values: Array, logs: Array) -> None:
        """`values` [weightings, parameters]; `logs` [2, points]."""
        self.form, count = form, form.amplitudes
        self.exponents = np.exp(values[:, count : count + len(form.terms)])
        self.distance = form.powers @ logs
        terms = values[:, 1:count, None] - self.exponents[:, :, None] * self.distance
        # log of the p-norm, the largest term taken out so that no power overflows.
        p = np.exp(values[:, -1])[:, None, None] if form.coupled else 1.0
        largest = terms.max(1, keepdims=True)
        powers = np.exp(p * (terms - largest))
        sums = powers.sum(1, keepdims=True)
        self.terms, self.shares = terms, powers / sums
        self.above = (largest + np.log(sums) / p)[:, 0]
        self.floor = np.exp(values[:, 0])[:, None]
        self.total: Array = self.floor + np.exp(self.above)
        self.log: Array = np.log(self.total)

    def jacobian(self) -> Array:
        """D log L / d parameter [weightings, parameters, points], all parameters being logs."""
        above = (np.exp(self.above) / self.total)[:, None]
        # d log S / d log u_i of a p-norm S is u_i^p / S^p; to log p the mean log u_i less log S.
        amplitudes = above * self.shares
        exponents = -amplitudes * self.exponents[:, :, None] * self.distance
        rows = [(self.floor / self.total)[:, None], amplitudes, exponents]
        if self.form.coupled:
            mean = (self.shares * self.terms).sum(1, keepdims=True)
            rows.append(above * (mean - self.above[:, None]))
        return np.concatenate(rows, 1)


def _starts(form: LawForm, logs: Array, loss: Array) -> Array:
    """Parameters [starts, parameters]: the best exponents of the grid, amplitudes by least squares.

    Residuals are relative, (predicted - L) / L, which is that of log L to first order.
    """
    grid = np.array(list(product(EXPONENTS, repeat=len(form.terms))))
    powers = np.exp(-grid[:, :, None] * (form.powers @ logs))
    columns = np.concatenate([np.ones_like(powers[:, :1]), powers], 1) / loss
    amplitudes, squares = _nonnegative(columns, np.ones(len(loss)))
    order = np.argsort(squares)[:STARTS]
    logged = np.log(np.maximum(amplitudes[order], math.exp(ABSENT)))
    starts = np.concatenate([logged, np.log(grid[order])], 1)
    if form.coupled:
        # A p-norm has no linear amplitudes: it starts from those of the sum, at several p.
        starts = np.concatenate(
            [np.insert(starts, starts.shape[1], math.log(p), axis=1) for p in COUPLINGS]
        )
    return awake(form, starts)


def awake(form: LawForm, values: Array) -> Array:
    """Starts in which no amplitude is below a thousandth of the largest.

    The slope along a log amplitude is the amplitude's: one that reached 0 would never come back.
    """
    awake = values.copy()
    amplitudes = awake[:, : form.amplitudes]
    # Log amplitudes: a factor is a difference.
    np.maximum(amplitudes, amplitudes.max(1, keepdims=True) - math.log(1000), out=amplitudes)
    return awake


def _nonnegative(columns: Array, target: Array) -> tuple[Array, Array]:
    """Least squares of `target` [points] by `columns` [problems, terms, points], none negative.

    With at most three terms every set of terms that are not 0 is tried, which is exact: the
    solution is the plain one on its own set (Lawson and Hanson, 1974, 23). Returns amplitudes
    [problems, terms] and sums of squares [problems].
    """
    problems, terms, _ = columns.shape
    products = columns @ columns.swapaxes(1, 2)
    right = columns @ target
    best = np.zeros((problems, terms))
    least = np.full(problems, target @ target)
    for size in range(1, terms + 1):
        for active in combinations(range(terms), size):
            rows = np.array(active)
            # Of one size alone a power of N is a constant, as the floor is: without
            # the small term the two could not be solved for.
            inner = products[:, rows[:, None], rows] + 1e-12 * np.eye(size)
            solved = np.linalg.solve(inner, right[:, rows, None])[..., 0]
            squares = target @ target - (solved * right[:, rows]).sum(1)
            better = (solved >= 0).all(1) & (squares < least)
            least[better] = squares[better]
            best[better] = 0.0
            best[np.ix_(better, rows)] = solved[better]
    return best, least


@dataclass(frozen=True, eq=False)
class _Residuals:
    """Log L(N, D) of a form less `target`, log L [runs] or [weightings, runs]."""

    form: LawForm
    logs: Array
    target: Array

    def of(self, values: Array, which: Index) -> tuple[Array, _Losses]:
        """Of the weightings `which` [weightings, runs], and the law's losses."""
        losses = _Losses(self.form, values, self.logs)
        aims = self.target[which] if self.target.ndim == 2 else self.target
        return losses.log - aims, losses

    def slopes(self, losses: _Losses) -> Array:
        """D residual / d parameter [weightings, parameters, runs]."""
        return losses.jacobian()


@dataclass(frozen=True, eq=False)
class _Correlated(_Residuals):
    """The same made independent, with what is known of the parameters behind the runs."""

    whiten: Array
    middle: Array
    inverse: Array

    def of(self, values: Array, which: Index) -> tuple[Array, _Losses]:
        off, losses = super().of(values, which)
        known = (values - self.middle[which]) * self.inverse
        return np.concatenate([off @ self.whiten.T, known], 1), losses

    def slopes(self, losses: _Losses) -> Array:
        jacobian = losses.jacobian()
        known = np.broadcast_to(np.diag(self.inverse), (len(jacobian), *2 * self.inverse.shape))
        return np.concatenate([jacobian @ self.whiten.T, known], 2)


def _refine(
    residuals: _Residuals,
    start: Array,
    weights: Array,
    threshold: float,
    iterations: int = ITERATIONS,
) -> tuple[Array, Array]:
    """Minimize sum w huber(residual) over all parameters from `start` [weightings, parameters].

    Levenberg-Marquardt, each step a weighted least squares with Huber's weights min(1, t / |r|),
    under which a step that lowers the squares lowers Huber's loss as well (a majorizer). Returns
    parameters [weightings, .] and objectives [weightings].
    """
    form = residuals.form
    low, high = np.array([_bounds(form, index) for index in range(start.shape[1])]).T
    # A floor above the lowest loss is none.
    high[0] = min(high[0], float(np.min(residuals.target)))
    reached_at = np.clip(start, low, high)
    moving = np.arange(len(start))  # the weightings that have not converged
    reached = _objective(residuals.of(reached_at, moving)[0], weights, threshold)
    damping = np.full(len(start), 1e-3)
    for _ in range(iterations):
        off, losses = residuals.of(reached_at[moving], moving)
        jacobian = residuals.slopes(losses)
        huber = weights[moving] * np.minimum(1.0, threshold / np.maximum(np.abs(off), 1e-300))
        gradient = (jacobian @ (huber * off)[..., None])[..., 0]
        curvature = (jacobian * huber[:, None]) @ jacobian.swapaxes(1, 2)
        diagonal = np.einsum("wpp->wp", curvature)
        # Marquardt: each parameter is damped in its own unit; the small terms keep one solvable
        # that no run tells of, as an exponent whose amplitude is 0.
        damped = damping[moving, None] * (diagonal + 1e-9 * diagonal.max(1, keepdims=True) + 1e-300)
        system = curvature + damped[:, :, None] * np.eye(len(low))
        step = np.linalg.solve(system, gradient[..., None])[..., 0]
        # Parameters are logs: beyond a factor of e^2 the slopes tell nothing any more.
        proposed = np.clip(reached_at[moving] - np.clip(step, -2.0, 2.0), low, high)
        new = _objective(residuals.of(proposed, moving)[0], weights[moving], threshold)
        # Each weighting goes at its own pace: a step that makes it worse is not taken, and damped.
        gain = reached[moving] - new
        better = gain >= 0
        reached_at[moving[better]], reached[moving[better]] = proposed[better], new[better]
        damping[moving] = np.clip(damping[moving] * np.where(better, 0.25, 6.0), 1e-12, 1e12)
        # Nothing to gain any more, or even a very short step is worse.
        done = np.where(better, gain <= 1e-9 * new + 1e-300, damping[moving] > 1e6)
        moving = moving[~done]
        if not len(moving):
            break
    return reached_at, reached


def _bounds(form: LawForm, index: int) -> tuple[float, float]:
    if index < form.amplitudes:
        return BOUNDS["amplitude"]
    kind = "exponent" if index < form.amplitudes + len(form.terms) else "coupling"
    low, high = BOUNDS[kind]
    return math.log(low), math.log(high)


def _objective(off: Array, weights: Array, threshold: float) -> Array:
    """Huber's loss of residuals [weightings, runs], summed over runs."""
    size = np.abs(off)
    if math.isinf(threshold):
        # Least squares: an infinite threshold times nothing beyond it would be NaN.
        threshold = float(size.max())
    inner = np.minimum(size, threshold)
    total: Array = (weights * (0.5 * inner**2 + threshold * (size - inner))).sum(1)
    return total
