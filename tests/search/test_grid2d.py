"""The (learning rate, weight decay) grid and its neighbour test."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.errors import ConfigError
from sweeper.registry import build_plugin
from sweeper.search.grids import NEIGHBOURS, Grid2DStrategy
from sweeper.search.strategy import History
from sweeper.trial import Axis, Result, Space, Trial
from tests.golden import Golden
from tests.specs import spec_of

SPACE: Space = {
    "eta": Axis(low=-5, high=4, default=-1),
    "weight_decay": Axis(low=-4, high=4, default=0),
    "gamma_hidden": Axis(low=-3, high=3, default=0),
}
Loss = Callable[[float, float], float]


def search(strategy: Grid2DStrategy, loss: Loss, space: Space = SPACE) -> History:
    history = History()
    while points := strategy.propose(space, history):
        assert len({p.id for p in points}) == len(points)
        for point in points:
            assert point not in history
            value = loss(point.log2_hps["eta"], point.log2_hps["weight_decay"]) + 0.01 * point.seed
            one = Trial(spec=spec_of(), log2_hps=point.log2_hps, seed=point.seed, phase=point.phase)
            history.add(Result(trial=one, status="complete", objective=value))
    return history


def bowl(eta: float, decay: float) -> Loss:
    """Narrow along lr x wd, wide across: where the diagonal neighbours matter."""
    return lambda x, y: 3 + (x + y - eta - decay) ** 2 + 0.25 * (x - y - eta + decay) ** 2


@given(st.integers(-56, 48), st.integers(-48, 48), st.sampled_from([1, 2]))
@settings(max_examples=60, deadline=None)
def test_no_neighbour_of_the_point_it_ends_at_is_better(eta: int, decay: int, seeds: int) -> None:
    """Optima are in eighths, so that equal losses are exactly equal; all lie in the extension."""
    strategy, loss = Grid2DStrategy(seeds=seeds), bowl(eta / 8, decay / 8)
    history = search(strategy, loss)
    found = strategy.conclude(SPACE, history)
    x, y = found.best_log2["eta"], found.best_log2["weight_decay"]
    around = min(loss(x + dx, y + dy) for dx, dy in NEIGHBOURS)
    assert around >= loss(x, y)
    verdict = "accepted" if around > loss(x, y) else "not accepted"
    assert found.notes[0].startswith(verdict)
    assert found.best_log2["gamma_hidden"] == 0
    assert found.objective == pytest.approx(loss(x, y) + 0.01 * (seeds - 1) / 2)
    assert found.runs == len(history.results)


def test_the_neighbours_are_the_paper_s_six() -> None:
    """Around a point of the grid that is the best: a factor of 2 in one, or in both against it."""
    history = search(Grid2DStrategy(), bowl(-1, 0))
    moves = {
        (2 ** (r.trial.log2_hps["eta"] + 1), 2 ** r.trial.log2_hps["weight_decay"])
        for r in history.results
        if r.trial.phase == "neighbours"
    }
    assert moves == {(2, 1), (1, 2), (0.5, 1), (1, 0.5), (2, 0.5), (0.5, 2)}


def test_a_diagonal_neighbour_alone_moves_the_point() -> None:
    """lr 2 with wd/2 is better than the four on the axes: the walk takes it."""

    def ridge(x: float, y: float) -> float:
        return 10 * abs(x + y) + abs(x - 3)

    found = Grid2DStrategy(step=9.0).conclude(SPACE, search(Grid2DStrategy(step=9.0), ridge))
    assert (found.best_log2["eta"], found.best_log2["weight_decay"]) == (3, -3)
    assert found.notes[0].startswith("accepted")


def test_a_plateau_is_not_accepted_and_ends() -> None:
    history = search(Grid2DStrategy(), lambda x, y: 1.0)
    assert Grid2DStrategy().conclude(SPACE, history).notes[0].startswith("not accepted")


def test_an_optimum_at_the_end_of_the_extension_is_not_accepted() -> None:
    history = search(Grid2DStrategy(extend=1), lambda x, y: -x + y * y)
    found = Grid2DStrategy(extend=1).conclude(SPACE, history)
    assert found.best_log2["eta"] == 5 and found.notes[0].startswith("not accepted")


def test_all_diverged(golden: Golden) -> None:
    history = search(Grid2DStrategy(), lambda x, y: math.inf)
    found = Grid2DStrategy().conclude(SPACE, history)
    assert found.objective == math.inf
    golden.says(found.notes[0])


def test_the_plan_counts_the_grid() -> None:
    grid, neighbours = Grid2DStrategy(seeds=2).plan(SPACE)
    assert (grid.trials, neighbours.trials) == (5 * 5 * 2, 12)


def test_a_space_without_weight_decay_is_told_how_to_get_it() -> None:
    with pytest.raises(ConfigError) as caught:
        Grid2DStrategy().plan({"eta": SPACE["eta"]})
    assert (caught.value.key, caught.value.value) == ("axes", ["eta", "weight_decay"])


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"axes": ("eta",)}, "axes"),
        ({"axes": ("eta", "eta")}, "axes"),
        ({"step": 0.5}, "step"),
        ({"extend": -1}, "extend"),
        ({"seeds": 0}, "seeds"),
    ],
)
def test_impossible_values_are_refused(fields: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Grid2DStrategy(**fields)  # type: ignore[arg-type]
    assert caught.value.key == key


def test_the_config_is_the_class_s_own() -> None:
    path = Path(__file__).parents[2] / "conf" / "search" / "grid2d.yaml"
    assert build_plugin(yaml.safe_load(path.read_text())) == Grid2DStrategy()
