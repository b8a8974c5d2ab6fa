"""The loss that is told of a search is that of runs which nothing was chosen by."""

import math
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
from scipy.stats import sem

from sweeper.registry import build_plugin
from sweeper.search.fresh import FINAL, FINAL_SEED, FreshSeeds, final_accuracy
from sweeper.search.line_search import LearningRateLine
from sweeper.search.strategy import Conclusion, History, Strategy
from sweeper.trial import Axis, Result, Space, Trial
from tests.engine.tiny_trials import trial as tiny_trial
from tests.search.fakes import CONF, Objective, basin, config, noise, run_search

SPACE: Space = {
    "eta": Axis(low=-3, high=3),
    "b": Axis(low=-2, high=2),
    "weight_decay": Axis(low=-2, high=2),
}
SMALLER: dict[str, dict[str, Any]] = {
    "independent": {"runs": 30, "seeds": 2, "combine_seeds": 2},
    "tpe": {"runs": 12, "batch": 6},
}
"""So that many are quick; a strategy that is not here is as large as its config."""


def searched(strategy: Strategy, objective: Objective) -> Conclusion:
    return strategy.conclude(SPACE, run_search(strategy, SPACE, objective))


@pytest.mark.parametrize("name", ["lr", "tpe", "independent"])
def test_fresh_seeds_come_last_and_change_nothing_before(name: str) -> None:
    settings = config(CONF / f"search/{name}.yaml") | SMALLER.get(name, {})
    plugin, objective = build_plugin(settings), basin(SPACE, spread=0.02)
    strategy = FreshSeeds(strategy=plugin, seeds=4)
    history = run_search(strategy, SPACE, objective)
    before = run_search(plugin, SPACE, objective)
    assert [r.key for r in history.results[:-4]] == [r.key for r in before.results]
    final = history.results[-4:]
    seeds = [r.trial.seed for r in final]
    assert seeds == [*range(FINAL_SEED, FINAL_SEED + 4)]
    assert {r.trial.phase for r in final} == {FINAL}
    without, found = plugin.conclude(SPACE, before), strategy.conclude(SPACE, history)
    assert {r.trial.log2_hps["eta"] for r in final} == {found.best_log2["eta"]}
    assert found.best_log2 == without.best_log2 and found.lines == without.lines
    assert found.selected_objective == without.objective and found.runs == without.runs + 4
    losses = [r.objective for r in final]
    assert found.objective == pytest.approx(fmean(losses))
    assert found.error == pytest.approx(sem(losses)) and found.fresh_seeds == found.seeds == 4
    assert strategy.plan(SPACE)[-1].trials == 4 and len(strategy.plan(SPACE)) > 1


def test_without_fresh_seeds_it_says_that_it_is_the_best_of_many() -> None:
    objective = basin(SPACE, spread=0.02)
    found = searched(FreshSeeds(strategy=LearningRateLine(), seeds=0), objective)
    assert found.basis == f"one seed, the best of {found.runs} trials: biased low"
    assert found.fresh_seeds == 0 and found.objective == found.selected_objective
    strategy = FreshSeeds(strategy=LearningRateLine())
    history = run_search(strategy, SPACE, objective)
    assert strategy.conclude(SPACE, History(history.results[:-2])).basis == "one fresh seed"
    found = strategy.conclude(SPACE, history)
    assert found.basis == f"mean of 3 fresh seeds, standard error {found.error:.4f}"


def test_fresh_seeds_of_a_command_that_takes_none_are_told() -> None:
    strategy = FreshSeeds(strategy=LearningRateLine(), of_command=True)
    for spread, told in ((0.0, True), (0.02, False)):
        found = searched(strategy, basin(SPACE, spread=spread))
        assert ("all 3 fresh seeds have the same loss" in " ".join(found.notes)) is told


@pytest.mark.parametrize("lost", [math.inf, math.nan])
def test_fresh_seeds_that_diverge_or_fail_are_told(lost: float) -> None:
    middle = basin(SPACE)
    strategy = FreshSeeds(strategy=LearningRateLine())

    def losing(seeds: int) -> Objective:
        lose = range(FINAL_SEED, FINAL_SEED + seeds)
        return lambda hps, seed: lost if seed in lose else middle(hps, seed)

    found = searched(strategy, losing(1))
    assert found.seeds == found.fresh_seeds == 2 and math.isfinite(found.objective)
    assert found.notes[-1].startswith("1 of 3 fresh seeds of the best configuration diverged")
    found = searched(strategy, losing(3))
    assert found.fresh_seeds == 0 and found.objective == found.selected_objective
    assert found.notes[-1].startswith("3 of 3 fresh seeds")


def test_the_accuracy_is_that_of_fresh_seeds() -> None:
    def ended(trial: Trial, accuracy: float | None, phase: str, seed: int) -> Result:
        made = replace(trial, phase=phase, seed=seed)
        return Result(status="complete", objective=1.0, accuracy=accuracy, trial=made)

    first, second = tiny_trial("mup"), tiny_trial("mup", eta=-6.0)
    results = [
        ended(second, 0.99, "eta", 0),
        ended(second, 0.5, FINAL, FINAL_SEED),
        ended(second, 0.7, FINAL, FINAL_SEED + 1),
    ]
    assert final_accuracy(results) == (pytest.approx(0.6), 2)
    assert final_accuracy(results[:1]) is None
    assert final_accuracy([ended(first, None, FINAL, FINAL_SEED)]) is None


@pytest.mark.parametrize(
    ("objective", "trials"),
    [
        (lambda hps, seed: 2.5 + 1e-5 * hps["eta"], 7),  # one rate, whatever eta is
        (lambda hps, seed: 2.5 + 0.02 * noise(hps, seed), 10),  # without {eta} and {seed}
        (lambda hps, seed: 2.5 + 0.003 * hps["eta"] ** 2 + 0.002 * noise(hps, seed), 0),
        (lambda hps, seed: math.inf if hps["eta"] > -2 else 2.5 + 0.01 * hps["eta"], 0),
    ],
)
def test_a_command_whose_losses_do_not_depend_on_eta_has_no_answer(
    objective: Objective, trials: int
) -> None:
    line = LearningRateLine()
    strategy = FreshSeeds(strategy=line, of_command=True)
    history = run_search(strategy, SPACE, objective)
    found = strategy.conclude(SPACE, history)
    assert math.isfinite(found.objective) is (trials == 0) is not bool(found.untrained)
    if trials:
        assert len(history.results) == trials and "from 2^-3 to 2^3" in found.untrained
        assert math.isfinite(FreshSeeds(strategy=line).conclude(SPACE, history).objective)
    # Where all values differ at once only losses that are all alike tell.
    drawn = FreshSeeds(strategy=build_plugin(config(CONF / "search/random.yaml")), of_command=True)
    found = drawn.conclude(SPACE, run_search(drawn, SPACE, objective))
    assert bool(found.untrained) is (trials == 7)
