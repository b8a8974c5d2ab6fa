"""What the optima of a ladder say of a size beyond it: an average over forms of drift.

No ladder shows which form a drift has. A power law alone misses one that saturates, and scatter
between sizes; no drift at all misses every real one. So the forms are averaged, each as likely as
its prior and the optima make it (Bayesian model averaging: Hoeting et al., 1999), and half of the
prior is that something is wrong. Optima and shifts are log2 of a hyperparameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from sweeper.stats.estimate import Array, Estimate

SCATTERS = {0.0: 0.4, 0.05: 0.3, 0.1: 0.2, 0.2: 0.1}
"""Standard deviations, in log2, of a size's optimum around any form, and their prior."""
OWN_SCATTER = 0.15
"""That of the sizes of a ladder whose own optima are asked about.

Of the standard deviations from 0.05 to 0.4 it makes the surfaces' shifts of StepLaw's ladders the
likeliest, also without one of its models or ratios in six cases of seven, and 0.2 in the other."""
LEVEL = 100.0
"""Prior variance of the optimum's level in log2^2: ten octaves either way, next to flat."""
BACK_TEST = 0.99
"""Of the prediction's interval that must hold the widest optimum: one ladder in a hundred fails."""

Shape = Literal["level", "saturating", "power", "turning"]
Belief = Literal["theory", "no_theory", "turning"]
"""Whether half of a prior is that optima stay or converge, as theory says, or that they turn."""


@dataclass(frozen=True, kw_only=True)
class DriftForm:
    """A form of drift: `coefficient` ~ N(0, `deviation`^2) times `shape`'s regressor.

    level: 0. saturating: 1 - n0 / n, with n0 the smallest size: the coefficient is the whole drift
    (log2), which fades as 1 / n. power: log2(n / n0): the coefficient is the drift a doubling.
    turning: that, and log2(n / n0)^2, whose coefficient has the mean and deviation `bend`.
    """

    name: str
    shape: Shape
    weight: float
    deviation: float = 0.0
    bend: tuple[float, float] = (0.0, 0.0)

    def drifts(self, sizes: Array, smallest: float) -> tuple[Array, Array]:
        """The expected drift [size], and what standard normal numbers add [number, size]."""
        doublings = np.log2(sizes / smallest)
        match self.shape:
            case "level":
                return np.zeros_like(sizes), np.zeros((1, len(sizes)))
            case "saturating":
                return np.zeros_like(sizes), self.deviation * (1 - smallest / sizes)[None]
            case "power":
                return np.zeros_like(sizes), self.deviation * doublings[None]
            case "turning":
                mean, spread = self.bend
                rows = np.stack([self.deviation * doublings, spread * doublings**2])
                return mean * doublings**2, rows


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Forms of drift with weights that add up to 1; `name` is what is believed by them."""

    name: Belief
    forms: tuple[DriftForm, ...]


WRONG = 0.5
"""Standard deviation of the drift a doubling where something is wrong.

A power of the width that is missing or too much is 1/2 or 1."""
THEORY = Prior(
    name="theory",
    forms=(
        DriftForm(name="no drift", shape="level", weight=0.15),
        DriftForm(name="fades as 1/width", shape="saturating", weight=0.2, deviation=0.5),
        DriftForm(name="small power law", shape="power", weight=0.15, deviation=0.05),
        DriftForm(name="power law", shape="power", weight=0.5, deviation=WRONG),
    ),
)
NO_THEORY = Prior(
    name="no_theory",
    forms=(
        DriftForm(name="no drift", shape="level", weight=0.05),
        DriftForm(name="fades as 1/size", shape="saturating", weight=0.05, deviation=0.5),
        DriftForm(name="power law", shape="power", weight=0.9, deviation=WRONG),
    ),
)
TURNING = "rises, then falls"
BEND = -0.1, 0.05
"""Mean and standard deviation, in log2 a squared doubling, by which optima turn down over tokens.

At a fixed batch the best rate rises with few tokens and falls with many. Chosen on StepLaw's
ladders along tokens, with the form's weight, and the same without one of three models in four
(`scripts/bench/tables_judge.py --choose`)."""
OVER_TOKENS = Prior(
    name="turning",
    forms=(
        DriftForm(name="no drift", shape="level", weight=0.05),
        DriftForm(name="fades as 1/size", shape="saturating", weight=0.05, deviation=0.5),
        DriftForm(name="power law", shape="power", weight=0.45, deviation=WRONG),
        DriftForm(name=TURNING, shape="turning", weight=0.45, deviation=WRONG, bend=BEND),
    ),
)
CONVERGING = frozenset({"mup", "umup", "completep", "mean_field", "spectral", "spectral_mup"})
"""Parameterizations with a limit at infinite width in which features are learned, so that optima
converge (Yang et al., arXiv:2203.03466). Finite widths differ from the limit by 1 / width."""


def prior_for(axis: str, parameterization: str, theory: bool | None) -> Prior:
    """That of a ladder over `axis`; `theory` (None: by the parameterization) takes its half in."""
    # Over steps too: the batch is held along a ladder, so that steps are tokens.
    if axis in ("tokens", "steps"):
        return OVER_TOKENS
    # No limit is believed to fix the optimum there: most of the weight is a power law's.
    if axis != "width":
        return NO_THEORY
    believed = parameterization in CONVERGING if theory is None else theory
    return THEORY if believed else NO_THEORY


@dataclass(frozen=True, eq=False)
class OptimumPrediction:
    """The optimum at a size as a mixture of normals [component]: one a form and scatter."""

    means: Array
    deviations: Array
    weights: Array
    forms: Sequence[str] = field(default_factory=tuple)

    @property
    def mean(self) -> float:
        """Of the optimum (log2)."""
        return float(self.weights @ self.means)

    def probabilities(self) -> Mapping[str, float]:
        """Of every form, summed over its scatters."""
        shares = dict.fromkeys(self.forms, 0.0)
        for name, weight in zip(self.forms, self.weights, strict=True):
            shares[name] += float(weight)
        return shares

    def cumulative(self, value: float) -> float:
        """The probability that the optimum lies below `value`."""
        # Plain numbers: a bisection asks some fifty times, of a few components.
        return sum(w * (1 + math.erf((value - m) / d)) / 2 for w, m, d in self._components)

    @cached_property
    def _components(self) -> list[tuple[float, float, float]]:
        wide = self.deviations * math.sqrt(2)
        return list(zip(self.weights.tolist(), self.means.tolist(), wide.tolist(), strict=True))

    def quantile(self, probability: float) -> float:
        """By bisection."""
        # 40 deviations hold all but nothing of the mass: the bracket needs no check of its own.
        reach = 40 * self.deviations
        low, high = float((self.means - reach).min()), float((self.means + reach).max())
        # Relative to where it lies, or doubles would never come as near at a large log2.
        while high - low > 1e-13 * (1 + abs(low)):
            middle = (low + high) / 2
            low, high = (low, middle) if self.cumulative(middle) > probability else (middle, high)
        return (low + high) / 2

    def estimate(self, level: float = 0.95) -> Estimate:
        """The mean with the interval of equal tails."""
        tail = (1 - level) / 2
        return Estimate(value=self.mean, low=self.quantile(tail), high=self.quantile(1 - tail))

    def draws(self, count: int) -> Array:
        """Likely optima [count], in no order; the same numbers for the same weights."""
        # A fixed seed: the same optima give the same interval, and ways compare on the same draws.
        generator = np.random.default_rng(0)
        # Systematic: every component has its share of the draws to within one.
        places = (generator.random() + np.arange(count)) / count
        # Rounding may leave the last cumulative weight below 1.
        chosen = np.minimum(np.searchsorted(self.weights.cumsum(), places), len(self.weights) - 1)
        drawn: Array = self.means[chosen] + self.deviations[chosen] * generator.normal(size=count)
        # Components come in order: draws that are paired with others' draws must not share it.
        return generator.permutation(drawn)

    def measured_with(self, deviation: float) -> OptimumPrediction:
        """What a measurement of it shows, whose error has the standard `deviation`."""
        total = np.hypot(self.deviations, deviation)
        return OptimumPrediction(self.means, total, self.weights, self.forms)


def predict(
    sizes: Sequence[float], optima: Array, deviations: Array, at: float, prior: Prior
) -> OptimumPrediction:
    """The optimum at the size `at` from `optima` [sizes], whose errors have `deviations` [sizes].

    A component says: optimum = level + drift + scatter. All three are normal, the drift mu + X' z,
    so that the optima are N(mu, S), S = diag(deviations^2 + scatter^2) + X' X + LEVEL, and the new
    one given them is N(mu_t + k' S^-1 (m - mu), x_t' x_t + LEVEL + scatter^2 - k' S^-1 k) with the
    covariances k = X' x_t + LEVEL. The component's weight is its prior times the likelihood of the
    optima.
    """

    def asked(form: DriftForm, scatter: float, mean: Array, x: Array) -> tuple[float, Array, float]:
        beyond, ahead = form.drifts(np.array([float(at)]), float(min(sizes)))
        there = ahead[:, 0]
        variance = float(there @ there) + LEVEL + scatter**2
        return float(beyond[0]), x.T @ there + LEVEL, variance

    found, centre = _given(sizes, optima, deviations, prior, SCATTERS, asked)
    return replace(found, means=found.means + centre)


def shifted(
    sizes: Sequence[float], optima: Array, deviations: Array, between: tuple[int, int], prior: Prior
) -> OptimumPrediction:
    """How far the optimum of one of the sizes lies from another's, as `optima` of all tell it.

    As in `predict`, of the sizes' own levels: k' = p (X' X + scatter^2), and the variance is p k,
    where p is 1 at the one size and -1 at the other, so that the common level cancels.
    """
    pick = np.zeros(len(sizes))
    pick[list(between)] = 1.0, -1.0

    def asked(form: DriftForm, scatter: float, mean: Array, x: Array) -> tuple[float, Array, float]:
        covariances = x.T @ (x @ pick) + scatter**2 * pick
        return float(mean @ pick), covariances, float(covariances @ pick)

    return _given(sizes, optima, deviations, prior, {OWN_SCATTER: 1.0}, asked)[0]


def _given(
    sizes: Sequence[float],
    optima: Array,
    deviations: Array,
    prior: Prior,
    scatters: Mapping[float, float],
    asked: Callable[[DriftForm, float, Array, Array], tuple[float, Array, float]],
) -> tuple[OptimumPrediction, float]:
    """What is `asked` given the optima, and what these were centred at.

    That is its mean before them, its covariances with them and its variance.
    """
    measured_sizes = np.array(sizes, dtype=np.float64)
    # A flat level's variance would cancel against large optima: around their mean it is small.
    centre = float(np.average(optima, weights=deviations**-2.0))
    m = optima - centre
    means, spreads, logs, names = [], [], [], []
    for form in prior.forms:
        # Drifts count from the smallest size, where all forms are 0 and the level is the optimum.
        expected, x = form.drifts(measured_sizes, measured_sizes.min())
        for scatter, share in scatters.items():
            before, covariances, variance = asked(form, scatter, expected, x)
            # The level is in every optimum, measured or to come: LEVEL is added to all covariances.
            covariance = np.diag(deviations**2 + scatter**2) + x.T @ x + LEVEL
            # By Cholesky: `white` are the independent residuals, so that the quadratic form and the
            # determinant of the likelihood come with the prediction.
            root = np.linalg.cholesky(covariance)
            white, shared = np.linalg.solve(root, np.column_stack([m - expected, covariances])).T
            means.append(before + float(shared @ white))
            # A level that is next to flat takes digits: a variance may round to just below 0.
            spreads.append(math.sqrt(max(variance - float(shared @ shared), 1e-12)))
            likelihood = -np.log(np.diagonal(root)).sum() - float(white @ white) / 2
            logs.append(likelihood + math.log(form.weight * share))
            names.append(form.name)
    weights = np.exp(np.array(logs) - max(logs))
    weights /= weights.sum()
    return OptimumPrediction(np.array(means), np.array(spreads), weights, tuple(names)), centre


@dataclass(frozen=True, kw_only=True)
class OptimumBackTest:
    """The widest size predicted from the others: what `measured` shows there, and the interval."""

    size: int
    predicted: Estimate
    measured: float
    reproduced: bool


def back_test(
    sizes: Sequence[int], optima: Array, deviations: Array, prior: Prior
) -> OptimumBackTest | None:
    """The last of `sizes` [ascending] by the others; None where fewer than two are left."""
    # Of two sizes one is left, and one optimum predicts by the prior alone.
    if len(sizes) < 3:
        return None
    # Beside its own error: the test is of what was measured at the widest size, not of the truth.
    predicted = predict(sizes[:-1], optima[:-1], deviations[:-1], sizes[-1], prior)
    shown = predicted.measured_with(float(deviations[-1]))
    within = shown.estimate(BACK_TEST)
    return OptimumBackTest(
        size=sizes[-1],
        predicted=shown.estimate(),
        measured=float(optima[-1]),
        reproduced=within.low <= float(optima[-1]) <= within.high,
    )
