"""Grids over pairs, and the u-muP paper's transfer error, on surfaces whose answer is known."""

import math
from itertools import product
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna import create_study
from optuna.distributions import IntDistribution
from optuna.samplers import RandomSampler

from sweeper.search.grids import PairsStrategy, row_optima, transfer_error
from sweeper.search.random_grid import RandomGridStrategy
from sweeper.search.strategy import Conclusion, History
from sweeper.trial import Axis, Log2Hps, Space
from tests.golden import Golden
from tests.refusals import raises_config_error
from tests.search.fakes import basin, run_search, space_of

SPACE: Space = {
    "alpha": Axis(low=-2, high=2),
    "eta": Axis(low=-8, high=0, default=-6),
    "beta": Axis(low=-1, high=4, default=1),
    "fixed": Axis(low=0, high=0),
}


def sheared(hps: Log2Hps, seed: int) -> float:
    """eta and alpha are coupled; beta is not; eta's own optimum is -3."""
    coupled = hps["eta"] + 3 + hps["alpha"]
    return 3 + coupled**2 + hps["alpha"] ** 2 + (hps["beta"] - 2) ** 2 + 0.01 * seed


def conclude(strategy: PairsStrategy, loss: Any = sheared) -> Conclusion:
    return strategy.conclude(SPACE, run_search(strategy, SPACE, loss))


def errors(found: Conclusion) -> dict[tuple[str, str], float]:
    return {grid.names: grid.transfer_error for grid in found.pairs}


def test_every_pair_around_the_eta_found(golden: Golden) -> None:
    found = conclude(PairsStrategy())
    assert found.lines[0].optimum_log2 == -3
    assert list(errors(found)) == [("eta", "alpha"), ("eta", "beta"), ("alpha", "beta")]
    assert [grid.values_log2 for grid in found.pairs] == [
        ((-5, -4, -3, -2, -1), (-2, -1, 0, 1, 2)),
        ((-5, -4, -3, -2, -1), (-1, 0, 1, 2, 3)),
        ((-2, -1, 0, 1, 2), (-1, 0, 1, 2, 3)),
    ]
    told = errors(found)
    assert told["eta", "beta"] == told["alpha", "beta"] == 0
    assert told["eta", "alpha"] > 0.5
    mean = told["eta", "alpha"] / 3
    assert f"transfer error {mean:.4f} nats, the mean over 3 pairs" in found.notes[0]
    golden.says(found.notes[0])
    assert found.best_log2 == {"alpha": 0, "eta": -3, "beta": 2, "fixed": 0}
    assert found.objective == 3


def test_without_a_step_the_grids_span_the_ranges() -> None:
    """That of eta is moved to its optimum, which is -3: half of 8 to either side."""
    found = conclude(PairsStrategy(step=None))
    assert [grid.values_log2 for grid in found.pairs] == [
        ((-7, -5, -3, -1, 1), (-2, -1, 0, 1, 2)),
        ((-7, -5, -3, -1, 1), (-1, 0.25, 1.5, 2.75, 4)),
        ((-2, -1, 0, 1, 2), (-1, 0.25, 1.5, 2.75, 4)),
    ]
    fixed = PairsStrategy(step=None, points=3, pairs=(("eta", "fixed"),), eta=None)
    assert conclude(fixed).pairs[0].values_log2 == ((-8, -4, 0), (0,))


def test_a_grid_holds_the_losses_of_its_cells() -> None:
    grid = conclude(PairsStrategy(pairs=(("alpha", "beta"),), eta=None, seeds=2)).pairs[0]
    for i, alpha in enumerate(grid.values_log2[0]):
        for j, beta in enumerate(grid.values_log2[1]):
            hps = {"eta": -6.0, "alpha": alpha, "beta": beta, "fixed": 0.0}
            mean = (sheared(hps, 0) + sheared(hps, 1)) / 2
            assert grid.losses[i][j] == pytest.approx(mean)


def test_grids_share_points_and_the_line() -> None:
    """75 cells: the centre is in all three grids; its row and column in two of them, and the
    line over eta holds eta's."""
    history = run_search(PairsStrategy(), SPACE, sheared)
    phases = [result.trial.phase for result in history.results]
    # The line has 9 points; grids: 3 x 16 off the cross, 4 for each arm, the centre, less eta's.
    assert phases.count("eta") == 9 and phases.count("grids") == 48 + 4 + 4
    assert [phase.trials for phase in PairsStrategy().plan(SPACE)] == [9, 61]


def test_eta_alone_and_a_list() -> None:
    assert list(errors(conclude(PairsStrategy(pairs="eta")))) == [("eta", "alpha"), ("eta", "beta")]
    listed = PairsStrategy(pairs=(("beta", "alpha"),))
    assert list(errors(conclude(listed))) == [("beta", "alpha")]
    assert list(errors(conclude(PairsStrategy(axes=("alpha", "eta"))))) == [("eta", "alpha")]


def test_divergence_ends_the_search_after_the_line(golden: Golden) -> None:
    history = run_search(PairsStrategy(), SPACE, lambda hps, seed: math.inf)
    found = PairsStrategy().conclude(SPACE, history)
    assert found.pairs == () and {r.trial.phase for r in history.results} == {"eta"}
    golden.says(found.notes[-1])


def test_what_makes_the_measure_doubtful_is_told() -> None:
    def edge(hps: Log2Hps, seed: int) -> float:
        return math.inf if hps["eta"] > -2 else 3 - hps["alpha"] + (hps["eta"] + 3) ** 2

    notes = conclude(PairsStrategy(pairs=(("eta", "alpha"),)), edge).notes
    assert notes[1].startswith("5 of 25 points of the grids diverged")


@pytest.mark.parametrize(
    ("fields", "key", "value"),
    [
        ({"points": 1}, "points", 1),
        ({"seeds": 0}, "seeds", 0),
        ({"step": 0.0}, "step", 0.0),
        *(({"pairs": pairs}, "pairs", ANY) for pairs in ((), (("eta",),), (("eta", "eta"),))),
        ({"pairs": (("eta", "alpa"),)}, "pairs", "alpa"),
        # A choice without any pair.
        ({"axes": ("eta",)}, "axes", ["eta"]),
        ({"pairs": "eta", "axes": ("alpha", "beta")}, "axes", ["alpha", "beta"]),
    ],
)
def test_what_gives_no_grid_is_refused(fields: dict[str, Any], key: str, value: object) -> None:
    with raises_config_error(key, value):
        PairsStrategy(**fields).plan(SPACE)


INF = math.inf


@pytest.mark.parametrize(
    ("losses", "error"),
    [
        # (x + y)^2 on -1, 0, 1: rows have their optima at y = 1, 0, -1, all of loss 0. Of the six
        # ordered pairs of rows four are off by 1, two by 2: (4 x 1 + 2 x 4) / 6; so are columns.
        ([[4.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 4.0]], 2.0),
        # Rows: off by 3 and 1, mean 2. Columns: both optima in row 0, nothing.
        ([[0.0, 1.0], [5.0, 2.0]], (2 + 0) / 2),
        # What diverged counts as the largest finite loss. Rows: 5 and 3; columns: 3 and 5.
        ([[0.0, INF], [5.0, 2.0]], ((5 - 0) + (5 - 2)) / 2),
        # Nothing can be told of one row or column.
        ([[INF, INF], [INF, INF]], math.nan),
        ([[1.0, 2.0], [INF, INF]], math.nan),
        ([[1.0, INF], [2.0, INF]], math.nan),
    ],
)
def test_grids_by_hand(losses: list[list[float]], error: float) -> None:
    assert transfer_error(losses) == pytest.approx(error, nan_ok=True)


def test_optima_of_rows() -> None:
    rows = [[3.0, 1.0, 2.0], [1.0, 1.0, 1.0], [math.inf] * 3, [math.inf, math.inf, 9.0]]
    assert row_optima((-2.0, 0.0, 2.0), rows) == [0.0, 0.0, None, 2.0]


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
    space = {name: Axis(low=-3, high=3) for name in ("alpha", "eta", "beta")}
    points = RandomGridStrategy(runs=3).propose(space, History())
    drawn = [list(point.log2_hps.values()) for point in points]
    assert drawn == [[3, -2, -2], [2, 2, -2], [1, -1, 3]]
    large = {name: Axis(low=-3, high=3) for name in "abcde"}  # more than is listed
    points = RandomGridStrategy(runs=3).propose(large, History())
    drawn = [list(point.log2_hps.values()) for point in points]
    assert drawn == [[0, 2, 1, 0, -1], [1, 0, 3, 3, -1], [2, 0, 0, 3, -3]]


def test_of_a_large_grid_optuna_s_random_points_are_drawn_in_their_order() -> None:
    space = {
        name: Axis(low=0, high=high) for name, high in zip("abcd", (59, 0, 3, 59), strict=True)
    }
    study = create_study(sampler=RandomSampler(seed=3))
    ranges = {name: IntDistribution(int(a.low), int(a.high)) for name, a in space.items()}
    asked = dict.fromkeys(tuple(study.ask({**ranges}).params.values()) for _ in range(2000))
    assert len(asked) < 2000  # some come twice
    points = RandomGridStrategy(runs=len(asked), seed=3).propose(space, History())
    assert [tuple(point.log2_hps.values()) for point in points] == list(asked)


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
