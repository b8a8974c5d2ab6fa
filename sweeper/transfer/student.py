"""The mean of a few seeds with Student's interval, at any level of confidence."""

from __future__ import annotations

import math
from functools import cache

from sweeper.transfer.curve import Estimate
from sweeper.transfer.noise import Array


@cache
def quantile(freedom: int, probability: float) -> float:
    """Student's quantile at a `probability` above 1/2, by bisection of the exact distribution."""
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


def mean_estimate(values: Array, alpha: float = 0.05) -> Estimate:
    """The mean of `values` [seeds] with Student's interval of level 1 - `alpha`.

    Unbounded for one seed, and where a value is not finite: +inf is a run that diverged.
    """
    count, mean = len(values), float(values.mean())
    if count < 2 or not math.isfinite(mean):
        return Estimate(value=mean, low=-math.inf, high=math.inf)
    half = quantile(count - 1, 1 - alpha / 2) * float(values.std(ddof=1)) / math.sqrt(count)
    return Estimate(value=mean, low=mean - half, high=mean + half)
