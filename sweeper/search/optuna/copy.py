"""Optuna's copy of a study's results."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.errors import BadInput
from sweeper.files import RECORD_ERRORS
from sweeper.records import to_json
from sweeper.search.fresh import FINAL, FINAL_SEED
from sweeper.search.optuna.url import redact, scrub
from sweeper.trial import Result

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from sweeper.search.optuna.storage import OptunaStudy

Bounds = Mapping[str, tuple[float, float]]
"""The searched range of each hyperparameter, as base-2 logarithms."""

RETRY_SECONDS = 60.0
"""Seconds before an Optuna storage that failed is tried again."""


class OptunaCopy:
    """Optuna's copy of the results, which may lag behind them.

    The files are the record. A server that is down or a disk that is full must not stop a search
    for the sake of its dashboard: an error closes the copy and is told once. Some time later,
    or when the study is opened next, the copy is compared with the results: what it lacks is
    added, and a copy that holds anything else is thrown away and written again. That also mends
    what a crash left of it.

    Its best trial is the search's answer, with the mean over its fresh seeds for a value. Runs that
    are below that were lucky, or are no part of the search: they are shown as pruned, since Optuna
    takes the least value of all complete trials for the best.

    The copy is the journal file `study.journal` in the study's folder, or the study of the
    folder's name in the database at `storage`, where no other study is touched.
    """

    def __init__(
        self, folder: Path, storage: str | None, results: Mapping[str, Result], notices: list[str]
    ) -> None:
        self._folder, self._url = folder, storage
        self._journal = folder / "study.journal"
        self._bounds: dict[str, tuple[float, float]] = {}
        self._results, self._notices = results, notices
        self._study: OptunaStudy | None = None  # None: closed, and possibly behind
        self._failure_reported = False
        self._retry_at = 0.0
        self._attributes: dict[str, Any] = {}  # of the study as a whole
        self._answer: _Answer | None = None

    def start(self) -> None:
        """Bring the copy up to date; BadInput when an external storage cannot be used."""
        why = self._try(self._synchronize)
        # No exception is being handled here: its text could bring the password into the chain.
        if why and self._url is not None:
            from sweeper.search.optuna.storage import unusable

            raise BadInput(unusable(self._url, why))

    def add(self, results: Sequence[Result], bounds: Bounds) -> None:
        """Add `results`, or after a failure, some time later, all that are missing."""
        self._bounds |= bounds
        study = self._study
        if study is not None:
            self._try(lambda: study.add(self._to_optuna(results)))
        elif time.monotonic() >= self._retry_at:
            self._try(self._synchronize)

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Show `attributes` of the study as a whole: its answer is `best`, with `loss`."""
        self._attributes = dict(attributes)
        study = self._study
        if study is not None:

            def show() -> None:
                study.describe(self._attributes)
                old, new = self._answer, _answer(self._attributes, self._results)
                if (old and old.content) != (new and new.content):
                    self._match(study)

            self._try(show)
        elif time.monotonic() >= self._retry_at:
            self._try(self._synchronize)

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        study, self._study = self._study, None
        if study is not None:
            study.close()

    def _try(self, work: Callable[[], None]) -> str:
        """Do `work` with Optuna kept quiet; an error closes the copy and its reason is returned."""
        from sweeper.search.optuna.mapping import quiet
        from sweeper.search.optuna.storage import reason_of

        try:
            with quiet():
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
                f"Optuna's copy of the results, {where}, is behind ({why}). No result is lost: "
                f"they are in {self._folder / 'results'}, and the copy catches up later"
            )
        return why

    def _synchronize(self) -> None:
        """Open the copy, and make it hold the results and nothing else."""
        from sweeper.search.optuna.storage import DatabaseStudy, JournalStudy

        name, url = self._folder.name, self._url
        study = DatabaseStudy(url, name) if url else JournalStudy(self._journal, name)
        self._study = study
        self._match(study)
        if self._attributes:
            study.describe(self._attributes)

    def _match(self, study: OptunaStudy) -> None:
        """Make the open copy hold the results, the answer and nothing else."""
        from sweeper.search.optuna.storage import cause_of, reason_of

        damaged, url = False, self._url
        try:
            trials = study.trials()
        except Exception as error:
            # A database is not ours to mend; a new file helps neither a full disk nor memory.
            if url or isinstance(cause_of(error), OSError | ImportError | MemoryError):
                raise
            trials, damaged = [], True
            self._notices.append(
                f"Optuna's copy of the results, {self._journal}, was damaged ({reason_of(error)}): "
                "it was made again from the results; none is lost"
            )
        if url and not all("key" in trial.user_attrs for trial in trials):
            name = self._folder.name
            raise ValueError(f"its study {name} has trials of others; choose another study.name")
        # An answer that an earlier command concluded still holds.
        self._attributes = self._attributes or study.attributes()
        answer = self._answer = _answer(self._attributes, self._results)
        told = set() if answer is None else {answer.content}
        # Only of what is missing: to make a trial for Optuna takes longer than to read its result.
        expected = {_content_of(r, answer): r for r in by_finish_time(self._results)}
        present = {_content(trial) for trial in trials}
        # Fewer contents than trials: one is there twice. Rather written anew than mended piece by
        # piece.
        if damaged or len(present) < len(trials) or not present <= expected.keys() | told:
            study.clear()
            present = set()
        missing = [result for content, result in expected.items() if content not in present]
        study.add(self._to_optuna(missing))
        if answer is not None and answer.content not in present:
            study.add([answer.trial(self._range)])

    def _to_optuna(self, results: Iterable[Result]) -> list[FrozenTrial]:
        """`results` as Optuna's trials; one that cannot be shown is left out, with a notice."""
        import optuna

        from sweeper.search.optuna import mapping

        trials, states = [], optuna.trial.TrialState
        for result in results:
            state = _state(result, self._answer)
            attributes = _attributes(result)
            if state != _state(result, None):
                attributes["shown_as_pruned"] = mapping.LUCKY
            stopped = state == "PRUNED" and math.isfinite(result.objective)
            params = dict(result.trial.hps)
            try:
                trial = optuna.trial.create_trial(
                    state=states[state],
                    value=None if state == "FAIL" else result.objective,
                    params=params,
                    distributions={name: self._range(name, v) for name, v in params.items()},
                    user_attrs=attributes,
                    intermediate_values={result.steps: result.objective} if stopped else None,
                )
                trial.datetime_complete = datetime.fromtimestamp(result.finished_at)
                seconds = result.seconds if math.isfinite(result.seconds) else 0.0
                trial.datetime_start = trial.datetime_complete - timedelta(seconds=seconds)
            except (*RECORD_ERRORS, OSError) as error:
                self._notices.append(f"Optuna cannot show the trial {result.key}: {error}")
            else:
                trials.append(trial)
        return trials

    def _range(self, name: str, value: float) -> BaseDistribution:
        """The range that Optuna shows for a hyperparameter, wide enough for `value`."""
        from sweeper.search.optuna.mapping import plain_range

        if not math.isfinite(value):
            raise ValueError(f"{name} is not finite")
        if name not in self._bounds:
            # Nobody said the range (a study opened anew): that of the results so far. Past 2^1000
            # a float overflows; NaN compares as false.
            values = (r.trial.log2_hps.get(name, math.nan) for r in self._results.values())
            finite = [value for value in values if abs(value) < 1000] or [math.log2(value)]
            self._bounds[name] = min(finite), max(finite)
        return plain_range(*self._bounds[name], value)


def _attributes(result: Result) -> dict[str, Any]:
    """What Optuna keeps about a trial beside its hyperparameters and its value."""
    trial = result.trial
    names = ("key", "status", "heldout", "seconds", "finished_at")
    attributes = {name: to_json(getattr(result, name)) for name in names}
    attributes |= {"phase": trial.phase, "seed": trial.seed}
    attributes |= {"width": trial.width, "depth": trial.depth}
    attributes |= {} if result.accuracy is None else {"accuracy": result.accuracy}
    # Choices are attributes and no parameters: Optuna keeps the list of a categorical parameter,
    # and raises once the user has made it longer.
    attributes |= {"choices": dict(trial.choices)} if trial.choices else {}
    # MySQL refuses attributes much longer than this.
    return attributes | ({"error": result.error[:2000]} if result.error else {})


def _state(result: Result, answer: _Answer | None) -> str:
    """The name of Optuna's state of a result, beside the answer."""
    if result.status == "failed" or math.isnan(result.objective):
        return "FAIL"
    lucky = answer is not None and answer.is_above(result)
    return "PRUNED" if result.status == "pruned" or lucky else "COMPLETE"


def _content_of(result: Result, answer: _Answer | None) -> str:
    """The content of Optuna's trial of a result."""
    values = None if (state := _state(result, answer)) == "FAIL" else [result.objective]
    attributes = [result.key, result.status, to_json(result.finished_at)]
    return json.dumps([state, values, *attributes])


def _content(trial: FrozenTrial) -> str:
    """What tells whether a trial shows a result; as text, for what others wrote has any type."""
    attributes = [trial.user_attrs.get(name) for name in ("key", "status", "finished_at")]
    return json.dumps([trial.state.name, trial.values, *attributes])


@dataclass(frozen=True)
class _Answer:
    """What a search concluded, as a trial: its loss, and the runs that the loss is of."""

    loss: float
    runs: tuple[Result, ...]
    attributes: Mapping[str, Any]

    def is_above(self, result: Result) -> bool:
        """Whether Optuna would take a run for better than the answer, or for as good."""
        return result.objective <= self.loss

    @property
    def _attributes(self) -> dict[str, Any]:
        trial = self.runs[0].trial
        shown: dict[str, Any] = {
            "key": f"answer {trial.key}",
            "status": "answer",
            "phase": "answer",
        }
        shown |= {"finished_at": to_json(max(run.finished_at for run in self.runs))}
        shown |= {"width": trial.width, "depth": trial.depth, "seeds": [*self._seeds]}
        shown |= {"choices": dict(trial.choices)} if trial.choices else {}
        return shown | {name: self.attributes.get(name) for name in ("loss_error", "loss_of")}

    @property
    def _seeds(self) -> list[int]:
        return [run.trial.seed for run in self.runs]

    @property
    def content(self) -> str:
        """As `_content` of its trial."""
        shown = [self._attributes[name] for name in ("key", "status", "finished_at")]
        return json.dumps(["COMPLETE", [self.loss], *shown])

    def trial(self, range_of: Callable[[str, float], BaseDistribution]) -> FrozenTrial:
        """As Optuna has it; the losses of its seeds are its intermediate values."""
        import optuna

        hps = dict(self.runs[0].trial.hps)
        losses = {i: r.objective for i, r in enumerate(self.runs) if not math.isnan(r.objective)}
        trial = optuna.trial.create_trial(
            value=self.loss,
            params=hps,
            distributions={name: range_of(name, value) for name, value in hps.items()},
            user_attrs=self._attributes,
            intermediate_values=losses,
        )
        times = [run.finished_at for run in self.runs]
        trial.datetime_complete = datetime.fromtimestamp(max(times))
        begun = min(run.finished_at - run.seconds for run in self.runs)
        trial.datetime_start = datetime.fromtimestamp(begun)
        return trial


def _answer(attributes: Mapping[str, Any], results: Mapping[str, Result]) -> _Answer | None:
    """The answer that `attributes` of a study tell of; None where they tell of none."""
    best, loss = attributes.get("best"), attributes.get("loss")
    if not isinstance(best, Mapping) or not isinstance(loss, int | float):
        return None
    runs = [result for result in by_finish_time(results) if _alike(result.trial.values, best)]
    fresh = [run for run in runs if run.trial.phase == FINAL and run.trial.seed >= FINAL_SEED]
    runs = fresh or [run for run in runs if run.objective == loss] or runs
    return _Answer(float(loss), tuple(runs), attributes) if runs else None


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    from sweeper.search.optuna.mapping import is_same

    return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)


def by_finish_time(results: Mapping[str, Result]) -> list[Result]:
    """Results by the time they were finished, then by key."""
    return sorted(results.values(), key=lambda result: (result.finished_at, result.key))
