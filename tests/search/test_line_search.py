from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.errors import ConfigError
from sweeper.search.line_search import line_notes, line_objective, line_result
from sweeper.search.strategy import History
from sweeper.stats.line import MIN_SPACING, LineRule, line_optimum, replay_line
from sweeper.trial import Axis, Result, Status, Trial, hps_key
from tests.golden import Golden
from tests.search.fakes import lay
from tests.specs import spec_of

AXIS = Axis(low=-3, high=3)
ALL = 1000  # more points than any line can lay

rules = st.builds(
    LineRule,
    step=st.sampled_from([0.25, 0.3, 0.5, 1.0, 2.0]),
    points=st.integers(1, 40),
    reach=st.integers(1, 3),
    extend=st.integers(0, 4),
    beyond=st.integers(1, 3),
)
axes = st.builds(
    lambda low, size, default: Axis(low=low, high=low + size, default=default),
    st.floats(-5, 5),
    st.floats(0, 6),
    st.floats(-12, 12),
)
losses = st.floats(-5, 5) | st.just(math.inf)


def of_step(rule: LineRule, **changes: object) -> LineRule:
    return LineRule(**{**vars(rule), **changes})


@given(
    rule=rules,
    axis=axes,
    centre=st.floats(-14, 14),
    power=st.sampled_from([1.0, 1.5, 2.0, 4.0]),
    lean=st.sampled_from([0.1, 1.0, 10.0]),
)
def test_refined_optimum_of_a_convex_loss_is_within_the_last_spacing(
    rule: LineRule, axis: Axis, centre: float, power: float, lean: float
) -> None:
    rule = of_step(rule, points=ALL)
    state, _ = lay(rule, axis, lambda x: (lean if x > centre else 1.0) * abs(x - centre) ** power)
    grid = axis.grid(rule.step)
    room = rule.extend * rule.step if len(grid) > 1 else 0.0
    reachable = min(max(centre, grid[0] - room), grid[-1] + room)
    spacing = rule.step
    while spacing / 2 >= MIN_SPACING and len(grid) > 1:
        spacing /= 2
    assert abs(line_optimum(state.losses) - reachable) <= spacing + 1e-9


@given(rule=rules, axis=axes, seed=st.randoms(use_true_random=False))
def test_any_loss_ends_within_its_budget_without_near_repeats(
    rule: LineRule, axis: Axis, seed: object
) -> None:
    table: dict[float, float] = {}

    def loss(x: float) -> float:
        return table.setdefault(x, seed.choice([math.inf, seed.random(), 0.5]))  # type: ignore[attr-defined]

    state, rounds = lay(rule, axis, loss)
    values = sorted(state.losses)
    assert all(high - low > 1e-6 for low, high in pairwise(values))
    assert len({hps_key({"x": value}) for value in values}) == len(values)
    grid = sorted(rounds[0])
    inside = [value for value in values if grid[0] <= value <= grid[-1]]
    assert len(values) - state.extended <= rule.points
    assert state.extended <= min(2 * rule.extend, len(values) - len(inside))
    assert grid[0] - values[0] <= rule.extend * rule.step + 1e-6
    assert values[-1] - grid[-1] <= rule.extend * rule.step + 1e-6


@given(rule=rules, axis=axes, centre=st.floats(-4, 4), order=st.randoms(use_true_random=False))
def test_replay_is_pure_and_does_not_care_for_the_order_of_arrival(
    rule: LineRule, axis: Axis, centre: float, order: object
) -> None:
    whole, _ = lay(rule, axis, lambda x: (x - centre) ** 2)
    known: dict[float, float] = {}
    while (state := replay_line(rule, axis, known.get)).missing:
        assert replay_line(rule, axis, known.get) == state
        value = order.choice(state.missing)  # type: ignore[attr-defined]
        known[value] = (value - centre) ** 2
    assert state == whole


def test_each_round_halves_the_spacing_around_the_optimum() -> None:
    state, rounds = lay(LineRule(points=15, reach=2), AXIS, lambda x: (x - 0.7) ** 2)
    assert rounds[0] == [-3, -2, -1, 0, 1, 2, 3]
    assert sorted(rounds[1]) == [-0.5, 0.5, 1.5, 2.5]
    assert sorted(rounds[2]) == [-0.25, 0.25, 0.75, 1.25]
    assert len(state.losses) == 15 and line_optimum(state.losses) == 0.75


def test_the_last_round_is_cut_to_the_budget_nearest_first() -> None:
    _, rounds = lay(LineRule(points=9), AXIS, lambda x: (x - 0.9) ** 2)
    assert rounds[1:] == [[0.5, 1.5]]


def test_reach_of_one_asks_only_the_two_neighbours() -> None:
    _, rounds = lay(LineRule(points=13, reach=1), AXIS, lambda x: x * x)
    assert [sorted(values) for values in rounds[1:]] == [
        [-0.5, 0.5],
        [-0.25, 0.25],
        [-0.125, 0.125],
    ]


def test_refinement_stops_at_the_finest_spacing() -> None:
    state, _ = lay(LineRule(points=ALL), AXIS, lambda x: (x - 0.3) ** 2)
    gaps = [high - low for low, high in pairwise(sorted(state.losses))]
    assert min(gaps) == MIN_SPACING
    _, rounds = lay(LineRule(step=MIN_SPACING, points=ALL), Axis(low=-0.25, high=0.25), abs)
    assert len(rounds) == 1


@pytest.mark.parametrize("sign", [-1, 1])
def test_an_optimum_at_the_end_extends_the_line_and_says_so(sign: int, golden: Golden) -> None:
    state, rounds = lay(LineRule(points=9, extend=2), AXIS, lambda x: -sign * x)
    assert rounds[1:3] == [[sign * 4.0], [sign * 5.0]]
    assert state.extended == 2 and len(state.losses) == 11
    found = line_result("eta", state, History(), {}, AXIS)
    assert found is not None and found.optimum_log2 == sign * 5
    extended, still = line_notes([found], {"eta": AXIS}, {})
    assert extended.startswith("eta: ")
    golden.says(extended)
    change = (
        "raise parameterization.space.eta.high"
        if sign > 0
        else ("lower parameterization.space.eta.low")
    )
    assert still == f"eta: the optimum 2^{sign * 5} is still at the end of the grid: {change}"


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_line_that_ends_within_its_range_says_so(sign: int) -> None:
    """A wider range would change nothing."""
    state, _ = lay(LineRule(points=3, extend=1), AXIS, lambda x: -sign * x)
    found = line_result("eta", state, History(), {}, AXIS)
    assert found is not None
    longer = "search.line.points or search.line.extend"
    _, still = line_notes([found], {"eta": AXIS}, {"eta": longer})
    assert still == (
        f"eta: the optimum 2^{sign * 2} is still at the end of the grid, and the range goes on "
        f"to 2^{sign * 3}: raise {longer}"
    )
    retuned = replace(found, name="eta, retuned")
    _, still = line_notes([retuned], {"eta": AXIS}, {"eta, retuned": "search.retune.extend"})
    assert still.endswith("is still at the end of the grid: raise search.retune.extend")


def test_an_extension_ends_where_the_loss_rises_again() -> None:
    state, rounds = lay(LineRule(points=7, extend=4), AXIS, lambda x: (x - 4) ** 2)
    assert rounds[1:] == [[4.0], [5.0]] and state.extended == 2
    found = line_result("eta", state, History(), {}, AXIS)
    assert found is not None and len(list(line_notes([found], {}, {}))) == 1


def test_a_line_grows_until_enough_points_lie_beyond_its_optimum() -> None:
    rule = LineRule(points=7, extend=4, beyond=2)
    state, _ = lay(rule, AXIS, lambda x: (x + 2) ** 2)
    assert sorted(state.losses)[0] == -4 and state.extended == 1
    assert lay(rule, AXIS, lambda x: (x + 1) ** 2)[0].extended == 0
    cliff = lay(rule, AXIS, lambda x: (x + 2) ** 2 if x > -2.5 else math.inf)
    assert cliff[0].extended == 0


def test_extending_is_bounded_from_the_first_grid_not_from_the_range() -> None:
    """A budget below the grid leaves its ends inside the range; `extend` still bounds the line."""
    axis = Axis(low=-20, high=20)
    state, rounds = lay(LineRule(points=3, extend=2), axis, lambda x: -x)
    assert rounds == [[-1, 0, 1], [2], [3]]
    assert state.extended == 2


def test_an_extension_that_is_not_known_yet_is_not_counted() -> None:
    known = {value: -value for value in AXIS.grid(1.0)}
    state = replay_line(LineRule(points=7), AXIS, known.get)
    assert state.missing == [4.0] and state.extended == 0


def test_a_budget_below_the_grid_takes_the_points_nearest_the_default() -> None:
    axis = Axis(low=-3, high=3, default=2)
    assert lay(LineRule(points=3, extend=0), axis, lambda x: (x - 2) ** 2)[1] == [[1, 2, 3]]
    assert lay(LineRule(points=1), axis, lambda x: x)[1] == [[2]]
    outside = Axis(low=-3, high=3, default=9)
    assert lay(LineRule(points=2, extend=0), outside, lambda x: (x - 2) ** 2)[1][0] == [2, 3]


def test_all_choices_are_tried_once_and_nothing_between_or_beyond() -> None:
    axis = Axis(low=0, high=4, choices=("a", "b", "c", "d", "e"))
    state, rounds = lay(LineRule(points=2), axis, lambda x: -x)
    assert rounds == [[0, 1, 2, 3, 4]] and LineRule(points=2).planned(axis) == 5
    found = line_result("kind", state, History(), {}, axis)
    assert found is not None and found.optimum == "e" and list(line_notes([found], {}, {})) == []


def test_a_range_of_one_value_is_one_point() -> None:
    state, rounds = lay(LineRule(), Axis(low=1, high=1), lambda x: x)
    assert rounds == [[1]] and state.losses == {1: 1} and state.extended == 0


def test_without_a_finite_loss_there_is_nothing_to_refine_or_extend() -> None:
    state, rounds = lay(LineRule(points=20), AXIS, lambda x: math.inf)
    assert rounds == [AXIS.grid(1.0)]
    found = line_result("eta", state, History(), {}, AXIS)
    assert found is not None and found.objective == math.inf and found.optimum_log2 == 0
    assert list(line_notes([found], {}, {})) == []
    pair, _ = lay(LineRule(points=20), Axis(low=0, high=1), lambda x: math.inf)
    found = line_result("eta", pair, History(), {}, AXIS)
    assert found is not None and list(line_notes([found], {}, {})) == []


@pytest.mark.parametrize("only", [-3.0, 0.0, 3.0])
def test_one_finite_point_is_the_optimum(only: float) -> None:
    state, _ = lay(LineRule(points=11, extend=2), AXIS, lambda x: 1.0 if x == only else math.inf)
    assert line_optimum(state.losses) == only
    assert state.extended == (0 if only == 0 else 1)


def test_diverged_points_stay_on_the_line() -> None:
    state, _ = lay(LineRule(points=11), AXIS, lambda x: math.inf if x > 1 else -x)
    found = line_result("eta", state, History(), {}, AXIS)
    assert found is not None and found.optimum_log2 == 1 and state.extended == 0
    assert [loss for value, loss in found.points_log2 if value > 1] == [math.inf] * 4


def test_a_plateau_has_its_optimum_in_the_middle_and_is_not_extended() -> None:
    state, _ = lay(LineRule(points=7), AXIS, lambda x: 1.0)
    assert line_optimum(state.losses) == 0 and state.extended == 0
    flat, _ = lay(LineRule(points=7), AXIS, lambda x: max(1.0, 1.0 - x))
    assert line_optimum(flat.losses) == 1 and flat.extended == 0


def test_two_equal_points_extend_the_line_once() -> None:
    state, rounds = lay(LineRule(points=2), Axis(low=0, high=1), lambda x: 1.0)
    assert rounds == [[0, 1], [-1]] and line_optimum(state.losses) == 0


def test_nothing_known_is_no_result() -> None:
    state = replay_line(LineRule(), AXIS, lambda value: None)
    assert state.missing == AXIS.grid(1.0)
    assert line_result("eta", state, History(), {}, AXIS) is None


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"step": 0.0}, "step"),
        ({"step": math.nan}, "step"),
        ({"step": 17.0}, "step"),
        ({"points": 0}, "points"),
        ({"reach": 0}, "reach"),
        ({"extend": -1}, "extend"),
        ({"beyond": 0}, "beyond"),
    ],
)
def test_a_line_that_cannot_be_laid_is_refused(wrong: dict[str, float], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LineRule(**wrong)  # type: ignore[arg-type]
    assert caught.value.key == key


def test_a_value_of_which_a_trial_was_stopped_early_is_told_from_one_that_diverged() -> None:
    tree = {"model": {"width": 8, "depth": 1}}

    def known(eta: float, seed: int, status: Status, loss: float) -> Result:
        trial = Trial(spec=spec_of(tree), log2_hps={"eta": eta, "alpha": 0.5}, seed=seed)
        return Result(trial=trial, status=status, objective=loss)

    results = [known(0.0, s, "complete", 3.0) for s in (0, 1)]
    results += [known(1.0, 0, "complete", 3.5), known(1.0, 1, "pruned", 4.0)]
    results += [known(2.0, s, "diverged", math.inf) for s in (0, 1)]
    history, base = History(results), {"eta": 0.0, "alpha": 0.5}
    evaluate = line_objective(history, base, "eta", [0, 1])
    state = replay_line(LineRule(points=3), Axis(low=0, high=2), evaluate)
    found = line_result("eta", state, history, base, AXIS)
    assert found is not None and found.stopped_log2 == (1.0,)
    assert found.points_log2 == ((0.0, 3.0), (1.0, math.inf), (2.0, math.inf))
    other = line_result("eta", state, history, {"eta": 0.0, "alpha": 0.0}, AXIS)
    assert other is not None and other.stopped_log2 == ()
