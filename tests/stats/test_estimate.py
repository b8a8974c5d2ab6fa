"""Student's intervals, against printed tables."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sweeper.stats.estimate import mean_estimate, quantile

TABLE = [
    (1, 0.975, 12.7062),
    (2, 0.975, 4.30265),
    (3, 0.975, 3.18245),
    (10, 0.975, 2.22814),
    (4, 0.995, 4.60409),
    (5, 0.99, 3.36493),
    (30, 0.95, 1.69726),
]


@pytest.mark.parametrize(("freedom", "probability", "printed"), TABLE)
def test_quantiles_are_the_printed_ones(freedom: int, probability: float, printed: float) -> None:
    assert quantile(freedom, probability) == pytest.approx(printed, abs=1e-4)


def test_the_interval_of_three_seeds() -> None:
    result = mean_estimate(np.array([1.0, 2.0, 3.0]))
    half = 4.30265 / math.sqrt(3)
    assert (result.low, result.value, result.high) == pytest.approx(
        (2 - half, 2, 2 + half), abs=1e-4
    )


@pytest.mark.parametrize("values", [[2.0], [2.0, math.inf]])
def test_one_seed_or_one_that_diverged_has_no_interval(values: list[float]) -> None:
    result = mean_estimate(np.array(values))
    assert (result.low, result.high) == (-math.inf, math.inf)
