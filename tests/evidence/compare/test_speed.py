"""Speed-ups of one ladder over another, against laws that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sweeper.evidence.compare.speed import REACH, SpeedUp, speed_ups
from sweeper.evidence.compare.studies import Ladder
from sweeper.records import to_json
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import LadderSize, SizeCurve

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
    assert [row.width for row in found] == [32, 256, 1024]
    assert (found[0].predicted, found[2].predicted) == (False, True)
    for row in found:
        assert row.factor.low < faster < row.factor.high
    at_base, widest, beyond = (row.factor for row in found)
    assert at_base.value == pytest.approx(faster, rel=0.1)
    assert beyond.high - beyond.low > widest.high - widest.low


def test_two_widths_have_no_law() -> None:
    assert not speed_ups([ladder("a", 1.0, (32, 64)), ladder("b", 1.0)])


def test_at_the_ladders_end_what_is_beyond_its_runs_is_predicted() -> None:
    found = speed_ups([ladder("a", 3.0, seed=1), ladder("b", 1.0, seed=2)])
    assert [(row.width, row.predicted) for row in found] == [(32, False), (256, True)]
    assert all(row.said.startswith(("3", "2.9")) and " to " in row.said for row in found)


def test_savings_far_beyond_all_runs_are_a_bound_and_no_number() -> None:
    """400 times at the widest: no run of the other comes near such a loss."""
    at_base, widest = speed_ups([ladder("a", 400.0, seed=1), ladder("b", 1.0, seed=2)])
    assert widest.said == f"at least {REACH:g}"
    # 64 times between the ends, and REACH beyond.
    assert at_base.said == f"at least {64 * REACH:g}"
    assert to_json(widest)["said"] == widest.said
    (other,) = {row.said for row in speed_ups([ladder("b", 1.0, seed=2), ladder("a", 400.0)])[:1]}
    assert other == f"at most {1 / REACH:g}"


def speed_up(low: float, value: float, high: float) -> SpeedUp:
    factor = Estimate(value=value, low=low, high=high)
    return SpeedUp(
        study="a", against="b", width=1, predicted=True, factor=factor, least=0.25, most=8
    )


def test_an_open_interval_says_no_more_than_was_seen() -> None:
    assert speed_up(1.5, 2, 3).said == "2 (1.5 to 3)"
    assert speed_up(1.5, 2, math.inf).said == "2 (1.5 to more than 8)"
    assert speed_up(0.1, 0.5, 3).said == "0.5 (less than 0.25 to 3)"
    assert speed_up(2.1, 9, math.inf).said == "at least 2.1"
    assert speed_up(0.9, 9, math.inf).said == "cannot say"
    assert speed_up(0.0, 0.1, 0.7).said == "at most 0.7"
    assert speed_up(0.0, 3, math.inf).said == "cannot say"
    assert speed_up(math.nan, math.nan, math.nan).said == "cannot say"
