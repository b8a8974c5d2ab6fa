from typing import Any

import pytest

from tests.scripts import load_script

coupling: Any = load_script("figures/coupling.py")


def bowl(first: float, second: float) -> list[list[float]]:
    """A separable grid of 5 x 5, -2 to 2, with its optimum at these two."""
    places = range(-2, 3)
    return [[(a - first) ** 2 + (b - second) ** 2 for b in places] for a in places]


def test_a_grid_is_cut_off_where_an_optimum_lies_at_its_end() -> None:
    assert not coupling.cut_off(bowl(0, 1))
    assert coupling.cut_off(bowl(0, 3)) and coupling.cut_off(bowl(-2, 0))


def test_a_diverged_row_has_no_optimum_to_count() -> None:
    losses = bowl(1, 1)
    losses[0] = ["inf"] * 5
    assert not coupling.cut_off(losses)


def test_means_over_pairs_have_the_spread_of_a_mean() -> None:
    """Of n values with standard deviation s, a mean is within 1.96 s / sqrt(n) in 95 %."""
    values = [0.01 * (i % 2) for i in range(400)]
    mean = coupling.over_pairs(values)
    half = 1.96 * 0.005 / 20
    assert mean.value == pytest.approx(0.005)
    assert (mean.low, mean.high) == pytest.approx((0.005 - half, 0.005 + half), rel=0.05)
    less = coupling.difference([0.0] * 10, values)
    assert (less.value, less.low) == pytest.approx((-mean.value, -mean.high), rel=0.05)
