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
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist

import numpy as np

from sweeper.stats.estimate import Array, Estimate, normal_above

Whole = np.ndarray[tuple[int], np.dtype[np.int64]]
USUAL = 0.8, 4.0
"""Losses in nats a token and bits a byte, for which the priors are: of others they are shares."""
SEED_NOISE = 0.0011
"""Between seeds of one recipe, in nats at 3.28: 171 public runs of twelve recipes."""
RUN_NOISE = 0.003
"""Of a run where no seeds are told apart: what its rate and its other settings miss is in it."""
PRIOR = {
    "scale": (math.log(0.01), 1.3),
    "drift": (math.log(0.0005), 0.3),
    "noise": (math.log(RUN_NOISE), 0.3),
    "beta": (0.1, 0.05),
    "gamma": (0.1, 0.05),
}
"""Mean and spread, in logs; beta and gamma per octave.

The drift is that of a variant for the root of an octave. `scripts/bench/decide.py --only constants`
tries others, leaving one table out at a time.
"""
OF_SEEDS = (math.log(2 * SEED_NOISE), 1.0)
"""The prior of the noise where seeds tell it: wide, since models and data differ."""
ALIKE, ALIKE_BY_SEEDS, NONE = 0.05, 0.4, 1e-5
"""The chance that all variants are alike at the largest size, and the scale that they then have.

Seeds tell so small an effect that having none must be likely for noise to be called one seldom.
"""
UNLIKE = 0.02
"""How much an octave's fading differs between variants."""
OUTSIDE = 0.0125
"""The model's own chance beyond an end of an interval of 95 %: no table is quite as it has it."""
OUTSIDE_Z = NormalDist().inv_cdf(1 - OUTSIDE)
DRAWS = 384
"""Of the prior, and as many again around what the first ones found likely, round by round."""
MOST_ROUNDS, ENOUGH = 6, 40
"""Rounds at most, until so many draws are likely."""
LEAST = math.log(1e-4)
"""The least likelihood of a draw, beside that of the likeliest, by which variants are carried."""
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
    """The variants at places: a normal distribution a draw, of `weights` that sum to 1.

    `means` and `deviations` are of every variant less the first one [draws, places, variants];
    `joint` has the covariances of these at the first place [draws, variants, variants]. `noise` is
    that of a run [draws]; `draws` are those of `PRIOR`, first those in which variants have
    `effects`, then those in which all are alike. These count where variants are told apart. An
    interval is without them: it would be narrower than what was measured. A loss of `unit` is one
    of the prior's.
    """

    weights: Array
    means: Array
    deviations: Array
    joint: Array
    noise: Array
    draws: Array
    effects: int
    unit: float

    def chance(self, variant: int, below: float = 0.0, place: int = 0) -> float:
        """That the variant's loss less the first one's lies `below`."""
        z = (below - self.means[:, place, variant]) / self.deviations[:, place, variant]
        return float(self.weights @ _normal_below(z))

    def better(self) -> Array:
        """The chance that one has the lower loss at the first place than another [one, other]."""
        own = np.diagonal(self.joint, axis1=1, axis2=2)
        found = np.zeros(self.joint.shape[1:])
        for weight, joint, variance, mean in zip(
            self.weights, self.joint, own, self.means[:, 0], strict=True
        ):
            # Var(a - b): the level of a size is in both variants, and goes out by their covariance.
            spread = np.sqrt(np.maximum(variance[:, None] + variance - 2 * joint, 1e-30))
            found += weight * _normal_below((mean - mean[:, None]) / spread)
        return found

    def differences(self, places: Sequence[int], runs: float = 0.0) -> list[list[Estimate]]:
        """How much higher losses are than the first one's, by place and variant.

        With `runs`, as so many of each show. Intervals hold in 95 % (`OUTSIDE`).
        """
        of_effects = slice(self.effects)
        weights = self.weights[of_effects] / self.weights[of_effects].sum()
        means = self.means[of_effects, places]
        deviations = self.deviations[of_effects, places]
        if runs:
            noise = self.noise[of_effects, None, None]
            deviations = np.sqrt(deviations**2 + 2 * noise**2 / runs)
        low, high = (
            mixture_quantile(weights, means, deviations, p) for p in (OUTSIDE, 1 - OUTSIDE)
        )
        values = np.tensordot(weights, means, 1)
        return [
            [
                Estimate(value=float(v), low=float(a), high=float(b))
                for v, a, b in zip(*of_place, strict=True)
            ]
            for of_place in zip(values, low, high, strict=True)
        ]

    def difference(self, variant: int, place: int = 0, runs: float = 0.0) -> Estimate:
        """That of one variant at a place."""
        return self.only(variant).differences([place], runs)[0][0]

    def only(self, variant: int) -> Carried:
        """Of one variant alone, beside the first."""
        at = [variant]
        means, deviations = self.means[:, :, at], self.deviations[:, :, at]
        return replace(self, means=means, deviations=deviations)


def mixture_quantile(weights: Array, means: Array, deviations: Array, level: float) -> Array:
    """Where mixtures of normals [normals, ...] have so much of their mass below [...]."""
    low = (means - 9 * deviations).min(axis=0)
    high = (means + 9 * deviations).max(axis=0)
    for _ in range(30):
        middle = (low + high) / 2
        below = np.tensordot(weights, _normal_below((middle - means) / deviations), 1) < level
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    found: Array = (low + high) / 2
    return found


_REACH, _STEPS = 9.0, 20_000
_GRID = np.linspace(-_REACH, _REACH, _STEPS + 1)
# One entry more, so that the last place has a next one to interpolate with.
_BELOW = np.array([1 - normal_above(z) if z < 0 else normal_above(-z) for z in _GRID] + [1.0])


def _normal_below(z: Array) -> Array:
    """The standard normal's distribution function, to 1e-7: millions of values at once."""
    place = (np.clip(z, -_REACH, _REACH) + _REACH) * (_STEPS / (2 * _REACH))
    at = place.astype(np.int32)
    below: Array = _BELOW[at]
    return below + (place - at) * (_BELOW[at + 1] - below)


def usual_unit(losses: Array) -> float:
    """What one nat of the priors is of losses such as these; 1 for those around zero."""
    middle = float(np.median(np.abs(losses)))
    # Around zero a share of the loss means nothing: the priors are taken as they are.
    if losses.min() < 0 < losses.max() or not middle:
        return 1.0
    # Between the usual losses 1, so that priors in nats hold of them; outside in proportion.
    return middle / min(max(middle, USUAL[0]), USUAL[1])


def carry(losses: VariantLosses, places: Array) -> Carried:
    """What is known of the variants at `places` [places, 2]; ValueError where none share a size."""
    model = _Model.of(losses, places)
    prior = dict(PRIOR)
    if losses.freedom:
        prior["noise"] = OF_SEEDS
    middle, spread = (np.array([prior[name][i] for name in PRIOR]) for i in (0, 1))
    standard = normal_draws(DRAWS, len(middle))
    first = middle + spread * standard
    draws, fits = first, model.likelihoods(first)
    proposed = [(middle, np.diag(spread))]
    # Drawn from the prior, a draw weighs by its likelihood alone.
    logs = fits
    # Where many variants tell much, few draws of the prior are likely: as many again are taken
    # around those, and all weigh as what was drawn from all rounds together.
    for _ in range(MOST_ROUNDS):
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        # The effective number of draws, 1 / sum w^2.
        if len(proposed) > 1 and (weights**2).sum() < 1 / ENOUGH:
            break
        found = weights @ draws
        # Never narrower than an eighth of the prior, as a few likely draws may lie on a line; and
        # wider by half than what was found, so that tails are drawn as well.
        around = (draws - found).T * weights @ (draws - found) + np.diag((spread / 8) ** 2)
        proposed.append((found, np.linalg.cholesky(1.5 * around)))
        more = found + standard @ proposed[-1][1].T
        draws = np.concatenate([draws, more])
        fits = np.concatenate([fits, model.likelihoods(more)])
        densities = [_normal_density(draws, *each) for each in proposed]
        # Of all rounds as one mixture (the balance heuristic). By the sum of the densities, not the
        # mean: weights then add up to `DRAWS` times the evidence, as those without an effect do.
        logs = fits + densities[0] - np.logaddexp.reduce(densities)
    # And as many again in which no variant has an effect.
    none = first.copy()
    none[:, 0] = math.log(NONE)
    alike = ALIKE_BY_SEEDS if losses.freedom else ALIKE
    odds = math.log(alike / (1 - alike))
    parts = [(draws, logs), (none, model.likelihoods(none) + odds)]
    best = max(each.max() for _, each in parts)
    weights, kept = list[Array](), list[Array]()
    for part, of_part in parts:
        # Unlikely draws cost as much to carry as likely ones, and change nothing.
        likely = np.flatnonzero(of_part > of_part.max() + LEAST)
        weights.append(np.exp(of_part[likely] - best))
        kept.append(part[likely])
    total = sum(each.sum() for each in weights)
    draws = np.concatenate(kept)
    return Carried(
        np.concatenate(weights) / total,
        *model.posterior(draws),
        np.exp(draws[:, 2]) * model.unit,
        draws,
        effects=len(kept[0]),
        unit=model.unit,
    )


def _normal_density(draws: Array, middle: Array, root: Array) -> Array:
    """Its logarithm [draws], but for a constant."""
    white = np.linalg.solve(root, (draws - middle).T)
    density: Array = -0.5 * (white**2).sum(axis=0) - np.log(np.diag(root)).sum()
    return density


def deviation_with(losses: VariantLosses, place: Array, variant: int, carried: Carried) -> float:
    """How far off a difference at `place` [2] would be with these counts, by the likeliest draw."""
    model = _Model.of(losses, place[None])
    # The likeliest draw alone: how far runs narrow a difference depends little on which it is.
    likely = carried.draws[[int(carried.weights.argmax())]]
    return float(model.posterior(likely)[1][0, 0, variant])


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
class _Pattern:
    """Variants that were run alike: at which of the sizes, and with what share of a run's noise."""

    variants: Whole
    sizes: Whole
    shares: Array


@dataclass(frozen=True, eq=False)
class _Solved:
    """By draw the inverse covariance of each pattern's losses, and the sizes' levels after it."""

    inverses: Sequence[Array]  # of every pattern [draws, its sizes, its sizes]
    residuals: Array  # losses less the levels [draws, variants, sizes], 0 where nothing was run
    levels: Array  # covariance of the levels [draws, sizes, sizes]
    logs: Array  # of the likelihood, of the losses alone [draws]


@dataclass(frozen=True, eq=False)
class _Model:
    """Losses whose levels are free; variants are independent of each other but for these.

    So no matrix is larger than the number of sizes, however many variants there are.
    """

    unit: float
    values: Array  # [variants, sizes], as shares of the loss; 0 where nothing was run
    patterns: Sequence[_Pattern]
    grid: Array  # octaves from the largest size, of sizes and then of places
    brown: Array
    places: int
    squares: float
    freedom: int

    @classmethod
    def of(cls, losses: VariantLosses, places: Array) -> _Model:
        there = losses.counts > 0
        # A size with one variant alone tells of no difference: its free level takes the loss whole.
        shared = np.flatnonzero(there.sum(axis=0) > 1)
        if not len(shared):
            raise ValueError("no two variants were run at one size")
        there, counts, means = there[:, shared], losses.counts[:, shared], losses.means[:, shared]
        unit = usual_unit(means[there])
        # A level of a size is free: less their mean the losses lose no digits.
        level = np.nanmean(np.where(there, means, math.nan), axis=0)
        # Variants with the same counts have the same matrices: one inverse serves all of them.
        runs, of_variant = np.unique(counts, axis=0, return_inverse=True)
        patterns = [
            _Pattern(np.flatnonzero(of_variant.reshape(-1) == i), at, 1 / row[at])
            for i, row in enumerate(runs)
            if len(at := np.flatnonzero(row))
        ]
        sizes = losses.sizes[shared]
        points = np.concatenate([sizes, places])
        # Brownian motion along an axis has the covariance min(x, y) from where it begins: the
        # smallest count, where no drift has been yet.
        above = points - points.min(axis=0)
        return cls(
            unit=unit,
            values=np.where(there, means - level, 0.0) / unit,
            patterns=patterns,
            # From the largest size, so that an effect has its prior where most is known of it.
            grid=points - sizes[sizes.sum(axis=1).argmax()],
            brown=np.minimum(above[:, None], above[None]).sum(axis=2),
            places=len(places),
            squares=losses.squares / unit**2,
            freedom=losses.freedom,
        )

    def kernels(self, draws: Array) -> Array:
        """Covariances of one variant between all sizes and places [draws, points, points]."""
        scale, drift = np.exp(draws[:, 0]), np.exp(draws[:, 1])
        fading = np.exp2(-draws[:, 3:] @ self.grid.T)
        # An exponent off by d changes 2^(-beta u) by -ln(2) d u of itself; d's spread is `UNLIKE`.
        octaves = math.log(2) * UNLIKE * self.grid.sum(axis=1)
        level = 1 + np.outer(octaves, octaves)
        of_level = (scale[:, None] * fading)[:, :, None] * (scale[:, None] * fading)[:, None]
        found: Array = of_level * level + (drift**2)[:, None, None] * self.brown
        return found

    def _chunks(self, draws: Array, numbers: int) -> list[Array]:
        return np.array_split(draws, min(len(draws), math.ceil(len(draws) * numbers / LARGE)))

    def _solved(self, draws: Array, kernels: Array) -> _Solved:
        count, sizes = len(draws), self.values.shape[1]
        noise = np.exp(2 * draws[:, 2])
        precision, wanted = np.zeros((count, sizes, sizes)), np.zeros((count, sizes))
        inverses, logs = [], np.zeros(count)
        for pattern in self.patterns:
            among = np.ix_(np.arange(count), pattern.sizes, pattern.sizes)
            covariance = kernels[among] + noise[:, None, None] * np.diag(pattern.shares)
            # The noise on the diagonal keeps it well-conditioned, however near sizes lie.
            inverse = np.linalg.inv(covariance)
            values = self.values[np.ix_(pattern.variants, pattern.sizes)]
            # Levels by generalized least squares, over all variants that were run at a size.
            precision[among] += len(values) * inverse
            wanted[:, pattern.sizes] += inverse @ values.sum(axis=0)
            logs -= 0.5 * len(values) * np.linalg.slogdet(covariance)[1]
            inverses.append(inverse)
        levels = np.asarray(np.linalg.inv(precision), dtype=np.float64)
        # Levels have a flat prior and are integrated out, which leaves the restricted likelihood:
        # losses count by their differences within a size alone.
        logs -= 0.5 * np.linalg.slogdet(precision)[1]
        found = np.einsum("gsr,gr->gs", levels, wanted)
        residuals = np.zeros((count, *self.values.shape))
        for pattern, inverse in zip(self.patterns, inverses, strict=True):
            at = np.ix_(pattern.variants, pattern.sizes)
            rest = self.values[at] - found[:, None, pattern.sizes]
            residuals[:, at[0], at[1]] = rest
            logs -= 0.5 * np.einsum("gvs,gvs->g", rest @ inverse, rest)
        return _Solved(inverses, residuals, levels, logs)

    def likelihoods(self, draws: Array) -> Array:
        """Logarithms [draws], of differences within sizes and of what seeds say of the noise."""
        found = []
        for part in self._chunks(draws, len(self.grid) ** 2 + 3 * self.values.size):
            noise = part[:, 2]
            # Squares of runs about their means are the noise's variance times chi^2.
            of_seeds = -self.freedom * noise - 0.5 * self.squares * np.exp(-2 * noise)
            found.append(of_seeds + self._solved(part, self.kernels(part)).logs)
        return np.concatenate(found)

    def posterior(self, draws: Array) -> tuple[Array, Array, Array]:
        """Means and deviations of differences to the first variant, and `Carried.joint`."""
        found: list[tuple[Array, Array, Array]] = []
        variants, sizes = self.values.shape
        points = np.arange(len(self.grid) - self.places, len(self.grid))
        for part in self._chunks(draws, variants * (2 * sizes * len(points) + variants)):
            count, kernels = len(part), self.kernels(part)
            draw, place = np.arange(count), np.arange(len(points))
            solved = self._solved(part, kernels)
            alone = kernels[:, points, points]
            # A variant's own mean and variance, and how much of a size's level goes into it.
            means = np.zeros((count, len(points), variants))
            own = np.repeat(alone[:, :, None], variants, axis=2)
            weights = np.zeros((count, len(points), variants, sizes))
            for pattern, inverse in zip(self.patterns, solved.inverses, strict=True):
                near = kernels[np.ix_(draw, points, pattern.sizes)]
                by_loss = near @ inverse
                at = np.ix_(draw, pattern.variants, pattern.sizes)
                means[:, :, pattern.variants] = by_loss @ solved.residuals[at].transpose(0, 2, 1)
                told = np.einsum("gps,gps->gp", by_loss, near)
                own[:, :, pattern.variants] -= told[:, :, None]
                spots = np.ix_(draw, place, pattern.variants, pattern.sizes)
                weights[spots] = by_loss[:, :, None]
            # Differences to the first variant: what a size's level adds to both alike goes out.
            weights -= weights[:, :, :1]
            by_level = weights @ solved.levels[:, None]
            variances = own + own[:, :, :1] + np.einsum("gpvs,gpvs->gpv", by_level, weights)
            # The first one's difference to itself is 0 for sure, and not by rounding.
            variances[:, :, 0] = 0.0
            # All share the first variant's own doubt; what sizes' levels leave is in `by_level`.
            joint = by_level[:, 0] @ weights[:, 0].transpose(0, 2, 1) + own[:, 0, :1, None]
            joint[:, range(variants), range(variants)] = variances[:, 0]
            joint[:, 0], joint[:, :, 0] = 0.0, 0.0
            deviations = np.sqrt(np.maximum(variances, 1e-30))
            means -= means[:, :, :1]
            found.append((means * self.unit, deviations * self.unit, joint * self.unit**2))
        means, deviations, joint = (np.concatenate(each) for each in zip(*found, strict=True))
        return means, deviations, joint
