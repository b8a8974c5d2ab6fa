"""Our strategies in anybody's Optuna study, over `enqueue_trial`.

    strategy = IndependentSearch(runs=45)
    while waiting := enqueue(study, strategy, space):
        study.optimize(objective, n_trials=waiting)
    print(conclude(study, strategy, space))

A strategy is a pure function of its results, so nothing is kept beside the study: each trial that
is enqueued has attributes that say which point of the search it is. The learning rate, where
strategies begin, is called `eta`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from sweeper.errors import BadInput
from sweeper.search.fresh import FreshSeeds, Settled
from sweeper.search.optuna.mapping import read_space
from sweeper.search.replay import SearchReplay
from sweeper.search.strategy import FRESH_SEEDS, Conclusion, History, Strategy
from sweeper.trial import (
    Axis,
    PluginSpec,
    Point,
    Result,
    Space,
    Status,
    TrainSettings,
    Trial,
    TrialSpec,
    in_use,
)

TheirSpace = Mapping[str, Axis | BaseDistribution]
"""Hyperparameters by name: distributions of Optuna's, logarithmic or categorical, or our axes."""
POINT, SEED, PHASE = "sweeper_point", "seed", "phase"
"""Attributes of a trial: which point of the search it is, its run's seed, who asks for it."""


def enqueue(study: optuna.Study, strategy: Strategy, space: TheirSpace) -> int:
    """Enqueue what `strategy` asks for next; how many trials wait now, and 0 where it has ended.

    It is called while no trial runs: one that a killed process left is enqueued again. A trial that
    failed counts as the worst, and one that was pruned is never chosen. The objective asks for
    hyperparameters as in any study, and for the run's seed as `trial.user_attrs["seed"]`; a value
    outside of its range is a line's that is extended, and is given to it all the same.
    """
    replay = _Replay(study, strategy, space)
    missing = replay.missing()
    waiting = {
        trial.user_attrs.get(POINT)
        for trial in study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    }
    for point in missing:
        if (name := _name(point)) not in waiting:
            attributes = {POINT: name, SEED: point.seed, PHASE: point.phase}
            params = in_use(replay.space, point.log2_hps)
            for each, distribution in space.items():
                if isinstance(distribution, IntDistribution):
                    params[each] = round(float(params[each]))
            study.enqueue_trial(params, user_attrs=attributes)
    return len(missing)


def conclude(study: optuna.Study, strategy: Strategy, space: TheirSpace) -> Conclusion:
    """What the search has found so far; BadInput before a trial of it has ended.

    Its `objective` is the mean over fresh seeds of the best configuration. `study.best_value` is
    the luckiest run's: the least of many noisy losses was chosen for its noise, too.
    """
    replay = _Replay(study, strategy, space)
    replay.missing()
    if not (history := replay.history()).results:
        raise BadInput("no trial of this search has finished")
    return replay.strategy.conclude(replay.space, history)


class _Replay(SearchReplay[Point]):
    """A strategy with its fresh seeds, replayed against the trials of a study that have ended."""

    def __init__(self, study: optuna.Study, strategy: Strategy, space: TheirSpace) -> None:
        if len(study.directions) > 1:
            raise BadInput("a strategy searches one objective: this study has several directions")
        super().__init__(separable=False)
        seeds = getattr(strategy, "fresh_seeds", FRESH_SEEDS)
        if getattr(strategy, "until", "planned") == "settled":
            strategy = Settled(strategy=strategy)
        self.strategy = FreshSeeds(strategy=strategy, seeds=seeds)
        self.space: Space = read_space(space)
        self.strategy.plan(self.space)  # raises for a space that the strategy cannot search
        self._sign = -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
        ended = (trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished())
        self._ended = {trial.user_attrs.get(POINT): trial for trial in ended}

    def _proposed(self, history: History) -> list[Point]:
        return self.strategy.propose(self.space, history)

    def _key(self, asked: Point) -> Hashable:
        return asked.id

    def _result(self, asked: Point) -> Result | None:
        trial = self._ended.get(_name(asked))
        return None if trial is None else self._read(asked, trial)

    def _read(self, point: Point, ended: FrozenTrial) -> Result:
        loss = self._sign * ended.values[0] if ended.values else math.nan
        status: Status = "failed"
        if ended.state == TrialState.PRUNED:
            status, loss = "pruned", loss if ended.values else math.inf
        elif ended.state == TrialState.COMPLETE and loss > -math.inf:
            status = "complete" if math.isfinite(loss) else "diverged"
        trial = Trial(spec=UNTRAINED, log2_hps=point.log2_hps, seed=point.seed, phase=point.phase)
        return Result(trial=trial, status=status, objective=loss)


def _name(point: Point) -> str:
    """A point's configuration and seed as text, which names it among a study's trials."""
    return json.dumps(point.id)


_NOT_OURS: dict[str, Any] = dict.fromkeys(("width", "depth", "base_width", "base_depth"), 1)
UNTRAINED = TrialSpec(
    runner={"name": "optuna"},
    parameterization=PluginSpec(name="own"),
    model=PluginSpec(name="own"),
    optimizer=PluginSpec(name="own"),
    data={},
    train=TrainSettings(steps=1, batch_size=1, seq_len=1),
    **_NOT_OURS,
)
"""Of trials of which nothing else is known."""
