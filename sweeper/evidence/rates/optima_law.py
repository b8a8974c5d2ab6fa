"""Optima as powers of sizes: one or two of a size together, with what they scatter by.

log2 of an optimum is linear in log2 of the sizes, and bends a little; about that it scatters from
size to size. All of it is drawn given the optima, whose errors are known, so that intervals of a
size that was not run hold what may be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sweeper.stats.estimate import Array, Estimate, normal_above

Counts = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

DRAWS = 4000
"""Draws of a law."""
EXPONENT = 1.5
"""Standard deviation of an exponent before anything is seen: so much that it says little."""
BEND = 0.03
"""That of what an exponent changes by in an octave. Over the two octaves between the middle of a
usual table and its end an optimum is then a tenth of an octave off a power, and over the five to a
target three quarters."""
SCATTER, SCATTER_SPREAD = 0.15, 0.5
"""Median of the scatter in octaves before anything is seen, and the deviation of its logarithm."""
SCATTERS = 0.01, 1.5
"""Between these it is looked for."""
PROPOSED = 800
"""Scatters that are looked at."""
SAME_MODEL = 0.03
"""Models whose log2 sizes differ by less are one."""
SURE = 0.05
"""A bend is called where so unlikely without one; several that are tested divide it."""


@dataclass(frozen=True, eq=False)
class Bound:
    """An optimum known to lie at or beyond `log2`, above (1) or below (-1): of the size `x`."""

    x: Array
    response: int
    side: int
    log2: float


@dataclass(frozen=True, eq=False)
class OptimaLaw:
    """Draws of a law [DRAWS, response, term], and of what optima scatter by [DRAWS, response, ...].

    Terms are a constant, log2 of every size from `centre`, and the squares and products of those.
    Models of one size are off together, by `offs` [DRAWS, response, model] for the `models` that
    were run, and others by `between`; runs of one model scatter by `within`. `bends` are the
    changes of exponents in an octave [response][size], told without `BEND`; None where too few
    sizes tell one. `kept` is the share of the draws that the bounds left, or, if that is
    less, the chance that the least likely of so many was so unlikely.
    """

    centre: Array
    models: Array
    draws: Array
    offs: Array
    between: Array
    within: Array
    bends: tuple[tuple[Estimate | None, ...], ...]
    kept: float = 1.0

    @property
    def sizes(self) -> int:
        """Of how many sizes it is a law."""
        return len(self.centre)

    def exponents(self, response: int) -> list[Estimate]:
        """Of every size, where the sizes are in the middle of those that were run."""
        columns = self.draws[:, response, 1 : 1 + self.sizes].T
        return [*map(Estimate.mean_of, columns)]

    def at(self, x: Array, seed: int = 0) -> Array:
        """Draws [DRAWS, response] of the optima of a size: log2, with their scatter."""
        generator, mean = np.random.default_rng([seed, len(self.models)]), self.middle(x)
        model = self.model_of(float(x[0]))
        off = _normal(self.between, generator) if model is None else self.offs[:, :, model]
        return mean + off + _normal(self.within, generator)

    def middle(self, x: Array) -> Array:
        """Draws [DRAWS, response] of the law itself at a size, without scatter."""
        drawn: Array = self.draws @ _terms(np.asarray(x, dtype=float)[None] - self.centre)[0]
        return drawn

    def model_of(self, log2_size: float) -> int | None:
        """The place of a model among those that were run."""
        away = np.abs(self.models - log2_size)
        return int(away.argmin()) if away.min() < SAME_MODEL else None


def _normal(covariances: Array, generator: np.random.Generator) -> Array:
    """A draw [draw, response] of each covariance [draw, response, response]."""
    roots = np.linalg.cholesky(covariances)
    drawn: Array = np.einsum("ijk,ik->ij", roots, generator.normal(size=roots.shape[:2]))
    return drawn


def _terms(x: Array) -> Array:
    """The terms [size, term] of centred log2 sizes [size, axis]."""
    count = x.shape[1]
    bends = [x[:, i] * x[:, j] for i in range(count) for j in range(i, count)]
    return np.column_stack([np.ones(len(x)), x, *bends])


def fit_law(
    x: Array, optima: Array, errors: Array, bounds: Sequence[Bound] = (), seed: int = 0
) -> OptimaLaw:
    """The law of `optima` [cell, response] at `x` [cell, axis], both log2.

    The first axis is the model's size. `errors` [cell, response, response] are covariances.
    """
    centre = x.mean(axis=0)
    terms, generator = _terms(x - centre), np.random.default_rng([seed, len(x)])
    models, of = np.unique(np.round(x[:, 0], 2), return_inverse=True)
    of = of.astype(np.int64)
    prior = _precisions(x.shape[1])
    drawn = _posterior(terms, of, optima, errors, prior, generator)
    law = OptimaLaw(centre, models, *drawn, _bends(x - centre, of, optima, errors, generator))
    return _within_bounds(law, bounds, generator) if bounds else law


def _precisions(axes: int) -> Array:
    """Of a response's terms before anything is seen; the constant's is that of ten octaves."""
    # A square changes an exponent twice as fast as a product does.
    bends = [BEND**-2 * (4.0 if i == j else 1.0) for i in range(axes) for j in range(i, axes)]
    return np.array([0.01, *[EXPONENT**-2] * axes, *bends])


def _posterior(
    terms: Array,
    of: Counts,
    optima: Array,
    errors: Array,
    prior: Array,
    generator: np.random.Generator,
) -> tuple[Array, Array, Array, Array]:
    """Draws of coefficients, of what models are off by, and of both scatters, given the optima."""
    responses, count, models = optima.shape[1], terms.shape[1], int(of.max()) + 1
    # Importance sampling of the scatters. Given these, law and offsets are linear in normal errors:
    # their posterior is exact, and only the scatters need proposals, weighed by their evidence.
    low, high = np.log(SCATTERS)
    logs = generator.uniform(low, high, (PROPOSED, responses))
    roots, same = np.exp(logs), generator.uniform(0.02, 0.98, PROPOSED)
    scatters = roots[:, :, None] * roots[:, None] * np.eye(responses)
    # Rate and batch may be off together: the correlation's Fisher z, its atanh, is normal.
    if responses == 2:
        together = np.tanh(generator.normal(0.0, 0.6, PROPOSED))
        scatters[:, 0, 1] = scatters[:, 1, 0] = together * roots[:, 0] * roots[:, 1]
    # `same` is the share of the scatter that all runs of a model have in common.
    within = scatters * (1 - same)[:, None, None]
    between = scatters * same[:, None, None]
    weights = np.linalg.inv(errors[None] + within[:, None])
    # What a model is off by is a coefficient as well, with `between` as its prior.
    rows = np.hstack([terms, np.eye(models)[of]])
    # The level is taken out, so that the constant's prior is around the middle.
    middle = optima.mean(axis=0)
    centred, wide = optima - middle, rows.shape[1]
    information = np.einsum("scij,ca,cb->siajb", weights, rows, rows, optimize=True)
    for place in range(responses):
        for term in range(count):
            information[:, place, term, place, term] += prior[term]
    precise = np.linalg.inv(between)
    for model in range(count, wide):
        information[:, :, model, :, model] += precise
    information = information.reshape(PROPOSED, responses * wide, responses * wide)
    score = np.einsum("scij,ca,cj->sia", weights, rows, centred, optimize=True)
    score = score.reshape(PROPOSED, -1)
    means = np.linalg.solve(information, score[..., None])[..., 0]
    squares = np.einsum("scij,ci,cj->s", weights, centred, centred, optimize=True)
    # The marginal likelihood of the optima, coefficients and offsets integrated out. Scatters are
    # proposed evenly in their logarithm: the last term makes their prior normal there.
    evidence = (
        np.linalg.slogdet(weights)[1].sum(axis=1)
        + models * np.linalg.slogdet(precise)[1]
        - np.linalg.slogdet(information)[1]
        - (squares - (means * score).sum(axis=1))
        - (((logs - np.log(SCATTER)) / SCATTER_SPREAD) ** 2).sum(axis=1)
    ) / 2
    chances = np.exp(evidence - evidence.max())
    taken = generator.choice(PROPOSED, DRAWS, p=chances / chances.sum())
    inverse = np.linalg.inv(information)[taken]
    drawn = means[taken] + _normal((inverse + inverse.transpose(0, 2, 1)) / 2, generator)
    drawn = drawn.reshape(DRAWS, responses, wide)
    drawn[:, :, 0] += middle
    return drawn[:, :, :count], drawn[:, :, count:], between[taken], within[taken]


def _within_bounds(
    law: OptimaLaw, bounds: Sequence[Bound], generator: np.random.Generator
) -> OptimaLaw:
    """The draws by how likely they make all bounds."""
    logs, least = np.zeros(len(law.draws)), 1.0
    for bound in bounds:
        mean = law.draws[:, bound.response] @ _terms(bound.x[None] - law.centre)[0]
        variance, model = law.within[:, bound.response, bound.response], law.model_of(bound.x[0])
        if model is None:
            variance = variance + law.between[:, bound.response, bound.response]
        else:
            mean = mean + law.offs[:, bound.response, model]
        # A bound is no value: it weighs a law by the chance that its optimum lies beyond.
        z = bound.side * (bound.log2 - mean) / np.sqrt(variance)
        likely = np.array([normal_above(float(each)) for each in z])
        logs += np.log(np.maximum(likely, 1e-300))
        # A bound that no draw makes likely takes none of them out.
        least = min(least, float(likely.mean()) * len(bounds))
    chances = np.exp(logs - logs.max())
    chances /= chances.sum()
    taken = generator.choice(len(chances), len(chances), p=chances)
    return replace(
        law,
        draws=law.draws[taken],
        offs=law.offs[taken],
        between=law.between[taken],
        within=law.within[taken],
        # Kish's effective sample size, as a share.
        kept=min(least, float(1 / (chances**2).sum() / len(chances))),
    )


def _bends(
    x: Array, of: Counts, optima: Array, errors: Array, generator: np.random.Generator
) -> tuple[tuple[Estimate | None, ...], ...]:
    """What every exponent changes by in an octave, each by itself, as sure as their number asks."""
    axes, responses = x.shape[1], optima.shape[1]
    told: list[list[Estimate | None]] = [[None] * axes for _ in range(responses)]
    for axis in range(axes):
        levels = len(np.unique(np.round(x[:, axis], 3)))
        # Two levels have no bend; and some sizes must be left over to tell the scatter.
        if levels < 3 or len(x) < axes + 4:
            continue
        terms = np.column_stack([np.ones(len(x)), x, x[:, axis] ** 2])
        prior = np.array([0.01, *[EXPONENT**-2] * axes, 1.0])
        drawn, *_ = _posterior(terms, of, optima, errors, prior, generator)
        for response in range(responses):
            # The exponent is the law's slope: a square's coefficient is in it twice.
            sure = 1 - SURE / (axes * responses)
            told[response][axis] = Estimate.mean_of(2 * drawn[:, response, -1], sure)
    return tuple(map(tuple, told))
