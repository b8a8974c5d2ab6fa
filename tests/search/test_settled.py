"""A search that goes on until its answer is settled: the race of its best configurations."""

import math
import random
from statistics import fmean

import pytest

from sweeper.search.fresh import FINAL, RACERS, ROUNDS, SETTLE, FreshSeeds, Settled
from sweeper.search.line_search import LearningRateLine
from sweeper.search.strategy import History
from sweeper.stats.line import LineRule
from sweeper.trial import Axis, Log2Hps, Space
from tests.search.fakes import Objective, resume, run_search

SPACE: Space = {"eta": Axis(low=-3, high=3)}
LINE = LearningRateLine(line=LineRule(points=9))
STRATEGY = FreshSeeds(strategy=Settled(strategy=LINE))


def losses(curvature: float, noise: float, draw: int) -> Objective:
    def objective(hps: Log2Hps, seed: int) -> float:
        found = random.Random(f"{draw} {hps['eta']} {seed}").gauss(0, noise)
        return 3 + curvature * (hps["eta"] - 1) ** 2 + found

    return objective


def race(history: History) -> dict[float, int]:
    counts = dict[float, int]()
    for result in history.results:
        if result.trial.phase == SETTLE:
            eta = result.trial.log2_hps["eta"]
            counts[eta] = counts.get(eta, 0) + 1
    return counts


def test_it_ends_with_fresh_seeds_of_the_race_s_winner_which_is_better_on_average() -> None:
    regrets = dict[str, list[float]]()
    for draw in range(12):
        objective = losses(0.06, 0.03, draw)
        history = run_search(STRATEGY, SPACE, objective)
        found = STRATEGY.conclude(SPACE, history)
        last = [r for r in history.results if r.trial.phase == FINAL]
        assert {r.trial.log2_hps["eta"] for r in last} == {found.best_log2["eta"]}
        assert found.objective == pytest.approx(fmean(r.objective for r in last))
        counts = race(history)
        assert len(counts) == RACERS and set(counts.values()) <= set(ROUNDS)
        assert any("settled" in note or "alike" in note for note in found.notes)
        plain = LINE.conclude(SPACE, run_search(LINE, SPACE, objective))
        for name, best in (("raced", found.best_log2), ("plain", plain.best_log2)):
            regrets.setdefault(name, []).append(0.06 * (best["eta"] - 1) ** 2)
    assert fmean(regrets["raced"]) < 0.8 * fmean(regrets["plain"])


def test_seeds_go_where_the_optimum_is_in_doubt() -> None:
    clear = race(run_search(STRATEGY, SPACE, losses(5.0, 0.001, 0)))
    assert set(clear.values()) == {ROUNDS[0]}  # settled with the first round
    open_ = race(run_search(STRATEGY, SPACE, losses(0.06, 0.02, 1)))
    near = [n for eta, n in open_.items() if abs(eta - 1) <= 0.5]
    assert max(near) == ROUNDS[-1] and sum(open_.values()) < RACERS * ROUNDS[-1]


def test_killed_anywhere_it_goes_on_to_the_same_answer() -> None:
    objective = losses(0.03, 0.02, 2)
    whole, known = resume(STRATEGY, SPACE, objective, {})
    answer = STRATEGY.conclude(SPACE, whole)
    for count in (3, len(known) // 2, len(known) - 4):
        kept = dict(list(known.items())[:count])
        again, _ = resume(STRATEGY, SPACE, objective, kept)
        assert STRATEGY.conclude(SPACE, again) == answer


def test_configurations_that_diverge_in_the_race_drop_out() -> None:
    def objective(hps: Log2Hps, seed: int) -> float:
        lucky = seed < 100 or hps["eta"] <= 0.5
        return losses(0.1, 0.001, 3)(hps, seed) if lucky else math.inf

    found = STRATEGY.conclude(SPACE, run_search(STRATEGY, SPACE, objective))
    assert found.best_log2["eta"] <= 0.5 and math.isfinite(found.objective)
