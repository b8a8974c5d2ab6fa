"""The noise of a curve's runs: how it rises with eta, and how far along eta a seed's is alike.

The loss of seed s at log2 eta x_i is the curve's value there, an offset of the seed, and noise of
covariance sigma^2 r_i r_j k(x_i, x_j): r = 2^(rise * distance to the right of the lowest point), k
one of the `KERNELS`. Rise and kernel are those that the losses make likely: differences between
seeds have neither curve nor offset in a known way, so their likelihood is a normal one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sweeper.stats.estimate import Array
from sweeper.stats.gp import Process, alike_near, shares

Kernel = Callable[[Array], Array]

MAX_RISE = 4.0
"""In log2, over how many doublings of eta noise is taken to rise at most."""
RISES = (0.0, 0.5, 1.0, 1.5)
"""Doublings of the noise a doubling of eta."""


# Sixteen kernels of four kinds; lengths are octaves of eta. Rough: a small Llama's residuals half
# an octave apart were correlated by 0.3 = exp(-0.5 / 0.4); a length of 1 has 0.6. Smooth: from
# about the default step on, with a twentieth of independent noise or nearly none.
# A tilt is a seed whose optimum lies z ~ N(0, s^2) off: c (x - z)^2 has the slope -2 c z, a kernel
# v x x' with v = (2 c s / sigma)^2. Steps of 4 in v are of 2 in s: as fine as losses tell. The
# largest is s = 0.3 at a curvature of 0.1 and a noise of 0.0004 nats.


def _smooth(length: float, rest: float) -> Kernel:
    """A smooth function of log2 eta, but for `rest` of the variance, which is independent."""
    return lambda x: (1 - rest) * alike_near(x, x, length) + rest * np.eye(len(x))


def _rough(length: float) -> Kernel:
    return lambda x: np.exp(-np.abs(x[:, None] - x) / length)


def _tilted(variance: float) -> Kernel:
    """Independent, and a slope of each seed's own: its optimum is another."""
    return lambda x: np.eye(len(x)) + variance * np.outer(x, x)


KINDS: tuple[tuple[Kernel, ...], ...] = (
    (lambda x: np.eye(len(x)),),
    (_rough(0.4), _rough(1.0)),
    (_smooth(0.7, 0.05), _smooth(1.0, 1e-4), _smooth(1.4, 0.05), _smooth(1.4, 1e-4)),
    tuple(_tilted(0.5 * 4.0**power) for power in range(9)),
)
"""Correlations along x, the distance from the lowest point in log2; sigma is a run's there."""
KERNELS = tuple(kernel for kind in KINDS for kernel in kind)
PRIOR = np.tile([1 / len(kind) for kind in KINDS for _ in kind], len(RISES))
"""Each kind is as likely as another, before the losses are known."""
ORDER = 3
"""Of the curve whose residuals show how a known noise rises: a shape without its misfit."""
POOLED_FREEDOM = 12
"""Degrees of freedom for which a ladder's other curves count in the level of one curve's noise.

As many measure a level as well as the others tell it where levels differ by a fifth, a standard
deviation of 0.4 in the logarithm of sigma^2: 2 / 0.4^2."""
MODELS = tuple((rise, kernel) for rise in RISES for kernel in KERNELS)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What one curve's losses say of every model in `MODELS`, at its points `x`.

    `log_likelihood` [model] has offsets and sigma integrated out. `variance` [model] estimates
    sigma^2 with `freedom` degrees of freedom. `deviation` is a run's standard deviation in nats,
    the offsets left out, were it the same at all points. It rises up to `reach` (log2).
    """

    log_likelihood: Array
    variance: Array
    freedom: int
    deviation: float
    reach: float = MAX_RISE

    @classmethod
    def measure(cls, x: Array, runs: Array) -> Noise:
        """Measures runs [eta, seed] at `x`, their distance from the lowest point in log2.

        Restricted maximum likelihood of the contrasts between seeds, each with a mean of its own.
        """
        from scipy.linalg import helmert  # not above, as in `stats/estimate.py`

        # The differences alone: the curve itself, which nobody knows, is in none of them.
        contrasts = runs @ helmert(runs.shape[1]).T
        covariances, _ = _models(tuple(x.round(9)))
        process = Process(covariances, contrasts, np.ones((len(x), 1)))
        plain = float(((contrasts - contrasts.mean(axis=0)) ** 2).sum())
        return cls(
            log_likelihood=process.log_likelihood_of_any_scale,
            variance=process.variance,
            freedom=process.freedom,
            deviation=math.sqrt(plain / process.freedom),
        )

    @classmethod
    def of_level(
        cls,
        deviation: float,
        freedom: int,
        x: Array,
        losses: Array,
        seeds: int,
        *,
        single: bool = False,
    ) -> Noise:
        """Takes a known `deviation` (nats): a run's own at each eta, or alike at near ones.

        That each seed has another optimum no repeated cell shows, and is left out. How the noise
        rises is told by what a cubic leaves of the mean `losses` of `seeds` runs at all finite `x`;
        how it is correlated is not, since a smooth noise looks like a curve. Of `single` runs the
        level was read off such losses too, as if it were alike at all of them: one that rises is
        less at the lowest point, and beyond them nothing tells that it goes on.
        """
        # The tilted kernels are the last kind.
        untilted = np.tile([kernel not in KINDS[-1] for kernel in KERNELS], len(RISES))
        level, by_rise = np.full(len(RISES), deviation**2), np.zeros(len(RISES))
        if single:
            # Were the noise to rise, the residuals would ask for less of it at the lowest point.
            rest = left_by_cubic(x, losses)
            level *= rest.squares / rest.squares[0] if rest.squares[0] > 0 else 1.0
            by_rise = rest.log_likelihood
        # A cubic goes through so few points, whatever the noise: no rise is likelier than another.
        elif len(x) > ORDER + 1:
            of_means = deviation / math.sqrt(seeds)
            by_rise = _beside_polynomial(x, losses, ORDER, of_means).log_likelihood
        return cls(
            log_likelihood=np.where(untilted, np.repeat(by_rise, len(KERNELS)), -math.inf),
            variance=np.repeat(level, len(KERNELS)),
            freedom=freedom,
            deviation=deviation,
            reach=min(MAX_RISE, float(x.max())) if single else MAX_RISE,
        )

    def pooled(self, ladder: Sequence[Noise]) -> Noise:
        """Moderates sigma^2 by a ladder's curves (Smyth, 2004), worth `POOLED_FREEDOM` at most."""
        others = [noise for noise in ladder if noise is not self]
        total = sum(noise.freedom for noise in others)
        if not total:
            return self
        counted = min(POOLED_FREEDOM, total)
        level = np.sum([noise.freedom * noise.variance for noise in others], axis=0) / total
        freedom = self.freedom + counted
        variance = (self.freedom * self.variance + counted * level) / freedom
        return replace(self, variance=variance, freedom=freedom)

    def covariance(self, x: Array, weights: Array) -> Array:
        """The covariance of a run's noise at `x` [point, point], the mean over the models."""
        covariances, _ = _models(tuple(x.round(9)), self.reach)
        return np.tensordot(weights * self.variance, covariances, axes=1)

    def draws(self, generator: np.random.Generator, x: Array, weights: Array, count: int) -> Array:
        """Noise of a run at every point `x` [count, point].

        Each row first draws its model, then sigma^2 from the scaled inverse chi-squared
        distribution that its estimate leaves open, then the noise.
        """
        chosen = generator.choice(len(MODELS), size=count, p=weights)
        # Few residuals leave sigma open: drawing it makes the intervals Student's.
        spread = np.sqrt(
            self.variance[chosen] * self.freedom / generator.chisquare(self.freedom, count)
        )
        noise = generator.normal(size=(count, len(x))) * spread[:, None]
        _, roots = _models(tuple(x.round(9)), self.reach)
        for model in np.unique(chosen):
            rows = chosen == model
            noise[rows] = noise[rows] @ roots[model].T
        return noise


def covariance(x: Array, rise: float, kernel: Kernel, reach: float = MAX_RISE) -> Array:
    """The covariance [point, point] of a model, of variance 1 at the lowest point."""
    spread = 2.0 ** (rise * np.clip(x, 0.0, reach))
    return np.outer(spread, spread) * kernel(x)


def _models(x: tuple[float, ...], reach: float = MAX_RISE) -> tuple[Array, Array]:
    """All `MODELS`' covariances and roots [model, point, point] at `x`."""
    return (_models_kept if len(x) <= MOST_POINTS_KEPT else _models_made)(x, reach)


def _models_made(x: tuple[float, ...], reach: float) -> tuple[Array, Array]:
    points = np.array(x)
    covariances = np.array([covariance(points, *model, reach) for model in MODELS])
    return covariances, np.linalg.cholesky(covariances)


_models_kept = lru_cache(maxsize=256)(_models_made)
MOST_POINTS_KEPT = 32
"""A ladder has few grids, and they are small: one of 200 points takes 51 MB."""


class CubicRest(NamedTuple):
    """What a cubic leaves of single losses: mean squares and log likelihood [rise], and freedom."""

    squares: Array
    log_likelihood: Array
    freedom: int


def left_by_cubic(x: Array, losses: Array) -> CubicRest:
    """Independent noise at the lowest point, a cubic (few points: parabola) integrated out."""
    # One residual is left at least; what a line leaves of a valley is its bend and no noise.
    order = min(ORDER, len(x) - 2)
    freedom = len(x) - order - 1 if order > 1 else 0
    if not freedom:
        return CubicRest(np.zeros(len(RISES)), np.zeros(len(RISES)), 0)
    process = _beside_polynomial(x, losses, order)
    return CubicRest(process.variance, process.log_likelihood_of_any_scale, freedom)


def _beside_polynomial(x: Array, losses: Array, order: int, deviation: float = 1.0) -> Process:
    """Independent noise of every rise, of that deviation at the lowest point."""
    spreads = deviation * 2.0 ** (np.outer(RISES, np.clip(x, 0.0, MAX_RISE)))
    # A polynomial has a constant: taking the least loss out changes rounding alone.
    return Process(
        spreads[:, None] ** 2 * np.eye(len(x)), losses - losses.min(), np.vander(x, order + 1)
    )


def model_weights(noises: Sequence[Noise], *, levels_known: bool = False) -> Array:
    """The probability [model] of each of the `MODELS`, all alike before: the curves share one.

    Of noises whose levels are known a higher rise may lose by the losses, and never gains: what no
    cubic fits may be the curve's shape.
    """
    total = np.sum([noise.log_likelihood for noise in noises], axis=0)
    if levels_known:
        # `MODELS` go by rise, then by kernel: down a column only the rise grows.
        total = np.minimum.accumulate(total.reshape(len(RISES), -1), axis=0).ravel()
    return shares(total, PRIOR)


def fit_plane(x: Array, optima: Array, draws: Array) -> Array:
    """Coefficients [rows, 1 + draws] of `optima` [curves] over the rows of `x` [rows, curves].

    The first column is the fit, the others are its draws, from `draws` [curves, draws] of the
    optima. The weights are the inverse variances of the optima. The rows must be independent.
    """
    # From percentiles, not from the standard deviation: a few draws far off would dominate it.
    low, high = np.percentile(draws, [2.5, 97.5], axis=1)
    weights = ((high - low) / (2 * 1.96)) ** -2.0
    solve = np.linalg.solve((x * weights) @ x.T, x * weights)
    fitted = solve @ optima
    residuals = optima - fitted @ x
    # The Birge ratio, the root of chi^2 per degree of freedom: above 1 the optima scatter about
    # the plane more than their own intervals say, and the draws widen by it. Below 1 it is left
    # out, since few curves may lie on a plane by chance.
    freedom = max(1, len(optima) - len(x))
    scale = max(1.0, math.sqrt((weights * residuals**2).sum() / freedom))
    deviations = scale * (solve @ (draws - optima[:, None]))
    return np.hstack([fitted[:, None], fitted[:, None] + deviations])
