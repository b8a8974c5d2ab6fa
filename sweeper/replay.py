"""Searches and ladders replayed against what is known: what they have, and what they lack."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from sweeper.search.strategy import History, Point
from sweeper.settings import Experiment
from sweeper.transfer.ladder import Size, SizeCurve
from sweeper.trial import Log2Hps, Result, Trial

Lookup = Callable[[str], Result | None]
"""A finished result by its trial's key."""
Missing = list[Trial]


class Replay:
    """A search replayed against what is known, which goes on from where it stopped.

    Because only the strategy's own questions enter the history, a resumed or repeated search
    sees the same history whatever else the study holds, and in whatever order trials finished.
    What was once known must stay known: the strategy is not asked again about it.
    """

    def __init__(self, experiment: Experiment, lookup: Lookup) -> None:
        """Nothing is asked yet."""
        self._experiment, self._lookup = experiment, lookup
        self._whole = History()
        self._batch: list[Trial] = []

    def missing(self) -> Missing:
        """What the strategy lacks to go on; empty when it has nothing more to propose."""
        while not (missing := [trial for trial in self._batch if self._lookup(trial.key) is None]):
            for result in self._known():
                self._whole.add(result)
            self._batch = self._proposed(self._whole)
            if not self._batch:
                return []
        # Lines that are ahead of others need not wait for them.
        ahead = getattr(self._experiment.settings.search, "separable", False)
        every = [*missing, *(self._ahead() if ahead else [])]
        return list({trial.key: trial for trial in every}.values())

    def _ahead(self) -> Missing:
        """What a separable strategy lacks beyond its last batch, which is not whole yet."""
        history = self.history()
        while True:
            trials = self._proposed(history)
            found = {trial.key: self._lookup(trial.key) for trial in trials}
            known = [replace(result, trial=t) for t in trials if (result := found[t.key])]
            if not known:
                return trials
            for result in known:
                history.add(result)

    def _proposed(self, history: History) -> list[Trial]:
        settings = self._experiment.settings
        return [
            self._experiment.trial(settings.base, point.log2_hps, point.seed, point.phase)
            for point in settings.search.propose(settings.space, history)
        ]

    def history(self) -> History:
        """All that is known of what the strategy asked for, in the order in which it did."""
        return History([*self._whole.results, *self._known()])

    def _known(self) -> list[Result]:
        """What is known of the last batch."""
        found = ((trial, self._lookup(trial.key)) for trial in self._batch)
        return [replace(result, trial=trial) for trial, result in found if result is not None]

    def known(self) -> tuple[int, int]:
        """How many results there are: of batches that are whole, and in all."""
        whole = len(self._whole.results)
        return whole, whole + len(self._known())


def replay_search(experiment: Experiment, lookup: Lookup) -> tuple[History, Missing]:
    """The strategy's history as far as what is known goes, and what it lacks; see `Replay`."""
    replay = Replay(experiment, lookup)
    missing = replay.missing()
    return replay.history(), missing


def replay_ladder(
    experiment: Experiment, best_log2: Log2Hps, sizes: Iterable[Size], lookup: Lookup
) -> tuple[list[SizeCurve], int, Missing]:
    """Curves measured so far at every size, how many runs they hold, and the runs they lack."""
    rule, curves, missing, known = experiment.settings.transfer, [], [], 0
    for size in sizes:

        def trial(point: Point, size: Size = size) -> Trial:
            return experiment.trial(size, point.log2_hps, point.seed, point.phase)

        def value(point: Point, trial: Callable[[Point], Trial] = trial) -> float | None:
            result = lookup(trial(point).key)
            return None if result is None else _or_inf(result.objective)

        state = rule.line(best_log2, value)
        losses = {}
        for eta in state.losses:
            runs = [value(point) for point in rule.seeded(best_log2, eta)]
            losses[eta] = tuple(run for run in runs if run is not None)
            known += len(losses[eta])
        known += sum(
            value(point) is not None
            for eta in state.missing
            for point in rule.seeded(best_log2, eta)
        )
        curves.append(SizeCurve(size=size, losses=losses))
        missing += [trial(point) for point in rule.missing(best_log2, value)]
    return curves, known, missing


def _or_inf(objective: float) -> float:
    """A failed run's objective counts as +inf."""
    return math.inf if math.isnan(objective) else objective
