"""The loss as a function of the width: what a doubling gains, and a power law with a floor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sweeper.stats.curve import DRAWS
from sweeper.stats.estimate import UNKNOWN, Array, Estimate, mean_estimate
from sweeper.stats.power_law import floored_power_law

MIN_LAW_WIDTHS = 3
"""Widths that the law's three constants need."""


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """Loss in nats = `floor` + `amplitude` * width^-`exponent`, through the re-tuned losses.

    `per_doubling` is the slope of the straight line over log2 width, which two widths show. The
    law's constants are UNKNOWN where it takes more widths, or the loss does not fall. An exponent
    at an end of `WIDTH_EXPONENTS` has an interval that is open there, and a floor that is a bound.
    """

    widths: tuple[int, ...]
    per_doubling: Estimate
    exponent: Estimate = UNKNOWN
    floor: Estimate = UNKNOWN
    amplitude: float = math.nan

    def at(self, widths: Array) -> Array:
        """The law's loss at `widths`; NaN where it was not fitted."""
        return self.floor.value + self.amplitude * widths**-self.exponent.value


def fit_loss_curve(widths: tuple[int, ...], losses: Array) -> LossCurve | None:
    """Fit the `losses` [widths, seeds] of the re-tuned eta; None with less than two widths.

    The law's intervals are a parametric bootstrap of the means: noise from the residuals of the
    two-way table of widths and seeds, and for the floor the seeds' common offsets beside it.
    """
    finite = np.isfinite(losses).all(axis=1)
    losses, measured = losses[finite], np.array(widths, dtype=float)[finite]
    if len(measured) < 2:
        return None
    centred = np.log2(measured) - np.log2(measured).mean()
    # A slope of each seed's own: what a seed adds to all widths alike is in none of them.
    slopes = centred @ losses / float(centred @ centred)
    kept = tuple(int(width) for width in measured)
    line = LossCurve(widths=kept, per_doubling=mean_estimate(slopes))
    if len(measured) < MIN_LAW_WIDTHS:
        return line
    means = losses.mean(axis=1)
    shapes, offsets = _draws(losses)
    exponents, floors, amplitudes = floored_power_law(measured, np.vstack([means, means + shapes]))
    # A loss that does not fall with the width has no such law.
    if not amplitudes[0] > 0:
        return line
    floors[1:] += offsets  # the first row is the fit itself
    # One seed shows no noise, so that nothing bounds the constants.
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
    # Widths' and seeds' means are taken out, which leaves so many independent residuals.
    freedom = (count - 1) * (seeds - 1)
    noise = math.sqrt(float((residual**2).sum()) / freedom / seeds)
    # The level of the noise is itself known by these few residuals alone: drawn, too.
    level = noise * np.sqrt(freedom / generator.chisquare(freedom, (DRAWS, 1)))
    # What a seed adds to all widths alike moves the floor, and no exponent.
    common = float(losses.mean(0).std(ddof=1)) / math.sqrt(seeds)
    shapes = generator.normal(0.0, 1.0, (DRAWS, count)) * level
    return shapes, common * generator.standard_t(seeds - 1, DRAWS)
