import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import sweeper
from sweeper.evidence.predict.budget import optimum
from sweeper.evidence.predict.forecast import (
    FACTORS,
    LossLaw,
    RungMiss,
    _crossing,
    fit_law,
    share_above,
    widening,
)
from sweeper.evidence.predict.misfit import REACH, LossMisfit, RunPoints, likely
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


def best_size(flops: float) -> float:
    """Hoffmann et al., 4."""
    scale = (0.34 * 406.4 / (0.28 * 410.7)) ** (1 / 0.62)
    return float(scale * (flops / 6) ** (0.28 / 0.62))


def isoflops(noise: float = 0.003) -> LossRuns:
    budgets = 1e18 * 10 ** (0.5 * np.arange(5))
    params = np.concatenate([best_size(c) * 2 ** np.linspace(-1.5, 1.5, 7) for c in budgets])
    flops = budgets.repeat(7)
    tokens = flops / 6 / params
    loss = 1.69 + 406.4 / params**0.34 + 410.7 / tokens**0.28
    loss *= np.exp(noise * np.random.default_rng(0).standard_normal(len(loss)))
    return LossRuns(params, tokens, loss, flops, np.arange(35), [""] * 35)


def test_the_best_size_lies_in_its_interval_and_the_valley_is_told() -> None:
    result, real = optimum(fit_law(isoflops(), draws=200), 1e21), best_size(1e21)
    assert result.params.low < real < result.params.high < 8 * result.params.low
    assert result.params.value == pytest.approx(real, rel=0.3)
    assert result.params.value * result.tokens.value * 6 == pytest.approx(1e21)
    assert [v.times for v in result.valley] == [0.5, 2.0]
    assert all(v.gap.value > 0 for v in result.valley)


SIZES, HORIZONS = (a.ravel() for a in np.meshgrid(np.linspace(0, 6, 8), np.linspace(2, 8, 8)))
COUNT = len(SIZES)
POINTS = RunPoints(SIZES, HORIZONS, np.arange(COUNT), np.arange(COUNT))
ALONE = np.ones(COUNT)
PLANE = np.stack([np.ones(COUNT), SIZES, HORIZONS])


def found(off: Array) -> LossMisfit:
    return likely(POINTS, off, PLANE, ALONE)[0]


def test_a_covariance_is_what_its_parts_say() -> None:
    """By hand, at two points, in units of the noise's variance."""
    misfit = LossMisfit(noise=0.01, smooth=2.0, size=1.0, tilt=0.5)
    pair = np.array([0, 8])
    two = RunPoints(SIZES[pair], HORIZONS[pair], pair, pair)
    shared = misfit.between(two, two)[0, 1]
    by_hand = 4 * np.exp(-0.5 * (6 / 7) ** 2 / REACH**2) + 1
    assert shared == pytest.approx(by_hand)
    assert misfit.noise_at(POINTS).max() > misfit.noise_at(POINTS).min() == 1


def test_noise_alone_is_noise_alone_and_a_smooth_misfit_is_seen() -> None:
    random, smooth = np.random.default_rng(0), list[float]()
    for _ in range(10):
        misfit = found(0.01 * random.standard_normal(COUNT))
        smooth.append(misfit.shared)
        assert misfit.noise == pytest.approx(0.01, rel=0.3)
    assert np.median(smooth) == 0
    bent = 0.08 * np.sin(SIZES) * np.cos(0.7 * HORIZONS)
    assert found(bent + 0.01 * random.standard_normal(COUNT)).smooth >= 1.5


def test_what_a_size_is_off_all_its_horizons_are() -> None:
    random, seen = np.random.default_rng(1), 0
    for _ in range(10):
        of_size = np.tile(0.02 * random.standard_normal(8), 8)
        seen += found(of_size + 0.01 * random.standard_normal(COUNT)).size > 0
    assert seen >= 8
