from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.report.progress import EARLIEST, Pace


@given(st.floats(0.01, 1e6), st.floats(0.001, 100.0), st.integers(6, 60))
def test_a_steady_pace_is_told_exactly(seconds: float, unit: float, moments: int) -> None:
    pace, total = Pace(100.0), 100 * unit
    step = max(seconds, EARLIEST)
    for k in range(1, moments):
        left = pace.left(100.0 + k * step, k * unit, total - k * unit)
        assert left == pytest.approx((100 - k) * step, rel=1e-6)


def test_nothing_is_said_before_anything_is_known() -> None:
    pace = Pace(0.0)
    assert pace.left(1.0, 0.0, 10.0) is None
    assert pace.left(EARLIEST / 2, 1.0, 9.0) is None
    assert pace.left(EARLIEST, 2.0, 8.0) is not None
    assert pace.left(EARLIEST + 1, 0.0, 10.0) is None, "what was begun was lost"


def test_all_done_is_no_time_left() -> None:
    assert Pace(0.0).left(0.0, 3.0, 0.0) == 0.0


def test_a_slow_start_is_forgotten_and_never_jumps() -> None:
    """A minute of compiling, then a trial a second of 600: the truth is known from then on."""
    pace, told = Pace(0.0), []
    for second in range(1, 600):
        left = pace.left(60.0 + second, float(second), 600.0 - second)
        assert left is not None
        told.append(left)
    jumps = [abs(after - before + 1) for before, after in pairwise(told)]
    assert told[0] > 10_000, "nothing better is known at first"
    assert max(jumps[120:]) < 10, "seconds, from one second to the next"
    for second in range(180, 599):
        assert told[second - 1] == pytest.approx(600 - second, abs=30.0)


def test_a_change_of_pace_is_followed() -> None:
    pace = Pace(0.0)
    for second in range(1, 101):
        pace.left(float(second), float(second), 1000.0 - second)
    done = 100.0
    for second in range(101, 801):
        done += 0.5
        left = pace.left(float(second), done, 1000.0 - done)
    assert left == pytest.approx((1000.0 - done) / 0.5, rel=0.1)
