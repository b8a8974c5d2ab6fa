"""The loss over the width: a law that is known is found, and what is not known is not said."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sweeper.evidence.compare.loss_curve import fit_loss_curve
from sweeper.stats.estimate import Array
from sweeper.stats.power_law import WIDTH_EXPONENTS

WIDTHS = (16, 32, 64, 128)


def law(exponent: float = 1.0, noise: float = 0.0, seeds: int = 4, number: int = 0) -> Array:
    """Losses 2 + 8 / width^exponent [widths, seeds] with a seed's offset and noise."""
    generator = np.random.default_rng(number)
    means = 2.0 + 8.0 * np.array(WIDTHS, dtype=float)[:, None] ** -exponent
    offsets = generator.normal(0, 10 * noise, seeds)
    rows: Array = means + offsets + generator.normal(0, noise, (len(WIDTHS), seeds))
    return rows


def test_the_law_s_constants_are_found() -> None:
    found = fit_loss_curve(WIDTHS, law())
    assert found is not None
    step = WIDTH_EXPONENTS[1] / WIDTH_EXPONENTS[0]
    assert 1 / step < found.exponent.value < step
    assert found.floor.value == pytest.approx(2.0, abs=0.01)
    assert found.at(np.array([256.0]))[0] == pytest.approx(2 + 8 / 256, abs=0.01)


def test_a_doubling_is_the_slope_over_log2_width() -> None:
    losses = np.array([[3.0, 3.1], [2.9, 3.0], [2.8, 2.9], [2.7, 2.8]])
    found = fit_loss_curve(WIDTHS, losses)
    assert found is not None
    slope = found.per_doubling
    assert (slope.low, slope.value, slope.high) == pytest.approx((-0.1, -0.1, -0.1))


def test_two_widths_show_a_slope_and_no_law() -> None:
    found = fit_loss_curve((16, 32), np.array([[3.0, 3.0], [2.5, 2.5]]))
    assert found is not None and found.per_doubling.value == pytest.approx(-0.5)
    assert math.isnan(found.exponent.value) and math.isinf(found.floor.high)
    assert fit_loss_curve((16,), np.array([[3.0, 3.0]])) is None


def test_a_width_that_diverged_is_left_out() -> None:
    losses = np.vstack([law()[:3], [math.inf] * 4])
    found = fit_loss_curve(WIDTHS, losses)
    assert found is not None and found.widths == (16, 32, 64)


def test_a_loss_that_rises_has_no_law() -> None:
    found = fit_loss_curve(WIDTHS, law()[::-1])
    assert found is not None and found.per_doubling.low > 0
    assert math.isnan(found.exponent.value)


def test_intervals_of_floor_and_exponent_hold_what_is_true() -> None:
    inside = np.array([0, 0])
    for number in range(100):
        found = fit_loss_curve(WIDTHS, law(noise=0.01, seeds=5, number=number))
        assert found is not None
        inside += [
            found.exponent.low <= 1 <= found.exponent.high,
            found.floor.low <= 2 <= found.floor.high,
        ]
    assert inside.min() >= 88, "a 95 % interval, of 100"
