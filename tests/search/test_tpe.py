from __future__ import annotations

import math
import random

import optuna
import pytest

from sweeper.errors import ConfigError
from sweeper.search.optuna.sampling import TPE
from sweeper.search.strategy import History
from sweeper.trial import Axis
from tests.search.fakes import basin, cliff, point_result, run_search

SPACE = {"alpha": Axis(low=-2, high=2), "eta": Axis(low=-1, high=3, default=1)}


def test_asks_in_batches_and_stays_in_the_ranges() -> None:
    search = TPE(runs=12, batch=5)
    history = run_search(search, SPACE, basin(SPACE))
    assert len(history.results) == search.plan(SPACE)[0].trials == 12
    for result in history.results:
        assert all(a.low <= result.trial.log2_hps[n] <= a.high for n, a in SPACE.items())
    assert len(search.propose(SPACE, History(history.results[:10]))) == 2


def test_beats_its_own_random_beginning() -> None:
    search = TPE(runs=40, batch=10, seed=1)
    history = run_search(search, SPACE, basin(SPACE))
    losses = [r.objective for r in history.results]
    assert sum(losses[20:]) / 20 < sum(losses[:10]) / 10
    found = search.conclude(SPACE, history)
    assert found.objective == min(losses) < 3.05 and found.best_loss_curve[-1] == (40, min(losses))


def test_is_the_same_again_and_leaves_no_random_state_behind() -> None:
    history = run_search(TPE(runs=12), SPACE, basin(SPACE))
    half = History(history.results[:10])
    before = random.getstate()
    assert TPE(runs=12).propose(SPACE, half) == TPE(runs=12).propose(SPACE, half)
    assert random.getstate() == before
    assert TPE(runs=12).propose(SPACE, half) != TPE(runs=12, seed=1).propose(SPACE, half)


def test_leaves_optunas_verbosity_as_it_was() -> None:
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.INFO)
    try:
        TPE(runs=2).propose(SPACE, History())
        assert optuna.logging.get_verbosity() == optuna.logging.INFO
    finally:
        optuna.logging.set_verbosity(level)


def test_shuns_where_trials_diverge() -> None:
    search = TPE(runs=40)
    history = run_search(search, SPACE, cliff(basin(SPACE), 1.5))
    late = [r.objective for r in history.results[20:]]
    assert sum(map(math.isinf, late)) < 5
    assert math.isfinite(search.conclude(SPACE, history).objective)


@pytest.mark.parametrize("loss", [math.inf, math.nan])
def test_goes_on_when_nothing_is_finite(loss: float) -> None:
    search = TPE(runs=25)
    history = run_search(search, SPACE, lambda hps, seed: loss)
    assert len(history.results) == 25
    assert search.conclude(SPACE, history).objective == math.inf


def test_a_space_of_one_point_is_trained_once() -> None:
    space = {"eta": Axis(low=1, high=1)}
    search = TPE(runs=20)
    history = run_search(search, space, basin(space))
    assert [r.trial.log2_hps for r in history.results] == [{"eta": 1}]


def test_axes_that_are_not_searched_keep_their_default() -> None:
    space = {**SPACE, "eta": Axis(low=-1, high=3, default=9)}
    points = TPE(axes=("alpha",)).propose(space, History())
    assert {point.log2_hps["eta"] for point in points} == {9}
    history = History([point_result(point, 1.0) for point in points])
    assert len(TPE(axes=("alpha",)).propose(space, history)) == 10


def test_an_empty_search_is_refused() -> None:
    for key in ("runs", "batch"):
        with pytest.raises(ConfigError) as caught:
            TPE(**{key: 0})
        assert (caught.value.key, caught.value.value) == (key, 0)
    with pytest.raises(ConfigError) as caught:
        TPE(axes=("gamma",)).plan(SPACE)
    assert (caught.value.key, caught.value.value) == ("axes", "gamma")
