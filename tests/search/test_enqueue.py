"""In anybody's Optuna study strategies do what `sweeper search` does, point for point."""

import math
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from sweeper.errors import BadInput
from sweeper.search.fresh import FreshSeeds, Settled
from sweeper.search.grids import PairsStrategy
from sweeper.search.independent import IndependentSearch
from sweeper.search.line_search import LearningRateLine
from sweeper.search.optuna.enqueue import conclude, enqueue
from sweeper.search.optuna.mapping import read_space
from sweeper.search.random_grid import RandomGridStrategy
from sweeper.search.strategy import Strategy
from sweeper.trial import Axis, Log2Hps, Space
from tests.refusals import raises_config_error
from tests.scripts import load_script
from tests.search.fakes import Objective, basin, run_search

SPACE: Space = {
    "eta": Axis(low=-12, high=-5, default=-8),
    "alpha": Axis(low=-3, high=3),
    "beta": Axis(low=-2, high=2),
}
CHOICES: Space = {"eta": SPACE["eta"], "kind": Axis(low=0, high=2, choices=("a", "b", "c"))}


Ran = list[tuple[tuple[float, ...], int]]
"""Points, to nine digits, and their seeds."""


def objective_of(loss: Objective, space: Space, ran: Ran, sign: int = 1) -> Any:
    def suggested(trial: optuna.Trial, name: str, axis: Axis) -> float:
        if axis.choices:
            return axis.place(trial.suggest_categorical(name, axis.choices))
        return round(math.log2(trial.suggest_float(name, 2.0**-20, 2.0**12, log=True)), 9)

    def objective(trial: optuna.Trial) -> float:
        log2 = Log2Hps({name: suggested(trial, name, axis) for name, axis in space.items()})
        seed = trial.user_attrs["seed"]
        ran.append((tuple(log2.values()), seed))
        return sign * loss(log2, seed)

    return objective


def optimize(study: optuna.Study, strategy: Strategy, space: Any, objective: Any) -> None:
    while waiting := enqueue(study, strategy, space):
        study.optimize(objective, n_trials=waiting)


@pytest.mark.parametrize(
    ("strategy", "space", "kind"),
    [
        (IndependentSearch(runs=40), SPACE, "basin"),
        (IndependentSearch(runs=12), CHOICES, "failing"),
        (LearningRateLine(until="settled"), SPACE, "past the ends"),
        (RandomGridStrategy(runs=30), SPACE, "basin"),
        (PairsStrategy(points=3), SPACE, "failing"),
    ],
)
def test_a_strategy_runs_the_points_of_the_search_in_its_order(
    strategy: Any, space: Space, kind: str
) -> None:
    bowl = basin(space, spread=0.02)
    loss = {
        "basin": bowl,
        "past the ends": basin(space, at={"eta": 9.0}, spread=0.02),
        "failing": lambda hps, seed: math.nan if hps["eta"] == -9 else bowl(hps, seed),
    }[kind]
    until = getattr(strategy, "until", None)
    inner = Settled(strategy=strategy) if until == "settled" else strategy
    whole = FreshSeeds(strategy=inner)
    history = run_search(whole, space, loss)
    study, ran = optuna.create_study(), Ran()
    optimize(study, strategy, space, objective_of(loss, space, ran))
    trials = [result.trial for result in history.results]
    assert ran == [(tuple(round(v, 9) for v in t.log2_hps.values()), t.seed) for t in trials]
    assert len(study.trials) == len(ran) > 10
    assert repr(conclude(study, strategy, space)) == repr(whole.conclude(space, history))
    assert {trial.user_attrs["phase"] for trial in study.trials} == {t.phase for t in trials}


def test_a_search_goes_on_from_its_storage() -> None:
    loss, storage = basin(SPACE, spread=0.02), optuna.storages.InMemoryStorage()
    strategy, whole, ran = LearningRateLine(), Ran(), Ran()
    optimize(optuna.create_study(), strategy, SPACE, objective_of(loss, SPACE, whole))
    study = optuna.create_study(storage=storage, study_name="a")
    assert enqueue(study, strategy, SPACE) == enqueue(study, strategy, SPACE) > 2
    study.optimize(objective_of(loss, SPACE, ran), n_trials=2)
    study.ask()  # killed while it ran
    again = optuna.load_study(storage=storage, study_name="a")
    optimize(again, strategy, SPACE, objective_of(loss, SPACE, ran))
    assert sorted(ran) == sorted(whole)


def test_a_pruned_trial_is_never_chosen_and_other_trials_change_nothing() -> None:
    loss, ran = basin(SPACE, spread=0.02), Ran()
    inner = objective_of(loss, SPACE, ran)

    def objective(trial: optuna.Trial) -> float:
        value: float = inner(trial)
        if trial.params["eta"] > 2**-8:
            trial.report(0.0, 1)
            raise optuna.TrialPruned
        return value

    study = optuna.create_study()
    study.add_trial(optuna.trial.create_trial(value=-9.0))
    optimize(study, LearningRateLine(), SPACE, objective)
    assert conclude(study, LearningRateLine(), SPACE).best_log2["eta"] <= -8


def test_a_study_may_maximize_and_take_whole_numbers() -> None:
    space = {"eta": FloatDistribution(2**-12, 2**-5, log=True), "n": IntDistribution(1, 64, True)}
    axes, ran = read_space(space), Ran()
    bowl = basin(axes)
    study = optuna.create_study(direction="maximize")

    def objective(trial: optuna.Trial) -> float:
        eta, n = trial.suggest_float("eta", 1e-9, 1, log=True), trial.suggest_int("n", 1, 64)
        log2 = Log2Hps({"eta": math.log2(eta), "n": math.log2(n)})
        ran.append((tuple(log2.values()), 0))
        return -bowl(log2, 0)

    optimize(study, IndependentSearch(runs=20), space, objective)
    found = conclude(study, IndependentSearch(runs=20), space)
    assert found.objective == pytest.approx(min(-trial.value for trial in study.trials), abs=0.1)


def test_spaces_are_distributions_of_optunas() -> None:
    read = read_space(
        {
            "eta": FloatDistribution(2**-12, 2**-5, log=True),
            "n": IntDistribution(1, 64, log=True),
            "kind": CategoricalDistribution(("a", "b")),
            "own": SPACE["alpha"],
        }
    )
    assert read == {
        "eta": Axis(low=-12, high=-5, default=-9),
        "n": Axis(low=0, high=6, default=3),
        "kind": Axis(low=0, high=1, choices=("a", "b")),
        "own": SPACE["alpha"],
    }


def test_what_no_strategy_can_search_is_refused() -> None:
    with pytest.raises(BadInput, match="several directions"):
        enqueue(optuna.create_study(directions=["minimize"] * 2), LearningRateLine(), SPACE)
    with raises_config_error("space"):
        read_space({})
    for axis in (FloatDistribution(0.1, 1.0), IntDistribution(1, 5), (1.0, 2.0)):
        with raises_config_error("space.eta"):
            read_space({"eta": axis})  # type: ignore[dict-item]
    with pytest.raises(BadInput, match="no trial"):
        conclude(optuna.create_study(), LearningRateLine(), SPACE)


def test_a_sampler_of_the_version_before_says_what_to_do_instead() -> None:
    with pytest.raises(ImportError, match=r"`sweeper\.samplers` was removed: .*enqueue"):
        from sweeper.samplers import IndependentLines  # noqa: F401


def test_the_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["search.py", "--runs", "9"])
    load_script("examples/optuna/search.py").main()
    printed = capsys.readouterr().out
    assert "eta = " in printed and "activation = " in printed and "fresh seeds" in printed
