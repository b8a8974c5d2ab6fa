"""Under plain Optuna strategies do what `sweeper search` does, point for point."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from sweeper.errors import BadInput, ConfigError
from sweeper.samplers import (
    IndependentLines,
    Line,
    Pairs,
    RandomGrid,
    StrategySampler,
    read_space,
)
from sweeper.search.fresh import FreshSeeds
from sweeper.search.grids import PairsStrategy
from sweeper.search.independent import IndependentSearch
from sweeper.search.line import LearningRateLine
from sweeper.search.random_grid import RandomGridStrategy
from sweeper.search.settled import Settled
from sweeper.search.strategy import History, Strategy
from sweeper.stats.line import LineRule
from sweeper.trial import Axis, Log2Hps, Space, defaults
from tests.scripts import load_script
from tests.search.fakes import Objective, basin, cliff, run_search

SPACE: Space = {
    "eta": Axis(low=-12, high=-5, default=-8),
    "alpha": Axis(low=-3, high=3),
    "beta": Axis(low=-2, high=2),
}
CHOICES: Space = {"eta": SPACE["eta"], "kind": Axis(low=0, high=2, choices=("a", "b", "c"))}
Ran = tuple[tuple[float, ...], int]
"""A point, to nine digits, and its seed."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(level)


def place(axis: Axis, value: Any) -> float:
    return axis.place(value) if axis.choices else round(math.log2(value), 9)


def plain(sampler: StrategySampler, loss: Objective, space: Space, ran: list[Ran]) -> Any:
    """An objective of anybody's, which notes the points that it was run at."""

    def objective(trial: optuna.Trial) -> float:
        hps, seed = sampler.suggest(trial), sampler.seed(trial)
        log2 = Log2Hps({name: place(space[name], value) for name, value in hps.items()})
        ran.append((tuple(log2.values()), seed))
        return loss(log2, seed)

    return objective


def searched(history: History) -> list[Ran]:
    """What the search itself ran, in its order."""
    trials = [result.trial for result in history.results]
    return [(tuple(round(v, 9) for v in t.log2_hps.values()), t.seed) for t in trials]


def ours(strategy: Strategy, space: Space, loss: Objective) -> tuple[Strategy, History]:
    whole = FreshSeeds(strategy=strategy)
    return whole, run_search(whole, space, loss)


PAIRS: dict[str, tuple[Callable[..., StrategySampler], Callable[[], Strategy], Space]] = {
    "independent": (
        lambda space: IndependentLines(space, runs=40),
        lambda: IndependentSearch(runs=40),
        SPACE,
    ),
    "choices": (
        lambda space: IndependentLines(space, runs=12),
        lambda: IndependentSearch(runs=12),
        CHOICES,
    ),
    "settled": (
        lambda space: Line(space, until="settled"),
        lambda: Settled(strategy=LearningRateLine()),
        SPACE,
    ),
    "random": (
        lambda space: RandomGrid(space, runs=30),
        lambda: RandomGridStrategy(runs=30),
        SPACE,
    ),
    "line": (Line, LearningRateLine, SPACE),
    "pairs": (lambda space: Pairs(space, points=3), lambda: PairsStrategy(points=3), SPACE),
}


@pytest.mark.parametrize(
    "kind",
    [
        "basin",
        "failing",
        *(pytest.param(k, marks=pytest.mark.long) for k in ("cliff", "past the ends")),
    ],
)
@pytest.mark.parametrize("name", PAIRS)
def test_a_sampler_runs_the_points_of_the_search_in_its_order(name: str, kind: str) -> None:
    make, strategy, space = PAIRS[name]
    bowl = basin(space, spread=0.02)
    loss = {
        "basin": bowl,
        "cliff": cliff(bowl, -8.0),
        "past the ends": basin(space, at={"eta": 9.0}, spread=0.02),
        "failing": lambda hps, seed: math.nan if hps["eta"] == -9 else bowl(hps, seed),
    }[kind]
    whole, history = ours(strategy(), space, loss)
    sampler, ran = make(space), list[Ran]()
    study = optuna.create_study(sampler=sampler)
    study.optimize(plain(sampler, loss, space, ran))
    assert ran == searched(history)
    answer = sampler.answer(study)
    assert repr(answer.conclusion) == repr(whole.conclude(space, history))
    assert answer.finished and sampler.finished(study) and not sampler.missing(study)
    assert len(study.trials) == len(ran) > 10
    assert {n: place(space[n], v) for n, v in answer.params.items()} == pytest.approx(
        answer.conclusion.best_log2
    )


def test_an_objective_with_ranges_and_a_seed_of_its_own_words() -> None:
    """No helper is called: the names alone are the sampler's."""
    loss, ran = basin(SPACE, spread=0.02), list[Ran]()
    sampler = IndependentLines(
        {"lr": (2**-12, 2**-5, 2**-8), "alpha": (0.125, 8, 1), "beta": (0.25, 4, 1)},
        learning_rate="lr",
        runs=40,
    )

    def objective(trial: optuna.Trial) -> float:
        lr = trial.suggest_float("lr", 1e-9, 10, log=True)
        alpha, beta = (trial.suggest_float(n, 1e-3, 1e3, log=True) for n in ("alpha", "beta"))
        seed = trial.suggest_int("seed", 0, 2**31 - 1)
        log2 = [round(math.log2(v), 9) for v in (lr, alpha, beta)]
        ran.append((tuple(log2), seed))
        return loss(Log2Hps(dict(zip(SPACE, log2, strict=True))), seed)

    study = optuna.create_study(sampler=sampler)
    study.optimize(objective)
    _, history = ours(IndependentSearch(runs=40), SPACE, loss)
    assert ran == searched(history)
    assert set(sampler.answer(study).params) == {"lr", "alpha", "beta"}


def test_without_seeds_the_points_are_the_same_and_repeated_as_often() -> None:
    loss, ran = basin(SPACE), list[tuple[float, ...]]()
    sampler = IndependentLines(SPACE, runs=40)

    def objective(trial: optuna.Trial) -> float:
        log2 = {n: round(math.log2(v), 9) for n, v in sampler.suggest(trial).items()}
        ran.append(tuple(log2.values()))
        return loss(Log2Hps(log2), 0)

    study = optuna.create_study(sampler=sampler)
    study.optimize(objective)
    _, history = ours(IndependentSearch(runs=40), SPACE, loss)
    assert ran == [point for point, _ in searched(history)]


@pytest.mark.parametrize("name", ["independent", "pairs", "random"])
def test_several_threads_run_the_same_points(name: str) -> None:
    make, strategy, space = PAIRS[name]
    loss = basin(space, spread=0.02)
    whole, history = ours(strategy(), space, loss)
    sampler, ran = make(space), list[Ran]()
    study = optuna.create_study(sampler=sampler)
    study.optimize(plain(sampler, loss, space, ran), n_jobs=5)
    assert sorted(ran) == sorted(searched(history)), "none twice, none left out"
    assert repr(sampler.answer(study).conclusion) == repr(whole.conclude(space, history))
    # A worker that was waiting at the end finds nothing left: at most one trial each.
    assert len(study.trials) - len(ran) < 5


def test_threads_run_at_once_what_one_batch_has() -> None:
    barrier, loss = Barrier(3, timeout=20), basin(SPACE)
    sampler = RandomGrid(SPACE, runs=6, fresh_seeds=0)

    def objective(trial: optuna.Trial) -> float:
        hps = sampler.suggest(trial)
        barrier.wait()
        return loss(Log2Hps({n: math.log2(v) for n, v in hps.items()}), 0)

    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_jobs=3)
    assert all(trial.state == TrialState.COMPLETE for trial in study.trials[:6])


def in_file(tmp_path: Path, sampler: StrategySampler) -> optuna.Study:
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "study.journal")))
    return optuna.create_study(
        storage=storage, study_name="s", sampler=sampler, load_if_exists=True
    )


def in_sqlite(tmp_path: Path, sampler: StrategySampler) -> optuna.Study:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    return optuna.create_study(storage=url, study_name="s", sampler=sampler, load_if_exists=True)


def test_a_search_goes_on_in_a_new_process(tmp_path: Path) -> None:
    """Each part has a sampler and a study of its own: nothing but the storage is kept."""
    loss, ran = cliff(basin(SPACE, spread=0.02), -8.0), list[Ran]()
    for trials in (4, 13, 3, None):
        sampler = IndependentLines(SPACE, runs=18)
        study = in_file(tmp_path, sampler)
        study.optimize(plain(sampler, loss, SPACE, ran), n_trials=trials)
    whole, history = ours(IndependentSearch(runs=18), SPACE, loss)
    assert ran == searched(history)
    fresh = IndependentLines(SPACE, runs=18)
    answer = fresh.answer(in_file(tmp_path, fresh))
    assert answer.finished
    assert repr(answer.conclusion) == repr(whole.conclude(SPACE, history))


def test_a_search_goes_on_from_a_database(tmp_path: Path) -> None:
    loss, ran = basin(SPACE, spread=0.02), list[Ran]()
    for trials in (3, None):
        sampler = Line(SPACE, line={"points": 9})
        study = in_sqlite(tmp_path, sampler)
        study.optimize(plain(sampler, loss, SPACE, ran), n_trials=trials)
    rule = LineRule(points=9)
    assert ran == searched(ours(LearningRateLine(line=rule), SPACE, loss)[1])


def test_several_workers_share_one_storage(tmp_path: Path) -> None:
    """Each with a sampler, a study and a storage of its own, as separate processes have them."""
    loss, ran = basin(SPACE, spread=0.02), list[Ran]()

    def work() -> None:
        sampler = IndependentLines(SPACE, runs=18)
        in_file(tmp_path, sampler).optimize(plain(sampler, loss, SPACE, ran))

    fresh = IndependentLines(SPACE, runs=18)
    study = in_file(tmp_path, fresh)
    with ThreadPoolExecutor(3) as pool:
        for worker in [pool.submit(work) for _ in range(3)]:
            worker.result(timeout=60)
    whole, history = ours(IndependentSearch(runs=18), SPACE, loss)
    assert repr(fresh.answer(study).conclusion) == repr(whole.conclude(SPACE, history))
    assert len(ran) <= len(history.results) + 3, "hardly a point is run twice"


def test_a_trial_that_was_killed_is_run_again(tmp_path: Path) -> None:
    sampler, ran = IndependentLines(SPACE, runs=18, patience=0.0), list[Ran]()
    loss = basin(SPACE, spread=0.02)
    study = in_file(tmp_path, sampler)
    study.optimize(plain(sampler, loss, SPACE, ran), n_trials=3)
    sampler.suggest(study.ask())  # it stays in the storage as running for ever
    study.ask()  # and one that got no further
    again = IndependentLines(SPACE, runs=18, patience=0.0)
    study = in_file(tmp_path, again)
    study.optimize(plain(again, loss, SPACE, ran))
    _, history = ours(IndependentSearch(runs=18), SPACE, loss)
    assert sorted(ran) == sorted(searched(history))


def test_a_living_trial_of_another_process_is_not_run_twice(tmp_path: Path) -> None:
    first, second = (RandomGrid(SPACE, runs=4, fresh_seeds=0, patience=60) for _ in range(2))
    begun, other = in_file(tmp_path, first), in_file(tmp_path, second)
    asked = begun.ask()
    hps = [first.suggest(asked)]
    silent = begun.ask()  # has asked for nothing yet
    hps += [second.suggest(other.ask()), second.suggest(other.ask()), first.suggest(silent)]
    assert len({tuple(each.values()) for each in hps}) == 4


def test_a_failure_counts_and_is_tried_again_by_the_next_process(tmp_path: Path) -> None:
    loss, ran = basin(SPACE, spread=0.02), list[Ran]()
    broken = {"now": True}

    def breaking(hps: Log2Hps, seed: int) -> float:
        if broken["now"] and hps["eta"] == -9:
            raise RuntimeError("no memory")
        return loss(hps, seed)

    sampler = Line(SPACE)
    study = in_file(tmp_path, sampler)
    study.optimize(plain(sampler, breaking, SPACE, ran), catch=(RuntimeError,))
    failed = sampler.answer(study)
    assert failed.finished and failed.conclusion.lines[0].failed_log2 == (-9,)
    fresh = Line(SPACE)
    assert fresh.answer(in_file(tmp_path, fresh)) == failed
    broken["now"] = False
    study = in_file(tmp_path, fresh)
    study.optimize(plain(fresh, breaking, SPACE, ran))
    whole, history = ours(LearningRateLine(), SPACE, loss)
    assert repr(fresh.answer(study).conclusion) == repr(whole.conclude(SPACE, history))


def test_an_error_that_nobody_catches_ends_the_study_and_the_next_goes_on() -> None:
    loss, ran = basin(SPACE), list[Ran]()
    sampler = Line(SPACE)
    study = optuna.create_study(sampler=sampler)

    def interrupted(trial: optuna.Trial) -> float:
        if trial.number == 2:
            raise KeyboardInterrupt
        value: float = plain(sampler, loss, SPACE, ran)(trial)
        return value

    with pytest.raises(KeyboardInterrupt):
        study.optimize(interrupted)
    study.optimize(interrupted)
    assert sampler.answer(study).finished


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_ends_where_nothing_is_finite(value: float) -> None:
    sampler = IndependentLines(SPACE, runs=18)
    study = optuna.create_study(sampler=sampler)
    study.optimize(plain(sampler, lambda hps, seed: value, SPACE, []))
    assert len(study.trials) == 8 and sampler.answer(study).value == math.inf


def test_a_pruned_trial_is_never_chosen() -> None:
    loss, sampler = basin(SPACE), Line(SPACE)

    def objective(trial: optuna.Trial) -> float:
        log2 = Log2Hps({n: math.log2(v) for n, v in sampler.suggest(trial).items()})
        trial.report(-5.0, 1)
        if log2["eta"] > -9:
            raise optuna.TrialPruned
        return loss(log2, 0)

    study = optuna.create_study(sampler=sampler)
    study.optimize(objective)
    answer = sampler.answer(study)
    assert answer.finished and answer.params["eta"] == 2**-9 and answer.value > 0
    assert any("stopped early" in note for note in answer.notes)


def test_the_objectives_own_range_bounds_a_line(tmp_path: Path) -> None:
    """What the objective cannot take counts as diverged, in this process and in the next."""
    loss, ran = basin(SPACE, at={"eta": 0.0}), list[float]()
    space = {"eta": (2**-12, 2**-5, 2**-8), "alpha": (0.5, 2)}

    def objective(trial: optuna.Trial) -> float:
        alpha = trial.suggest_float("alpha", 0.5, 2, log=True)
        eta = trial.suggest_float("eta", 2**-12, 2**-5, log=True)
        ran.append(math.log2(eta))
        return loss(Log2Hps({"eta": math.log2(eta), "alpha": math.log2(alpha), "beta": 0}), 0)

    def sampler() -> StrategySampler:
        return IndependentLines(space, runs=12, retune=False)

    study = in_file(tmp_path, first := sampler())
    study.optimize(objective)
    answer = first.answer(study)
    assert max(ran) <= -5 and answer.params["eta"] == 2**-5 and answer.finished
    assert sampler().answer(in_file(tmp_path, sampler())) == answer
    before = len(ran)
    in_file(tmp_path, sampler()).optimize(objective)
    assert len(ran) == before


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_the_concluded_study_has_the_answer_for_its_best(direction: str) -> None:
    sign, loss = (1 if direction == "minimize" else -1), basin(SPACE, spread=0.02)
    sampler = IndependentLines(SPACE, runs=40)
    study = optuna.create_study(sampler=sampler, direction=direction)
    study.optimize(plain(sampler, lambda hps, seed: sign * loss(hps, seed), SPACE, []))
    answer, concluded = sampler.answer(study), sampler.concluded(study)
    assert sign * study.best_value < sign * answer.value == sign * concluded.best_value
    assert concluded.best_params == pytest.approx(answer.params)
    assert len(concluded.trials) == len(study.trials) + 1


def test_a_study_may_maximize() -> None:
    loss, ran = basin(SPACE, spread=0.02), list[Ran]()
    sampler = Line(SPACE)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    study.optimize(plain(sampler, lambda hps, seed: 10 - loss(hps, seed), SPACE, ran))
    _, history = ours(LearningRateLine(), SPACE, loss)
    answer = sampler.answer(study)
    assert ran == searched(history)
    assert 6 < answer.value <= 7.1 and answer.error > 0


def test_whole_numbers_are_rounded_and_known_again(tmp_path: Path) -> None:
    space: dict[str, Any] = {
        "eta": FloatDistribution(2**-10, 2**-6, log=True),
        "batch": IntDistribution(3, 100, log=True),
    }
    ran: list[int] = []

    def objective(trial: optuna.Trial) -> float:
        eta = trial.suggest_float("eta", 2**-14, 2**-2, log=True)
        batch = trial.suggest_int("batch", 1, 1000)
        ran.append(batch)
        return 3 + (math.log2(eta) + 8) ** 2 + (math.log2(batch) - 5) ** 2

    for _ in range(2):
        sampler = IndependentLines(space, runs=18)
        study = in_file(tmp_path, sampler)
        study.optimize(objective)
    assert len(study.trials) == len(ran) + 1, "the second study only saw that it is done"
    answer = sampler.answer(study)
    assert isinstance(answer.params["batch"], int) and 24 <= answer.params["batch"] <= 48
    again = optuna.trial.FixedTrial(dict(answer.params))
    assert sampler.suggest(again) == answer.params and sampler.seed(again) == 0


def test_ask_and_tell_in_one_thread_never_waits_for_itself() -> None:
    sampler, loss = Line(SPACE), basin(SPACE)
    study = optuna.create_study(sampler=sampler)
    while sampler.missing(study):
        trials = [study.ask() for _ in range(11)]  # of a first grid of 8
        for trial in trials:
            log2 = Log2Hps({n: math.log2(v) for n, v in sampler.suggest(trial).items()})
            study.tell(trial, loss(log2, sampler.seed(trial)))
    whole, history = ours(LearningRateLine(), SPACE, loss)
    assert repr(sampler.answer(study).conclusion) == repr(whole.conclude(SPACE, history))


def test_what_a_user_enqueues_is_run_and_counts_where_the_search_asks_for_it() -> None:
    loss, ran = basin(SPACE, spread=0.02), list[Ran]()
    sampler = Line(SPACE)
    study = optuna.create_study(sampler=sampler)
    middle = {name: 2.0**value for name, value in defaults(SPACE).items()}
    study.enqueue_trial({**middle, "eta": 2.0**-7})
    for _ in range(5):
        study.enqueue_trial({**middle, "eta": 0.005})
    study.optimize(plain(sampler, loss, SPACE, ran))
    whole, history = ours(LearningRateLine(), SPACE, loss)
    assert len(ran) == len(history.results) + 5
    assert repr(sampler.answer(study).conclusion) == repr(whole.conclude(SPACE, history))


def test_trials_of_other_samplers_change_nothing() -> None:
    loss, ran = basin(SPACE, spread=0.02), list[Ran]()
    sampler = Line(SPACE)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(lambda t: t.suggest_float("eta", 2**-12, 2**-5, log=True), n_trials=20)
    study.optimize(lambda t: t.suggest_float("other", 0, 1), n_trials=3)
    study.sampler = sampler
    study.optimize(plain(sampler, loss, SPACE, ran))
    _, history = ours(LearningRateLine(), SPACE, loss)
    assert ran == searched(history)


def test_another_seed_is_another_search() -> None:
    loss = basin(SPACE, spread=0.02)
    first, second = list[Ran](), list[Ran]()
    for seed, ran in ((0, first), (3, second)):
        sampler = RandomGrid(SPACE, runs=9, seed=seed)
        optuna.create_study(sampler=sampler).optimize(plain(sampler, loss, SPACE, ran))
    assert {seed for _, seed in second} == {3 * 2**21 + s for s in {seed for _, seed in first}}
    assert [point for point, _ in first] != [point for point, _ in second]


def test_an_objective_may_leave_out_what_means_nothing(tmp_path: Path) -> None:
    space: dict[str, Any] = {"eta": (2**-12, 2**-5, 2**-8), "kind": ["a", "b"], "beta": (0.5, 2, 1)}

    def objective(sampler: StrategySampler) -> Callable[[optuna.Trial], float]:
        def run(trial: optuna.Trial) -> float:
            sampler.seed(trial)
            eta = trial.suggest_float("eta", 1e-9, 10, log=True)
            kind = trial.suggest_categorical("kind", ["b", "a"])
            beta = trial.suggest_float("beta", 0.01, 100, log=True) if kind == "b" else 1.0
            return 3 + (math.log2(eta) + 8) ** 2 + (kind == "a") + abs(math.log2(beta))

        return run

    counts = []
    for _ in range(2):
        sampler = IndependentLines(space, runs=18)
        study = in_file(tmp_path, sampler)
        study.optimize(objective(sampler))
        counts.append(len(study.trials))
    assert counts[1] == counts[0] + 1 and sampler.answer(study).params["kind"] == "b"


def test_a_sampler_can_be_pickled_in_the_middle() -> None:
    loss, ran = basin(SPACE, spread=0.02), list[Ran]()
    sampler = IndependentLines(SPACE, runs=18)
    study = optuna.create_study(sampler=sampler)
    study.optimize(plain(sampler, loss, SPACE, ran), n_trials=12)
    sampler = pickle.loads(pickle.dumps(sampler))
    study.sampler = sampler
    study.optimize(plain(sampler, loss, SPACE, ran))
    assert ran == searched(ours(IndependentSearch(runs=18), SPACE, loss)[1])


def test_the_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["search.py", "--runs", "9"])
    load_script("examples/optuna/search.py").main()
    printed = capsys.readouterr().out
    assert "mean of 3 fresh seeds" in printed and "activation = " in printed


def test_spaces_as_they_are_written() -> None:
    space = read_space(
        {
            "a": (2**-12, 2**-5),
            "b": (0.25, 4.0, 1),
            "c": {"low": -3, "high": 2, "default": 1},
            "d": ["x", 1, True],
            "e": FloatDistribution(1e-4, 1e-1, log=True),
            "f": CategoricalDistribution([16, 32]),
            "g": Axis(low=0, high=1),
        }
    )
    assert space["a"] == Axis(low=-12, high=-5, default=-9)
    assert space["b"] == Axis(low=-2, high=2, default=0)
    assert space["c"] == Axis(low=-3, high=2, default=1)
    assert space["d"].choices == ("x", 1, True) and space["f"].choices == (16, 32)
    assert space["e"].low == pytest.approx(math.log2(1e-4)) and space["g"] == Axis(low=0, high=1)


@pytest.mark.parametrize(
    ("axis", "key"),
    [
        ((1, 2, 3, 4), "space.x"),
        ((0, 1), "space.x"),
        (("a", "b"), "space.x"),
        ((2, 1), "space.x.low"),
        ([], "space.x"),
        (["a", "a"], "space.x"),
        (3.0, "space.x"),
        ({"low": 1}, "space.x.high"),
        (FloatDistribution(0, 1), "space.x"),
        (IntDistribution(1, 9), "space.x"),
    ],
)
def test_a_range_that_is_none_is_refused_by_name(axis: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RandomGrid({"x": axis})
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: IndependentLines({}), "space"),
        (lambda: IndependentLines({"lr": (1, 2)}), "learning_rate"),
        (
            lambda: IndependentLines({"lr": (1, 2), "eta": (1, 2)}, learning_rate="lr"),
            "learning_rate",
        ),
        (lambda: IndependentLines(SPACE, seed=-1), "seed"),
        (lambda: IndependentLines(SPACE, points=3), "points"),
        (lambda: IndependentLines(SPACE, seeds=0), "seeds"),
        (lambda: IndependentLines(SPACE, runs=1), "runs"),
        (lambda: IndependentLines(SPACE, axes=["gamma"]), "axes"),
        (lambda: Line(SPACE, prune="median"), "prune"),
        (lambda: Line(SPACE, fresh_seeds=-1), "fresh_seeds"),
    ],
)
def test_arguments_that_cannot_be_are_refused_by_name(make: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.key == key


def test_names_that_the_space_has_not_are_refused() -> None:
    sampler = Line(SPACE)
    study = optuna.create_study(sampler=sampler)
    with pytest.raises(ConfigError) as caught:
        study.optimize(lambda trial: trial.suggest_float("etta", 0, 1))
    assert caught.value.value == "etta"


def test_what_the_objective_always_sets_itself_is_named_and_not_asked_for_ever() -> None:
    sampler = IndependentLines(SPACE, runs=18)
    study = optuna.create_study(sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        trial.suggest_float("alpha", 2, 2, log=True)
        return trial.suggest_float("eta", 1e-9, 10, log=True)

    with pytest.raises(ConfigError) as caught:
        study.optimize(objective, n_trials=50)
    assert (caught.value.key, caught.value.value) == ("space", "alpha")


@pytest.mark.parametrize(
    "options", [{"directions": ["minimize"] * 2}, {"pruner": optuna.pruners.HyperbandPruner()}]
)
def test_studies_that_no_strategy_can_search_are_refused(options: dict[str, Any]) -> None:
    study = optuna.create_study(sampler=Line(SPACE), **options)
    with pytest.raises(BadInput):
        study.ask()


def test_nothing_has_an_answer_before_a_trial_has() -> None:
    sampler = Line(SPACE)
    with pytest.raises(BadInput):
        sampler.answer(optuna.create_study(sampler=sampler))


def test_trials_end_in_states_that_optuna_knows() -> None:
    sampler = Line(SPACE)
    study = optuna.create_study(sampler=sampler)
    study.optimize(plain(sampler, basin(SPACE), SPACE, []))
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    study.optimize(plain(sampler, basin(SPACE), SPACE, []), n_trials=5)
    assert [trial.state for trial in study.trials].count(TrialState.PRUNED) == 1
