import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.decide.target import (
    NO_THEORY,
    OVER_TOKENS,
    SCATTER,
    THEORY,
    TURNING,
    WRONG,
    Prior,
    back_test,
    predict,
    prior_for,
    shifted,
)

SIZES = (64, 128, 256, 512)
optima = st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=4).map(np.array)
errors = st.floats(0.03, 0.3)


@settings(max_examples=20)
@given(optima, st.lists(errors, min_size=4, max_size=4).map(np.array))
def test_a_shift_is_the_difference_of_two_levels_given_all_optima(
    found: np.ndarray, error: np.ndarray
) -> None:
    """Of one form, against the joint covariance of levels and optima, conditioned as it stands."""
    answers = shifted(SIZES, found, error, (3, 0), Prior(name="theory", forms={"power law": 1.0}))
    doublings = np.log2(np.array(SIZES) / SIZES[0])
    levels = 1e4 + WRONG**2 * np.outer(doublings, doublings) + SCATTER**2 * np.eye(4)
    gain = levels @ np.linalg.inv(levels + np.diag(error**2))
    rest = levels - gain @ levels
    pick = np.array([-1.0, 0.0, 0.0, 1.0])
    assert answers.mean == pytest.approx(pick @ gain @ found, abs=2e-3)
    assert answers.deviations[0] == pytest.approx(math.sqrt(pick @ rest @ pick), rel=1e-2)
    # Never surer than of an exact line, nor less sure than by the two alone.
    assert answers.deviations[0] <= math.hypot(error[0], error[3]) + 1e-9


def same(error: float) -> np.ndarray:
    return np.full(len(SIZES), error)


@pytest.mark.parametrize("prior", [THEORY, NO_THEORY, OVER_TOKENS])
def test_weights_are_one_and_half_of_them_at_least_that_something_is_wrong(prior: Prior) -> None:
    assert sum(prior.forms.values()) == pytest.approx(1)
    assert prior.forms["power law"] + prior.forms.get(TURNING, 0.0) >= 0.5


def test_theory_is_believed_of_mup_and_its_relatives_over_width_alone() -> None:
    assert prior_for("width", "mup", None) is prior_for("width", "umup", None) is THEORY
    assert prior_for("width", "standard", None) is prior_for("width", "own", None) is NO_THEORY
    assert prior_for("width", "mup", False) is NO_THEORY
    assert prior_for("width", "own", True) is THEORY
    assert prior_for("depth", "mup", True) is NO_THEORY
    assert prior_for("tokens", "mup", True) is prior_for("steps", "own", None) is OVER_TOKENS


@settings(max_examples=20)
@given(st.sampled_from([-1, 1]), st.floats(0.3, 0.8), st.floats(-1, 1))
def test_a_drift_that_saturates_without_noise_is_found(
    sign: int, whole: float, start: float
) -> None:
    drift = sign * whole * (1 - 64 / np.array([*SIZES, 4096]))
    result = predict(SIZES, start + drift[:-1], same(1e-4), 4096, THEORY)
    assert result.mean == pytest.approx(start + drift[-1], abs=0.02)
    assert result.forms["fades as 1/size"] > 0.9


@settings(max_examples=20)
@given(st.floats(0.2, 0.6), st.floats(-0.15, -0.06), st.floats(-1, 1))
def test_optima_that_rise_and_then_fall_are_found_and_named(
    slope: float, bend: float, start: float
) -> None:
    x = np.arange(7.0)
    values = start + slope * x + bend * x**2
    result = predict(2 ** x[:5], values[:5], np.full(5, 1e-3), 64, OVER_TOKENS)
    assert result.mean == pytest.approx(values[6], abs=0.05)
    assert result.forms[TURNING] > 0.9
    drawn = back_test((1, 2, 4, 8, 16), values[:5], np.full(5, 0.05), OVER_TOKENS)
    assert drawn is not None and drawn.reproduced


@settings(max_examples=20)
@given(optima, errors, st.floats(-3, 3))
def test_a_ladder_that_is_moved_or_mirrored_is_as_sure(
    values: np.ndarray, error: float, by: float
) -> None:
    first, moved, mirrored = (
        predict(SIZES, each, same(error), 4096, THEORY).estimate()
        for each in (values, values + by, -values)
    )
    assert (moved.value, moved.high) == pytest.approx((first.value + by, first.high + by), abs=1e-6)
    assert (mirrored.value, mirrored.low) == pytest.approx((-first.value, -first.high), abs=1e-6)


def test_a_single_form_is_generalized_least_squares() -> None:
    """The oracle: the textbook's posterior of level and slope with a normal prior."""
    prior = Prior(name="theory", forms={"power law": 1.0})
    values, error = np.array([0.1, 0.3, 0.2, 0.6]), 0.1
    result = predict(SIZES, values, same(error), 4096, prior)
    for mean, deviation, scatter in zip(
        result.means, result.deviations, (0.0, SCATTER), strict=True
    ):
        x = np.column_stack([np.ones(4), np.arange(4.0)])
        weight = 1 / (error**2 + scatter**2)
        precision = weight * x.T @ x + np.diag([0.0, 1 / WRONG**2])
        covariance, at = np.linalg.inv(precision), np.array([1.0, 6.0])
        centre = values.mean()
        expected = centre + at @ covariance @ (weight * x.T @ (values - centre))
        assert mean == pytest.approx(expected, rel=1e-6)
        assert deviation == pytest.approx(math.sqrt(at @ covariance @ at + scatter**2), rel=1e-6)


def test_the_widest_size_is_predicted_from_the_others() -> None:
    straight, bent = (
        back_test(SIZES, np.array(values), same(0.05), THEORY)
        for values in ([0.0, 0.02, 0.01, 0.0], [0.0, 0.02, 0.01, 2.0])
    )
    assert straight is not None and straight.reproduced and straight.size == 512
    assert straight.predicted.low <= straight.measured <= straight.predicted.high
    assert bent is not None and not bent.reproduced and bent.measured == 2.0
    assert back_test((64, 128), np.zeros(2), np.full(2, 0.1), THEORY) is None


def answered(
    slope: float, sizes: tuple[int, ...], prior: Prior, count: int = 24
) -> tuple[float, float]:
    """Shares called within an octave of the base's, and of intervals that hold the truth."""
    generator, holds, covered = np.random.default_rng(3), 0, 0
    truth = slope * (12 - math.log2(sizes[0]))
    for _ in range(count):
        values = slope * np.arange(len(sizes)) + generator.normal(0, 0.13, len(sizes))
        result = predict(sizes, values, np.full(len(sizes), 0.13), 4096, prior).estimate()
        holds += max(-result.low, result.high) <= 1
        covered += result.low <= truth <= result.high
    return holds / count, covered / count


def test_four_widths_carry_an_answer_where_three_cannot_and_real_drifts_seldom_hold() -> None:
    three, four = (answered(0.0, sizes, THEORY)[0] for sizes in (SIZES[:3], SIZES))
    assert four > 0.75 and four > three + 0.2
    hits, covered = answered(0.2, SIZES, THEORY)  # 1.2 octaves at 4096
    assert hits <= 0.13 and covered >= 0.83
    assert answered(-0.9, SIZES, THEORY)[0] == 0
