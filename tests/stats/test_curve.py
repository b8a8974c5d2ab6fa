import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sweeper.stats import curve as module
from sweeper.stats.curve import BASIN_TOLERANCE, CurveFit
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import LadderRule, LadderSize, SizeCurve
from tests.stats.curves import BASE, LARGE, Valley, fewer_draws, fit_curve, table  # noqa: F401

GRID = [i / 2 for i in range(-4, 5)]


def fitted(valley: Valley, size: LadderSize = BASE, transferred: float = 0.0) -> CurveFit:
    return fit_curve(valley.curve(size), transferred)


@settings(max_examples=30)
@given(
    optimum=st.floats(-1.9, 1.9),
    curvature=st.floats(0.01, 1),
    floor=st.floats(0.5, 9),
    step=st.sampled_from([0.25, 0.5, 1.0, 2.0]),
)
@example(optimum=-0.5, curvature=1.0, floor=1.0, step=2.0)
def test_a_parabola_is_found_exactly(
    optimum: float, curvature: float, floor: float, step: float
) -> None:
    rule = LadderRule(widths=(32,), step=step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DRAWS", 5)
        result = fit_curve(
            Valley(optimum=optimum, curvature=curvature, floor=floor).curve(rule=rule), 0.0
        )
    assert result is not None and not result.at_end and result.noise < 1e-9
    # Of three points, two octaves apart, the last may lie beyond a cliff: see `or_steep`.
    assert result.steep is None or step == 2
    if result.steep is not None:
        assert result.optimum.low <= optimum <= result.optimum.high
        return
    assert result.optimum.value == pytest.approx(optimum, abs=1e-5)
    assert result.loss.value == pytest.approx(floor, abs=1e-5)
    assert result.regret.value == pytest.approx(curvature * optimum**2, abs=1e-3)
    assert result.loss_gap(optimum).value == pytest.approx(0, abs=1e-6)


@given(st.lists(st.floats(0, 9) | st.just(math.inf), min_size=9, max_size=9), st.floats(-3, 3))
def test_any_curve_is_fitted_within_its_points(losses: list[float], eta: float) -> None:
    curve = table(dict(zip(GRID, losses, strict=True)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DRAWS", 5)
        result = fit_curve(curve, 0.0)
        if result is None:
            assert not any(map(math.isfinite, losses))
            return
        gap = result.loss_gap(eta)
    best = GRID[int(np.argmin(losses))]
    for estimate in (result.optimum, result.loss, result.regret, gap):
        assert estimate.low <= estimate.value <= estimate.high
    assert abs(result.optimum.value - best) <= 0.5
    assert result.at_end == (best in (-2, 2))
    assert result.regret.value >= 0 and gap.value >= 0
    cliff = result.curve.cliff
    gone = math.isinf(losses[4]) or (cliff is not None and cliff.log2 <= 0.0)
    assert math.isinf(result.regret.value) == gone


def test_a_single_finite_point_is_the_optimum_of_unknown_noise() -> None:
    result = fit_curve(table({-0.5: math.inf, 0.0: (3.0, 3.1), 0.5: (3.0, math.inf)}), 0.5)
    assert result is not None and result.optimum.value == 0.0
    assert math.isnan(result.noise) and not result.at_end
    assert result.loss == Estimate(value=3.05, low=-math.inf, high=math.inf)
    assert result.regret == Estimate(value=math.inf, low=math.inf, high=math.inf)


def test_one_seed_tells_no_noise() -> None:
    result = fit_curve(SizeCurve(size=BASE, losses={eta: (3 + eta**2,) for eta in GRID}), 0.5)
    assert result is not None and math.isnan(result.noise)
    assert result.regret == Estimate(value=pytest.approx(0.25), low=0.0, high=math.inf)
    assert (result.optimum.low, result.optimum.high) == (-math.inf, math.inf)


def test_the_interval_reaches_to_where_a_run_diverged_and_the_plan_s_draws_do_not() -> None:
    losses = {-1.0: (3.5, 3.51), -0.5: (3.3, 3.29), 0.0: (3.1, 3.11), 0.5: math.inf}
    result = fit_curve(table(losses), 0.0)
    assert result is not None and result.optimum.value == 0.0
    assert result.free_optimum_draws.max() == 0.5 < result.optimum.high < 0.7
    assert result.safe_optimum_draws.max() == 0.0


def test_a_fit_repeats_exactly_and_sizes_draw_apart() -> None:
    """Noise that two sizes shared would cancel in the shift between them; a common shape does."""
    sizes = (BASE, BASE, LARGE)
    first, again, other = (fitted(Valley(noise=0.01), size).safe_optimum_draws for size in sizes)
    assert np.array_equal(first, again)
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.6


def test_a_hump_is_not_taken_for_a_basin() -> None:
    result = fit_curve(
        table({-1.0: 3.0, -0.5: 2.0, 0.0: 1.9, 0.5: 1.99, 1.0: 1.95, 1.5: 1.94}), 0.0
    )
    assert result is not None and -0.5 <= result.optimum.value <= 0.5


def test_an_offset_of_a_seed_moves_nothing_but_the_loss() -> None:
    curve = Valley(noise=0.01).curve()
    moved = replace(curve, losses={e: (a, b + 5) for e, (a, b) in curve.losses.items()})
    first, second = fit_curve(curve, 0.5), fit_curve(moved, 0.5)
    assert second.noise == pytest.approx(first.noise)
    for name in ("value", "low", "high"):
        assert getattr(second.optimum, name) == pytest.approx(getattr(first.optimum, name))
        assert getattr(second.regret, name) == pytest.approx(getattr(first.regret, name))
    assert second.loss.value == pytest.approx(first.loss.value + 2.5)


def test_the_loss_gap_on_the_grid_between_its_points_and_beyond() -> None:
    result = fitted(Valley(optimum=0.1, edge=1.2))
    assert result.loss_gap(0.5).value == pytest.approx(0.05 * 0.4**2, rel=1e-3)
    assert result.loss_gap(0.75).value == pytest.approx(0.05 * 0.65**2, abs=1e-4)
    assert result.loss_gap(-1.75).value == pytest.approx(0.05 * 1.85**2, abs=0.004)
    diverged = result.loss_gap(2.0)
    assert (diverged.value, diverged.low, diverged.high) == (math.inf,) * 3
    assert result.loss_gap(1.7).low == math.inf  # between two points that diverged
    beside = result.loss_gap(1.3)
    assert beside.low == pytest.approx(beside.value, rel=0.02)
    assert beside.value == pytest.approx(0.05 * 0.9**2, rel=0.02)
    assert beside.high == math.inf
    past = result.loss_gap(-2.4)
    assert past.value == pytest.approx(0.05 * 2.1**2, rel=1e-3) and past.high == math.inf


def test_the_doubt_about_an_eta_widens_its_loss_gap() -> None:
    result = fitted(Valley(optimum=0.3))
    sure, unsure = result.loss_gap(0.5), result.loss_gap(0.5, np.linspace(0.0, 1.0, 400))
    assert sure.high - sure.low < 4e-4
    assert unsure.low <= 1e-4 and unsure.high == pytest.approx(0.05 * 0.7**2, rel=0.1)


def test_the_loss_s_interval_is_that_of_the_seeds() -> None:
    """With three seeds whose offsets are known, the half-width is Student's t of their mean."""
    losses = {e: tuple(3 + 0.05 * e * e + o for o in (-0.1, 0.0, 0.1)) for e in GRID}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DRAWS", 4000)
        result = fit_curve(table(losses), 0.0)
    assert result is not None and result.loss.value == pytest.approx(3.0)
    half = 4.303 * 0.1 / math.sqrt(3)
    assert result.loss.high - 3 == pytest.approx(half, rel=0.15)
    assert 3 - result.loss.low == pytest.approx(half, rel=0.15)


@pytest.fixture
def no_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BIAS", 0.0)


# The same parabolas every time: of five draws the ends of a basin as narrow as a fifth of an
# octave may be 11 % off.
@settings(max_examples=30, derandomize=True)
@given(st.floats(-1, 1), st.floats(0.05, 0.5), st.floats(0.5, 4))
def test_the_basin_of_a_parabola_is_what_the_formula_says(
    optimum: float, curvature: float, floor: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DRAWS", 5)
        patch.setattr(module, "BIAS", 0.0)
        result = fitted(Valley(optimum=optimum, curvature=curvature, floor=floor)).basin
    half = math.sqrt(BASIN_TOLERANCE * floor / curvature)
    assert result.low_log2 == pytest.approx(optimum - half, abs=1e-6)
    assert result.high_log2 == pytest.approx(optimum + half, abs=1e-6)
    assert result.width_log2.value == pytest.approx(2 * half, abs=1e-6)
    for end in (result.width_log2.low, result.width_log2.high):
        assert end == pytest.approx(2 * half, rel=0.1)


def test_a_basin_ends_before_a_cliff_and_at_the_latest_there(no_bias: None) -> None:
    result = fitted(Valley(edge=0.6, curvature=0.05, floor=3.0)).basin
    half = math.sqrt(0.03 / 0.05)
    assert result.high_log2 == 0.5 and result.low_log2 == pytest.approx(-half, abs=1e-3)
    assert result.width_log2.value == pytest.approx(half + 0.5, abs=1e-3)
    assert result.width_log2.high == pytest.approx(half + 1.0, abs=0.02)


def test_a_curve_that_ends_within_its_basin_shows_the_least_it_can_be(no_bias: None) -> None:
    result = fitted(Valley(curvature=1e-4)).basin
    assert (result.low_log2, result.high_log2) == (-2.0, 2.0)
    assert result.width_log2 == Estimate(value=4.0, low=4.0, high=math.inf)


def test_the_basin_of_a_single_finite_point_lies_between_those_that_diverged() -> None:
    result = fit_curve(table({-0.5: math.inf, 0.0: 3.0, 0.5: math.inf}), 0.0)
    assert (result.basin.width_log2.value, result.basin.width_log2.high) == (0.0, 1.0)
