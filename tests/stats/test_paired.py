import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sweeper.stats.estimate import UNKNOWN, Array, Estimate, mean_estimate, normal_above
from sweeper.stats.paired import by_losses, divergence_error, paired_difference, sign_error
from sweeper.stats.rounds import CONFIDENCE, LOOKS, Foretold

INF = math.inf
LOSSES = st.one_of(st.floats(2.0, 4.0).map(lambda loss: round(loss, 3)), st.just(INF))
PAIRS = st.lists(st.tuples(LOSSES, LOSSES), min_size=1, max_size=24)
ERRORS = st.sampled_from([0.05, 0.05 / 3, 0.0005])


def difference(pairs: list[tuple[float, float]], alpha: float) -> Estimate:
    losses, others = np.array(pairs, dtype=float).reshape(-1, 2).T
    return paired_difference(losses, others, alpha)


def side(found: Estimate) -> int:
    """1 where the first configuration is worse for sure, -1 where it is better, else 0."""
    return (found.low > 0) - (found.high < 0)


def assert_same(one: Estimate, other: Estimate) -> None:
    for name in ("value", "low", "high"):
        rest, right = getattr(one, name), getattr(other, name)
        assert rest == right or rest == pytest.approx(right, abs=1e-9, nan_ok=True), name


@given(PAIRS, ERRORS)
def test_swapped_configurations_mirror_the_answer(
    pairs: list[tuple[float, float]], alpha: float
) -> None:
    result, swapped = (difference(p, alpha) for p in (pairs, [(b, a) for a, b in pairs]))
    assert_same(result, Estimate(value=-swapped.value, low=-swapped.high, high=-swapped.low))


@given(PAIRS, ERRORS, st.floats(2.0, 4.0))
def test_one_more_pair_that_it_lost_by_diverging_never_helps_a_configuration(
    pairs: list[tuple[float, float]], alpha: float, loss: float
) -> None:
    before = difference(pairs, alpha)
    assert side(difference([*pairs, (INF, loss)], alpha)) >= side(before)


@given(PAIRS, ERRORS, st.floats(0.0, 9.0))
def test_one_more_pair_that_it_lost_never_makes_it_the_better_one(
    pairs: list[tuple[float, float]], alpha: float, gap: float
) -> None:
    if side(difference(pairs, alpha)) >= 0:
        assert side(difference([*pairs, (3.0 + gap, 3.0)], alpha)) >= 0


@given(PAIRS, ERRORS)
def test_a_pair_that_diverged_on_both_sides_never_makes_an_answer_surer(
    pairs: list[tuple[float, float]], alpha: float
) -> None:
    before, after = (difference(p, alpha) for p in (pairs, [*pairs, (INF, INF)]))
    assert side(after) in (side(before), 0)
    if not any(map(math.isinf, (loss for pair in pairs for loss in pair))):
        assert_same(before, after)


@given(st.lists(st.tuples(*[st.floats(2.0, 4.0)] * 2), min_size=2, max_size=12), ERRORS)
def test_without_divergence_it_is_students_interval_of_the_mean(
    pairs: list[tuple[float, float]], alpha: float
) -> None:
    values: Array = np.array([a - b for a, b in pairs])
    assert_same(difference(pairs, alpha), mean_estimate(values, alpha))


def gained(seeds: int, diverged: int = 0, gap: float = -0.02) -> list[tuple[float, float]]:
    """A configuration that gains about 0.02 nats with each seed but those that it diverged with."""
    trained = [(3.0 + gap + 1e-4 * (seed % 3), 3.0) for seed in range(seeds - diverged)]
    return trained + [(INF, 3.0)] * diverged


@pytest.mark.parametrize(
    ("pairs", "alpha", "answer"),
    [
        (gained(8), 0.05, -1),
        (gained(8, 1), 0.05, 0),  # as likely as not to come of a coin: 9 / 256 to one side
        (gained(9, 1), 0.05, -1),  # 10 / 512 is less than 2.5 %
        (gained(16, 1), 0.0005, 0),
        (gained(17, 1), 0.0005, -1),
        (gained(8, 1, gap=0.02), 0.05, 1),  # it loses the others for sure, and diverges
        ([(INF, 3.0)] * 2, 0.05, 0),
        ([(INF, 3.0)] * 3, 0.05, 1),  # 2 / 4^3
        (gained(8, 6), 0.05, 1),
        (gained(8, 5), 0.05, 0),
        ([(INF, 3.0)] * 5, 0.0005, 0),
        ([(INF, 3.0)] * 6, 0.0005, 1),
        ([(INF, INF)] * 9, 0.05, 0),
        ([(INF, INF)] * 9 + gained(8), 0.05, -1),
    ],
)
def test_how_many_seeds_an_answer_takes(
    pairs: list[tuple[float, float]], alpha: float, answer: int
) -> None:
    assert side(difference(pairs, alpha)) == answer


def test_a_pair_lost_by_diverging_has_no_size() -> None:
    result = difference(gained(8, 1), 0.05)
    assert result.value == pytest.approx(-0.02, abs=1e-3)
    assert -0.03 < result.low < -0.019 and result.high == INF
    worse = difference([(INF, 3.0)] * 8, 0.05)
    assert worse == Estimate(value=INF, low=INF, high=INF)
    assert difference([(INF, 3.0)], 0.05) == Estimate(value=INF, low=-INF, high=INF)


def test_of_runs_that_failed_nothing_is_known() -> None:
    assert difference([(math.nan, 3.0), (2.0, 3.0)], 0.05) == UNKNOWN


def test_chances_are_those_of_coins() -> None:
    chances = [sign_error(*sides) for sides in ((0, 6), (3, 3), (1, 8))]
    assert chances == pytest.approx([2 / 64, 1, 20 / 512])
    assert divergence_error(3, 0, 3) == pytest.approx(2 / 64)
    assert divergence_error(1, 8, 9) == sign_error(1, 8)


def test_configurations_are_ordered_by_divergence_then_by_the_others() -> None:
    losses = {"a": [2.0, INF], "b": [3.0, 3.1], "c": [INF, INF]}
    assert sorted(losses, key=lambda name: by_losses(np.array(losses[name]))) == ["b", "a", "c"]


def test_the_looks_at_a_ladder_err_together_as_pocock_has_it() -> None:
    reach = stats.norm.isf((1 - CONFIDENCE) / 2)
    generator = np.random.default_rng(0)
    paths = generator.normal(size=(20_000, LOOKS)).cumsum(1) / np.sqrt(np.arange(1, LOOKS + 1))
    assert (paths.max(1) > reach).mean() == pytest.approx(0.05, abs=0.005)


def test_what_a_mean_will_be_is_as_often_as_foretold() -> None:
    generator = np.random.default_rng(1)
    first = generator.normal(0.3, 1, 10)
    # A mean of 40 values shares 1 / 40 of its variance with that of the first 10.
    then = Foretold(float(first.mean()), math.sqrt(1 / 10 - 1 / 40), half=0.2)
    # The later ones have a mean that nobody knows: as likely as the first ones make it.
    truth = first.mean() + generator.normal(size=20_000) / math.sqrt(10)
    means = (10 * first.mean() + 30 * (truth + generator.normal(size=20_000) / math.sqrt(30))) / 40
    assert then.above(0.0) == pytest.approx((means - 0.2 > 0).mean(), abs=0.01)
    assert then.within(0.9) == pytest.approx((np.abs(means) + 0.2 < 0.9).mean(), abs=0.01)
    assert normal_above(0.0) == 0.5


def test_the_interval_of_three_seeds() -> None:
    result = mean_estimate(np.array([1.0, 2.0, 3.0]))
    half = 4.30265 / math.sqrt(3)
    assert (result.low, result.value, result.high) == pytest.approx(
        (2 - half, 2, 2 + half), abs=1e-4
    )


@pytest.mark.parametrize("values", [[2.0], [2.0, math.inf]])
def test_one_seed_or_one_that_diverged_has_no_interval(values: list[float]) -> None:
    result = mean_estimate(np.array(values))
    assert (result.low, result.high) == (-math.inf, math.inf)
