"""What differences between variants become at another size: one Gaussian model of all of them.

A run of variant v at size c has the loss mu_c + g_v(c) + noise. The level mu_c of a size is
free, so that losses of a size are compared with each other alone, and what is odd of a size is told
once. g_v fades with compute, and drifts:

    g_v(c) = a_v 2^(-beta n - gamma d) (1 + b_v (n + d)) + drift_v(c)

n and d are octaves of parameters and of tokens from the largest size that was run; a_v has a common
scale, b_v the spread of fading between variants, and drift is Brownian along both axes from the
smallest size on. A straight line through small differences says which variant gains faster, which
two or three sizes do not tell: it was wrong in most published tables that it was tried on.

Scale, drift, noise, beta and gamma are learned from all variants together, around `PRIOR`: by
draws of it, weighted with the likelihood of the losses. What a variant without effect seems to win
by its noise is shrunk by that, the more so the more variants there are without any.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from sweeper.stats.estimate import Array, Estimate

USUAL = 0.8, 4.0
"""Losses in nats a token and bits a byte, for which the priors are: of others they are shares."""
SEED_NOISE = 0.0011
"""Between seeds of one recipe, in nats at 3.28: 171 public runs of twelve recipes."""
RUN_NOISE = 0.0025
"""Of a run where no seeds are told apart: what its rate and its other settings miss is in it."""
PRIOR = {
    "scale": (math.log(0.01), 1.3),
    "drift": (math.log(0.001 / math.sqrt(2)), 0.6),
    "noise": (math.log(RUN_NOISE), 0.4),
    "beta": (0.1, 0.05),
    "gamma": (0.1, 0.05),
}
"""Mean and spread, in logs; beta and gamma per octave.

The drift is 0.001 for the root of an octave, of the difference of two variants.
"""
OF_SEEDS = (math.log(2 * SEED_NOISE), 1.0)
"""The prior of the noise where seeds tell it: wide, since models and data differ."""
ALIKE, NONE = 0.4, 1e-5
"""The chance that all variants are alike at the largest size, and the scale that they then have."""
UNLIKE = 0.05
"""How much an octave's fading differs between variants."""
DRAWS = 384
"""Of the prior, and as many again around what the first ones found likely."""
LARGE = 2e6
"""Numbers of all draws' matrices that are held at once."""


@dataclass(frozen=True, eq=False)
class VariantLosses:
    """Mean losses of variants at sizes, and what seeds say of the noise.

    `sizes` are log2 of parameters and of tokens [sizes, 2]; `means` and `counts` of runs are
    [variants, sizes], NaN and 0 where nothing was run. `squares` is the sum of squares of runs
    about the mean of their seeds, of `freedom` degrees.
    """

    names: Sequence[str]
    sizes: Array
    means: Array
    counts: Array
    squares: float = 0.0
    freedom: int = 0


@dataclass(frozen=True, eq=False)
class Carried:
    """The variants at `places`: a normal distribution a draw, of `weights` that sum to 1.

    `means` are [draws, places, variants], `covariances` have variants twice; differences of
    variants alone mean something. `noise` is that of a run [draws].
    """

    weights: Array
    means: Array
    covariances: Array
    noise: Array
    priors: Array

    def moments(self, place: int, one: int, other: int) -> tuple[Array, Array]:
        """Mean and standard deviation [draws] of how much higher the loss of `one` is."""
        mean = self.means[:, place, one] - self.means[:, place, other]
        k = self.covariances[:, place]
        variance = k[:, one, one] + k[:, other, other] - 2 * k[:, one, other]
        return mean, np.sqrt(np.maximum(variance, 1e-30))

    def chance(self, place: int, one: int, other: int) -> float:
        """That `one` is better than `other`."""
        mean, deviation = self.moments(place, one, other)
        return float(self.weights @ _normal_below(-mean / deviation))

    def difference(self, place: int, one: int, other: int, runs: float = 0.0) -> Estimate:
        """How much higher the loss of `one` is; with `runs`, as so many runs of each show it."""
        mean, deviation = self.moments(place, one, other)
        if runs:
            deviation = np.sqrt(deviation**2 + 2 * self.noise**2 / runs)
        low, high = (mixture_quantile(self.weights, mean, deviation, p) for p in (0.025, 0.975))
        return Estimate(value=float(self.weights @ mean), low=low, high=high)


def mixture_quantile(weights: Array, means: Array, deviations: Array, level: float) -> float:
    """Where a mixture of normals has so much of its mass below."""
    low = float((means - 9 * deviations).min())
    high = float((means + 9 * deviations).max())
    for _ in range(60):
        middle = (low + high) / 2
        below = float(weights @ _normal_below((middle - means) / deviations)) < level
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2


_erf = np.vectorize(math.erf, otypes=[float])


def _normal_below(z: Array) -> Array:
    below: Array = (1 + _erf(np.clip(z, -9, 9) / math.sqrt(2))) / 2
    return below


def carry(losses: VariantLosses, places: Array) -> Carried:
    """What is known of the variants at `places` [places, 2]; ValueError where none share a size."""
    model = _Model.of(losses, places)
    prior = dict(PRIOR)
    if losses.freedom:
        prior["noise"] = OF_SEEDS
    middle, spread = (np.array([prior[name][i] for name in PRIOR]) for i in (0, 1))
    first = middle + spread * normal_draws(DRAWS, len(middle))
    fits = model.likelihoods(first)
    weights = np.exp(fits - fits.max())
    weights /= weights.sum()
    # Where many variants tell much, few draws of the prior are likely: as many again are taken
    # around those, and all weigh as what was drawn from both together.
    found = weights @ first
    around = np.cov(first.T, aweights=weights) + np.diag((spread / 8) ** 2)
    root = np.linalg.cholesky(1.5 * around)
    second = found + normal_draws(DRAWS, len(middle)) @ root.T
    draws = np.concatenate([first, second])
    logs = np.concatenate([fits, model.likelihoods(second)])
    of_prior = -0.5 * (((draws - middle) / spread) ** 2).sum(axis=1) - np.log(spread).sum()
    white = np.linalg.solve(root, (draws - found).T)
    of_second = -0.5 * (white**2).sum(axis=0) - np.log(np.diag(root)).sum()
    logs += of_prior - np.logaddexp(of_prior, of_second)
    # And as many again in which no variant has an effect.
    none = first.copy()
    none[:, 0] = math.log(NONE)
    draws = np.concatenate([draws, none])
    odds = math.log(ALIKE / (1 - ALIKE))
    logs = np.concatenate([logs, model.likelihoods(none) + odds])
    weights = np.exp(logs - logs.max())
    kept = weights > 1e-5 * weights.max()
    weights, draws = weights[kept] / weights[kept].sum(), draws[kept]
    means, covariances = model.posterior(draws)
    return Carried(weights, means, covariances, np.exp(draws[:, 2]) * model.unit, draws)


@cache
def normal_draws(count: int, dimensions: int) -> Array:
    """Independent standard normals [count, dimensions] that fill space evenly (Halton's)."""
    inverse, columns = NormalDist().inv_cdf, []
    for base in (2, 3, 5, 7, 11, 13)[:dimensions]:
        column = []
        # The first points of large bases lie on lines.
        for index in range(31, 31 + count):
            value, share = 0.0, 1.0
            while index:
                index, digit = divmod(index, base)
                share /= base
                value += digit * share
            column.append(inverse(value))
        columns.append(column)
    return np.array(columns).T


@dataclass(frozen=True, eq=False)
class _Model:
    """Contrasts of the losses of each size, which no level of a size is in, and their kernels."""

    unit: float
    contrasts: Array  # [contrasts, observed]
    values: Array  # of the contrasts, as shares of the loss
    variant: Array
    place: Array  # of every observation its row of `grid`
    spread: Array  # of the noise [contrasts, contrasts]
    grid: Array  # octaves from the largest size, of sizes and then of places
    brown: Array
    sizes: int
    variants: int
    squares: float
    freedom: int

    @classmethod
    def of(cls, losses: VariantLosses, places: Array) -> _Model:
        shared = (losses.counts > 0).sum(axis=0) > 1
        rows = []
        variant, place = np.nonzero((losses.counts > 0) & shared)
        for size in np.unique(place):
            at = np.flatnonzero(place == size)
            for k in range(1, len(at)):
                row = np.zeros(len(place))
                row[at[:k]], row[at[k]] = 1 / k, -1
                rows.append(row / math.sqrt(1 + 1 / k))
        if not rows:
            raise ValueError("no two variants were run at one size")
        middle = float(np.median(np.abs(losses.means[variant, place]))) or 1.0
        unit = middle / min(max(middle, USUAL[0]), USUAL[1])
        contrasts = np.array(rows)
        points = np.concatenate([losses.sizes, places])
        used = losses.sizes[np.unique(place)]
        largest = used[used.sum(axis=1).argmax()]
        above = points - points.min(axis=0)
        brown = np.minimum(above[:, None], above[None]).sum(axis=2)
        return cls(
            unit=unit,
            contrasts=contrasts,
            values=contrasts @ losses.means[variant, place] / unit,
            variant=variant,
            place=place,
            spread=contrasts / losses.counts[variant, place] @ contrasts.T,
            grid=points - largest,
            brown=brown,
            sizes=len(losses.sizes),
            variants=len(losses.names),
            squares=losses.squares / unit**2,
            freedom=losses.freedom,
        )

    def kernels(self, draws: Array) -> Array:
        """Covariances of one variant between all sizes and places [draws, points, points]."""
        scale, drift = np.exp(draws[:, 0]), np.exp(draws[:, 1])
        fading = np.exp2(-draws[:, 3:] @ self.grid.T)
        octaves = math.log(2) * UNLIKE * self.grid.sum(axis=1)
        level = 1 + np.outer(octaves, octaves)
        of_level = (scale[:, None] * fading)[:, :, None] * (scale[:, None] * fading)[:, None]
        found: Array = of_level * level + (drift**2)[:, None, None] * self.brown
        return found

    def _chunks(self, draws: Array) -> list[Array]:
        return np.array_split(draws, math.ceil(len(draws) * len(self.variant) ** 2 / LARGE))

    def _covariance(self, draws: Array, kernels: Array) -> Array:
        alike = self.variant[:, None] == self.variant
        observed = np.where(alike, kernels[:, self.place[:, None], self.place], 0.0)
        noise = np.exp(2 * draws[:, 2])
        found: Array = self.contrasts @ observed @ self.contrasts.T
        return found + noise[:, None, None] * self.spread

    def likelihoods(self, draws: Array) -> Array:
        """Logarithms [draws], of the contrasts and of what seeds say of the noise."""
        found = []
        for part in self._chunks(draws):
            root = np.linalg.cholesky(self._covariance(part, self.kernels(part)))
            white = np.linalg.solve(root, self.values[:, None])[:, :, 0]
            logs = np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
            noise = part[:, 2]
            of_seeds = -self.freedom * noise - 0.5 * self.squares * np.exp(-2 * noise)
            found.append(of_seeds - 0.5 * (white**2).sum(axis=1) - logs)
        return np.concatenate(found)

    def posterior(self, draws: Array) -> tuple[Array, Array]:
        """Means [draws, places, variants] and covariances of the variants at every place."""
        means, covariances = [], []
        for part in self._chunks(draws):
            kernels = self.kernels(part)
            of = self._covariance(part, kernels)
            places = np.arange(self.sizes, kernels.shape[1])
            near = kernels[:, places[:, None], self.place]  # [draws, places, observed]
            of_variant = self.variant == np.arange(self.variants)[:, None]
            cross = (near[:, :, None] * of_variant) @ self.contrasts.T
            flat = cross.reshape(len(part), -1, len(self.values))
            solved = np.linalg.solve(of, flat.transpose(0, 2, 1))
            mean = np.einsum("gcp,c->gp", solved, self.values)
            means.append(mean.reshape(cross.shape[:3]) * self.unit)
            told = cross @ solved.reshape(len(part), len(self.values), *cross.shape[1:3]).transpose(
                0, 2, 1, 3
            )
            own = kernels[:, places, places][:, :, None, None] * np.eye(self.variants)
            covariances.append((own - told) * self.unit**2)
        return np.concatenate(means), np.concatenate(covariances)
