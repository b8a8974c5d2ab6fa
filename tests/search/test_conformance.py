"""What every strategy promises, of every config in `conf/search/`: a new one is tested by itself.

Nothing is trained: the losses are made up.
"""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from sweeper.records import to_json
from sweeper.registry import build_plugin
from sweeper.search.fresh import FreshSeeds, Settled
from sweeper.search.strategy import Conclusion, History, Strategy
from sweeper.trial import Axis, Space
from tests.search.fakes import (
    CONF,
    Objective,
    basin,
    batches,
    cliff,
    config,
    in_rounds,
    noise,
    resume,
    run_search,
    space_of,
)

# The paper's search is the independent one, larger.
CONFIGS = sorted(p for p in (CONF / "search").glob("*.yaml") if p.stem != "paper")
ODD: Space = {
    "eta": Axis(low=-1.3, high=2.9, default=0.1 + 0.2),
    "outside": Axis(low=-2, high=2, default=5),
    "pinned": Axis(low=1, high=1),
    "between": Axis(low=-2.5, high=3.1),
    "tenths": Axis(low=-0.3, high=0.7),
    "wide": Axis(low=-8, high=8),
}
"""Ranges that a user may well give."""
LISTS: Space = {
    "eta": Axis(low=-12, high=-5, default=-8),
    "optimizer": Axis(low=0, high=2, default=1, choices=("adamw", "lion", "sgd")),
    "one": Axis(low=0, high=0, choices=(True,)),
    "dropout": Axis(low=0, high=1, choices=(0, 0.1)),
}
"""Lists of choices, whose values are places."""
DECAY = {"weight_decay": Axis(low=-4, high=4)}
"""What a space may have beside its parameterization's own."""
SPACES = {"mup": space_of("mup") | DECAY, "odd": ODD | DECAY, "lists": LISTS | DECAY}
CASES = [
    ("mup", "cliff"),
    ("lists", "basin"),
    *(("odd", kind) for kind in ("past the ends", "half diverged", "all failed")),
]


SMALLER: dict[str, dict[str, Any]] = {
    "tpe": {"runs": 20},
    "optuna": {"runs": 20},
    "random": {"runs": 60},
    "independent": {"runs": 75},
    "pairs": {"points": 3},
}
"""What a sampler of Optuna's takes for a trial grows with their number."""


@pytest.fixture(params=CONFIGS, ids=lambda path: path.stem)
def strategy(request: pytest.FixtureRequest) -> FreshSeeds:
    """As a search runs it, its fresh seeds behind it; of fewer trials."""
    path: Path = request.param
    plugin = build_plugin(config(path) | SMALLER.get(path.stem, {}))
    return FreshSeeds(strategy=plugin, seeds=plugin.fresh_seeds)


def landscape(kind: str, space: Space) -> Objective:
    middle, eta = basin(space, spread=0.02), space["eta"]
    return {
        "basin": middle,
        "cliff": cliff(middle, eta.low + 0.6 * (eta.high - eta.low)),
        "past the ends": basin(space, at=dict.fromkeys(space, 100.0)),
        "half diverged": lambda hps, seed: math.inf if noise(hps, seed) > 0 else middle(hps, seed),
        "all failed": lambda hps, seed: math.nan,
    }[kind]


def story(history: History) -> list[tuple[str, str, float]]:
    return [(r.key, r.trial.phase, r.objective) for r in history.results]


def assert_sound(found: Conclusion, space: Space, history: History) -> None:
    assert set(found.best_log2) == set(space)
    assert all(math.isfinite(value) for value in found.best_log2.values())
    assert found.runs == len(history.results) and found.seeds >= 1
    assert not math.isnan(found.objective)
    if math.isfinite(found.objective):
        measured = [r.objective for r in history.results if math.isfinite(r.objective)]
        assert min(measured) - 1e-9 <= found.objective <= max(measured) + 1e-9
    ends = list(found.phase_ends.values())
    assert ends == sorted(ends) and ends[-1] == found.runs
    json.dumps(to_json({"best": found.best_log2}), allow_nan=False)


@pytest.mark.parametrize(("ranges", "kind"), CASES)
def test_ends_within_its_plan_naming_every_point_once(
    strategy: Strategy, ranges: str, kind: str
) -> None:
    space = SPACES[ranges]
    phases = {phase.name: phase.trials for phase in strategy.plan(space)}
    for history, points in batches(strategy, space, landscape(kind, space)):
        assert points or history.results, "nothing was proposed"
        assert len({point.id for point in points}) == len(points)
        assert not any(point in history for point in points)
        for point in points:
            assert set(point.log2_hps) == set(space) and point.phase in phases
            assert all(math.isfinite(value) for value in point.log2_hps.values())
            chosen = {n: point.log2_hps[n] for n, axis in space.items() if axis.choices}
            assert all(value in space[name].grid(1) for name, value in chosen.items())
        assert len(history.results) <= 3 * sum(phases.values()), "it does not seem to end"
    found = strategy.conclude(space, history)
    assert_sound(found, space, history)
    assert isinstance(strategy, FreshSeeds)
    walks = hasattr(strategy.strategy, "extend")  # from point to point, by as many as it takes
    if not any(line.extended for line in found.lines) and not walks:
        assert len(history.results) <= sum(phases.values())
    some = any(math.isfinite(r.objective) for r in history.results)
    assert math.isfinite(found.objective) == some


@pytest.mark.parametrize(("ranges", "kind"), CASES)
def test_what_is_trained_ahead_changes_nothing_but_the_rounds(
    strategy: Strategy, ranges: str, kind: str
) -> None:
    """Neither what is asked for nor what is concluded; and it asks for no other trials."""
    space = SPACES[ranges]
    objective = landscape(kind, space)
    for search in (strategy, FreshSeeds(strategy=Settled(strategy=strategy.strategy))):
        rounds, plain, _ = in_rounds(search, space, objective)
        for most in (8, 10**6):
            fewer, history, trained = in_rounds(search, space, objective, most)
            assert story(history) == story(plain)
            assert repr(search.conclude(space, history)) == repr(search.conclude(space, plain))
            assert fewer <= rounds and trained >= len(history.results)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("lr", 3, 2), ("independent", 9, 4), ("pairs", 4, 3), ("random", 2, 2), ("tpe", 3, 3)],
)
def test_rounds_that_wait_for_each_other(name: str, before: int, after: int) -> None:
    plugin = build_plugin(config(CONF / "search" / f"{name}.yaml") | SMALLER.get(name, {}))
    search, space = FreshSeeds(strategy=plugin), SPACES["mup"]
    objective = basin(space, spread=0.002)
    assert in_rounds(search, space, objective)[0] == before
    assert in_rounds(search, space, objective, 10**6)[0] == after
    settled = FreshSeeds(strategy=Settled(strategy=plugin))
    assert in_rounds(settled, space, objective, 10**6)[0] <= after + (name == "pairs")


def test_any_part_of_the_results_resumes_to_the_same_history(strategy: Strategy) -> None:
    space = SPACES["odd"]
    objective = cliff(basin(space, spread=0.02), 1.9)
    whole = run_search(strategy, space, objective)
    for share in (0.4, 0.95):
        chance = random.Random(f"{share}")
        kept = [(r.key, r) for r in whole.results if chance.random() < share]
        chance.shuffle(kept)
        resumed, every = resume(strategy, space, objective, dict(kept))
        assert story(resumed) == story(whole)
        assert every.keys() == {r.key for r in whole.results}


def test_concludes_from_the_first_result_on(strategy: Strategy) -> None:
    space = SPACES["odd"]
    whole = run_search(strategy, space, cliff(basin(space, spread=0.02), 1.9))
    ends = [*range(1, 12), *range(12, len(whole.results), 37), len(whole.results)]
    for end in ends:
        part = History(whole.results[:end])
        assert_sound(strategy.conclude(space, part), space, part)
    for result in whole.results[:10]:
        alone = History([result])
        assert_sound(strategy.conclude(space, alone), space, alone)
