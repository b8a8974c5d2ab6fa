"""Storages of Optuna's: one study in a journal or a database, and storages that others wrote."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import optuna
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial

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
# Where Optuna keeps its copy of a study: a journal file, or a database of the user's.
# Both hold one Optuna study and take trials that have ended. The journal is the default: in a
# database each trial is a transaction of dozens of statements, in the journal a batch is one
# write.


JournalLine = dict[str, Any]
"""A line of a journal; its content is Optuna's."""

_FIRST_STUDY = 0
"""Optuna's id of the first study in a journal. The logs of a batch name the study by it."""


class OptunaStudy(Protocol):
    """An Optuna study in its storage; any exception may come from it."""

    def trials(self) -> list[FrozenTrial]:
        """All trials that it has."""

    def add(self, trials: Sequence[FrozenTrial]) -> None:
        """Add trials that have ended."""

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes of the study as a whole, where they have other values."""

    def attributes(self) -> dict[str, Any]:
        """Attributes of the study as a whole."""

    def clear(self) -> None:
        """Throw the study's trials away; what else is known of the study stays."""

    def close(self) -> None:
        """Close the connection for good."""


class DatabaseStudy:
    """The study `name` in the database at `url`, where it is created if need be."""

    def __init__(self, url: str, name: str) -> None:
        """Connect to the database; tables are made where need be."""
        self._storage, self._name = connect(url), name
        try:
            self._study = _create(self._storage, name)
        except BaseException:
            self.close()
            raise

    def trials(self) -> list[FrozenTrial]:
        """All trials that it has."""
        return self._study.get_trials(deepcopy=False)

    def add(self, trials: Sequence[FrozenTrial]) -> None:
        """Add trials that have ended, one after the other; an error leaves those before it."""
        self._study.add_trials(trials)

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes of the study as a whole, where they have other values."""
        for name, value in _changed(self._study, attributes).items():
            self._study.set_user_attr(name, value)

    def attributes(self) -> dict[str, Any]:
        """Attributes of the study as a whole."""
        return dict(self._study.user_attrs)

    def clear(self) -> None:
        """Throw the study's trials away; the database's other studies stay."""
        kept = _attributes(self._storage, self._name)
        optuna.delete_study(study_name=self._name, storage=self._storage)
        self._study = _create(self._storage, self._name)
        _set_attributes(self._storage, self._name, *kept)

    def close(self) -> None:
        """Close all connections."""
        disconnect(self._storage)


class JournalStudy:
    """The study `name` in a journal file of its own at `path`, which is created if need be."""

    def __init__(self, path: Path, name: str) -> None:
        """Create the file where there is none."""
        self._path, self._name = path, name
        self._checked_size = 0
        self._attributes: dict[str, Any] = {}
        self._create_empty()

    def trials(self) -> list[FrozenTrial]:
        """All trials that it has; ValueError when the file is not this study's journal."""
        self._checked_size = self._path.stat().st_size
        storage = JournalStorage(self._file())
        names = optuna.get_all_study_names(storage)
        if names != [self._name] or storage.get_study_id_from_name(self._name) != _FIRST_STUDY:
            raise ValueError(f"it holds the studies {names} in place of {self._name}")
        study = optuna.load_study(study_name=self._name, storage=storage)
        self._attributes = study.user_attrs
        return study.get_trials(deepcopy=False)

    def add(self, trials: Sequence[FrozenTrial]) -> None:
        """Add trials that have ended, in one write; ValueError as `trials`."""
        if not trials:
            return
        if self._path.stat().st_size != self._checked_size:
            self.trials()  # something else wrote to it: it may be a note, and it may be damage
        self._cut_torn_line()
        self._file().append_logs(self._logs(trials)[1])
        self._checked_size = self._path.stat().st_size

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes of the study as a whole, where they have other values."""
        self._cut_torn_line()
        study = optuna.load_study(study_name=self._name, storage=JournalStorage(self._file()))
        if changed := _changed(study, attributes):
            self._file().append_logs(self._logs([], changed)[1])
            self._checked_size = self._path.stat().st_size

    def attributes(self) -> dict[str, Any]:
        """Attributes of the study as a whole, as `trials` last found them."""
        return self._attributes

    def clear(self) -> None:
        """Write the file again without its trials; nothing is kept of one that cannot be read."""
        kept: tuple[dict[str, Any], dict[str, Any]] = {}, {}
        with suppress(Exception):
            kept = _attributes(JournalStorage(self._file()), self._name)
        self._path.unlink()
        self._create_empty()
        worker = _MemoryJournal()
        storage = JournalStorage(worker)
        _create(storage, self._name)
        created = len(worker.logs)
        _set_attributes(storage, self._name, *kept)
        if logs := worker.logs[created:]:
            self._file().append_logs(logs)
        self._checked_size = self._path.stat().st_size

    def close(self) -> None:
        """Do nothing: the file is open while it is read or written only."""

    def _create_empty(self) -> None:
        os.close(create(self._path, os.O_WRONLY))  # Optuna's goes by the umask, a study does not
        file = self._file()
        if self._path.stat().st_size == 0:
            file.append_logs(self._logs([])[0])
            self._checked_size = self._path.stat().st_size

    def _file(self) -> JournalFileBackend:
        """A new backend each time: one would remember positions in a file that was replaced."""
        return JournalFileBackend(str(self._path), lock_obj=_NoLock(str(self._path)))

    def _logs(
        self, trials: Sequence[FrozenTrial], attributes: Mapping[str, Any] | None = None
    ) -> tuple[list[JournalLine], list[JournalLine]]:
        """What Optuna logs when it creates the study, and when it adds `trials`, `attributes`.

        Optuna's storage would sync the file after each trial and keep all its trials in memory.
        But a journal may hold the logs of many workers, in any order. So each batch is logged by
        a worker in memory that has seen no other trial, and the file takes its logs together.
        """
        worker = _MemoryJournal()
        study = _create(JournalStorage(worker), self._name)
        created = len(worker.logs)
        study.add_trials(trials)
        for name, value in (attributes or {}).items():
            study.set_user_attr(name, value)
        return worker.logs[:created], worker.logs[created:]

    def _cut_torn_line(self) -> None:
        """Drop a last line that a kill or a full disk cut short, or the next would join it."""
        with self._path.open("r+b") as file:
            # The last byte tells whether the last line is whole; else the line end before counts.
            content_end = file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read(content_end).rfind(b"\n") + 1)


def _changed(study: optuna.Study, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `attributes` that the study has not, or with other values."""
    known = study.user_attrs
    return {
        name: value
        for name, value in attributes.items()
        if name not in known or known[name] != value
    }


def _attributes(
    storage: optuna.storages.BaseStorage, name: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is known of a study beside its trials: of users, and of programs, such as notes."""
    number = storage.get_study_id_from_name(name)
    return storage.get_study_user_attrs(number), storage.get_study_system_attrs(number)


def _set_attributes(
    storage: optuna.storages.BaseStorage,
    name: str,
    user: Mapping[str, Any],
    system: Mapping[str, Any],
) -> None:
    number = storage.get_study_id_from_name(name)
    for key, value in user.items():
        storage.set_study_user_attr(number, key, value)
    for key, value in system.items():
        storage.set_study_system_attr(number, key, value)


def connect(url: str) -> optuna.storages.RDBStorage:
    """The database at `url`, its tables made where need be."""
    # Optuna takes the URL for a template of str.format: a brace in a password would be a field.
    return optuna.storages.RDBStorage(url.replace("{", "{{").replace("}", "}}"))


def disconnect(storage: optuna.storages.RDBStorage) -> None:
    """Close all connections to the database."""
    storage.remove_session()
    storage.engine.dispose()


class _MemoryJournal(BaseJournalBackend):
    def __init__(self) -> None:
        self.logs: list[JournalLine] = []

    def read_logs(self, log_number_from: int) -> list[JournalLine]:
        """The logs from this number on."""
        return self.logs[log_number_from:]

    def append_logs(self, logs: list[JournalLine]) -> None:
        """Add logs."""
        self.logs += logs


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


def _create(storage: optuna.storages.BaseStorage, name: str) -> optuna.Study:
    return optuna.create_study(
        storage=storage, study_name=name, direction="minimize", load_if_exists=True
    )


# Storages by their URL.


def check_storage(url: str) -> None:
    """BadInput, without the password, unless the storage at `url` can be used now."""
    why = ""
    try:
        with quiet():
            disconnect(connect(url))
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
                escaped = url.replace("{", "{{").replace("}", "}}")
                storage = RDBStorage(escaped, skip_table_creation=True)
            names = optuna.get_all_study_names(storage)
    except Exception as error:
        why = scrub(reason_of(error), url)
    if why:  # no exception is being handled here: its text could bring the password into the chain
        raise BadInput(unusable(url, why))
    try:
        with quiet():
            yield names, lambda name: optuna.load_study(study_name=name, storage=storage)
    finally:
        if isinstance(storage, RDBStorage):
            disconnect(storage)


def unusable(url: str, why: str) -> str:
    """That a storage cannot be used, without its password."""
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
