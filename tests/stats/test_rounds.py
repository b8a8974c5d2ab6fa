from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sweeper.stats.estimate import mean_estimate, normal_above
from sweeper.stats.rounds import CONFIDENCE, LOOKS, Foretold


def test_the_looks_at_a_ladder_err_together_as_pocock_has_it() -> None:
    reach = stats.norm.isf((1 - CONFIDENCE) / 2)
    generator = np.random.default_rng(0)
    paths = generator.normal(size=(20_000, LOOKS)).cumsum(1) / np.sqrt(np.arange(1, LOOKS + 1))
    assert (paths.max(1) > reach).mean() == pytest.approx(0.05, abs=0.005)


def test_what_a_mean_will_be_is_as_often_as_foretold() -> None:
    generator = np.random.default_rng(1)
    first = generator.normal(0.3, 1, 10)
    # A mean of 40 values shares 1 / 40 of its variance with that of the first 10.
    then = Foretold(float(first.mean()), math.sqrt(1 / 10 - 1 / 40), half=0.2)
    # The later ones have a mean that nobody knows: as likely as the first ones make it.
    truth = first.mean() + generator.normal(size=20_000) / math.sqrt(10)
    means = (10 * first.mean() + 30 * (truth + generator.normal(size=20_000) / math.sqrt(30))) / 40
    assert then.above(0.0) == pytest.approx((means - 0.2 > 0).mean(), abs=0.01)
    assert then.within(0.9) == pytest.approx((np.abs(means) + 0.2 < 0.9).mean(), abs=0.01)
    assert normal_above(0.0) == 0.5


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
