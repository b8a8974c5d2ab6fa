"""The loop: propose, train what is not known, record, until nothing is left to propose."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from sweeper.errors import SweeperError
from sweeper.launch.launcher import Launcher, Work
from sweeper.report.log import Logger
from sweeper.search.prune import Kind, Pruner
from sweeper.search.strategy import Conclusion, History, Point
from sweeper.settings import Bench
from sweeper.study import Study
from sweeper.training.recipe import prepare
from sweeper.transfer.ladder import Size, SizeCurve
from sweeper.trial import Hps, Result, Trial

Lookup = Callable[[str], Result | None]
"""A finished result by its trial's key."""
Missing = list[Trial]


class Submitted(Exception):
    """All that can be named is submitted and nobody waits; `trials` have no result yet."""

    def __init__(self, trials: int) -> None:
        self.trials = trials
        super().__init__(f"{trials} trials are submitted")


class Monitor(Protocol):
    """Watches a sweep: told of work in the order in which it happens."""

    def proposed(self, known: int, missing: Sequence[Trial]) -> None:
        """The loop is about to train `missing`; `known` trials of this job are done already."""
        ...

    def advanced(self, trials: float) -> None:
        """So many trials' worth of work was done on the missing ones."""
        ...

    def finished(self, result: Result) -> None:
        """A trial was trained and recorded."""
        ...


def replay_search(bench: Bench, lookup: Lookup) -> tuple[History, Missing]:
    """Replay the strategy against what is known: its history in its own order, and what it lacks.

    Because only the strategy's own questions enter the history, a resumed or repeated search
    sees the same history whatever else the study holds, and in whatever order trials finished.
    """
    settings, history = bench.settings, History()
    while points := settings.search.propose(settings.space, history):
        missing: Missing = []
        for point in points:
            trial = bench.trial(settings.base, point.hps, point.seed, point.phase)
            result = lookup(trial.key)
            if result is None:
                missing.append(trial)
            else:
                history.add(replace(result, trial=trial))
        if missing:
            return history, missing
    return history, []


def replay_ladder(
    bench: Bench, best: Hps, sizes: Iterable[Size], lookup: Lookup
) -> tuple[list[SizeCurve], int, Missing]:
    """Curves measured so far at every size, how many runs they hold, and the runs they lack."""
    rule, curves, missing, known = bench.settings.transfer, [], [], 0
    for size in sizes:

        def trial(point: Point, size: Size = size) -> Trial:
            return bench.trial(size, point.hps, point.seed, point.phase)

        def value(point: Point, trial: Callable[[Point], Trial] = trial) -> float | None:
            result = lookup(trial(point).key)
            return None if result is None else _or_inf(result.objective)

        state = rule.line(best, value)
        losses = {}
        for eta in state.known:
            runs = [value(point) for point in rule.seeded(best, eta)]
            losses[eta] = tuple(run for run in runs if run is not None)
            known += len(losses[eta])
        known += sum(
            value(point) is not None for eta in state.missing for point in rule.seeded(best, eta)
        )
        curves.append(SizeCurve(size=size, losses=losses))
        missing += [trial(point) for point in rule.missing(best, value)]
    return curves, known, missing


def _or_inf(objective: float) -> float:
    """A failed run's objective counts as +inf."""
    return math.inf if math.isnan(objective) else objective


class Sweep:
    """Trains and records whatever a replay finds missing.

    A trial that failed before this sweep began is tried again; one that fails during it is
    taken as it is, so that a sweep ends. A pruned trial counts for a search that prunes alone.
    Without `wait`, `Submitted` is raised as soon as results of jobs are all that is missing.
    """

    def __init__(
        self,
        bench: Bench,
        study: Study,
        launcher: Launcher,
        monitor: Monitor,
        logger: Logger,
        *,
        wait: bool = True,
    ) -> None:
        """`study` must be open for writing, its lock held by the caller."""
        self.wait = wait
        self.bench, self.study = bench, study
        self.launcher, self.monitor, self.logger = launcher, monitor, logger
        self._retry = {r.key for r in study.results() if r.status == "failed"}
        self._prune: Kind = "none"

    def lookup(self, key: str) -> Result | None:
        """A result of the study, unless it is a failure from an earlier sweep."""
        result = None if key in self._retry else self.study.get(key)
        pruned = result is not None and result.status == "pruned"
        return None if pruned and self._prune == "none" else result

    def search(self, after_batch: Callable[[Conclusion, bool], None]) -> Conclusion:
        """Run the search to its end; `after_batch` gets each conclusion, and if it is final."""
        settings = self.bench.settings
        self._prune = getattr(settings.search, "prune", "none")
        history = History()

        def ask() -> tuple[int, Missing]:
            nonlocal history
            history, missing = replay_search(self.bench, self.lookup)
            if missing and history.results:
                after_batch(settings.search.conclude(settings.space, history), False)
            return len(history.results), missing

        self._train(ask)
        conclusion = settings.search.conclude(settings.space, history)
        after_batch(conclusion, True)
        return conclusion

    def ladder(self, best: Hps, sizes: Sequence[Size]) -> list[SizeCurve]:
        """Train the curves of all `sizes` to their end; nothing is pruned."""
        self._prune, curves = "none", list[SizeCurve]()

        def ask() -> tuple[int, Missing]:
            nonlocal curves
            curves, known, missing = replay_ladder(self.bench, best, sizes, self.lookup)
            return known, missing

        self._train(ask)
        return curves

    def _train(self, ask: Callable[[], tuple[int, Missing]]) -> None:
        """Train until `ask` finds nothing missing; it is asked whenever the launcher has room."""
        asked: set[str] = set()

        def pending() -> list[Trial]:
            known, missing = ask()
            unique = {trial.key: trial for trial in missing}
            if unique.keys() - asked:
                self.monitor.proposed(known, list(unique.values()))
            asked.update(unique)
            return list(unique.values())

        work = Work(
            corpus=self.bench.corpus,
            folder=self.study.folder,
            pending=pending,
            watch=self.monitor.advanced,
            tell=self._note,
            pruner=self._pruner,
            wait=self.wait,
        )
        for results in self.launcher.run(work):
            self._record(results)
        lost = ask()[1]
        if lost and not self.wait:
            raise Submitted(len(lost))
        if lost:  # proposing them again might never end
            raise SweeperError(
                f"the launcher gave no result for {len(lost)} of {len(asked)} trials"
            )

    def _record(self, results: Sequence[Result]) -> None:
        bounds: Mapping[str, tuple[float, float]] = {
            name: (axis.low, axis.high) for name, axis in self.bench.settings.space.items()
        }
        self._retry -= {result.key for result in results}
        self.study.record(results, bounds)
        for result in results:
            self._log(result)
            self.monitor.finished(result)

    def _pruner(self, trial: Trial) -> Pruner | None:
        """What decides which trials of a pack like `trial` are stopped early."""
        if self._prune == "none":
            return None
        train = prepare(trial.setup).train
        same = [r for r in self.study.results() if r.trial.setup == trial.setup]
        return Pruner.knowing(
            same,
            kind=self._prune,
            steps=train.steps,
            warmup=round(train.warmup * train.steps),
            window=train.window(),
        )

    def _log(self, result: Result) -> None:
        """Log a result that is recorded already; a log that fails is noted once, and no more."""
        try:
            self.logger.log(self.study.folder, result)
        except Exception as error:
            self._note(f"the log failed ({type(error).__name__}: {error}); no result is lost")

    def _note(self, sentence: str) -> None:
        """Keep a sentence for the user, once."""
        if sentence not in self.study.notices:
            self.study.notices.append(sentence)
