from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import sweeper
from sweeper.evidence.predict.forecast import (
    FACTORS,
    LossLaw,
    RungMiss,
    _crossing,
    fit_law,
    share_above,
    widening,
)
from sweeper.evidence.runs.loss_runs import LossRuns
from sweeper.stats.power_law import Array


def measured(noise: float = 0.002) -> LossRuns:
    random = np.random.default_rng(0)
    n, d = np.meshgrid(2e7 * 2.5 ** np.arange(5), 5e8 * 2.0 ** np.arange(5))
    params, tokens = n.ravel(), d.ravel()
    loss = 1.69 + 406.4 / params**0.34 + 410.7 / tokens**0.28
    loss *= np.exp(noise * random.standard_normal(len(loss)))
    flops = 6 * params * tokens
    return LossRuns(params, tokens, loss, flops, np.arange(len(loss)), [""] * len(loss))


@cache
def law() -> LossLaw:
    return fit_law(measured(), draws=300)


def test_whole_numbers_of_parameters_and_tokens_do_not_wrap_around() -> None:
    params, tokens = 9_237_604_304, 184_752_086_080  # six times their product is beyond 64 bits
    result = law().loss(params, tokens)
    assert math.isfinite(result.high) and result == law().loss(float(params), float(tokens))


def test_branches_of_one_training_a_size_tell_the_tokens_power_and_share_their_offset() -> None:
    """Each size is off as a whole: alpha is as uncertain as that, beta is known far better."""
    runs = measured(noise=0.0005)
    size = np.unique(runs.params, return_inverse=True)[1]
    runs = replace(runs, cluster=size, loss=runs.loss * np.exp(0.004 * np.sin(3 * size)))
    assert (runs.trainings == size).all()
    assert (replace(runs, cluster=runs.cells).trainings == np.arange(len(runs))).all()
    values = fit_law(runs, draws=200).values()
    alpha, beta = values["alpha"], values["beta"]
    assert alpha.low < 0.34 < alpha.high and beta.low < 0.28 < beta.high
    assert 0 < beta.high - beta.low < 0.5 * (alpha.high - alpha.low)


def test_a_loss_below_the_floor_takes_infinite_compute() -> None:
    assert law().compute_for(1e9, 1e10, 0.5) == math.inf
    there = float(law().mean_loss(np.array([1e9]), np.array([1e10]))[0])
    assert law().compute_for(1e9, 1e10, there) == pytest.approx(1, rel=1e-3)


def test_of_several_crossings_that_next_to_the_run_is_its_compute() -> None:
    """A dip of the law at small runs is no run of less compute that does as well as a larger."""
    falling = -0.1 * np.log(FACTORS)
    dip = np.where(np.abs(np.log(10 * FACTORS)) < 0.3, 0.5, 0.0)
    for loss in (-0.01, 0.01):
        assert _crossing(falling - dip, loss) == pytest.approx(math.exp(-10 * loss), rel=1e-3)


def test_the_compute_of_a_miss_is_that_of_its_law() -> None:
    """E + A / C^gamma: (0.652 / 0.634)^(1 / 0.0941) = 1.35 times the compute, by hand."""
    params = 1e8 * 4.0 ** np.arange(6)
    flops = 120 * params**2
    loss = 1.6 + 0.652 * (flops / flops[-1]) ** -0.0941
    runs = LossRuns(params, 20 * params, loss, flops, np.arange(6), [""] * 6)
    result = fit_law(runs, draws=100).compute_for(params[-1], 20 * params[-1], 1.6 + 0.634)
    assert result == pytest.approx(1.35, abs=0.01)


def test_as_few_cells_as_parameters_give_a_wide_interval_and_no_error() -> None:
    """Seeds that agree to the last digit show no noise: nothing is divided by it."""
    whole = measured()
    few = whole.only((whole.params < 1.5e8) & (whole.tokens < 1.5e9))
    thrice = np.repeat(np.arange(len(few)), 3)
    fields: dict[str, Any] = {
        name: getattr(few, name)[thrice] for name in ("params", "tokens", "loss", "flops")
    }
    runs = replace(few, **fields, cluster=np.arange(len(thrice)), labels=[""] * len(thrice))
    predicted = fit_law(runs, draws=100).loss(1e9, 1e10)
    assert predicted.low < predicted.value < predicted.high


def test_a_share_of_nothing_is_none() -> None:
    shares = [share_above(*miss) for miss in ((0.01, 2.8, 2.8), (0.01, 2.8, 2.9), (0.1, 2.8, 2.3))]
    assert shares == [None, None, pytest.approx(0.2)]


def test_a_ladder_without_noise_is_not_taken_to_be_a_single_power() -> None:
    """Seeds that hardly differ say nothing of the form: along a ladder the truth has two powers."""
    params, size = (2e7 * 2.0 ** np.arange(4)).repeat(3), 1e8 * math.sqrt(50)
    covered, widths = [], []

    def loss(n: Array) -> Array:
        return 1.7 + 0.9 * (n / 1e8) ** -0.34 + 1.1 * (n / 1e8) ** -0.28

    for seed in range(6):
        random = np.random.default_rng(seed)
        noisy = loss(params) * np.exp(1e-5 * random.standard_normal(len(params)))
        frame = {"params": params, "tokens": 20 * params, "loss": noisy}
        to_come = sweeper.predict(frame, to_params=size).prediction
        real = float(loss(np.array(size)))
        covered.append(to_come.low <= real <= to_come.high)
        widths.append((to_come.high - to_come.low) / real)
    assert all(covered) and np.median(widths) < 0.03


def test_few_back_tests_narrow_nothing_and_misses_widen() -> None:
    def tried(*z: float) -> list[RungMiss]:
        return [RungMiss(3, rung, np.array([value])) for rung, value in enumerate(z)]

    assert widening([], 5) > 1.5
    assert 1 < widening(tried(0.1, -0.2), 5) < widening([], 5) < 5
    assert widening(tried(*[0.3] * 20), 20) < 0.8
    assert widening(tried(*[1.0, -1.0] * 10), 20) == pytest.approx(1, abs=0.25)
    assert widening(tried(3.0, -4.0), 5) > 2
    # A rung beyond those that a law was shortened to tells nothing of it.
    assert widening(tried(1.0, 1.0, 9.0), 2) == widening(tried(1.0, 1.0), 2)
