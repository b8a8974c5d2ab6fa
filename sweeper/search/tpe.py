"""`search=tpe`: Optuna's tree-structured Parzen estimator, asked in batches; a reference."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeper.errors import ConfigError
from sweeper.search.prune import PrunerKind
from sweeper.search.strategy import (
    Conclusion,
    History,
    Phase,
    Point,
    best_result,
    chosen_axes,
    pruned_notes,
    running_best,
)
from sweeper.trial import Axis, Log2Hps, Space, defaults

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


@dataclass(frozen=True, kw_only=True)
class TPE:
    """`runs` trials in batches of `batch`; the sampler is rebuilt from the history each time.

    The sampler is seeded by (`seed`, trials so far): Optuna repeats its points when a study is
    resumed with the same seed. A diverged trial is told as a loss worse than any, and one that was
    stopped early as pruned at its last step: Optuna ranks those below all others, by how far
    they came and then by their loss there.
    """

    runs: int = 100
    batch: int = 10
    seed: int = 0
    axes: tuple[str, ...] | None = None
    prune: PrunerKind = "none"

    def __post_init__(self) -> None:
        """Refuse an empty search."""
        for key in ("runs", "batch"):
            if getattr(self, key) < 1:
                raise ConfigError(key, getattr(self, key), "at least 1")

    def plan(self, space: Space) -> list[Phase]:
        """One phase."""
        chosen_axes(space, self.axes)
        return [Phase(name="tpe", trials=self.runs)]

    def propose(self, space: Space, history: History) -> list[Point]:
        """The next batch, once every trial of the last one has a result."""
        done = len(history.results)
        if done >= self.runs:
            return []
        points = self._ask(space, history, min(self.batch, self.runs - done))
        # Axes of a single value leave few points to ask: each is trained once.
        return list({point.id: point for point in points if point not in history}.values())

    def _ask(self, space: Space, history: History, count: int) -> list[Point]:
        import optuna

        level = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                suggestions = self._sample(space, history, count)
        finally:
            optuna.logging.set_verbosity(level)
        return [
            Point(log2_hps=Log2Hps({**defaults(space), **params}), seed=0, phase="tpe")
            for params in suggestions
        ]

    def _sample(self, space: Space, history: History, count: int) -> list[dict[str, float]]:
        """Tell a new sampler the history and ask it for `count` configurations."""
        import optuna

        names = chosen_axes(space, self.axes)
        ranges = {name: _distribution(space[name]) for name in names}
        seed = random.Random(f"{self.seed} {len(history.results)}").getrandbits(31)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        for result in history.results:
            pruned, states = result.status == "pruned", optuna.trial.TrialState
            study.add_trial(
                optuna.trial.create_trial(
                    state=states.PRUNED if pruned else states.COMPLETE,
                    params={name: result.trial.log2_hps[name] for name in names},
                    distributions=ranges,
                    value=None if pruned else result.objective,
                    intermediate_values={result.steps: result.curve[-1]} if pruned else None,
                )
            )
        return [study.ask(ranges).params for _ in range(count)]

    def conclude(self, space: Space, history: History) -> Conclusion:
        """The best trial."""
        best = best_result(history)
        objectives = [result.objective for result in history.results]
        return Conclusion(
            best_log2=best.trial.log2_hps,
            objective=best.objective,
            seeds=1,
            runs=len(objectives),
            notes=tuple(pruned_notes(history)),
            best_loss_curve=running_best(objectives),
            phase_ends={"tpe": len(objectives)},
        )


def _distribution(axis: Axis) -> BaseDistribution:
    """An axis as Optuna knows it: a range of logarithms, or categories by their places."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if axis.choices:
        return CategoricalDistribution(axis.grid(1.0))
    return FloatDistribution(axis.low, axis.high)
