from __future__ import annotations

import math

import pytest

from sweeper.errors import ConfigError
from sweeper.search.line_search import LearningRateLine
from sweeper.search.strategy import History
from sweeper.stats.line import LineRule
from sweeper.trial import Axis
from tests.search.fakes import basin, cliff, point_result, run_search, space_of

SPACE = {"alpha": Axis(low=-2, high=2, default=1), "eta": Axis(low=-1, high=3, default=1)}


def test_trains_as_many_runs_as_planned() -> None:
    for seeds in (1, 3):
        search = LearningRateLine(line=LineRule(points=11), seeds=seeds)
        (phase,) = search.plan(SPACE)
        history = run_search(search, SPACE, basin(SPACE))
        assert (phase.name, phase.trials) == ("eta", 11 * seeds)
        assert len(history.results) == phase.trials


def test_finds_the_refined_optimum_with_the_rest_at_its_default() -> None:
    search = LearningRateLine(line=LineRule(points=19))
    history = run_search(search, SPACE, basin(SPACE, at={"eta": 1.3}))
    found = search.conclude(SPACE, history)
    assert found.best_log2 == {"alpha": 1, "eta": 1.3125}
    assert found.objective == min(r.objective for r in history.results)
    assert found.lines[0].optimum_log2 == 1.3125 and len(found.lines[0].points_log2) == 19
    assert found.phase_ends == {"eta": 19} and found.best_loss_curve[-1] == (19, found.objective)
    assert {r.trial.log2_hps["alpha"] for r in history.results} == {1}


def test_an_optimum_past_the_range_extends_it_and_says_so() -> None:
    search = LearningRateLine(line=LineRule())
    history = run_search(search, SPACE, basin(SPACE, at={"eta": 4.1}))
    found = search.conclude(SPACE, history)
    assert found.best_log2["eta"] == 4 and len(history.results) == 9 + 2
    assert any("extended by 2 to 2^-1..2^5" in note for note in found.notes)


def test_it_says_whether_its_points_or_its_range_end_the_line() -> None:
    search = LearningRateLine(line=LineRule(points=3, extend=0))
    found = search.conclude(SPACE, run_search(search, SPACE, basin(SPACE, at={"eta": 3})))
    assert found.notes[-1].endswith(
        "and the range goes on to 2^3: raise search.line.points or search.line.extend"
    )
    search = LearningRateLine(line=LineRule(points=5, extend=0))
    found = search.conclude(SPACE, run_search(search, SPACE, basin(SPACE, at={"eta": 4})))
    assert found.notes[-1].endswith("end of the grid: raise parameterization.space.eta.high")


def test_seeds_are_averaged_and_one_that_diverged_rules_a_point_out() -> None:
    search = LearningRateLine(line=LineRule(points=5, extend=0), seeds=2)
    history = run_search(
        search,
        SPACE,
        lambda hps, seed: math.inf if (hps["eta"], seed) == (1, 1) else (hps["eta"] - 1.1) ** 2,
    )
    found = search.conclude(SPACE, history)
    assert found.best_log2["eta"] == 2 and found.seeds == 2
    assert dict(found.lines[0].points_log2)[1] == math.inf


def test_a_cliff_stays_on_the_line_and_in_the_cost_curve() -> None:
    search = LearningRateLine(line=LineRule())
    history = run_search(search, SPACE, cliff(basin(SPACE, at={"eta": 0.4}), -0.5))
    found = search.conclude(SPACE, history)
    assert found.best_log2["eta"] == -1 and found.lines[0].extended == 1
    assert math.inf in [loss for _, loss in found.lines[0].points_log2]
    assert all(math.isfinite(loss) for _, loss in found.best_loss_curve)  # -1 comes first


def test_half_the_seeds_of_the_first_point_are_no_optimum_yet() -> None:
    search = LearningRateLine(seeds=2)
    first = search.propose(SPACE, History())[0]
    found = search.conclude(SPACE, History([point_result(first, 3.0)]))
    assert found.best_log2 == {"alpha": 1, "eta": 1} and found.objective == math.inf
    assert found.lines == () and found.runs == 1


def test_works_for_every_parameterization() -> None:
    for parameterization in ("umup", "mup", "standard"):
        space = space_of(parameterization)
        history = run_search(LearningRateLine(line=LineRule()), space, basin(space))
        assert len(history.results) == 9


def test_no_seeds_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        LearningRateLine(seeds=0)
    assert (caught.value.key, caught.value.value) == ("seeds", 0)
