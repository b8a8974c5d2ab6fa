"""Searches without training: losses that are made up, and trials that take no time."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sweeper.config.compose import compose_tree
from sweeper.laws.law import NoLaw
from sweeper.search.strategy import History, Strategy, may_follow
from sweeper.stats.ladder import LadderRule, LadderSize, Size
from sweeper.stats.line import LineRule, LineState, replay_line
from sweeper.sweep.study_replay import Replay, replay_search
from sweeper.trial import Axis, Log2Hps, Point, Result, Space, Trial, TrialSpec, digest
from tests.specs import spec_of

CONF = Path(__file__).parents[2] / "conf"
Objective = Callable[[Log2Hps, int], float]


def config(path: Path) -> dict[str, Any]:
    return compose_tree([f"search={path.stem}"])["search"]


def space_of(parameterization: str) -> Space:
    found = compose_tree([f"parameterization={parameterization}"])["parameterization"]["space"]
    return {name: Axis(**axis) for name, axis in found.items()}


def noise(hps: Log2Hps, seed: int) -> float:
    """Between -1 and 1, and always the same for the same run."""
    return int(digest([sorted(hps.items()), seed])[:8], 16) / 2**31 - 1


def basin(space: Space, *, at: Mapping[str, float] | None = None, spread: float = 0.0) -> Objective:
    """A paraboloid; its optimum is inside the range and off the grid, or `at`."""
    optimum = {name: a.low + 0.47 * (a.high - a.low) for name, a in space.items()} | dict(at or {})

    def objective(hps: Log2Hps, seed: int) -> float:
        bowl = sum(0.1 * (hps[name] - best) ** 2 for name, best in optimum.items())
        return 3.0 + bowl + spread * noise(hps, seed)

    return objective


def cliff(objective: Objective, eta: float) -> Objective:
    return lambda hps, seed: math.inf if hps["eta"] >= eta else objective(hps, seed)


def result(trial: Trial, objective: float) -> Result:
    status = "complete" if math.isfinite(objective) else "diverged"
    if math.isnan(objective):
        status = "failed"
    return Result(trial=trial, status=status, objective=objective)


def point_result(point: Point, objective: float) -> Result:
    trial = Trial(spec=spec_of(), log2_hps=point.log2_hps, seed=point.seed, phase=point.phase)
    return result(trial, objective)


@cache
def spec_of_size(size: Size) -> TrialSpec:
    model = {"width": size.width, "depth": size.depth}
    return spec_of({"model": model, "train": dict(size.train_overrides())})


@dataclass
class Experiment:
    search: Any = None
    space: Space = field(default_factory=dict)
    transfer: LadderRule = field(default_factory=lambda: LadderRule(widths=(32, 64)))
    base: Size = field(default_factory=lambda: Size(width=32, depth=2))
    corpus: Any = None
    runner: Any = None
    launcher: Any = None
    logger: Any = None

    @property
    def settings(self) -> SimpleNamespace:
        base = LadderSize(width=self.base.width, depth=self.base.depth, batch_size=16, steps=100)
        rest = {"law": NoLaw(), "raw": {"train": {}}, "scaled_by_user": False}
        return SimpleNamespace(**vars(self), **rest, ladder_base=base)

    def trial(self, size: Size, log2_hps: Log2Hps, seed: int, phase: str) -> Trial:
        return Trial(spec=spec_of_size(size), log2_hps=log2_hps, seed=seed, phase=phase)


def batches(
    strategy: Strategy, space: Space, objective: Objective
) -> Iterator[tuple[History, list[Point]]]:
    experiment, history = Experiment(search=strategy, space=space), History()
    while points := strategy.propose(space, history):
        yield history, points
        for point in points:
            trial = experiment.trial(experiment.base, point.log2_hps, point.seed, point.phase)
            history.add(result(trial, objective(point.log2_hps, point.seed)))
    yield history, []


def run_search(strategy: Strategy, space: Space, objective: Objective) -> History:
    *_, (history, _) = batches(strategy, space, objective)
    return history


def resume(
    strategy: Strategy, space: Space, objective: Objective, known: dict[str, Result]
) -> tuple[History, dict[str, Result]]:
    """Train to the end what the loop's replay finds missing: the history, and all that is known."""
    experiment, known = Experiment(search=strategy, space=space), dict(known)
    while True:
        history, missing = replay_search(experiment, known.get)
        if not missing:
            return history, known
        for trial in missing:
            assert trial.key not in known
            known[trial.key] = result(trial, objective(trial.log2_hps, trial.seed))


def in_rounds(
    strategy: Strategy, space: Space, objective: Objective, most: int = 0
) -> tuple[int, History, int]:
    """How many rounds wait for each other, the history, and how many trials are trained.

    A round trains what is asked for, and what may follow as long as it has at most `most` trials.
    """
    experiment, known, rounds = Experiment(search=strategy, space=space), dict[str, Result](), 0
    replay: Any = Replay(experiment, known.get)  # type: ignore[arg-type]
    while trials := replay.missing():
        rounds += 1
        for point in may_follow(strategy, space, replay.history()) if len(trials) < most else []:
            trial = experiment.trial(experiment.base, point.log2_hps, point.seed, point.phase)
            if len(trials) < most and trial not in trials:
                trials.append(trial)
        for trial in trials:
            # As in a key: the same value may be computed in two ways.
            hps = Log2Hps({n: round(float(value), 9) for n, value in trial.log2_hps.items()})
            known.setdefault(trial.key, result(trial, objective(hps, trial.seed)))
    return rounds, replay.history(), len(known)


def lay(rule: LineRule, axis: Axis, loss: Callable[[float], float]) -> tuple[LineState, list[Any]]:
    known: dict[float, float] = {}
    rounds = []
    while True:
        state = replay_line(rule, axis, known.get)
        if not state.missing:
            return state, rounds
        assert not set(state.missing) & known.keys()
        rounds.append(state.missing)
        known |= {value: loss(value) for value in state.missing}
        assert len(rounds) < 1000
