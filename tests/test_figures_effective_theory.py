"""Counting spikes in a training curve."""

from __future__ import annotations

import pytest

from tests.scripts import load_script

spikes = load_script("figures/strategies.py").spikes


@pytest.mark.parametrize(
    ("stretches", "count"),
    [
        ([2.0, 1.5, 1.0, 0.5], 0),
        ([2.0, 1.0, 1.05, 0.9], 0),  # by less than the rise
        ([2.0, 1.0, 1.2, 0.9], 1),
        ([2.0, 1.0, 1.2, 1.3, 0.9, 1.4], 2),  # neighbours are one spike
        ([2.0, 1.0, 1.2, 1.0, 1.2], 2),
        ([1.0, float("inf")], 1),
    ],
)
def test_a_spike_is_a_stretch_above_the_least_before(stretches: list[float], count: int) -> None:
    curve = [loss for loss in stretches for _ in range(5)] + [0.0] * (100 - 5 * len(stretches))
    assert spikes(curve) == count
