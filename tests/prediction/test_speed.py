"""Speed-ups of one ladder over another, against laws that are known."""

from __future__ import annotations

import numpy as np
import pytest

from sweeper.prediction.speed import speed_ups
from sweeper.verdict.compare import Ladder
from sweeper.verdict.ladder import LadderSize, SizeCurve

WIDTHS = (32, 64, 128, 256)


def ladder(name: str, faster: float, widths: tuple[int, ...] = WIDTHS, seed: int = 0) -> Ladder:
    """Runs that do as well as those of `faster` times their compute; five seeds."""
    random, curves = np.random.default_rng(seed), []
    for width in widths:
        loss = 1.5 + 40 * (faster * width**2.0) ** -0.4
        points = {
            eta: tuple(float(loss + 0.1 * eta**2 + 0.001 * z) for z in random.standard_normal(5))
            for eta in (-1.0, 0.0, 1.0)
        }
        size = LadderSize(width=width, depth=2, batch_size=4, steps=10)
        curves.append(SizeCurve(size=size, losses=points))
    flops = {width: float(width**2) for width in widths}
    return Ladder(name=name, curves=curves, transferred=0.0, flops=flops)


@pytest.mark.parametrize("faster", [1.0, 1.5, 3.0])
def test_a_known_speed_up_is_found_on_the_ladder_and_beyond(faster: float) -> None:
    found = speed_ups([ladder("a", faster, seed=1), ladder("b", 1.0, seed=2)], to_width=1024)
    assert [(row.width, row.predicted) for row in found] == [
        (32, False),
        (256, False),
        (1024, True),
    ]
    for row in found:
        assert row.factor.low < faster < row.factor.high
    at_base, widest, beyond = (row.factor for row in found)
    assert at_base.value == pytest.approx(faster, rel=0.1)
    assert beyond.high - beyond.low > widest.high - widest.low


def test_two_widths_have_no_law() -> None:
    assert not speed_ups([ladder("a", 1.0, (32, 64)), ladder("b", 1.0)])
