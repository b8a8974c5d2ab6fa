"""The study's Optuna study, in which every trial of every strategy is enqueued, asked and told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import RandomSampler
from optuna.storages import BaseStorage
from optuna.trial import TrialState, create_trial

from sweeper.errors import BadInput
from sweeper.files import RECORD_ERRORS
from sweeper.search.optuna import mapping
from sweeper.search.optuna.storage import (
    cause_of,
    disconnect,
    journal,
    opened,
    reason_of,
    unusable,
)
from sweeper.search.optuna.url import redact, scrub
from sweeper.trial import Result, Space, Trial

RETRY_SECONDS = 60.0
"""Seconds before an Optuna storage that failed is tried again."""


class OptunaStudy:
    """What is trained here, told to Optuna through its public interface.

    The study's own files are the record. A server that is down or a disk that is full must not stop
    a search for the sake of its dashboard: an error closes the Optuna study and is told once. Some
    time later, or when the study is opened next, what it lacks is told.

    It lies in the journal `study.journal` in the study's folder, or as the study of the folder's
    name in the database at `url`, where no other study is touched. Of several trials with the same
    key the newest counts: trials that failed or were stopped early may be trained again.
    """

    def __init__(
        self,
        folder: Path,
        url: str | None,
        results: Mapping[str, Result],
        notices: list[str],
        space: Space,
    ) -> None:
        self._folder, self._url = folder, url
        self._journal = folder / "study.journal"
        self._results, self._notices, self._space = results, notices, dict(space)
        self._storage: BaseStorage | None = None
        self._study: optuna.Study | None = None  # None: closed, and possibly behind
        self._asked: dict[str, optuna.Trial | int] = {}
        self._ended: dict[str, tuple[TrialState, float | None]] = {}
        self._choices: dict[str, CategoricalDistribution] = {}
        self._attributes: dict[str, Any] = {}  # of the study as a whole
        self._failure_reported = False
        self._retry_at = 0.0

    def start(self) -> None:
        """Tell what ended while no driver ran; BadInput when an external storage is unusable."""
        why = self._try(self._open)
        # No exception is being handled here: its text could bring the password into the chain.
        if why and self._url is not None:
            raise BadInput(unusable(self._url, why))

    def propose(self, trials: Sequence[Trial], space: Space) -> None:
        """Enqueue and ask `trials`, but those that were asked and have not ended."""
        self._space |= space
        self._do(lambda study: self._ask(study, trials))

    def tell(self, results: Sequence[Result]) -> None:
        """Tell how trials ended; one that was never asked is added."""
        self._do(lambda study: self._tell(study, results))

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Show `attributes` of the study as a whole, where its search is over or is another one.

        What an earlier driver asked and left is not wanted any more.
        """
        self._attributes = dict(attributes)
        self._do(self._describe)
        self._do(self._fail_asked)

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        storage, self._storage, self._study = self._storage, None, None
        disconnect(storage)

    def _do(self, work: Callable[[optuna.Study], None]) -> None:
        """Work in the open study; a closed one is opened, once some time has passed."""
        if self._study is None and time.monotonic() >= self._retry_at:
            self._try(self._open)
        if (study := self._study) is not None:
            self._try(lambda: work(study))

    def _try(self, work: Callable[[], None]) -> str:
        """Do `work` with Optuna kept quiet; an error closes the study and its reason is given."""
        try:
            with mapping.quiet():
                work()
            return ""
        except Exception as error:
            why = scrub(reason_of(error), self._url or "")
        with suppress(Exception):
            self.close()
        self._retry_at = time.monotonic() + RETRY_SECONDS
        if not self._failure_reported:
            self._failure_reported = True
            where = redact(self._url) if self._url else self._journal
            self._notices.append(
                f"Optuna's study of the results, {where}, is behind ({why}). No result is lost: "
                f"they are in {self._folder / 'results'}, and Optuna is told later"
            )
        return why

    def _open(self) -> None:
        try:
            study = self._load()
        except Exception as error:
            # A database is not ours to mend; a new file helps neither a full disk nor memory.
            if self._url or isinstance(cause_of(error), OSError | ImportError | MemoryError):
                raise
            aside = self._journal.with_name(f"{self._journal.name}.damaged")
            self._journal.replace(aside)
            self._notices.append(
                f"Optuna's study of the results, {self._journal}, was damaged ({reason_of(error)})"
                f": it is kept as {aside.name}, and a new one was told all results"
            )
            study = self._load()
        self._tell(study, [r for r in self._results.values() if self._lacks(r)])
        if self._attributes:
            self._describe(study)
        self._study = study

    def _load(self) -> optuna.Study:
        """The Optuna study as it is; ValueError where it is not this study's."""
        name = self._folder.name
        storage = self._storage = opened(self._url) if self._url else journal(self._journal)
        names = optuna.get_all_study_names(storage)
        if not self._url and names not in ([], [name]):
            raise ValueError(f"it holds the studies {names} in place of {name}")
        make = optuna.load_study if name in names else optuna.create_study
        # The sampler is asked for nothing: all that is enqueued here has its parameters.
        study = make(study_name=name, storage=storage, sampler=RandomSampler())
        self._asked, self._ended, self._choices = {}, {}, {}
        waiting = 0  # enqueued, and not asked before a kill
        for trial in study.get_trials(deepcopy=False):
            key = trial.user_attrs.get("key")
            if not isinstance(key, str):
                raise ValueError(
                    f"its study {name} has trials of others; choose another study.name"
                )
            for parameter, distribution in trial.distributions.items():
                if isinstance(distribution, CategoricalDistribution):
                    self._choices[parameter] = distribution
            if trial.state.is_finished():
                self._ended[key] = trial.state, trial.value
            elif trial.state == TrialState.WAITING:
                waiting += 1
            else:
                self._asked[key] = trial.number
        for _ in range(waiting):
            study.tell(study.ask(), state=TrialState.FAIL)
        return study

    def _lacks(self, result: Result) -> bool:
        return self._ended.get(result.key) != mapping.outcome_of(result)

    def _ranges(self, trials: Iterable[Trial]) -> mapping.Ranges:
        """The ranges of hyperparameters; choices are left out where their list is not Optuna's.

        It raises once a list has become longer: these choices are then in an attribute alone.
        """
        ranges = mapping.ranges_of(trials, self._space)
        for name, each in list(ranges.items()):
            if isinstance(each, CategoricalDistribution) and (
                name not in self._space or self._choices.setdefault(name, each) != each
            ):
                del ranges[name]
        return ranges

    def _ask(self, study: optuna.Study, trials: Sequence[Trial]) -> None:
        new = [trial for trial in trials if trial.key not in self._asked]
        ranges = self._ranges(new)
        for trial in new:
            try:
                params = mapping.params_of(trial, ranges)
            except ValueError:
                continue  # which is said once it has a result
            # As `enqueue_trial` does, but with its parameters, which `ask` writes one by one.
            study.add_trial(
                create_trial(
                    state=TrialState.WAITING,
                    params=params,
                    distributions={name: ranges[name] for name in params},
                    user_attrs=mapping.attributes_of(trial),
                )
            )
            asked = study.ask()
            if asked.user_attrs.get("key") != trial.key:
                raise ValueError("another program enqueues trials in it")
            self._asked[trial.key] = asked

    def _tell(self, study: optuna.Study, results: Sequence[Result]) -> None:
        results = [r for r in results if r.key in self._asked or self._lacks(r)]
        ranges = self._ranges(result.trial for result in results)
        for result in sorted(results, key=lambda result: (result.finished_at, result.key)):
            state, value = outcome = mapping.outcome_of(result)
            asked = self._asked.pop(result.key, None)
            if isinstance(asked, int) and state == TrialState.PRUNED:
                # Its value is the last that was reported: only the driver that asked it can.
                study.tell(asked, state=TrialState.FAIL)
                asked = None
            if asked is None:
                self._add(study, result, ranges)
            else:
                if isinstance(asked, optuna.Trial):
                    asked.set_user_attr(mapping.RESULT, mapping.measured(result))
                    if state == TrialState.PRUNED and value is not None:
                        asked.report(value, result.steps)
                study.tell(asked, value if state == TrialState.COMPLETE else None, state)
            self._ended[result.key] = outcome

    def _add(self, study: optuna.Study, result: Result, ranges: mapping.Ranges) -> None:
        """Add a trial that was never asked; one that Optuna cannot show is left out."""
        try:
            trial = mapping.ended(result, ranges)
        except (*RECORD_ERRORS, OSError) as error:
            self._notices.append(f"Optuna cannot show the trial {result.key}: {error}")
        else:
            study.add_trial(trial)

    def _describe(self, study: optuna.Study) -> None:
        attributes = study.user_attrs
        for name, value in self._attributes.items():
            if name not in attributes or attributes[name] != value:
                study.set_user_attr(name, value)

    def _fail_asked(self, study: optuna.Study) -> None:
        while self._asked:
            study.tell(self._asked.popitem()[1], state=TrialState.FAIL)
