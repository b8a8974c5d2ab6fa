import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.search.line_search import LearningRateLine, SearchLine, line_notes
from sweeper.search.strategy import Conclusion, History, LineResult
from sweeper.stats.line import MIN_SPACING, LineRule, line_optimum, replay_line
from sweeper.trial import Axis, Log2Hps, Point, Result, Status, Trial, hps_key
from tests.golden import Golden
from tests.refusals import raises_config_error
from tests.search.fakes import Objective, basin, lay, point_result, run_search
from tests.specs import spec_of

Loss = Callable[[float], float]

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


GRID = [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]
FINER = [[0.5, 1.5, -0.5, 2.5], [0.25, 0.75, -0.25, 1.25]]
HALVED = [[-spacing, spacing] for spacing in (0.5, 0.25, 0.125)]
PAST = Axis(low=-3, high=3, default=9)
LETTERS = Axis(low=0, high=4, choices=("a", "b", "c", "d", "e"))
FALLING: Loss = lambda x: -x  # noqa: E731
FINEST = Axis(low=-2 * MIN_SPACING, high=2 * MIN_SPACING)


def at(centre: float, only: Callable[[float], bool] = lambda x: True) -> Loss:
    return lambda x: (x - centre) ** 2 if only(x) else math.inf


@pytest.mark.parametrize(
    ("rule", "axis", "loss", "rounds", "optimum", "extended"),
    [
        # Each round halves the spacing around the optimum, nearest first where points run out.
        ({"points": 15}, AXIS, at(0.7), [GRID, *FINER], 0.75, 0),
        ({"points": 9}, AXIS, at(0.9), [GRID, [0.5, 1.5]], 1, 0),
        ({"points": 13, "reach": 1}, AXIS, at(0), [GRID, *HALVED], 0, 0),
        ({"points": ALL, "step": MIN_SPACING}, FINEST, abs, [FINEST.grid(MIN_SPACING)], 0, 0),
        # Past an end it goes on, until the loss rises or diverges, and not without end.
        ({"points": 7}, AXIS, at(4), [GRID, [4], [5]], 4, 2),
        ({"points": 7, "beyond": 2}, AXIS, at(-2), [GRID, [-4]], -2, 1),
        ({"points": 7, "beyond": 2}, AXIS, at(-1), [GRID], -1, 0),
        ({"points": 7, "beyond": 2}, AXIS, at(-2, lambda x: x > -2.5), [GRID], -2, 0),
        # The first grid bounds it, not the range.
        ({"points": 3, "extend": 2}, Axis(low=-20, high=20), FALLING, [[-1, 0, 1], [2], [3]], 3, 2),
        # Few points are those nearest the default.
        ({"points": 3, "extend": 0}, Axis(low=-3, high=3, default=2), at(2), [[1, 2, 3]], 2, 0),
        ({"points": 1}, Axis(low=-3, high=3, default=2), FALLING, [[2]], 2, 0),
        ({"points": 2, "extend": 0}, PAST, at(2), [[2, 3]], 2, 0),
        # All choices are tried once, and nothing between or beyond; so is a single value.
        ({"points": 2}, LETTERS, FALLING, [[0, 1, 2, 3, 4]], 4, 0),
        ({}, Axis(low=1, high=1), FALLING, [[1]], 1, 0),
        # Without a finite loss there is nothing to go to; one of them is the optimum.
        ({"points": 20}, AXIS, at(0, lambda x: False), [GRID], 0, 0),
        ({"points": 9}, AXIS, at(0, lambda x: x == -3), [GRID, [-4], [-3.5, -2.5]], -3, 1),
        ({"points": 9}, AXIS, at(0, lambda x: x == 0), [GRID, [-0.5, 0.5]], 0, 0),
        # A plateau has its optimum in the middle; two equal points go on once.
        ({"points": 7}, AXIS, lambda x: 1.0, [GRID], 0, 0),
        ({"points": 7}, AXIS, lambda x: max(1.0, 1.0 - x), [GRID], 1, 0),
        ({"points": 2}, Axis(low=0, high=1), lambda x: 1.0, [[0, 1], [-1]], 0, 1),
    ],
)
def test_a_line_by_hand(
    rule: dict[str, Any], axis: Axis, loss: Loss, rounds: object, optimum: float, extended: int
) -> None:
    state, laid = lay(LineRule(**rule), axis, loss)
    assert (laid, line_optimum(state.losses), state.extended) == (rounds, optimum, extended)


def known(losses: dict[float, float], name: str = "eta") -> History:
    points = (Point(log2_hps={name: value}, seed=0, phase="eta") for value in losses)
    return History(map(point_result, points, losses.values()))


@given(rule=rules.filter(lambda rule: rule.points < 16), axis=axes, data=st.data())
def test_what_may_follow_holds_what_does(rule: LineRule, axis: Axis, data: Any) -> None:
    losses, following = dict[float, float](), set[float]()
    while missing := (line := SearchLine(rule, axis, known(losses), {}, "eta", [0])).state.missing:
        assert not following or {*missing} <= following
        following = {hps["eta"] for hps in line.following()}
        for value in missing[: data.draw(st.integers(1, len(missing)))]:
            # Of equal losses the middle is the optimum, which is nobody's guess.
            other = st.floats(0, 9).filter(lambda loss: loss not in losses.values())
            # Nor is an end that diverges, from which two points beyond would have gone on.
            losses[value] = data.draw(other if rule.beyond > 1 else st.just(math.inf) | other)


def laid(rule: LineRule, loss: Loss, axis: Axis = AXIS, name: str = "eta") -> LineResult:
    history = known(lay(rule, axis, loss)[0].losses, name)
    found = SearchLine(rule, axis, history, {}, name, [0]).result()
    assert found is not None
    return found


@pytest.mark.parametrize(("sign", "change"), [(1, "raise {}.high"), (-1, "lower {}.low")])
def test_an_optimum_at_the_end_is_told_with_what_lets_the_line_go_on(
    sign: int, change: str, golden: Golden
) -> None:
    found = laid(LineRule(points=9, extend=2), lambda x: -sign * x)
    assert found.extended == 2 and found.optimum_log2 == sign * 5
    extended, still = line_notes([found], {"eta": AXIS}, {})
    golden.says(extended)
    assert still.endswith(f"end of the grid: {change.format('parameterization.space.eta')}")
    # Within its range a wider one would change nothing.
    found, longer = laid(LineRule(points=3, extend=1), lambda x: -sign * x), "search.line.points"
    _, still = line_notes([found], {"eta": AXIS}, {"eta": longer})
    assert still.endswith(f"of the grid, and the range goes on to 2^{sign * 3}: raise {longer}")
    retuned = replace(found, name="eta, retuned")
    _, still = line_notes([retuned], {"eta": AXIS}, {"eta, retuned": "search.retune.extend"})
    assert still.endswith("is still at the end of the grid: raise search.retune.extend")


def test_of_choices_and_of_lines_without_a_loss_nothing_is_said() -> None:
    found = laid(LineRule(), FALLING, LETTERS, "kind")
    assert found.optimum == "e" and LineRule(points=2).planned(LETTERS) == 5
    diverged = laid(LineRule(), at(0, lambda x: False), Axis(low=0, high=1))
    assert diverged.objective == math.inf
    risen = laid(LineRule(points=7), at(4))
    notes = [len(list(line_notes([line], {}, {}))) for line in (found, diverged, risen)]
    assert notes == [0, 0, 1]


def test_what_is_not_known_yet_is_neither_a_result_nor_counted() -> None:
    state = replay_line(LineRule(), AXIS, lambda value: None)
    assert state.missing == GRID
    assert SearchLine(LineRule(), AXIS, History(), {}, "eta", [0]).result() is None
    state = replay_line(LineRule(points=7), AXIS, {value: -value for value in GRID}.get)
    assert state.missing == [4.0] and state.extended == 0


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        *(({"step": step}, "step") for step in (0.0, math.nan, 17.0)),
        *(({key: 0}, key) for key in ("points", "reach", "beyond", "seeds")),
        ({"extend": -1}, "extend"),
    ],
)
def test_what_cannot_be_laid_is_refused(wrong: dict[str, Any], key: str) -> None:
    with raises_config_error(key):
        (LearningRateLine if key == "seeds" else LineRule)(**wrong)


def test_a_value_of_which_a_trial_was_stopped_early_is_told_from_one_that_diverged() -> None:
    tree = {"model": {"width": 8, "depth": 1}}

    def ended(eta: float, seed: int, status: Status, loss: float) -> Result:
        trial = Trial(spec=spec_of(tree), log2_hps={"eta": eta, "alpha": 0.5}, seed=seed)
        return Result(trial=trial, status=status, objective=loss)

    results = [ended(0.0, s, "complete", 3.0) for s in (0, 1)]
    results += [ended(1.0, 0, "complete", 3.5), ended(1.0, 1, "pruned", 4.0)]
    results += [ended(2.0, s, "diverged", math.inf) for s in (0, 1)]
    history, base = History(results), {"eta": 0.0, "alpha": 0.5}
    line = SearchLine(LineRule(points=3), Axis(low=0, high=2), history, base, "eta", [0, 1])
    found = line.result()
    assert found is not None and found.stopped_log2 == (1.0,)
    assert found.points_log2 == ((0.0, 3.0), (1.0, math.inf), (2.0, math.inf))
    assert replace(line, base={"eta": 0.0, "alpha": 0.0}).result() is None


# `search=lr`.

SPACE = {"alpha": Axis(low=-2, high=2, default=1), "eta": Axis(low=-1, high=3, default=1)}


def searched(search: LearningRateLine, objective: Objective) -> Conclusion:
    return search.conclude(SPACE, run_search(search, SPACE, objective))


def test_it_names_what_lets_its_line_go_on() -> None:
    short = LearningRateLine(line=LineRule(points=3, extend=0))
    found = searched(short, basin(SPACE, at={"eta": 3}))
    assert found.notes[-1].endswith("raise search.line.points or search.line.extend")


def test_seeds_are_averaged_and_one_that_diverged_rules_a_point_out() -> None:
    search = LearningRateLine(line=LineRule(points=5, extend=0), seeds=2)
    assert search.plan(SPACE)[0].trials == 10

    def loss(hps: Log2Hps, seed: int) -> float:
        return math.inf if (hps["eta"], seed) == (1, 1) else (hps["eta"] - 1.1) ** 2

    found = searched(search, loss)
    assert found.best_log2["eta"] == 2 and found.seeds == 2
    assert dict(found.lines[0].points_log2)[1] == math.inf


def test_half_the_seeds_of_the_first_point_are_no_optimum_yet() -> None:
    search = LearningRateLine(seeds=2)
    first = search.propose(SPACE, History())[0]
    found = search.conclude(SPACE, History([point_result(first, 3.0)]))
    assert found.best_log2 == {"alpha": 1, "eta": 1} and found.objective == math.inf
    assert found.lines == () and found.runs == 1
