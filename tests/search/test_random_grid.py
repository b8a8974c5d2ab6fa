from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.search.random_grid import RandomGridStrategy
from sweeper.search.strategy import History
from sweeper.trial import Axis, Space
from tests.golden import Golden
from tests.refusals import raises_config_error
from tests.search.fakes import basin, run_search, space_of

spaces = st.fixed_dictionaries(
    {
        "eta": st.builds(lambda size: Axis(low=-4, high=size - 4, default=9), st.integers(0, 3)),
        "alpha": st.builds(lambda size: Axis(low=0.1, high=0.1 + size), st.integers(0, 3)),
    }
)


@given(spaces, st.integers(0, 5), st.data())
def test_draws_without_replacement_and_a_longer_search_continues_a_shorter_one(
    space: Space, seed: int, data: st.DataObject
) -> None:
    grid = set(product(*(axis.grid(1.0) for axis in space.values())))
    runs = data.draw(st.integers(1, len(grid)))
    points = RandomGridStrategy(runs=runs, seed=seed).propose(space, History())
    drawn = [tuple(point.log2_hps[name] for name in space) for point in points]
    assert len(drawn) == len(set(drawn)) == runs and set(drawn) <= grid
    short = data.draw(st.integers(1, runs))
    assert RandomGridStrategy(runs=short, seed=seed).propose(space, History()) == points[:short]


def test_the_draw_never_changes_between_versions() -> None:
    """Another order would train every random search again."""
    space = {name: Axis(low=-3, high=3) for name in ("alpha", "eta", "beta")}
    points = RandomGridStrategy(runs=3).propose(space, History())
    drawn = [list(point.log2_hps.values()) for point in points]
    assert drawn == [[3, -2, -2], [2, 2, -2], [1, -1, 3]]
    large = {name: Axis(low=-3, high=3) for name in "abcde"}  # more than is listed
    points = RandomGridStrategy(runs=3).propose(large, History())
    drawn = [list(point.log2_hps.values()) for point in points]
    assert drawn == [[0, 2, 1, 0, -1], [1, 0, 3, 3, -1], [2, 0, 0, 3, -3]]


def test_a_grid_of_fewer_points_than_runs_is_taken_whole_and_that_is_said(golden: Golden) -> None:
    search, space = RandomGridStrategy(runs=6, axes=("eta",)), space_of("umup")
    assert search.plan(space)[0].trials == len(search.propose(space, History())) == 5
    history = run_search(search, space, basin(space))
    (note,) = search.conclude(space, history).notes
    golden.says(note)
    assert not RandomGridStrategy(runs=5, axes=("eta",)).conclude(space, history).notes


def test_concludes_with_the_best_and_the_expected_cost() -> None:
    space = space_of("umup")
    search = RandomGridStrategy(runs=50)
    history = run_search(search, space, basin(space))
    found, losses = search.conclude(space, history), [r.objective for r in history.results]
    assert found.runs == len(losses) == search.plan(space)[0].trials == 50
    assert found.objective == min(losses)


def test_a_best_point_at_the_end_of_its_grid_is_said(golden: Golden) -> None:
    space = {"eta": Axis(low=0, high=4), "alpha": Axis(low=1, high=1)}
    search = RandomGridStrategy(runs=5)
    history = run_search(search, space, basin(space, at={"eta": 9}))
    (note,) = search.conclude(space, history).notes
    assert note.startswith("eta: ")
    golden.says(note)


@pytest.mark.parametrize(("wrong", "key"), [({"runs": 0}, "runs"), ({"step": 0.0}, "step")])
def test_an_empty_search_is_refused(wrong: dict[str, float], key: str) -> None:
    with raises_config_error(key):
        RandomGridStrategy(**wrong)  # type: ignore[arg-type]
