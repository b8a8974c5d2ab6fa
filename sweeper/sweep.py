"""The loop: propose, train what is not known, record, until nothing is left to propose."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from sweeper.errors import SweeperError
from sweeper.launch.launcher import Launcher, Work
from sweeper.launch.leftovers import tidy
from sweeper.report.log import Logger, heard
from sweeper.search.prune import Kind, Pruner
from sweeper.search.strategy import Conclusion, History, Point
from sweeper.settings import Experiment
from sweeper.study import Study
from sweeper.training.prepare import prepare
from sweeper.training.settings import TrainSettings
from sweeper.transfer.ladder import Size, SizeCurve
from sweeper.trial import Log2Hps, Result, Trial

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


class Replay:
    """A search replayed against what is known, which goes on from where it stopped.

    Because only the strategy's own questions enter the history, a resumed or repeated search
    sees the same history whatever else the study holds, and in whatever order trials finished.
    What was once known must stay known: the strategy is not asked again about it.
    """

    def __init__(self, experiment: Experiment, lookup: Lookup) -> None:
        """Nothing is asked yet."""
        self._bench, self._lookup = experiment, lookup
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
        ahead = getattr(self._bench.settings.search, "separable", False)
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
        settings = self._bench.settings
        return [
            self._bench.trial(settings.base, point.hps, point.seed, point.phase)
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
    experiment: Experiment, best: Log2Hps, sizes: Iterable[Size], lookup: Lookup
) -> tuple[list[SizeCurve], int, Missing]:
    """Curves measured so far at every size, how many runs they hold, and the runs they lack."""
    rule, curves, missing, known = experiment.settings.transfer, [], [], 0
    for size in sizes:

        def trial(point: Point, size: Size = size) -> Trial:
            return experiment.trial(size, point.hps, point.seed, point.phase)

        def value(point: Point, trial: Callable[[Point], Trial] = trial) -> float | None:
            result = lookup(trial(point).key)
            return None if result is None else _or_inf(result.objective)

        state = rule.line(best, value)
        losses = {}
        for eta in state.known:
            runs = [value(point) for point in rule.runs_at(best, eta)]
            losses[eta] = tuple(run for run in runs if run is not None)
            known += len(losses[eta])
        known += sum(
            value(point) is not None for eta in state.missing for point in rule.runs_at(best, eta)
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
        experiment: Experiment,
        study: Study,
        launcher: Launcher,
        monitor: Monitor,
        logger: Logger,
        *,
        wait: bool = True,
    ) -> None:
        """`study` must be open for writing, its lock held by the caller."""
        self.wait = wait
        self.experiment, self.study = experiment, study
        self.launcher, self.monitor, self.logger = launcher, monitor, logger
        self._retry = {r.key for r in study.results() if r.status == "failed"}
        self._prune: Kind = "none"
        self._pending: Missing = []

    def lookup(self, key: str) -> Result | None:
        """A result of the study, unless it is a failure from an earlier sweep."""
        result = None if key in self._retry else self.study.get(key)
        pruned = result is not None and result.status == "pruned"
        return None if pruned and self._prune == "none" else result

    def search(self, after_batch: Callable[[Conclusion, bool], None]) -> Conclusion:
        """Run the search to its end; `after_batch` gets each conclusion, and if it is final."""
        settings = self.experiment.settings
        self._prune = getattr(settings.search, "prune", "none")
        replay, told = Replay(self.experiment, self.lookup), -1

        def ask() -> tuple[int, Missing]:
            nonlocal told
            missing = replay.missing()
            whole, known = replay.known()
            # A launcher may ask after every trial; what can be concluded is told once a batch.
            if missing and known and whole != told:
                after_batch(settings.search.conclude(settings.space, replay.history()), False)
            told = whole
            return known, missing

        self._train(ask)
        conclusion = settings.search.conclude(settings.space, replay.history())
        after_batch(conclusion, True)
        return conclusion

    def ladder(self, best: Log2Hps, sizes: Sequence[Size]) -> list[SizeCurve]:
        """Train the curves of all `sizes` to their end; nothing is pruned."""
        self._prune, curves = "none", list[SizeCurve]()

        def ask() -> tuple[int, Missing]:
            nonlocal curves
            curves, known, missing = replay_ladder(self.experiment, best, sizes, self.lookup)
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
            self._pending = list(unique.values())
            return self._pending

        work = Work(
            corpus=self.experiment.corpus,
            folder=self.study.folder,
            pending=pending,
            watch=self.monitor.advanced,
            tell=self._note,
            pruner=self._pruner,
            wait=self.wait,
        )
        for result in self.study.results():  # a kill may have come between record and log
            self._log(result)
        for results in self.launcher.run(work):
            self._record(results)
        tidy(self.study.folder, lambda key: self.lookup(key) is not None)
        lost = ask()[1]
        if lost and not self.wait:
            raise Submitted(len(lost))
        if lost:  # proposing them again might never end
            raise SweeperError(
                f"the launcher gave no result for {len(lost)} of {len(asked)} trials"
            )

    def _record(self, results: Sequence[Result]) -> None:
        bounds: Mapping[str, tuple[float, float]] = {
            name: (axis.low, axis.high) for name, axis in self.experiment.settings.space.items()
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
        return Pruner.knowing(
            [result for result in self.study.results() if result.trial.setup == trial.setup],
            [one for one in self._pending if one.setup == trial.setup],
            kind=self._prune,
            steps=train.steps,
            warmup=round(self._longest_warmup(train) * train.steps),
            window=train.window(),
        )

    def _longest_warmup(self, train: TrainSettings) -> float:
        """The share of the steps after which no trial of the space is in its warm-up."""
        axis = self.experiment.settings.space.get("warmup")
        return train.warmup if axis is None else train.of({"warmup": 2.0**axis.high}).warmup

    def _log(self, result: Result) -> None:
        """Log a result that is recorded already; what is to be said of it is noted once."""
        if sentence := heard(lambda: self.logger.log(self.study.folder, result)):
            self._note(sentence)

    def _note(self, sentence: str) -> None:
        """Keep a sentence for the user, once."""
        if sentence not in self.study.notices:
            self.study.notices.append(sentence)
