import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.records import from_json, to_json
from sweeper.registry import build_plugin
from sweeper.search.prune import (
    MIN_TRIALS_AT_RUNG,
    Pruner,
    PrunerKind,
    RungLosses,
    losses_at,
    should_stop,
)
from sweeper.search.strategy import History
from sweeper.trial import Axis, Result, Trial
from tests.refusals import raises_config_error
from tests.search.fakes import CONF, config, point_result
from tests.specs import spec_of


def pruner(kind: str = "median", others: tuple[RungLosses, ...] = ()) -> Pruner:
    return Pruner(kind=kind, steps=100, warmup=10, window=10, others=others)  # type: ignore[arg-type]


def scattered(count: int, seed: int = 0) -> list[Trial]:
    """Trials that lie on no line: any two differ in both hyperparameters."""
    return [
        Trial(spec=spec_of(), log2_hps={"a": float(i), "b": float(i)}, seed=seed)
        for i in range(count)
    ]


def along(values: list[float], seed: int = 0) -> list[Trial]:
    return [Trial(spec=spec_of(), log2_hps={"eta": v, "b": 0.0}, seed=seed) for v in values]


def stopped(
    trials: list[Trial],
    losses: list[float],
    kind: str = "median",
    others: tuple[RungLosses, ...] = (),
) -> list[int]:
    """The places of those that are stopped at the first rung; the last may have no loss there."""
    at_rung = {trial.key: loss for trial, loss in zip(trials, losses, strict=False)}
    rule = pruner(kind, others)
    keys = rule.trials_to_stop(rule.rungs[0], at_rung, trials)
    assert keys <= {trial.key for trial in trials}
    return [place for place, trial in enumerate(trials) if trial.key in keys]


def elsewhere(count: int, *losses: float) -> tuple[RungLosses, ...]:
    """Other trials, on no line with any; to be trained where they have no losses yet."""
    return tuple(
        RungLosses(log2_hps={"eta": 20.0 + i, "a": 20.0 + i, "b": 30.0 + i}, seed=0, losses=losses)
        for i in range(count)
    )


INF = math.inf


@pytest.mark.parametrize(
    ("kind", "others", "losses", "stop"),
    [
        ("median", [], [5, 1, 4, 2, 3], [0, 2]),
        # Halving keeps one in two, whatever the order.
        ("halving", [], [4, 3, 2, 1], [0, 1]),
        ("halving", [], [1, 2, 3, 4, 5], [2, 3, 4]),
        # Infinite losses are worse than any, and do not break the median.
        ("median", [INF, INF, INF], [1, INF], []),
        ("median", [1, 1, 1], [2, INF], [0, 1]),
        ("halving", [], [1, 2, INF, INF], [2, 3]),
        ("none", [1, 1], [5], []),
    ],
)
def test_the_rules_by_hand(
    kind: PrunerKind, others: list[float], losses: list[float], stop: list[int]
) -> None:
    assert [place for place, worse in enumerate(should_stop(kind, others, losses)) if worse] == stop


def test_nothing_is_stopped_before_the_warm_up_and_a_window_are_over() -> None:
    assert pruner("none").rungs == () and pruner("median").rungs == (33, 55, 78)
    assert pruner("halving").rungs == (22, 33, 55)
    late = Pruner(kind="median", steps=100, warmup=60, window=10)
    assert late.rungs == (70, 80, 90)
    assert Pruner(kind="median", steps=4, warmup=1, window=2).rungs == (3,)
    with pytest.raises(ValueError, match="not in tuple"):
        pruner().trials_to_stop(32, {}, [])


@pytest.mark.parametrize(
    ("kind", "losses", "places"),
    [
        ("median", [1, 6, 2, 5, 3, 4], [1, 3, 5]),
        ("halving", [1, 6, 2, 5, 3, 4], [1, 3, 5]),
        ("median", [1, *[9] * (MIN_TRIALS_AT_RUNG - 2)], []),  # too few
        ("median", [1, *[9] * (MIN_TRIALS_AT_RUNG - 1)], []),  # the median itself
        ("median", [1, 2, 3, 9, 9], [3, 4]),
        # Those that diverged are left to the training.
        ("halving", [1, 2, 3, 4, math.inf, math.nan, 8, 9], [6, 7]),
    ],
)
def test_trials_on_no_line_are_the_rule_s(
    kind: str, losses: list[float], places: list[int]
) -> None:
    assert stopped(scattered(len(losses)), losses, kind) == places
    # Two more were stopped before, and are not named again.
    assert stopped(scattered(len(losses) + 2), losses, kind) == places


def test_others_count_at_the_rungs_that_they_reached() -> None:
    trials = scattered(MIN_TRIALS_AT_RUNG - 1)
    assert stopped(trials, [1, 2, 9, 9], others=elsewhere(1, 1.0)) == [2, 3]
    assert stopped(trials, [1, 2, 9, 9], others=elsewhere(1)) == []


def test_seeds_are_judged_apart() -> None:
    """So the fresh seeds that compare two configurations are never stopped: two a seed are few."""
    trials = [trial for seed in range(6) for trial in scattered(2, seed)]
    assert stopped(trials, [1, 9] * 6) == []
    assert stopped(trials, [1, 9] * 6, others=elsewhere(9, 1.0)) == [1]


QUARTERS = [place / 4 for place in range(25)]
BETWEEN = [9.0, 8.0, 7.0, 6.0, 5.0, 4.5, 4.2, 4.0, 3.5, 3.0]


@pytest.mark.parametrize(
    ("kind", "values", "losses", "places"),
    [
        # The best is kept, and what lies around it.
        ("median", range(-6, 3), [9, 8, 7, 6, 5, 4, 3, 2, 2.5], [0, 1, 2, 3]),
        ("median", range(-6, 3), [9, 8, 7, 6, 2, 6.5, 7.5, 8.5, 9.5], [0, 1, 7, 8]),
        # Of fine spacing a distance, and of coarse spacing a number of points.
        ("median", QUARTERS, [2 + abs(i - 12) for i in range(25)], [*range(4), *range(21, 25)]),
        ("halving", range(0, 36, 4), [2 + abs(i - 4) for i in range(9)], [0, 1, 7, 8]),
        # All points that are about as good as the best are its best.
        ("median", range(12), [2.03, *BETWEEN, 2.0], [1, 2, 3, 4, 5, 6]),
        ("median", range(12), [2.01, *BETWEEN, 2.0], [3, 4, 5, 6]),
    ],
)
def test_a_line_keeps_its_best_and_what_lies_around_it(
    kind: str, values: Sequence[float], losses: list[float], places: list[int]
) -> None:
    assert stopped(along([float(value) for value in values]), losses, kind) == places


def test_the_first_trial_of_a_line_is_kept_when_the_line_is_planned() -> None:
    others, trial = elsewhere(6, 1.0), along([0.0])
    assert stopped(trial, [5.0], others=others) == [0]
    planned = [RungLosses(log2_hps=t.log2_hps, seed=0, losses=()) for t in along([0.0, 1.0, 2.0])]
    assert stopped(trial, [5.0], others=(*others, *planned)) == []


def test_any_line_s_need_keeps_a_trial() -> None:
    """A point at the far end of one line may be the optimum of another."""
    row = along([0, 1, 2, 3, 4, 5, 6, 7])
    column = [
        Trial(spec=spec_of(), log2_hps={"eta": 7.0, "b": float(b)}, seed=0) for b in (1, 2, 3)
    ]
    assert stopped(row + column, [1, 2, 3, 4, 5, 6, 7, 8, 8.5, 9, 9.5]) == [6, 10]


def finished(status: str, steps: int, curve: list[float]) -> Result:
    trial = Trial(spec=spec_of(), log2_hps={"eta": 0.0})
    return Result(trial=trial, status=status, objective=1, steps=steps, curve=tuple(curve))  # type: ignore[arg-type]


def test_losses_at_the_rungs_come_from_the_curve() -> None:
    steps = [float(i) for i in range(100)]
    assert losses_at(finished("complete", 100, steps), (30, 60), 10) == (24.5, 54.5)
    tens = [10 * i + 4.5 for i in range(10)]
    assert losses_at(finished("complete", 100, tens), (30, 60), 10) == (24.5, 54.5)
    assert losses_at(finished("complete", 100, tens), (35,), 10) == (29.5,)
    assert losses_at(finished("pruned", 30, steps[:30]), (30, 60), 10) == (24.5,)
    assert losses_at(finished("diverged", 40, steps[:40]), (30, 60), 10) == (24.5, math.inf)
    assert losses_at(finished("failed", 0, []), (30,), 10) == ()


@given(steps=st.integers(20, 700), window=st.integers(1, 20))
def test_uneven_stretches_are_weighted_by_their_steps(steps: int, window: int) -> None:
    np = pytest.importorskip("numpy")
    losses = np.arange(steps, dtype=float)
    curve = [float(piece.mean()) for piece in np.array_split(losses, min(100, steps))]
    (found,) = losses_at(finished("complete", steps, curve), (steps,), steps)
    assert found == pytest.approx(losses.mean())
    (found,) = losses_at(finished("complete", steps, curve), (steps,), window)
    assert abs(found - losses[-window:].mean()) <= steps / 100 + 1


def test_a_pruner_travels_as_json() -> None:
    results = [finished("diverged", 40, [1.0] * 40), finished("complete", 100, [2.0] * 100)]
    made = Pruner.from_trials(
        results, along([3.0]), kind="halving", steps=100, warmup=10, window=10
    )
    assert [len(other.losses) for other in made.others] == [3, 3, 0]
    assert from_json(Pruner, json.loads(json.dumps(to_json(made)))) == made
    with raises_config_error("search.prune", "often"):
        pruner("often")
    with raises_config_error("prune", "often"):
        build_plugin(config(CONF / "search" / "lr.yaml") | {"prune": "often"})


@pytest.mark.parametrize("path", sorted((CONF / "search").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_strategy_lives_with_stopped_trials(path: Path) -> None:
    """Trials are stopped with losses that look good: none is chosen, and the search ends."""
    space = {
        "eta": Axis(low=-4, high=4),
        "weight_decay": Axis(low=-3, high=3),
        "c": Axis(low=0, high=1),
    }
    settings = config(path)
    assert settings["prune"] == "none"
    settings |= {"runs": 40} if "runs" in settings else {}
    strategy, history = build_plugin(settings | {"prune": "median"}), History()
    while points := strategy.propose(space, history):
        assert len(history.results) < 2000
        for point in points:
            found = point_result(point, 3 + sum(v**2 for v in point.log2_hps.values()))
            if abs(point.log2_hps["eta"]) > 2:
                found = Result(
                    trial=found.trial, status="pruned", objective=0.1, steps=5, curve=(0.2, 0.1)
                )
            history.add(found)
    conclusion = strategy.conclude(space, history)
    assert abs(conclusion.best_log2["eta"]) <= 2 and conclusion.objective >= 3
    assert any("stopped early" in note for note in conclusion.notes)
