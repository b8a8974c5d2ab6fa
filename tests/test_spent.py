"""The curves of `scripts/figures/spent.py`."""

from __future__ import annotations

import math
from itertools import permutations
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.search.independent import FRESH_SEED
from sweeper.trial import Log2Hps, Point
from tests.scripts import load_script
from tests.search.fakes import point_result

spent = load_script("figures/spent.py")

losses = st.lists(st.floats(-10, 10) | st.just(math.inf), min_size=1, max_size=6)


@given(losses)
def test_expected_best_is_the_average_over_all_orders(values: list[float]) -> None:
    finite = [value for value in values if math.isfinite(value)]
    told = [value if math.isfinite(value) else max(finite, default=0.0) for value in values]
    orders = list(permutations(told))
    expected = [mean(min(order[:n]) for order in orders) for n in range(1, len(values) + 1)]
    curve = spent.expected_best(values)
    if not finite:
        assert curve == ()
        return
    assert [runs for runs, _ in curve] == list(range(1, len(values) + 1))
    assert [loss for _, loss in curve] == pytest.approx(expected, abs=1e-9)


def test_the_cost_curve_has_means_ends_fresh_and_shows_the_harm_of_combining() -> None:
    """Worked by hand: eta 0 is lucky with seed 0, and a 1 with b 1 is worse than either."""
    rows = [
        ("eta", 0, 0, 0, 3.0, 3.0),
        ("eta", 1, 0, 0, 2.5, 2.5),
        ("lines", 1, 0, 1, 2.9, 2.7),  # the other seed of the base: its mean rises
        ("lines", 1, 1, 0, 2.0, 2.7),  # one seed of two is no mean
        ("lines", 1, 1, 1, 2.8, 2.4),
        ("combine", 1, 2, FRESH_SEED, 3.5, 2.4),
        ("combine", 1, 2, FRESH_SEED + 1, 3.7, 3.6),  # combining harms
        ("combine", 1, 1, FRESH_SEED, 2.5, 3.6),
        ("combine", 1, 1, FRESH_SEED + 1, 2.7, 2.6),  # the single change is kept
        ("retune", 2, 1, FRESH_SEED, 2.0, 2.6),
        ("retune", 2, 1, FRESH_SEED + 1, 2.4, 2.6),  # nothing is decided yet
    ]
    results = [
        point_result(Point(log2_hps=Log2Hps({"eta": e, "a": a}), seed=s, phase=p), loss)
        for p, e, a, s, loss, _ in rows
    ]
    base, combined, single = (Log2Hps({"eta": 1, "a": a}) for a in (0, 2, 1))
    curve = spent.independent_curve(results, base, 2, [combined, single], 2)
    assert [loss for _, loss in curve] == pytest.approx([row[-1] for row in rows])
