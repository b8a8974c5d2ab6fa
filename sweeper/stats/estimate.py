"""A value with its interval, and the distributions that intervals of few runs are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


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
    def mean_of(cls, draws: Array, confidence: float = 0.95) -> Estimate:
        """The mean of draws with their interval."""
        return cls.from_draws(float(draws.mean()), draws, confidence)

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
    """The mean of `values` [seeds] with Student's interval of level 1 - `alpha`.

    Unbounded for a single seed, and where a value is not finite: +inf is a run that diverged.
    """
    count, mean = len(values), float(values.mean())
    if count < 2 or not math.isfinite(mean):
        return Estimate(value=mean, low=-math.inf, high=math.inf)
    half = quantile(count - 1, 1 - alpha / 2) * float(values.std(ddof=1)) / math.sqrt(count)
    return Estimate(value=mean, low=mean - half, high=mean + half)


@cache
def quantile(freedom: int, probability: float) -> float:
    """Student's quantile at a `probability` above 1/2, by bisection of the exact distribution."""
    # By bisection rather than by a series: exact for the one or two degrees that two seeds leave.
    low, high = 0.0, 1.0
    while _cumulative(high, freedom) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if _cumulative(middle, freedom) > probability else (middle, high)
    return high


def _cumulative(t: float, freedom: int) -> float:
    """Student's distribution function at `t` >= 0 (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    inside = math.sin(angle) * total
    return 0.5 + ((angle + inside) / math.pi if odd else inside / 2)


def student_above(t: float, freedom: int) -> float:
    """The chance that Student's t lies above `t`."""
    return 1 - _cumulative(t, freedom) if t >= 0 else _cumulative(-t, freedom)


def normal_above(z: float) -> float:
    """The chance that a standard normal lies above `z`."""
    # Not 1 less a distribution function: far out in the tail that has no digits left.
    return math.erfc(z / math.sqrt(2)) / 2


def binomial_from(least: int, count: int, chance: float) -> float:
    """The chance of `least` or more of `count` tosses, each of which falls right by `chance`."""
    return sum(
        math.comb(count, k) * chance**k * (1 - chance) ** (count - k)
        for k in range(max(0, least), count + 1)
    )
