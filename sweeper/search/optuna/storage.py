"""Storages of Optuna's: a study's journal, databases, and storages that others wrote."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from sweeper.errors import BadInput
from sweeper.files import create
from sweeper.search.optuna.mapping import quiet
from sweeper.search.optuna.url import redact, scrub

_DRIVER_PACKAGES = {
    "psycopg": "psycopg[binary]",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient",
    "pymysql": "pymysql",
}


def journal(path: Path) -> JournalStorage:
    """The journal at `path`, made where there is none."""
    os.close(create(path, os.O_WRONLY))  # Optuna's goes by the umask, a study does not
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if 0 < whole < len(content):  # a kill or a full disk cut it: the next line would join the last
        os.truncate(path, whole)
    return JournalStorage(JournalFileBackend(str(path), lock_obj=_NoLock(str(path))))


class _NoLock(JournalFileOpenLock):
    """In place of Optuna's lock file, which outlives a killed driver.

    Others would wait for it: for half a minute, with Optuna 4.2 for ever. It is not needed: only
    the study's driver adds trials, and a note that a dashboard adds at the same moment stays a
    line of its own, because both append with one call.
    """

    def acquire(self) -> bool:
        """Do nothing."""
        return True

    def release(self) -> None:
        """Do nothing."""


def opened(url: str) -> RDBStorage:
    """The database at `url`, its tables made where need be."""
    return optuna.storages.RDBStorage(_as_it_is(url))


def _as_it_is(url: str) -> str:
    # Optuna takes the URL for a template of str.format: a brace in a password would be a field.
    return url.replace("{", "{{").replace("}", "}}")


def disconnect(storage: BaseStorage | None) -> None:
    """Close all connections to a database."""
    if isinstance(storage, RDBStorage):
        storage.remove_session()
        storage.engine.dispose()


def check_storage(url: str) -> None:
    """BadInput, without the password, unless the storage at `url` can be used now."""
    why = ""
    try:
        with quiet():
            disconnect(opened(url))
    except Exception as error:
        why = scrub(reason_of(error), url)
    # No exception is being handled here: its text could bring the password into the chain.
    if why:
        raise BadInput(unusable(url, why))


@contextmanager
def read_storage(url: str) -> Iterator[tuple[list[str], Callable[[str], optuna.Study]]]:
    """The studies in a storage that others wrote, by name, and what loads one; nothing is written.

    `url` is that of a database, or the path of a journal. BadInput, without the password, for a
    storage that cannot be read.
    """
    storage: Any = None
    why = ""
    try:
        with quiet():
            if "://" not in url:
                storage = JournalStorage(JournalFileBackend(url))
            else:
                # SQLite makes a file where there is none.
                file = url.partition(":///")[2].partition("?")[0]
                if url.startswith("sqlite") and not Path(file).is_file():
                    raise FileNotFoundError(f"there is no file {file}")
                storage = RDBStorage(_as_it_is(url), skip_table_creation=True)
            names = optuna.get_all_study_names(storage)
    except Exception as error:
        why = scrub(reason_of(error), url)
    if why:  # no exception is being handled here: its text could bring the password into the chain
        raise BadInput(unusable(url, why))
    try:
        with quiet():
            yield names, lambda name: optuna.load_study(study_name=name, storage=storage)
    finally:
        disconnect(storage)


def unusable(url: str, why: str) -> str:
    """Says that a storage cannot be used, without its password."""
    return f"the storage {redact(url)} cannot be used: {why}"


def cause_of(error: BaseException) -> BaseException:
    """The first cause of an error: SQLAlchemy and Optuna wrap the database's message."""
    while error.__cause__:
        error = error.__cause__
    return error


def reason_of(error: Exception) -> str:
    """One line that says what went wrong."""
    cause = cause_of(error)
    if isinstance(cause, ModuleNotFoundError) and cause.name:
        package = _DRIVER_PACKAGES.get(cause.name, cause.name)
        return f"the driver of its database is not installed; run: pip install {package!r}"
    return next(iter(str(cause).splitlines()), "") or type(cause).__name__
