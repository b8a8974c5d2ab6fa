"""Losses by step: gaps, restarts, runs that tell no steps, and losses that grow."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.command.reading import Reading
from sweeper.command.series import Series


def series(*readings: tuple[int | None, float]) -> Series:
    made = Series()
    made.add(Reading(step, loss) for step, loss in readings)
    return made


def test_a_loss_stands_for_the_steps_since_the_last_one() -> None:
    made = series((0, 4.0), (2, 3.0), (5, 2.0))
    assert list(made.dense(8, whole=False)) == [4, 3, 3, 2, 2, 2]
    assert list(made.dense(8, whole=True)) == [4, 3, 3, 2, 2, 2, 2, 2]
    # Steps beyond the last are the last.
    assert list(series((1, 3.0), (400, 2.0)).dense(4, whole=True)) == [3, 3, 2, 2]


def test_a_step_that_is_told_again_begins_the_run_anew_from_there() -> None:
    made = series((0, 4.0), (1, 3.0), (2, 9.0), (1, 2.5), (2, 2.0))
    assert (list(made.steps), list(made.losses)) == ([0, 1, 2], [4.0, 2.5, 2.0])


def test_counted_losses_are_spread_over_the_whole_run() -> None:
    made = series((None, 3.0), (None, 2.0))
    assert list(made.dense(4, whole=True)) == [3, 3, 2, 2]
    assert made.reaches(4, 1)


def test_a_run_that_ends_early_is_seen() -> None:
    logged = [(step, 1.0) for step in range(0, 50, 10)]
    assert series(*logged).reaches(50, 5)
    assert not series(*logged).reaches(100, 5)
    assert not series().reaches(10, 1)


@given(
    st.lists(st.tuples(st.integers(0, 200), st.floats(0, 10)), min_size=1, max_size=40),
    st.integers(1, 150),
    st.booleans(),
)
def test_a_dense_run_has_losses_that_were_told_and_never_too_many(
    readings: list[tuple[int, float]], steps: int, whole: bool
) -> None:
    made = series(*readings)
    assert list(made.steps) == sorted(set(made.steps))
    losses = made.dense(steps, whole=whole)
    assert 1 <= len(losses) <= steps
    assert not whole or len(losses) == steps
    assert np.isin(losses, made.losses).all()


@pytest.mark.parametrize(
    ("losses", "grew"),
    [
        ([4.2, 3.9, 5.5, 8.0], True),
        ([10.9, 9.5, 8.0, 12.5], True),
        ([4.2, 4.1, 4.3, 4.0, 4.25], False),  # a crash of a run that learns nothing yet
        ([4.2, 3.0, 2.5, 2.6], False),
        ([0.5, 0.2, 0.4], False),  # it scatters below its first value
        ([-1.0, -2.0, 3.0], True),
        ([4.2, 9.0], False),
    ],
)
def test_losses_that_grew(losses: list[float], grew: bool) -> None:
    assert series(*enumerate(losses)).grew() is grew


def test_steps_that_go_back_are_counted() -> None:
    made = series(*((step % 4, 1.0 + math.sqrt(step)) for step in range(12)))
    assert made.returns == 2 and len(made) == 4
