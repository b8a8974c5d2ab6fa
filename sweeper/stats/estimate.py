"""A value with its interval, and the distributions that intervals of few runs are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value with a 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def from_draws(cls, value: float, draws: Array, confidence: float = 0.95) -> Estimate:
        """`value` with the interval of equal tails of its bootstrap draws."""
        # Rounded: 1 - 0.95 is not 0.05 in binary, which would pick another of two draws.
        tail = round(50 * (1 - confidence), 9)
        # "nearest" takes a draw itself: interpolating would mix in draws that are infinite.
        low, high = np.percentile(draws, [tail, 100 - tail], method="nearest")
        # The value is the likeliest curve's, no average: it may lie in the draws' tail.
        return cls(value=value, low=min(float(low), value), high=max(float(high), value))

    @classmethod
    def mean_of(cls, draws: Array) -> Estimate:
        """The mean of draws with their interval."""
        return cls.from_draws(float(draws.mean()), draws)

    def without_interval(self, low: float = -math.inf) -> Estimate:
        """The value with an interval from `low` to +inf, for a noise that is unknown."""
        return Estimate(value=self.value, low=low, high=math.inf)

    def moved(self, by: float) -> Estimate:
        """The value and both ends moved by `by`."""
        return Estimate(value=self.value + by, low=self.low + by, high=self.high + by)

    def and_also(self, other: Estimate) -> Estimate:
        """The value with an interval that holds both."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Estimate(value=self.value, low=low, high=high)


UNKNOWN = Estimate(value=math.nan, low=-math.inf, high=math.inf)
ZERO = Estimate(value=0.0, low=0.0, high=0.0)


def mean_estimate(values: Array, alpha: float = 0.05) -> Estimate:
    """The mean of `values` [seeds], Student's interval; unbounded for one seed, or a +inf."""
    count, mean = len(values), float(values.mean())
    if count < 2 or not math.isfinite(mean):
        return Estimate(value=mean, low=-math.inf, high=math.inf)
    half = quantile(count - 1, 1 - alpha / 2) * float(values.std(ddof=1)) / math.sqrt(count)
    return Estimate(value=mean, low=mean - half, high=mean + half)


# SciPy is imported where it is called: it takes a third of a second, which `status` would pay for.


def quantile(freedom: int, probability: float) -> float:
    """Student's quantile at a `probability`."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def normal_above(z: float) -> float:
    """The chance that a standard normal lies above `z`."""
    # Not 1 less a distribution function: far out in the tail that has no digits left.
    return math.erfc(z / math.sqrt(2)) / 2


def binomial_from(least: int, count: int, chance: float) -> float:
    """The chance of `least` or more of `count` tosses, each of which falls right by `chance`."""
    from scipy.special import bdtrc

    return float(bdtrc(least - 1, count, chance)) if least > 0 else 1.0
