"""Samplers of Optuna's as strategies: asked in batches, and the same again when resumed."""

import math
import random
from typing import Any

import numpy as np
import optuna
import pytest

from sweeper import registry
from sweeper.search.optuna import sampling as module
from sweeper.search.optuna.sampling import TPE, OptunaSearch
from sweeper.search.strategy import History
from sweeper.trial import Axis
from tests.refusals import raises_config_error
from tests.search.fakes import basin, cliff, resume, run_search
from tests.search.test_enqueue import CHOICES, SPACE

SAMPLERS: dict[str, dict[str, Any]] = {
    "CmaEsSampler": {"popsize": 6},
    "NSGAIISampler": {"population_size": 6},
    "QMCSampler": {},
    "RandomSampler": {},
    "TPESampler": {"multivariate": True, "group": True},
    "GridSampler": {},
}


def search(name: str, **settings: Any) -> OptunaSearch:
    sampler = {"_target_": f"optuna.samplers.{name}", **SAMPLERS.get(name, {})}
    return OptunaSearch(sampler=sampler, **{"runs": 24, "batch": 6, **settings})


def ran(history: History) -> list[dict[str, float]]:
    return [dict(result.trial.log2_hps) for result in history.results]


@pytest.mark.parametrize("name", SAMPLERS)
def test_any_part_of_the_results_resumes_to_the_same_search(name: str) -> None:
    """Samplers keep a state, such as the covariance of CMA-ES: it is asked and told again."""
    space, loss = CHOICES, cliff(basin(CHOICES, spread=0.02), -6.5)
    whole = run_search(search(name), space, loss)
    assert len(whole.results) > 10
    for kept in (1, 9, len(whole.results)):
        known = {result.key: result for result in whole.results[:kept]}
        resumed, _ = resume(search(name), space, loss, known)
        assert ran(resumed) == ran(whole)
    again = search(name)
    for kept in (18, 6, 12):  # as nobody asks: back and forth
        history = History(whole.results[:kept])
        assert again.propose(space, history) == search(name).propose(space, history)


def test_what_is_asked_for_twice_is_run_once() -> None:
    space = {"kind": CHOICES["kind"], "eta": Axis(low=1, high=1)}
    for name in ("RandomSampler", "TPESampler", "GridSampler"):
        history = run_search(search(name), space, basin(space))
        assert 0 < len(history.results) == len({str(each) for each in ran(history)}) <= 3


def test_no_random_state_is_left_behind_nor_optuna_s_verbosity_changed() -> None:
    level = optuna.logging.get_verbosity()
    before, state = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    for name in SAMPLERS:
        search(name).propose(SPACE, History())
    assert random.getstate() == before
    assert np.random.get_state()[1].tolist() == state  # type: ignore[index,union-attr]
    assert optuna.logging.get_verbosity() == level


def test_tpe_asks_for_the_points_that_it_always_asked_for() -> None:
    points = ran(run_search(TPE(runs=14, batch=12, seed=3), SPACE, basin(SPACE)))
    assert list(points[0].values()) == pytest.approx([-7.0863263, -9.589339e-05, -0.5447594])
    assert list(points[13].values()) == pytest.approx([-8.3331963, 2.3097461, -1.7113293])


def test_tpe_asks_in_batches_and_beats_its_own_random_beginning() -> None:
    strategy = TPE(runs=38, batch=10, seed=1)
    history = run_search(strategy, SPACE, cliff(basin(SPACE), -6.5))
    losses = [result.objective for result in history.results]
    assert len(losses) == strategy.plan(SPACE)[0].trials == 38
    assert all(a.low <= point[n] <= a.high for point in ran(history) for n, a in SPACE.items())
    assert len(strategy.propose(SPACE, History(history.results[:30]))) == 8
    assert sum(map(math.isinf, losses[20:])) < 5
    found = strategy.conclude(SPACE, history)
    assert found.objective == min(losses) and found.runs == 38


def test_axes_that_are_not_searched_keep_their_default() -> None:
    space = {**SPACE, "eta": Axis(low=-1, high=3, default=9)}
    points = TPE(axes=("alpha",)).propose(space, History())
    assert {point.log2_hps["eta"] for point in points} == {9}


@pytest.mark.parametrize(
    ("wrong", "key"), [({"runs": 0}, "runs"), ({"batch": 0}, "batch"), ({"axes": ("x",)}, "axes")]
)
def test_an_empty_search_is_refused(wrong: dict[str, Any], key: str) -> None:
    with raises_config_error(key):
        TPE(**wrong).plan(SPACE)


@pytest.mark.parametrize(
    ("sampler", "key"),
    [
        ({"_target_": "os.system"}, "sampler._target_"),
        ({"_target_": "optuna.samplers.NoSuchSampler"}, "sampler._target_"),
        ({}, "sampler._target_"),
        ({"_target_": "optuna.samplers.CmaEsSampler", "seed": 3}, "sampler.seed"),
        ({"_target_": "optuna.samplers.CmaEsSampler", "popsiz": 3}, "sampler.popsiz"),
        ({"_target_": "optuna.samplers.BaseSampler"}, "sampler._target_"),
        ({"_target_": "optuna.samplers.BruteForceSampler"}, "sampler._target_"),
        ({"_target_": "optuna.samplers.NSGAIISampler", "population_size": 1}, "sampler._target_"),
    ],
)
def test_what_is_no_sampler_is_refused_by_its_key(sampler: dict[str, Any], key: str) -> None:
    with raises_config_error(key):
        OptunaSearch(sampler=sampler).plan(SPACE)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with raises_config_error("sampler._target_") as caught:
        search("CmaEsSampler").plan(SPACE)
    assert "cmaes" in caught.value.allowed


def test_optunas_own_samplers_need_no_trust_and_other_code_does() -> None:
    own = "optuna.samplers.CmaEsSampler"
    with registry.only_named():
        assert registry.is_shipped(own)
        search("CmaEsSampler").plan(SPACE)
        for target in ("optuna.samplers.nsgaii.SBXCrossover", "mine.MySampler", f"{own}.x"):
            assert not registry.is_shipped(target)
            with raises_config_error("sampler._target_", target):
                OptunaSearch(sampler={"_target_": target}).plan(SPACE)


def test_samplers_may_hold_samplers() -> None:
    inner = {"_target_": "optuna.samplers.RandomSampler", "seed": 5}
    sampler = {"_target_": "optuna.samplers.CmaEsSampler", "independent_sampler": inner}
    points = OptunaSearch(sampler=sampler).propose(CHOICES, History())
    assert len(points) == 10
