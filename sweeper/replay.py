"""Searches and ladders replayed against the results so far: what they have, and what they lack.

No file holds a search's state. A strategy is a pure function of its history, so the state follows
from the results, which are recorded anyway: after a kill at any moment, a restart replays the
search to where it was, and no second record could contradict the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from sweeper.planned import planned_log2
from sweeper.search.strategy import History, Point
from sweeper.settings import Experiment
from sweeper.transfer.ladder import Size, SizeCurve
from sweeper.trial import Log2Hps, Result, Space, Trial

Lookup = Callable[[str], Result | None]
"""A finished result by its trial's key."""
Missing = list[Trial]


class Replay:
    """A search replayed against the results so far, which goes on from where it stopped.

    Only results that the strategy asked for enter its history, in the order in which it asked. A
    study also holds trials of earlier settings and of ladders, and packs finish in any order: with
    these a resumed or repeated search would see another history and take another way.

    A result must not disappear between two calls: the strategy is not asked again about it.
    """

    def __init__(self, experiment: Experiment, lookup: Lookup) -> None:
        """Start with an empty history; `lookup` finds results by key."""
        self._experiment, self._lookup = experiment, lookup
        self._complete = History()
        self._batch: list[Trial] = []

    def missing(self) -> Missing:
        """What the strategy lacks to go on; empty when it has nothing more to propose."""
        while not (missing := [trial for trial in self._batch if self._lookup(trial.key) is None]):
            for result in self._results_of(self._batch):
                self._complete.add(result)
            self._batch = self._proposed(self._complete)
            if not self._batch:
                return []
        # Lines that are ahead of others need not wait for them.
        if getattr(self._experiment.settings.search, "separable", False):
            missing += self._ahead()
        return list({trial.key: trial for trial in missing}.values())

    def _ahead(self) -> Missing:
        """What a separable strategy lacks beyond its last batch, which is not complete yet."""
        history = self.history()
        while True:
            trials = self._proposed(history)
            results = self._results_of(trials)
            if not results:
                return trials
            for result in results:
                history.add(result)

    def _proposed(self, history: History) -> list[Trial]:
        settings = self._experiment.settings
        return [
            self._experiment.trial(settings.base, point.log2_hps, point.seed, point.phase)
            for point in settings.search.propose(settings.space, history)
        ]

    def history(self) -> History:
        """All results that the strategy asked for, in the order in which it asked."""
        return History([*self._complete.results, *self._results_of(self._batch)])

    def _results_of(self, trials: Iterable[Trial]) -> list[Result]:
        """The results of those of `trials` that have one, with the phase that asks for it now."""
        pairs = ((trial, self._lookup(trial.key)) for trial in trials)
        space = self._experiment.settings.space
        return [
            replace(result, trial=_as_point(trial, space))
            for trial, result in pairs
            if result is not None
        ]

    def result_counts(self) -> tuple[int, int]:
        """How many results there are: of complete batches, and in all."""
        complete = len(self._complete.results)
        return complete, complete + len(self._results_of(self._batch))


def _as_point(trial: Trial, space: Space) -> Trial:
    """The trial as strategies see it: choices by their places."""
    if not trial.choices:
        return trial
    places = {name: space[name].place(value) for name, value in trial.choices.items()}
    return replace(trial, log2_hps=Log2Hps({**trial.log2_hps, **places}))


def replay_search(experiment: Experiment, lookup: Lookup) -> tuple[History, Missing]:
    """The strategy's history so far, and the trials that it lacks; see `Replay`."""
    replay = Replay(experiment, lookup)
    missing = replay.missing()
    return replay.history(), missing


def replay_ladder(
    experiment: Experiment, best_log2: Log2Hps, sizes: Iterable[Size], lookup: Lookup
) -> tuple[list[SizeCurve], int, Missing]:
    """Curves measured so far at every size, how many trials they hold, and those they lack.

    A size's runs are what its plan would be: the study's law changes their hyperparameters.
    """
    rule, curves, missing, count = experiment.settings.transfer, [], [], 0
    for size in sizes:
        planned = planned_log2(experiment, size, best_log2)
        middle = rule.around(best_log2, planned) if planned is not best_log2 else best_log2

        def trial(point: Point, size: Size = size) -> Trial:
            return experiment.trial(size, point.log2_hps, point.seed, point.phase)

        def value(point: Point, trial: Callable[[Point], Trial] = trial) -> float | None:
            result = lookup(trial(point).key)
            return None if result is None else result.objective

        def laid(point: Point, value: Callable[[Point], float | None] = value) -> float | None:
            """Past a failed run the line goes on as past one that diverged."""
            loss = value(point)
            return math.inf if loss is not None and math.isnan(loss) else loss

        state = rule.line(middle, laid)
        losses, failed = {}, 0
        for eta in (*state.losses, *state.missing):
            values = [value(point) for point in rule.runs_at(middle, eta)]
            known = tuple(loss for loss in values if loss is not None)
            count += len(known)
            failed += sum(map(math.isnan, known))
            if eta in state.losses and not any(map(math.isnan, known)):
                losses[eta] = known
        moved = planned[rule.along] - best_log2[rule.along]
        curves.append(SizeCurve(size=size, losses=losses, failed=failed, planned_log2=moved))
        missing += [trial(point) for point in rule.missing(middle, laid)]
    return curves, count, missing
