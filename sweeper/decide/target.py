"""What the optima of a ladder say of a size beyond it: an average over forms of drift.

No ladder shows which form a drift has. A power law alone misses one that fades, and scatter between
sizes; no drift at all misses every real one. So the forms are averaged, each as likely as its prior
and the optima make it (Bayesian model averaging: Hoeting et al., 1999), and half of the prior is
that something is wrong. Optima and shifts are log2 of a hyperparameter.

An optimum is a level + drift + scatter, measured with an error. The level is flat and integrated
out, drift and scatter are normal: each form is a Gaussian process of `stats/gp.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sweeper.stats.estimate import Array, Estimate
from sweeper.stats.gp import Mixture, Process, shares

SCATTER = 0.15
"""Standard deviation, in log2, of a size's own optimum around any form of drift.

Of those from 0.05 to 0.4 it makes the surfaces' shifts of StepLaw's ladders the likeliest, also
without one of its models or ratios in six cases of seven, and 0.2 in the other
(`scripts/bench/tables_judge.py --choose`). A target beyond a ladder has it or none, as likely as
not; tested on made-up drifts (`scripts/bench/target.py`)."""
BACK_TEST = 0.99
"""Of the prediction's interval that must hold the widest optimum: one ladder in a hundred fails."""
WRONG = 0.5
"""Standard deviation of a drift: a doubling where it is a power law, in all where it fades.

A power of the width that is missing or too much is 1/2 or 1."""
BEND = -0.1, 0.05
"""Mean and standard deviation, in log2 a squared doubling, by which optima turn down over tokens.

At a fixed batch the best rate rises with few tokens and falls with many. Chosen on StepLaw's
ladders along tokens, with the form's weight, and the same without one of three models in four
(`scripts/bench/tables_judge.py --choose`)."""

Shape = Literal["no drift", "fades as 1/size", "power law", "rises, then falls"]
TURNING: Shape = "rises, then falls"
Belief = Literal["theory", "no_theory", "turning"]
"""Whether half of a prior is that optima stay or converge, as theory says, or that they turn."""


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Forms of drift with weights that add up to 1; `name` is what is believed by them.

    With n0 the smallest size and x = log2(n / n0): 0, c (1 - n0 / n), b x, and b x + a x^2.
    """

    name: Belief
    forms: Mapping[Shape, float]
    bend: tuple[float, float] = BEND


SHARES: Mapping[Belief, Mapping[Shape, float]] = {
    "theory": {"no drift": 0.25, "fades as 1/size": 0.25, "power law": 0.5},
    "no_theory": {"no drift": 0.05, "fades as 1/size": 0.05, "power law": 0.9},
    "turning": {"no drift": 0.05, "fades as 1/size": 0.05, "power law": 0.45, TURNING: 0.45},
}
"""Of each prior what a form is believed with; tested by `scripts/bench/target.py`."""
THEORY, NO_THEORY, OVER_TOKENS = (Prior(name=name, forms=forms) for name, forms in SHARES.items())
CONVERGING = frozenset({"mup", "umup", "completep", "mean_field", "spectral", "spectral_mup"})
"""Parameterizations with a limit at infinite width in which features are learned, so that optima
converge (Yang et al., arXiv:2203.03466). Finite widths differ from the limit by 1 / width."""


def prior_for(axis: str, parameterization: str, theory: bool | None) -> Prior:
    """The prior of a ladder over `axis`; `theory` (None: by the parameterization) has its half."""
    # Over steps too: the batch is held along a ladder, so that steps are tokens.
    if axis in ("tokens", "steps"):
        return OVER_TOKENS
    # No limit is believed to fix the optimum there: most of the weight is a power law's.
    if axis != "width":
        return NO_THEORY
    believed = parameterization in CONVERGING if theory is None else theory
    return THEORY if believed else NO_THEORY


def drift(shape: Shape, sizes: Array, bend: tuple[float, float]) -> tuple[Array, Array]:
    """The expected drift [size], and its covariance [size, size]: none at the smallest size."""
    doublings, mean = np.log2(sizes / sizes.min()), 0.0
    match shape:
        case "no drift":
            rows = np.zeros((1, len(sizes)))
        case "fades as 1/size":
            rows = WRONG * (1 - sizes.min() / sizes)[None]
        case "power law":
            rows = WRONG * doublings[None]
        case "rises, then falls":
            mean, spread = bend
            rows = np.stack([WRONG * doublings, spread * doublings**2])
    return mean * doublings**2, rows.T @ rows


@dataclass(frozen=True, eq=False)
class OptimumPrediction(Mixture):
    """What the optima say of a place: a normal of each form, and of each scatter.

    `forms` are the forms' probabilities, summed over the scatters.
    """

    forms: Mapping[str, float] = field(default_factory=dict)


def told_by(
    optima: Array, deviations: Array, sizes: Array, pick: Array, prior: Prior, scatters: Array
) -> OptimumPrediction:
    """What first sizes' `optima`, with `deviations`, say of levels weighed by `pick` [size]."""
    count, basis = len(optima), np.ones((len(sizes), 1))
    means, variances, logs = [], [], []
    for shape, weight in prior.forms.items():
        expected, covariance = drift(shape, sizes, prior.bend)
        levels = covariance + scatters[:, None, None] ** 2 * np.eye(len(sizes))
        process = Process(
            levels[:, :count, :count] + np.diag(deviations**2),
            optima - expected[:count],
            basis[:count],
        )
        place = pick[None]
        mean, variance = process.at(
            place @ levels[:, :, :count], place @ levels @ place.T, place @ basis
        )
        means.append(mean[:, 0, 0] + expected @ pick)
        # A variance may round to just below 0.
        variances.append(np.maximum(variance[:, 0, 0], 1e-12))
        logs.append(process.log_likelihood + np.log(weight))
    weights = shares(np.concatenate(logs))
    of_forms = weights.reshape(len(prior.forms), -1).sum(axis=1).tolist()
    forms = dict(zip(prior.forms, of_forms, strict=True))
    return OptimumPrediction(
        np.concatenate(means), np.concatenate(variances) ** 0.5, weights, forms
    )


def predict(
    sizes: Sequence[float], optima: Array, deviations: Array, at: float, prior: Prior
) -> OptimumPrediction:
    """The optimum at the size `at`, of `optima` [sizes] whose errors have `deviations` [sizes]."""
    places, pick = np.array([*sizes, at], dtype=np.float64), np.zeros(len(sizes) + 1)
    pick[-1] = 1.0
    return told_by(optima, deviations, places, pick, prior, np.array([0.0, SCATTER]))


def shifted(
    sizes: Sequence[float], optima: Array, deviations: Array, between: tuple[int, int], prior: Prior
) -> OptimumPrediction:
    """How far the optimum of one of the sizes lies from another's, as `optima` of all tell it."""
    pick = np.zeros(len(sizes))
    pick[list(between)] = 1.0, -1.0
    places = np.array(sizes, dtype=np.float64)
    return told_by(optima, deviations, places, pick, prior, np.array([SCATTER]))


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
    predicted = predict(sizes[:-1], optima[:-1], deviations[:-1], sizes[-1], prior)
    # Beside its own error: the test is of what was measured at the widest size, not of the truth.
    measurable = predicted.widened(float(deviations[-1]))
    within = measurable.estimate(BACK_TEST)
    return OptimumBackTest(
        size=sizes[-1],
        predicted=measurable.estimate(),
        measured=float(optima[-1]),
        reproduced=within.low <= float(optima[-1]) <= within.high,
    )
