"""Optuna's copy of a study's results, and how its URL is kept from telling its password."""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_plus

from sweeper.errors import BadInput
from sweeper.files import BROKEN
from sweeper.optuna_tables import MARK, add_trials, stored_marks
from sweeper.trial import Result, encode

Bounds = Mapping[str, tuple[float, float]]
"""The searched range of each hyperparameter, as base-2 logarithms."""

RETRY = 60.0
"""Seconds before an Optuna storage that failed is tried again."""

CHUNK = 1000
"""Trials that are added at once where many are missing."""

_QUERY = re.compile(r"(?<=[?&])([^=&]*)=([^&]*)")
_SECRET = re.compile("pass|pwd|secret|token|odbc_connect", re.IGNORECASE)
_ACCOUNT = re.compile(r"([^:]*:)(.*)@", re.DOTALL)
_DRIVERS = {
    "psycopg": "psycopg[binary]",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient",
    "pymysql": "pymysql",
}


def redact(url: str) -> str:
    """`url` with its passwords replaced by `***`; when in doubt, more of it."""
    head, mark, body = url.partition("://") if "://" in url else ("", "", url)
    clean = _QUERY.sub(lambda m: f"{m[1]}=***" if _SECRET.search(unquote(m[1])) else m[0], body)
    if head.startswith("sqlite"):
        return head + mark + clean
    if _ACCOUNT.match(body) and not _ACCOUNT.match(clean):
        return f"{head}{mark}***"
    return head + mark + _ACCOUNT.sub(r"\1***@", clean)


def scrub(text: str, url: str) -> str:
    """`text` without the passwords of `url`, in whatever spelling."""
    found = [value for name, value in _QUERY.findall(url) if _SECRET.search(unquote(name))]
    account = _ACCOUNT.match(url.partition("://")[2] or url)
    if account and not url.startswith("sqlite"):
        found += [account[2], *account[2].split("@")]
    spellings = {form for each in found for form in (each, unquote(each), unquote_plus(each))}
    for secret in sorted(spellings - {""}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def check_storage(url: str) -> None:
    """BadInput, without the password, unless the storage at `url` can be used now."""
    why = ""
    try:
        with _quiet():
            storage = _storage(url)
            storage.remove_session()
            storage.engine.dispose()
    except Exception as error:
        why = scrub(_reason(error), url)
    # No exception is being handled here: its text could bring the password into the chain.
    if why:
        raise BadInput(_unusable(url, why))


def _unusable(url: str, why: str) -> str:
    return f"the storage {redact(url)} cannot be used: {why}"


def _storage(url: str, **options: Any) -> Any:
    """Optuna's storage at `url`, its tables made where need be."""
    import optuna

    # Optuna takes the URL for a template.
    url = url.replace("{", "{{").replace("}", "}}")
    return optuna.storages.RDBStorage(url, engine_kwargs=options)


class Mirror:
    """Optuna's copy of the results. It may fail at any time: the files are the record."""

    def __init__(
        self,
        folder: Path,
        storage: str | None,
        results: Mapping[str, Result],
        notices: list[str],
    ) -> None:
        self._folder, self._url = folder, storage
        self._bounds: dict[str, tuple[float, float]] = {}
        self._results, self._notices = results, notices
        self._storage: Any = None
        self._study = 0
        self._behind = self._told = False
        self._retry_at = 0.0

    def start(self) -> None:
        """Bring the mirror up to date; BadInput when an external storage cannot be used."""
        error = self._attempt(self._sync)
        if error and self._url is None and _lasts(error):
            broken = _reason(error)
            error = self._attempt(lambda: self._rebuild(broken))
        # No exception is being handled here: its text could bring the password into the chain.
        why = self._describe(error)
        self._settle(why)
        if why and self._url is not None:
            raise BadInput(_unusable(self._url, why))

    def add(self, results: Sequence[Result], bounds: Bounds) -> None:
        """Mirror `results`, or after a failure, some time later, all that are missing."""
        self._bounds |= bounds
        if self._behind and time.monotonic() < self._retry_at:
            return
        work = self._sync if self._behind else lambda: self._append(results)
        self._settle(self._describe(self._attempt(work)))

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        storage, self._storage = self._storage, None
        self._behind = True
        if storage is not None:
            storage.remove_session()
            storage.engine.dispose()

    def _attempt(self, work: Callable[[], None]) -> Exception | None:
        """Do `work` with Optuna kept quiet; the error if it fails."""
        try:
            with _quiet():
                work()
        except Exception as error:
            return error
        return None

    def _describe(self, error: Exception | None) -> str:
        """What went wrong, without the password; empty when nothing did."""
        return scrub(_reason(error), self._url or "") if error else ""

    def _settle(self, why: str) -> None:
        """Remember whether the mirror is behind, and tell the user, but once."""
        self._behind = bool(why)
        if not why:
            return
        with suppress(Exception):
            self.close()
        self._retry_at = time.monotonic() + RETRY
        if not self._told:
            self._told = True
            where = redact(self._url) if self._url else self._folder / "study.db"
            self._notices.append(
                f"Optuna's copy of the results, {where}, is behind ({why}). No result is lost: "
                f"they are in {self._folder / 'results'}, and the copy catches up later"
            )

    def _sync(self) -> None:
        """Add all results that the Optuna study does not have yet."""
        if self._storage is None:
            self._connect()
        with self._storage.scoped_session() as session:
            known = set(stored_marks(session, self._study))
        missing = [r for r in in_order(self._results) if _mark(r) not in known]
        self._append(missing[:CHUNK])  # even of none: it notices tables that are not Optuna's
        for start in range(CHUNK, len(missing), CHUNK):
            self._append(missing[start : start + CHUNK])

    def _append(self, results: Sequence[Result]) -> None:
        """Add `results` to the Optuna study, all or none."""
        trials = [trial for r in results if (trial := self._frozen(r))]
        with self._storage.scoped_session() as session, session.begin():
            add_trials(session, self._study, trials)

    def _connect(self) -> None:
        """Open the storage, and in it the study of the folder's name."""
        import optuna

        database = self._folder / "study.db"
        if self._url is None and (damage := _damage(database)):
            self._set_aside(damage)
        url = self._url or "sqlite:///study.db"
        options = {} if self._url else {"creator": lambda: _connection(database)}
        self._storage = _storage(url, **options)
        name = self._folder.name
        optuna.create_study(
            storage=self._storage, study_name=name, direction="minimize", load_if_exists=True
        )
        self._study = self._storage.get_study_id_from_name(name)

    def _rebuild(self, why: str) -> None:
        """Start over with a new database."""
        self.close()
        self._set_aside(why)
        self._sync()

    def _set_aside(self, why: str) -> None:
        """Move the damaged database, and what belongs to it, out of the way."""
        database = self._folder / "study.db"
        names = (database.with_name(f"study.db.damaged-{n}") for n in count(1))
        aside = next(name for name in names if not name.exists())
        for end in ("", "-journal", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.replace(f"{database}{end}", f"{aside}{end}")
        self._notices.append(
            f"Optuna's copy of the results, {database}, was damaged ({why}): it was moved to "
            f"{aside.name} and made again from the results; none is lost"
        )

    def _frozen(self, result: Result) -> Any:
        """`result` as Optuna's trial, or None (and a notice) where it cannot be one."""
        import optuna

        failed = result.status == "failed" or math.isnan(result.objective)
        states = optuna.trial.TrialState
        ended = states.PRUNED if result.status == "pruned" else states.COMPLETE
        try:
            params = dict(result.trial.hps)
            trial = optuna.trial.create_trial(
                state=states.FAIL if failed else ended,
                value=None if failed else result.objective,
                params=params,
                distributions={name: self._range(name, value) for name, value in params.items()},
                user_attrs=_attributes(result),
            )
            trial.datetime_complete = datetime.fromtimestamp(result.finished_at)
            trial.datetime_start = trial.datetime_complete - timedelta(seconds=result.seconds)
        except (*BROKEN, OSError) as error:
            self._notices.append(f"Optuna cannot show the trial {result.key}: {error}")
            return None
        return trial

    def _range(self, name: str, value: float) -> Any:
        """The range that Optuna shows for a hyperparameter, wide enough for `value`."""
        import optuna

        if not math.isfinite(value):
            raise ValueError(f"{name} is not finite")
        if name not in self._bounds:
            every = (r.trial.log2_hps.get(name, math.nan) for r in self._results.values())
            seen = [value for value in every if abs(value) < 1000] or [math.log2(value)]
            self._bounds[name] = min(seen), max(seen)
        low, high = self._bounds[name]
        return optuna.distributions.FloatDistribution(
            min(2.0**low, value), max(2.0**high, value), log=True
        )


def _attributes(result: Result) -> dict[str, Any]:
    """What Optuna keeps about a trial beside its hyperparameters and its value."""
    trial = result.trial
    names = ("key", "status", "heldout", "seconds", "finished_at")
    attributes = {name: encode(getattr(result, name)) for name in names}
    attributes |= {"phase": trial.phase, "seed": trial.seed}
    attributes |= {"width": trial.width, "depth": trial.depth}
    # MySQL refuses attributes much longer than this.
    return attributes | ({"error": result.error[:2000]} if result.error else {})


def _mark(result: Result) -> tuple[str, ...]:
    """What tells apart the trials in Optuna: one key may first fail and then succeed."""
    return tuple(json.dumps(encode(getattr(result, name))) for name in MARK)


def _connection(database: Path) -> sqlite3.Connection:
    """A connection to the study's own database, whatever characters its path has."""
    connection = sqlite3.connect(database, timeout=2.0, check_same_thread=False)
    # A power cut may damage the file, which is rebuilt then; nothing else needs the syncing.
    connection.execute("PRAGMA synchronous=OFF")
    return connection


def _damage(database: Path) -> str:
    """What is wrong with the SQLite file; empty when nothing is or it cannot be told now."""
    try:
        if not database.exists():
            return ""
        with closing(sqlite3.connect(database, timeout=2.0)) as connection:
            found = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
    except (OSError, sqlite3.OperationalError):
        return ""
    except sqlite3.DatabaseError as error:
        return str(error)
    return "" if found == "ok" else found


def _cause(error: BaseException) -> BaseException:
    """Where the chain of causes began: SQLAlchemy and Optuna wrap what the database said."""
    while error.__cause__:
        error = error.__cause__
    return error


def _lasts(error: Exception) -> bool:
    """Whether a new database would help, unlike against a lock, a full disk or no access."""
    cause = _cause(error)
    if isinstance(cause, sqlite3.OperationalError):
        return getattr(cause, "sqlite_errorname", "") == "SQLITE_ERROR"
    return not isinstance(cause, OSError | ImportError | MemoryError)


def _reason(error: Exception) -> str:
    """One line that says what went wrong."""
    cause = _cause(error)
    if isinstance(cause, ModuleNotFoundError) and cause.name:
        package = _DRIVERS.get(cause.name, cause.name)
        return f"the driver of its database is not installed; run: pip install {package!r}"
    return next(iter(str(cause).splitlines()), "") or type(cause).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna's chatter and its warnings of experimental features from the terminal."""
    import optuna

    level = optuna.logging.get_verbosity()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            yield
        finally:
            optuna.logging.set_verbosity(level)


def in_order(results: Mapping[str, Result]) -> list[Result]:
    """Results by the time they were finished, then by key."""
    return sorted(results.values(), key=lambda result: (result.finished_at, result.key))
