"""What a command trains: the trials that a search or a ladder lacks, recorded in a study."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.config.settings import Experiment
from sweeper.errors import SweeperError
from sweeper.plan.in_training import DISAGREES
from sweeper.search.prune import Pruner, PrunerKind
from sweeper.search.strategy import Conclusion, History, may_follow
from sweeper.stats.ladder import Size, SizeCurve
from sweeper.study.lock import cancel_requested
from sweeper.study.logs.log import notice_of
from sweeper.study.study import StudyRecord
from sweeper.study.watcher import ProgressListener
from sweeper.sweep.loop import Loop
from sweeper.sweep.study_replay import Missing, Replay, ladder_so_far, replay_ladder
from sweeper.table import counted
from sweeper.trial import Log2Hps, PlainHps, Result, Trial

if TYPE_CHECKING:
    from sweeper.sweep.settled_ladder import SettledLadder


@dataclass(kw_only=True, eq=False)
class Submitted(Exception):
    """All that can be named is in jobs and nobody waits: so many trials have no result yet.

    So many of them `failed` before, and so many others are `finished`.
    """

    submitted: int
    finished: int
    failed: int = 0
    notices: Sequence[str] = ()


def make_loop(
    experiment: Experiment,
    folder: Path,
    listener: ProgressListener,
    notify: Callable[[str], None],
    planned: int = 0,
    **options: Any,
) -> Loop:
    """The loop of an experiment, its files below `folder`; `planned` are the sweep's trials."""
    settings = experiment.settings
    loop = Loop(
        runner=settings.runner.open(experiment.corpus, settings.launcher, folder, notify, planned),
        launcher=settings.launcher,
        folder=folder,
        notify=notify,
        tell=listener.announce,
        advanced=listener.advanced,
        **options,
    )
    listener.watch(loop.states)
    return loop


def measure_trials(
    experiment: Experiment,
    folder: Path,
    trials: Iterable[Trial],
    listener: ProgressListener,
    notify: Callable[[str], None],
    most: float = math.inf,
) -> dict[str, Result]:
    """Results, by key, of trials that are no part of a study: they are kept in memory alone.

    SweeperError for one that fails, and where all would take more than `most` seconds if they
    were as long as the one that is finished first.
    """
    results: dict[str, Result] = {}
    wanted = {trial.key: trial for trial in trials}

    def record(new: Sequence[Result]) -> None:
        for result in new:
            if result.status == "failed":
                # A measurement compares sizes: with one of them missing there is none.
                raise SweeperError(
                    f"the model cannot be trained at width {result.trial.width}, "
                    f"depth {result.trial.depth}: {result.error}"
                )
            # Of its own seconds: what else passed since the start, as for workers, is spent once.
            if not results and (seconds := result.seconds * len(wanted)) > most:
                raise SweeperError(f"it might take {seconds / 60:.0f} minutes")
            results[result.key] = result
            listener.finished(result)

    def missing() -> list[Trial]:
        return [trial for key, trial in wanted.items() if key not in results]

    listener.proposed(0, list(wanted.values()))
    loop = make_loop(experiment, folder, listener, notify, record=record)
    try:
        loop.run(missing)
    finally:  # nothing is resumed: these trials' jobs are of no use to anyone later
        loop.tidy(wanted.__contains__)
    return results


class Sweep:
    """Trains and records whatever a replay finds missing.

    A trial that failed before this sweep began is tried again; one that fails during it is
    taken as it is, so that a sweep ends. A pruned trial counts for a search that prunes alone.
    Without `wait`, `Submitted` is raised as soon as results of jobs are all that is missing.
    """

    def __init__(
        self,
        experiment: Experiment,
        study: StudyRecord,
        listener: ProgressListener,
        *,
        wait: bool = True,
    ) -> None:
        """`study` must be open for writing, its lock held by the caller."""
        self.wait = wait
        self.experiment, self.study, self.listener = experiment, study, listener
        self.logger = experiment.settings.logger
        # Their cause may be gone: a mended script, another machine, more memory.
        self._retry = {r.key for r in study.results() if r.status == "failed"}
        self.searched = set[str]()  # keys of the trials that a search rests on
        self._prune: PrunerKind = "none"  # what a search asks for, while it runs
        self._pending: Missing = []
        self._asked = set[str]()  # keys: the listener hears of a proposal that names new trials
        self._last_failure, self._failures = "", 0  # of trials in a row, by their reason

    def lookup(self, key: str) -> Result | None:
        """A result of the study, unless it is a failure from an earlier sweep."""
        result = None if key in self._retry else self.study.get(key)
        pruned = result is not None and result.status == "pruned"
        return None if pruned and self._prune == "none" else result

    def search(self, after_batch: Callable[[Conclusion, bool], None]) -> Conclusion:
        """Run the search to its end; `after_batch` gets each conclusion, and if it is final."""
        settings = self.experiment.settings
        self._prune = getattr(settings.search, "prune", "none")
        replay, concluded = Replay(self.experiment, self.lookup), -1

        def ask() -> tuple[int, Missing]:
            nonlocal concluded
            missing = replay.missing()
            complete, finished = replay.result_counts()
            # The loop may ask after every trial; what can be concluded is told once a batch.
            if missing and finished and complete != concluded:
                after_batch(self._conclusion(replay.history()), False)
            concluded = complete
            return finished, missing

        def follow() -> Missing:
            """What may be asked for later, and was never tried."""
            # Nothing with a pruner: all that train decide who is stopped.
            points = may_follow(settings.search, settings.space, replay.history())
            make, size, prunes = self.experiment.trial, settings.base, self._prune != "none"
            trials = (make(size, p.log2_hps, p.seed, p.phase) for p in points if not prunes)
            return [trial for trial in trials if self.study.get(trial.key) is None]

        self._train(ask, sum(p.trials for p in settings.search.plan(settings.space)), follow)
        self.searched = {result.key for result in replay.history().results}
        conclusion = self._conclusion(replay.history())
        after_batch(conclusion, True)
        return conclusion

    def _conclusion(self, history: History) -> Conclusion:
        settings = self.experiment.settings
        conclusion = settings.search.conclude(settings.space, history)
        heldout = settings.raw["train"].get("objective") == "heldout"
        return replace(conclusion, not_searched=history.unmoved(), heldout=heldout)

    def ladder(self, best_log2: Log2Hps, sizes: Sequence[Size]) -> list[SizeCurve]:
        """Train the curves of all `sizes` to their end; nothing is pruned."""
        self._prune, curves = "none", list[SizeCurve]()

        def ask() -> tuple[int, Missing]:
            nonlocal curves
            curves, finished, missing = replay_ladder(
                self.experiment, best_log2, sizes, self.lookup
            )
            return finished, missing

        self.listener.watch_ladder(
            lambda: ladder_so_far(self.experiment, best_log2, sizes, self.lookup)
        )
        self._train(ask)
        return curves

    def settle(self, ladder: SettledLadder, looked: Callable[[], None]) -> None:
        """Train a ladder until it ends; `looked` is called after every look at it."""
        self._prune, looks = "none", 0

        def ask() -> tuple[int, Missing]:
            nonlocal looks
            missing = ladder.trials()
            if len(ladder.looks) > looks:
                looks = len(ladder.looks)
                looked()
            return ladder.finished, missing

        self.listener.watch_ladder(ladder.so_far)
        self._train(ask)

    def runs(self, trials: Sequence[Trial]) -> None:
        """Train the trials that the study lacks; nothing is pruned."""
        self._prune = "none"

        def ask() -> tuple[int, Missing]:
            missing = [trial for trial in trials if self.lookup(trial.key) is None]
            return len(trials) - len(missing), missing

        self._train(ask)

    def _train(
        self,
        ask: Callable[[], tuple[int, Missing]],
        planned: int = 0,
        follow: Callable[[], Missing] = list,
    ) -> None:
        asked = self._asked = set()

        def pending() -> Missing:
            finished, missing = ask()
            unique = {trial.key: trial for trial in missing}
            if new := [trial for key, trial in unique.items() if key not in asked]:
                self.study.propose(new, self.experiment.settings.space)
                self.listener.proposed(finished, list(unique.values()))
            asked.update(unique)
            self._pending = list(unique.values())
            return self._pending

        for result in self.study.results():  # a kill may have come between record and log
            self._log(result)
        folder = self.study.folder
        loop = make_loop(
            self.experiment,
            folder,
            self.listener,
            self._note,
            planned,
            record=self._record,
            cancelled=lambda: cancel_requested(folder),
            pruner=self._pruner,
            may_follow=follow,
            wait=self.wait,
        )
        loop.run(pending)
        loop.tidy(lambda key: self.lookup(key) is not None)
        # What is missing although the loop has ended waits in a queue, or was never answered.
        finished, missing = ask()
        if missing and not self.wait:
            failed = sum(trial.key in self._retry for trial in missing)
            raise Submitted(submitted=len(missing), finished=finished, failed=failed)
        if missing:  # proposing them again might never end
            raise SweeperError(
                f"the launcher gave no result for {len(missing)} of {len(asked)} trials"
            )

    def _record(self, results: Sequence[Result]) -> None:
        """For good, and in the logs. SweeperError when trial after trial fails of the same."""
        self._retry -= {result.key for result in results}  # what fails now is taken as it is
        # The record first: what a kill keeps from the logs the next sweep makes up for.
        self.study.record(results)
        for result in results:
            self._log(result)
            if result.key in self._asked:  # else it was trained ahead
                self.listener.finished(result)
        limit = self.experiment.settings.runner.failures
        for result in results:
            # The reason alone: the lines of a log that follow it differ from trial to trial.
            reason = result.error.partition(":\n")[0] if result.status == "failed" else ""
            self._failures = self._failures + 1 if reason == self._last_failure else 1
            self._last_failure = reason
            if reason.startswith(DISAGREES):
                raise SweeperError(f"the rest is not tried: {result.error}")
            if reason and self._failures >= limit:  # more of them would fail of it, too
                settable = "failures" in self.experiment.settings.raw["runner"]
                key = " (runner.failures sets how many)" * settable
                raise SweeperError(
                    f"{counted(limit, 'trial')} in a row failed of the same, and the rest is not "
                    f"tried{key}: {result.error}"
                )

    def _pruner(self, trial: Trial) -> Pruner | None:
        if self._prune == "none":
            return None
        settings, train = self.experiment.settings, trial.spec.train
        # Losses within a warm-up do not compare, and a searched warm-up differs between trials: no
        # rung lies before the end of the longest. In a user command's space `warmup` may be
        # something else.
        warmup, axis = train.warmup, settings.space.get("warmup")
        if axis is not None and not settings.scaled_by_user:
            warmup = train.with_hps(PlainHps({"warmup": 2.0**axis.high})).warmup
        return Pruner.from_trials(
            [result for result in self.study.results() if result.trial.spec == trial.spec],
            [pending for pending in self._pending if pending.spec == trial.spec],
            kind=self._prune,
            steps=train.steps,
            warmup=round(warmup * train.steps),
            window=train.window(),
        )

    def _log(self, result: Result) -> None:
        """Log a result that is recorded already; what is to be said of it is noted once."""
        if sentence := notice_of(lambda: self.logger.log(self.study.folder, result)):
            self._note(sentence)

    def _note(self, sentence: str) -> None:
        """Keep a sentence for the user, once: its first line counts, as examples differ."""
        first = sentence.partition(":\n")[0]
        if all(notice.partition(":\n")[0] != first for notice in self.study.notices):
            self.study.notices.append(sentence)
