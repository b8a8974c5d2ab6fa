"""Losses by step: gaps, restarts, and runs that tell no steps."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sweeper.command.metrics import Series


def series(*readings: tuple[int | None, float]) -> Series:
    made = Series()
    made.add(readings)
    return made


def test_a_loss_stands_for_the_steps_since_the_last_one() -> None:
    made = series((0, 4.0), (2, 3.0), (5, 2.0))
    assert list(made.dense(8, whole=False)) == [4, 3, 3, 2, 2, 2]
    assert list(made.dense(8, whole=True)) == [4, 3, 3, 2, 2, 2, 2, 2]


def test_a_step_that_is_told_again_begins_the_run_anew_from_there() -> None:
    made = series((0, 4.0), (1, 3.0), (2, 9.0), (1, 2.5), (2, 2.0))
    assert (made.steps, made.losses) == ([0, 1, 2], [4.0, 2.5, 2.0])


def test_counted_losses_are_spread_over_the_whole_run() -> None:
    made = series((None, 3.0), (None, 2.0))
    assert list(made.dense(4, whole=True)) == [3, 3, 2, 2]
    assert made.reaches(4, 1)


def test_a_run_that_ends_early_is_seen() -> None:
    logged = [(step, 1.0) for step in range(0, 50, 10)]
    assert series(*logged).reaches(50, 5)
    assert not series(*logged).reaches(100, 5)
    assert not series().reaches(10, 1)


def test_steps_beyond_the_last_are_the_last() -> None:
    assert list(series((1, 3.0), (400, 2.0)).dense(4, whole=True)) == [3, 3, 2, 2]


@given(
    st.lists(st.tuples(st.integers(0, 200), st.floats(0, 10)), min_size=1, max_size=40),
    st.integers(1, 150),
    st.booleans(),
)
def test_a_dense_run_has_losses_that_were_told_and_never_too_many(
    readings: list[tuple[int, float]], steps: int, whole: bool
) -> None:
    made = series(*readings)
    assert made.steps == sorted(set(made.steps))
    losses = made.dense(steps, whole=whole)
    assert 1 <= len(losses) <= steps
    assert not whole or len(losses) == steps
    assert np.isin(losses, made.losses).all()
