"""The loss as a function of the width: what a doubling gains, and a power law with a floor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sweeper.transfer.curve import DRAWS, UNKNOWN, Estimate
from sweeper.transfer.noise import Array
from sweeper.transfer.student import mean_estimate

EXPONENTS = np.geomspace(0.05, 4.0, 240)
"""Powers of the width that are tried; a best one at an end is only a bound."""
MIN_LAW_WIDTHS = 3
"""Widths that the law's three constants need."""


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """Loss in nats = `floor` + `amplitude` * width^-`exponent`, through the re-tuned losses.

    `per_doubling` is the slope of the straight line over log2 width, which two widths show. The
    law's constants are UNKNOWN where it takes more widths, or the loss does not fall. An exponent
    at an end of `EXPONENTS` has an interval that is open there, and a floor that is a bound.
    """

    widths: tuple[int, ...]
    per_doubling: Estimate
    exponent: Estimate = UNKNOWN
    floor: Estimate = UNKNOWN
    amplitude: float = math.nan

    def at(self, widths: Array) -> Array:
        """The law's loss at `widths`; NaN where it was not fitted."""
        fitted: Array = self.floor.value + self.amplitude * widths**-self.exponent.value
        return fitted


def fit_loss_curve(widths: tuple[int, ...], losses: Array) -> LossCurve | None:
    """Fit the `losses` [widths, seeds] of the re-tuned eta; None with less than two widths.

    The law's intervals are a parametric bootstrap of the means: noise from the residuals of the
    two-way table of widths and seeds, and for the floor the seeds' common offsets beside it.
    """
    finite = np.isfinite(losses).all(axis=1)
    losses, known = losses[finite], np.array(widths, dtype=float)[finite]
    if len(known) < 2:
        return None
    centred = np.log2(known) - np.log2(known).mean()
    slopes = centred @ losses / float(centred @ centred)
    kept = tuple(int(width) for width in known)
    line = LossCurve(widths=kept, per_doubling=mean_estimate(slopes))
    if len(known) < MIN_LAW_WIDTHS:
        return line
    means = losses.mean(axis=1)
    shapes, offsets = _draws(losses)
    exponents, floors, amplitudes = _fit_law(known, np.vstack([means, means + shapes]))
    if not amplitudes[0] > 0:
        return line
    floors[1:] += offsets
    open_ended = losses.shape[1] < 2
    exponent, floor = (Estimate.from_draws(float(d[0]), d[1:]) for d in (exponents, floors))
    return LossCurve(
        widths=kept,
        per_doubling=line.per_doubling,
        exponent=exponent.without_interval(0.0) if open_ended else exponent,
        floor=floor.without_interval() if open_ended else floor,
        amplitude=float(amplitudes[0]),
    )


def _draws(losses: Array) -> tuple[Array, Array]:
    """Errors of the means: of every width [DRAWS, widths], and the common one [DRAWS]."""
    count, seeds = losses.shape
    if seeds < 2:
        return np.zeros((DRAWS, count)), np.zeros(DRAWS)
    generator = np.random.default_rng([count, seeds])
    residual = losses - losses.mean(1, keepdims=True) - losses.mean(0) + losses.mean()
    freedom = (count - 1) * (seeds - 1)
    noise = math.sqrt(float((residual**2).sum()) / freedom / seeds)
    level = noise * np.sqrt(freedom / generator.chisquare(freedom, (DRAWS, 1)))
    common = float(losses.mean(0).std(ddof=1)) / math.sqrt(seeds)
    shapes = generator.normal(0.0, 1.0, (DRAWS, count)) * level
    return shapes, common * generator.standard_t(seeds - 1, DRAWS)


def _fit_law(widths: Array, rows: Array) -> tuple[Array, Array, Array]:
    """Exponent, floor and amplitude of every row of losses [rows, widths], by least squares.

    For one exponent the other two are a straight line. At the ends the exponent is 0 or +inf, and
    the floor of exponent 0 is -inf; the first row keeps its numbers, to be drawn.
    """
    powers = (widths / widths[0]) ** -EXPONENTS[:, None]
    middles = powers.mean(axis=1)
    centred = powers - middles[:, None]
    # A line explains (rows . x)^2 / (x . x) of the squares: the best exponent explains most.
    products, squares = rows @ centred.T, (centred**2).sum(axis=1)
    best = (products**2 / squares).argmax(axis=1)
    slopes = products[np.arange(len(rows)), best] / squares[best]
    exponents = EXPONENTS[best]
    floors = rows.mean(axis=1) - slopes * middles[best]
    amplitudes = slopes * widths[0] ** exponents
    drawn = np.arange(len(rows)) > 0
    lowest, highest = exponents == EXPONENTS[0], exponents == EXPONENTS[-1]
    floors[drawn & lowest], exponents[drawn & lowest] = -math.inf, 0.0
    exponents[drawn & highest] = math.inf
    return exponents, floors, amplitudes
