from __future__ import annotations

import math

import numpy as np
import pytest

from sweeper.stats.estimate import mean_estimate


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
