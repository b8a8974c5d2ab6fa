"""What a search and a ladder train, with a runner and a study that only pretend."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sweeper.errors import SweeperError
from sweeper.launch.executor import Context, Event, Finished, Machine
from sweeper.launch.job import Control, Job, JobOutcome
from sweeper.search.fresh import FreshSeeds
from sweeper.search.independent import IndependentSearch
from sweeper.search.line_search import LearningRateLine
from sweeper.search.strategy import Conclusion, History
from sweeper.stats.ladder import LadderRule, Size
from sweeper.stats.line import LineRule
from sweeper.sweep.study_replay import replay_ladder, replay_search
from sweeper.sweep.sweep import Sweep
from sweeper.trial import Axis, Log2Hps, Point, Result, Space, Trial
from tests.engine import tiny_trials
from tests.golden import Golden
from tests.refusals import refused
from tests.search.fakes import Experiment, Objective, basin, result

SPACE: Space = {"eta": Axis(low=-2, high=2), "alpha": Axis(low=-1, high=1)}
LINE = LearningRateLine(line=LineRule(points=9))
BASE, LARGE = Size(width=32, depth=2), Size(width=64, depth=2)


class Study:
    def __init__(self, *known: Result) -> None:
        self.folder = Path("nowhere")
        self.notices: list[str] = []
        self.known = {one.key: one for one in known}
        self.proposed: list[str] = []
        self.space: Any = None

    def results(self) -> list[Result]:
        return list(self.known.values())

    def get(self, key: str) -> Result | None:
        return self.known.get(key)

    def propose(self, trials: Sequence[Trial], space: Any) -> None:
        self.proposed += [trial.key for trial in trials]
        self.space = space

    def record(self, results: Sequence[Result]) -> None:
        for new in results:
            old = self.known.get(new.key)
            if old is None or old.status in ("failed", "pruned"):
                self.known[new.key] = new


@dataclass(frozen=True)
class MadeUp:
    trials: tuple[Trial, ...]
    objective: float

    def run(self, control: Control) -> JobOutcome:
        control.progress(1.0)
        return JobOutcome(results=(result(self.trials[0], self.objective),))

    def to_json(self) -> dict[str, Any]:
        raise TypeError("it stays here")

    def modules(self) -> list[str]:
        return []


class Trainer:
    """Runner, launcher and executor in one: trains by `loss`, at most `slots` jobs at a time.

    Of the jobs at hand a random one ends next, or with `newest` that which came last. The runner
    forgets `lose` trials. It remembers what it was asked for, and what it has trained.
    """

    retries, pins_gpus, device = 0, False, None
    failures = 1000
    layouts = range(1, 2)

    @staticmethod
    def takes(name: str) -> bool:
        return True

    measures = takes

    def __init__(
        self,
        loss: Objective,
        stop_after: float = math.inf,
        lose: int = 0,
        slots: int = 1000,
        newest: bool = False,
    ) -> None:
        self.loss, self.stop_after, self.lose = loss, stop_after, lose
        self.slots, self.newest = slots, newest
        self.recovered: dict[str, tuple[Trial, ...]] = {}
        self.asked: list[list[Trial]] = []
        self.trained: list[str] = []
        self.jobs: list[Job] = []

    def open(self, *_: Any) -> Trainer:
        return self

    def executor(self, context: Context) -> Trainer:
        self.jobs.clear()
        return self

    def machine(self) -> Machine:
        return Machine()

    def batches(self, trials: Sequence[Trial], *_: Any) -> list[tuple[Trial, ...]]:
        self.asked.append(list(trials))
        return [(trial,) for trial in trials[self.lose :]]

    def job(self, batch: tuple[Trial, ...], pruner: Any) -> Job:
        return Job(task=MadeUp(batch, self.objective(batch[0])))

    def objective(self, trial: Trial) -> float:
        return self.loss(trial.log2_hps, trial.seed)

    def room(self, *, ahead: bool = False) -> bool:
        return len(self.jobs) < self.slots

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def poll(self, *, wait: bool = True) -> list[Event]:
        if len(self.trained) >= self.stop_after:
            raise KeyboardInterrupt
        chance = random.Random(len(self.trained))
        job = self.jobs.pop() if self.newest else self.jobs.pop(chance.randrange(len(self.jobs)))
        self.trained.append(job.trials[0].key)
        return [Finished(job=job.id, outcome=job.task.run(Control()))]

    def settled(self) -> bool:
        return False

    def forget(self, *_: Any, **__: Any) -> None:
        pass

    def tidy(self, *_: Any, **__: Any) -> None:
        pass

    def close(self) -> None:
        pass


class Watcher:
    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []
        self.done: list[Result] = []
        self.logged: list[Result] = []

    def watch(self, states: Any) -> None:
        assert states() == []

    def announce(self, sentence: str) -> None:
        assert sentence

    def watch_ladder(self, so_far: Any) -> None:
        points = so_far().points
        assert all(len(point.losses) <= point.runs for point in points)

    def proposed(self, known: int, missing: Sequence[Trial]) -> None:
        assert missing
        self.told.append((known, len(missing)))

    def advanced(self, batch: Sequence[Trial], before: float, fraction: float) -> None:
        pass

    def finished(self, one: Result) -> None:
        self.done.append(one)

    def log(self, folder: Path, one: Result) -> None:
        self.logged.append(one)


def make(
    trainer: Trainer, study: Study | None = None, search: Any = LINE, **experiment: Any
) -> tuple[Sweep, Study, Watcher]:
    study, watcher = study or Study(), Watcher()
    places: Any = {"runner": trainer, "launcher": trainer, "logger": watcher, "space": SPACE}
    made = Experiment(search=search, **places | experiment)
    return Sweep(made, study, watcher), study, watcher  # type: ignore[arg-type]


def search(sweep: Sweep) -> tuple[Conclusion, list[tuple[int, bool]]]:
    said: list[tuple[int, bool]] = []
    return sweep.search(lambda found, final: said.append((found.runs, final))), said


def fails_at(loss: Objective, *etas: float) -> Objective:
    return lambda hps, seed: math.nan if hps["eta"] in etas else loss(hps, seed)


def test_trains_what_the_strategy_asks_for_and_records_it() -> None:
    launcher = Trainer(basin(SPACE))
    sweep, study, watcher = make(launcher)
    found, said = search(sweep)
    assert [len(trials) for trials in launcher.asked] == [5, 4]
    assert len(study.known) == len(launcher.trained) == found.runs == 9
    assert watcher.told == [(0, 5), (5, 4)]
    assert watcher.done == watcher.logged and len(watcher.done) == 9
    assert said == [(5, False), (9, True)]
    assert {name: (axis.low, axis.high) for name, axis in study.space.items()} == {
        "eta": (-2, 2),
        "alpha": (-1, 1),
    }
    assert sorted(study.proposed) == sorted(study.known), "each once, before it was trained"
    assert all(r.trial.width == 32 for r in study.results())


def test_interrupted_it_goes_on_to_the_same_conclusion() -> None:
    whole = search(make(Trainer(basin(SPACE)))[0])[0]
    sweep, study, _ = make(Trainer(basin(SPACE), stop_after=5))
    with pytest.raises(KeyboardInterrupt):
        search(sweep)
    assert len(study.known) == 5
    rest = Trainer(basin(SPACE))
    found, _ = search(make(rest, study)[0])
    assert found == whole and len(rest.trained) == 9 - 5


def test_a_failed_trial_ends_as_infinite_and_is_tried_again_by_the_next_sweep() -> None:
    first = Trainer(fails_at(basin(SPACE), 0.0))
    sweep, study, watcher = make(first)
    found, _ = search(sweep)
    assert len(first.trained) == len(set(first.trained))  # not again in the same sweep
    assert dict(found.lines[0].points_log2)[0.0] == math.inf and math.isfinite(found.objective)
    assert [one.status for one in watcher.done].count("failed") == 1

    again = Trainer(fails_at(basin(SPACE), 0.0))
    assert search(make(again, study)[0])[0] == found and len(again.trained) == 1
    found, _ = search(make(Trainer(basin(SPACE)), study)[0])
    assert found == search(make(Trainer(basin(SPACE)))[0])[0]
    assert all(r.status == "complete" for r in study.results() if r.trial.log2_hps["eta"] == 0.0)


def test_a_diverged_trial_stays_on_the_curve_and_is_not_tried_again() -> None:
    cliff = lambda hps, seed: math.inf if hps["eta"] > 0 else basin(SPACE)(hps, seed)  # noqa: E731
    sweep, study, _ = make(Trainer(cliff))
    found, _ = search(sweep)
    assert math.inf in dict(found.lines[0].points_log2).values()
    assert {r.status for r in study.results()} == {"complete", "diverged"}
    again = Trainer(cliff)
    assert search(make(again, study)[0])[0] == found and again.trained == []


def cliff(hps: Log2Hps, seed: int) -> float:
    return math.inf if hps["eta"] > 0.5 else basin(SPACE)(hps, seed)


class Idle(Trainer):
    ahead = None


@pytest.mark.parametrize("loss", [basin(SPACE), cliff, fails_at(basin(SPACE), 0.5, -0.5, 2.0)])
@pytest.mark.parametrize(
    "strategy", [LINE, IndependentSearch(eta=LineRule(points=7), runs=14, seeds=2, retune_seeds=2)]
)
def test_what_is_trained_ahead_is_in_the_study_and_in_no_answer(
    loss: Objective, strategy: Any
) -> None:
    plain, without, _ = make(Trainer(loss), search=FreshSeeds(strategy=strategy))
    sweep, study, watcher = make(idle := Idle(loss), search=FreshSeeds(strategy=strategy))
    found = search(sweep)[0]
    assert repr(found) == repr(search(plain)[0]) and sweep.searched == plain.searched
    assert len(idle.trained) > len(without.known) and set(study.known) > set(without.known)
    assert {r.key for r in watcher.done} <= sweep.searched == set(study.proposed) | sweep.searched
    # What failed before it was asked for is neither recorded nor left out of the search.
    failed, wanted = (
        {r.key for r in each.results() if r.status == "failed"} for each in (study, without)
    )
    assert failed == wanted
    # Killed at any moment, or searched further: what there is serves.
    half, part, _ = make(Idle(loss, stop_after=7), search=FreshSeeds(strategy=strategy))
    with pytest.raises(KeyboardInterrupt):
        search(half)
    rest = make(trainer := Trainer(loss), part, FreshSeeds(strategy=strategy))[0]
    assert repr(search(rest)[0]) == repr(found) and not {*trainer.trained} & {*half.searched}
    longer = LearningRateLine(line=LineRule(points=12))
    search(make(further := Trainer(loss), study, longer)[0])
    search(make(anew := Trainer(loss), without, longer)[0])
    assert len(further.trained) < len(anew.trained)


@pytest.mark.parametrize(
    ("trainer", "prune"),
    [(Idle(basin(SPACE), slots=1), "none"), (Idle(basin(SPACE)), "median")],
)
def test_nothing_is_trained_ahead_in_a_busy_place_or_where_trials_are_stopped(
    trainer: Trainer, prune: Any
) -> None:
    sweep, _, _ = make(trainer, search=replace(LINE, prune=prune))
    assert search(sweep)[0].runs == len(trainer.trained) == len(sweep.searched)


def test_trials_that_nobody_trains_end_the_sweep(golden: Golden) -> None:
    sweep, study, _ = make(Trainer(basin(SPACE), lose=2))
    with refused(golden, SweeperError):
        search(sweep)
    assert len(study.known) == 3


def test_duplicates_are_trained_once() -> None:
    class Twice(LearningRateLine):
        def propose(self, space: Space, history: History) -> list[Point]:
            return super().propose(space, history) * 2

    launcher = Trainer(basin(SPACE))
    sweep, _, watcher = make(launcher, search=Twice(line=LineRule(points=5)))
    search(sweep)
    assert len(launcher.trained) == len(set(launcher.trained)) == 5
    assert watcher.told == [(0, 5)]


def test_replay_shows_a_trial_under_the_phase_that_asks_for_it() -> None:
    """A run that validation trained may later be a point of a search, or the reverse."""
    experiment = Experiment(search=LINE, space=SPACE)
    trial = experiment.trial(BASE, {"eta": 0.0, "alpha": 0.0}, 0, "validate")
    history, missing = replay_search(experiment, {trial.key: result(trial, 3.0)}.get)
    assert [r.trial.phase for r in history.results] == ["eta"] and len(missing) == 4


RULE = LadderRule(widths=(32, 64), seeds=2, extend=2)
BEST = {"eta": 0.5, "alpha": 0.0}


def widths(large: float) -> Objective:
    return lambda hps, seed: 3 + 0.1 * (hps["eta"] - large) ** 2 + 0.01 * seed


class BySize(Trainer):
    def __init__(self, large: float) -> None:
        super().__init__(lambda hps, seed: 0.0, slots=1)
        self.large = large

    def objective(self, trial: Trial) -> float:
        return widths(0.5 if trial.width == 32 else self.large)(trial.log2_hps, trial.seed)


def test_ladder_trains_every_size_and_extends_only_where_the_optimum_is_at_an_end() -> None:
    launcher = BySize(9.0)
    sweep, study, watcher = make(launcher, transfer=RULE)
    base, large = sweep.ladder(BEST, [BASE, LARGE])
    assert (base.size.width, large.size.width) == (32, 64)
    assert base.size.steps == 100  # those that it was trained with
    assert len(base.losses) == 9 and len(large.losses) == 11
    assert all(len(runs) == 2 for runs in [*base.losses.values(), *large.losses.values()])
    assert watcher.told == [(0, 36), (36, 2), (38, 2)]
    assert {r.trial.phase for r in study.results()} == {"validate"}
    assert make(BySize(9.0), study, transfer=RULE)[0].ladder(BEST, [BASE, LARGE]) == [base, large]


def test_ladder_keeps_diverged_runs_as_infinite_and_counts_those_that_failed() -> None:
    def loss(hps: Any, seed: int) -> float:
        if hps["eta"] > 1:
            return math.inf
        return math.nan if (hps["eta"], seed) == (0.0, 1) else 3 + hps["eta"] ** 2

    sweep, study, _ = make(Trainer(loss), transfer=RULE)
    (curve,) = sweep.ladder(BEST, [BASE])
    assert curve.losses[1.5] == (math.inf, math.inf)
    assert 0.0 not in curve.losses and curve.failed == 1
    retried = Trainer(lambda hps, seed: 3.0)
    (curve,) = make(retried, study, transfer=RULE)[0].ladder(BEST, [BASE])
    assert curve.losses[0.0] == (3.0, 3.0) and curve.failed == 0 and len(retried.trained) == 1


def test_replay_of_a_half_measured_ladder_counts_every_run() -> None:
    experiment = Experiment(search=LINE, space=SPACE, transfer=RULE)
    known = {}
    for eta, seed in ((0.5, 0), (0.5, 1), (1.0, 0)):
        trial = experiment.trial(BASE, {"eta": eta, "alpha": 0.0}, seed, "validate")
        known[trial.key] = result(trial, 3.0 + seed)
    curves, count, missing = replay_ladder(experiment, BEST, [BASE, LARGE], known.get)
    assert curves[0].losses == {0.5: (3.0, 4.0)} and curves[1].losses == {}
    assert count == 3 and len(missing) == 36 - 3
    assert {trial.width for trial in missing} == {32, 64}


def test_a_strategy_is_asked_once_for_every_batch_however_often_the_launcher_asks() -> None:
    asked: list[int] = []

    class Counted(LearningRateLine):
        def propose(self, space: Space, history: History) -> list[Point]:
            asked.append(len(history.results))
            return super().propose(space, history)

    launcher = Trainer(basin(SPACE), slots=1)
    sweep, _, _ = make(launcher, search=Counted(line=LineRule(points=5)))
    found, said = search(sweep)
    assert len(launcher.trained) == found.runs == len(set(launcher.trained))
    assert asked[: len(set(asked))] == sorted(set(asked)), "each batch is asked for once"
    assert len(asked) <= len(set(asked)) + 2, "and only the end once more"
    assert [runs for runs, final in said if not final] == sorted(set(asked) - {0, found.runs})


def test_a_line_that_is_ahead_does_not_wait_for_the_others() -> None:
    strategy = IndependentSearch(runs=14, seeds=1, lines=LineRule(step=1.0))
    space = {**SPACE, "beta": Axis(low=-2, high=2)}
    loss = basin(space, at={"beta": 0.75})
    # While the oldest job goes on, the other place serves all that can be named meanwhile.
    whole, ahead = Trainer(loss), Trainer(loss, slots=2, newest=True)
    slow, fast = (search(make(each, search=strategy, space=space)[0]) for each in (whole, ahead))
    assert slow[0] == fast[0] and set(ahead.trained) == set(whole.trained)
    lines = [[t for t in asked if t.phase == "lines"] for asked in ahead.asked]
    halves = [
        {t.log2_hps["beta"] % 1 for t in asked} | {t.log2_hps["alpha"] % 1 for t in asked}
        for asked in lines
    ]
    assert any({0.0, 0.5} <= half for half in halves), "a coarse and a finer round at once"


@pytest.mark.parametrize(("high", "longest"), [(None, 2), (1.0, 4), (-1.0, 1), (9.0, 8)])
def test_pruning_waits_for_the_longest_warm_up(high: float | None, longest: int) -> None:
    sweep, _, _ = make(Trainer(basin(SPACE)))
    if high is not None:
        sweep.experiment.space = SPACE | {"warmup": Axis(low=-2, high=high)}  # type: ignore[attr-defined,operator]
    sweep._prune = "median"
    pruner = sweep._pruner(tiny_trials.trial())
    assert pruner is not None and pruner.warmup == longest
