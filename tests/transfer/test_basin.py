from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.transfer import curve as module
from sweeper.transfer.basin import SHARE
from sweeper.transfer.curve import Fit, fit

from .curves import Basin, table


@pytest.fixture(autouse=True)
def _fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRAWS", 200)


def fitted(curve: Basin) -> Fit:
    found = fit(curve.curve(), 0.0)
    assert found is not None
    return found


@settings(max_examples=30)
@given(st.floats(-1, 1), st.floats(0.05, 0.5), st.floats(0.5, 4))
def test_of_a_parabola_it_is_what_the_formula_says(
    optimum: float, curvature: float, floor: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DRAWS", 5)
        found = fitted(Basin(optimum=optimum, curvature=curvature, floor=floor)).basin
    half = math.sqrt(SHARE * floor / curvature)
    assert found.low_log2 == pytest.approx(optimum - half, abs=1e-6)
    assert found.high_log2 == pytest.approx(optimum + half, abs=1e-6)
    for value in (found.width_log2.low, found.width_log2.value, found.width_log2.high):
        assert value == pytest.approx(2 * half, abs=1e-6)


def test_it_ends_before_a_cliff_and_at_the_latest_there() -> None:
    found = fitted(Basin(edge=0.6, curvature=0.05, floor=3.0)).basin
    half = math.sqrt(0.03 / 0.05)
    assert found.high_log2 == 0.5 and found.low_log2 == pytest.approx(-half)
    assert found.width_log2.value == pytest.approx(half + 0.5)
    assert found.width_log2.high == pytest.approx(half + 1.0)


def test_a_curve_that_ends_within_it_shows_the_least_it_can_be() -> None:
    found = fitted(Basin(curvature=1e-4)).basin
    assert (found.low_log2, found.high_log2) == (-2.0, 2.0)
    assert (found.width_log2.low, found.width_log2.value, found.width_log2.high) == (
        4.0,
        4.0,
        math.inf,
    )


def test_a_single_finite_point_lies_between_those_that_diverged() -> None:
    found = fit(table({-0.5: math.inf, 0.0: 3.0, 0.5: math.inf}), 0.0)
    assert found is not None
    assert (found.basin.width_log2.value, found.basin.width_log2.high) == (0.0, 1.0)


def test_noise_widens_the_interval_and_it_holds_the_truth() -> None:
    half, held, wide = math.sqrt(0.03 / 0.05), 0, []
    for number in range(60):
        width = fitted(Basin(noise=0.005, number=number)).basin.width_log2
        held += width.low <= 2 * half <= width.high
        wide.append(width.high - width.low)
    assert held >= 52 and min(wide) > 0.01
