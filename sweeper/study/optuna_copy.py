"""Optuna's copy of a study's results, and how its URL is shown without its password."""

from __future__ import annotations

import json
import math
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, unquote_plus

from sweeper.errors import BadInput
from sweeper.files import RECORD_ERRORS
from sweeper.records import to_json
from sweeper.search.fresh import FINAL, FINAL_SEED
from sweeper.trial import Result

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from sweeper.search.optuna import OptunaStudy

Bounds = Mapping[str, tuple[float, float]]
"""The searched range of each hyperparameter, as base-2 logarithms."""

RETRY_SECONDS = 60.0
"""Seconds before an Optuna storage that failed is tried again."""

LUCKY = "its loss is not above the search's answer, a mean over fresh seeds: not the best trial"
"""Why a run that was trained to its end is shown as pruned."""

_QUERY_RE = re.compile(r"(?<=[?&])([^=&]*)=([^&]*)")
_SECRET_RE = re.compile("pass|pwd|secret|token|odbc_connect", re.IGNORECASE)
_ACCOUNT_RE = re.compile(r"([^:]*:)(.*)@", re.DOTALL)
_DRIVER_PACKAGES = {
    "psycopg": "psycopg[binary]",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient",
    "pymysql": "pymysql",
}


def redact(url: str) -> str:
    """`url` with its passwords replaced by `***`; where they cannot be told apart, with more."""
    head, mark, body = url.partition("://") if "://" in url else ("", "", url)
    clean = _QUERY_RE.sub(
        lambda m: f"{m[1]}=***" if _SECRET_RE.search(unquote(m[1])) else m[0], body
    )
    if head.startswith("sqlite"):
        return head + mark + clean
    # The query's pattern took a part of the account: which part is the password is in doubt.
    if _ACCOUNT_RE.match(body) and not _ACCOUNT_RE.match(clean):
        return f"{head}{mark}***"
    return head + mark + _ACCOUNT_RE.sub(r"\1***@", clean)


def redact_word(word: str) -> str:
    r"""A word of a command line without the password of a URL in it; others are as they were.

    A pattern such as `(\d+): loss (\S+) @` looks like an account to `redact`.
    """
    return redact(word) if "://" in word or "storage" in word.partition("=")[0] else word


def scrub(text: str, url: str) -> str:
    """`text` without the passwords of `url`, in whatever spelling."""
    secrets = [value for name, value in _QUERY_RE.findall(url) if _SECRET_RE.search(unquote(name))]
    account = _ACCOUNT_RE.match(url.partition("://")[2] or url)
    if account and not url.startswith("sqlite"):
        secrets += [account[2], *account[2].split("@")]
    spellings = {form for each in secrets for form in (each, unquote(each), unquote_plus(each))}
    for secret in sorted(spellings - {""}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def check_storage(url: str) -> None:
    """BadInput, without the password, unless the storage at `url` can be used now."""
    from sweeper.search.optuna import connect, disconnect

    why = ""
    try:
        with _quiet():
            disconnect(connect(url))
    except Exception as error:
        why = scrub(_reason(error), url)
    # No exception is being handled here: its text could bring the password into the chain.
    if why:
        raise BadInput(_unusable_storage(url, why))


@contextmanager
def read_storage(url: str) -> Iterator[tuple[list[str], Callable[[str], optuna.Study]]]:
    """The studies in a storage that others wrote, by name, and what loads one; nothing is written.

    `url` is that of a database, or the path of a journal. BadInput, without the password, for a
    storage that cannot be read.
    """
    import optuna
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    from sweeper.search.optuna import disconnect

    storage: Any = None
    why = ""
    try:
        with _quiet():
            if "://" not in url:
                storage = JournalStorage(JournalFileBackend(url))
            else:
                # SQLite makes a file where there is none.
                file = url.partition(":///")[2].partition("?")[0]
                if url.startswith("sqlite") and not Path(file).is_file():
                    raise FileNotFoundError(f"there is no file {file}")
                escaped = url.replace("{", "{{").replace("}", "}}")
                storage = RDBStorage(escaped, skip_table_creation=True)
            names = optuna.get_all_study_names(storage)
    except Exception as error:
        why = scrub(_reason(error), url)
    if why:  # no exception is being handled here: its text could bring the password into the chain
        raise BadInput(_unusable_storage(url, why))
    try:
        with _quiet():
            yield names, lambda name: optuna.load_study(study_name=name, storage=storage)
    finally:
        if isinstance(storage, RDBStorage):
            disconnect(storage)


def _unusable_storage(url: str, why: str) -> str:
    return f"the storage {redact(url)} cannot be used: {why}"


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
        self,
        folder: Path,
        storage: str | None,
        results: Mapping[str, Result],
        notices: list[str],
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
            raise BadInput(_unusable_storage(self._url, why))

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
        try:
            with _quiet():
                work()
            return ""
        except Exception as error:
            why = scrub(_reason(error), self._url or "")
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
        from sweeper.search.optuna import DatabaseStudy, JournalStudy

        name, url = self._folder.name, self._url
        study = DatabaseStudy(url, name) if url else JournalStudy(self._journal, name)
        self._study = study
        self._match(study)
        if self._attributes:
            study.describe(self._attributes)

    def _match(self, study: OptunaStudy) -> None:
        """Make the open copy hold the results, the answer and nothing else."""
        damaged, url = False, self._url
        try:
            trials = study.trials()
        except Exception as error:
            # A database is not ours to mend; a new file helps neither a full disk nor memory.
            if url or isinstance(_cause(error), OSError | ImportError | MemoryError):
                raise
            trials, damaged = [], True
            self._notices.append(
                f"Optuna's copy of the results, {self._journal}, was damaged ({_reason(error)}): "
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

        trials, states = [], optuna.trial.TrialState
        for result in results:
            state = _state(result, self._answer)
            attributes = _attributes(result)
            if state != _state(result, None):
                attributes["shown_as_pruned"] = LUCKY
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
        import optuna

        if not math.isfinite(value):
            raise ValueError(f"{name} is not finite")
        if name not in self._bounds:
            # Nobody said the range (a study opened anew): that of the results so far. Past 2^1000
            # a float overflows; NaN compares as false.
            values = (r.trial.log2_hps.get(name, math.nan) for r in self._results.values())
            finite = [value for value in values if abs(value) < 1000] or [math.log2(value)]
            self._bounds[name] = min(finite), max(finite)
        low, high = self._bounds[name]
        return optuna.distributions.FloatDistribution(
            min(2.0**low, value), max(2.0**high, value), log=True
        )


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
    """Whether two points are one."""
    return one.keys() == other.keys() and all(
        math.isclose(value, other[name], rel_tol=1e-9)
        if isinstance(value, float) and isinstance(other[name], float)
        else value == other[name]
        for name, value in one.items()
    )


def _cause(error: BaseException) -> BaseException:
    """The first cause of an error: SQLAlchemy and Optuna wrap the database's message."""
    while error.__cause__:
        error = error.__cause__
    return error


def _reason(error: Exception) -> str:
    """One line that says what went wrong."""
    cause = _cause(error)
    if isinstance(cause, ModuleNotFoundError) and cause.name:
        package = _DRIVER_PACKAGES.get(cause.name, cause.name)
        return f"the driver of its database is not installed; run: pip install {package!r}"
    return next(iter(str(cause).splitlines()), "") or type(cause).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna's log and its warnings of experimental features from the terminal."""
    import optuna

    level = optuna.logging.get_verbosity()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            yield
        finally:
            optuna.logging.set_verbosity(level)


def by_finish_time(results: Mapping[str, Result]) -> list[Result]:
    """Results by the time they were finished, then by key."""
    return sorted(results.values(), key=lambda result: (result.finished_at, result.key))
