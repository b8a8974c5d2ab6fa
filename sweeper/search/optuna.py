"""Optuna as a strategy, and the storages that it and a study's copy use."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial

from sweeper.errors import ConfigError, key_prefix
from sweeper.files import create
from sweeper.records import Bounded, user_code
from sweeper.registry import TARGET, build_plugin, import_plugin
from sweeper.search.prune import PrunerKind
from sweeper.search.strategy import (
    FRESH_SEEDS,
    Conclusion,
    FreshSeedCount,
    History,
    Phase,
    Until,
    best_result,
    chosen_axes,
    pruned_notes,
    running_best,
)
from sweeper.trial import ONE_OR_MORE, Axis, Log2Hps, Point, Result, Space, defaults, hps_key

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
        ...

    def add(self, trials: Sequence[FrozenTrial]) -> None:
        """Add trials that have ended."""
        ...

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes of the study as a whole, where they have other values."""
        ...

    def attributes(self) -> dict[str, Any]:
        """Attributes of the study as a whole."""
        ...

    def clear(self) -> None:
        """Throw the study's trials away; what else is known of the study stays."""
        ...

    def close(self) -> None:
        """Close the connection for good."""
        ...


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
    """A journal in memory."""

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
    """The study `name` in `storage`, created if need be."""
    return optuna.create_study(
        storage=storage, study_name=name, direction="minimize", load_if_exists=True
    )


# `search=optuna`: any sampler of Optuna's as a strategy.


TPE_SAMPLER = "optuna.samplers.TPESampler"
_PACKAGES = {
    "optuna.samplers.CmaEsSampler": ("cmaes",),
    "optuna.samplers.GPSampler": ("scipy", "torch"),
    "optuna.samplers.QMCSampler": ("scipy",),
}
"""What Optuna itself does not install, and its samplers import when they are first asked."""


@dataclass(frozen=True, kw_only=True)
class OptunaSearch(Bounded):
    """`runs` trials in batches of `batch`, asked of a sampler of Optuna's.

    `sampler` names its class and holds its arguments; the seed follows from `seed`, and where the
    class knows a constant liar, for the trials of a batch that have no loss yet, it is on. A
    sampler may keep a state, so it is asked for every batch anew, and told the results in between:
    with its seed fixed it asks for the same again. A diverged trial has a loss worse than any, and
    one that was stopped early is pruned at its last step.
    """

    sampler: Mapping[str, Any] = field(default_factory=lambda: {TARGET: TPE_SAMPLER})
    runs: Annotated[int, ONE_OR_MORE] = 100
    batch: Annotated[int, ONE_OR_MORE] = 10
    seed: int = 0
    axes: tuple[str, ...] | None = None
    fresh_seeds: FreshSeedCount = FRESH_SEEDS
    until: Until = "planned"
    prune: PrunerKind = "none"

    phase: ClassVar[str] = "optuna"
    liar: ClassVar[bool] = True
    tells_again: ClassVar[bool] = True
    """Whether the sampler hears the loss of a point again that it asks for again."""

    def plan(self, space: Space) -> list[Phase]:
        """One phase; ConfigError for a sampler that cannot be had."""
        _Session(self, space).missing(History())  # what it cannot search, it says when it is asked
        return [Phase(name=self.phase, trials=self.runs)]

    def made(self, space: Space, done: int) -> BaseSampler | None:
        """The sampler for what comes after `done` trials; None: the one before goes on."""
        if done:
            return None
        names, config = chosen_axes(space, self.axes), self.sampler
        grid = {name: space[name].grid(1.0) for name in names}
        offered = {"seed": self.seed % 2**32, "search_space": grid, "constant_liar": self.liar}
        # What the user says of these two goes before; a seed of its own would be a second one.
        offered = {n: v for n, v in offered.items() if n == "seed" or n not in config}
        with key_prefix("sampler"):
            target = config.get(TARGET)
            lacking = [name for name in _PACKAGES.get(str(target), ()) if not find_spec(name)]
            if lacking:
                allowed = f"it needs {' and '.join(lacking)}: pip install {' '.join(lacking)}"
                raise ConfigError(TARGET, target, allowed)
            kind = import_plugin(target)
            if not (isinstance(kind, type) and issubclass(kind, BaseSampler)):
                allowed = "a sampler, as optuna.samplers.CmaEsSampler; this is none"
                raise ConfigError(TARGET, target, allowed)
            with user_code(TARGET, target, "a sampler that takes these values"), quiet():
                sampler: BaseSampler = build_plugin(_built(config), offered)
        return sampler

    def propose(self, space: Space, history: History) -> list[Point]:
        """The next batch, once every trial of the last one has a result."""
        # The sampler's state follows from the history, which it is asked and told again. What was
        # told the history before this one need not be told again.
        session: _Session | None = self.__dict__.get("_session")
        if session is None or not session.goes_on(space, history):
            session = self.__dict__["_session"] = _Session(self, space)
        return session.missing(history)

    def conclude(self, space: Space, history: History) -> Conclusion:
        """The best trial."""
        best = best_result(history)
        objectives = [result.objective for result in history.results]
        return Conclusion(
            best_log2=best.trial.log2_hps,
            objective=best.objective,
            seeds=1,
            runs=len(objectives),
            notes=tuple(pruned_notes(history)),
            best_loss_curve=running_best(objectives),
            phase_ends={self.phase: len(objectives)},
        )


@dataclass(frozen=True, kw_only=True)
class TPE(OptunaSearch):
    """`search=tpe`: Optuna's tree-structured Parzen estimator, a reference.

    It has no state but its random numbers. They are seeded by (`seed`, trials so far), and know no
    liar, as they always were: so studies of earlier versions go on.
    """

    sampler: Mapping[str, Any] = field(default_factory=lambda: {TARGET: TPE_SAMPLER}, init=False)

    phase: ClassVar[str] = "tpe"
    liar: ClassVar[bool] = False
    tells_again: ClassVar[bool] = False

    def made(self, space: Space, done: int) -> BaseSampler:
        """A new one for every batch."""
        seed = random.Random(f"{self.seed} {done}").getrandbits(31)
        return optuna.samplers.TPESampler(seed=seed)


def _built(config: Mapping[str, Any]) -> dict[str, Any]:
    """A sampler's configuration with what it names within, such as another sampler, built."""
    return {
        key: build_plugin(_built(value))
        if isinstance(value, Mapping) and TARGET in value
        else value
        for key, value in config.items()
    }


class _Session:
    """A study in memory whose sampler was asked for a history's points, and told their losses."""

    def __init__(self, search: OptunaSearch, space: Space) -> None:
        self._search, self._space = search, space
        # In log2, as everywhere in the search: no `log=True`.
        names = chosen_axes(space, search.axes)
        self._ranges = {name: _distribution(space[name]) for name in names}
        with quiet():
            self._study = optuna.create_study(sampler=search.made(space, 0))
        self._batches: list[list[Point]] = []
        self._asked: list[tuple[optuna.Trial, Point]] = []  # of the last batch, not told yet
        self._told: dict[Hashable, tuple[str, float]] = {}
        self._exhausted = False

    def goes_on(self, space: Space, history: History) -> bool:
        """Whether nothing in `history` is otherwise than it was told."""
        return space == self._space and all(
            self._told.get(_point_id(result), told) == told
            for result in history.results
            for told in [(result.status, result.objective)]
        )

    def missing(self, history: History) -> list[Point]:
        """What the sampler asks for and `history` lacks; empty at the end."""
        results = {_point_id(result): result for result in history.results}
        target = self._search.sampler.get(TARGET)
        with user_code(f"sampler.{TARGET}", target, "a sampler for this space"), quiet():
            for batch in self._batches:  # a search that starts again is asked again
                if missing := [point for point in batch if point.id not in results]:
                    return missing
            while True:
                self._tell(results)
                done = len(self._told)
                if done >= self._search.runs or self._exhausted:
                    return []
                if (sampler := self._search.made(self._space, done)) is not None and done:
                    self._study.sampler = sampler
                count = min(self._search.batch, self._search.runs - done)
                self._asked = [self._ask() for _ in range(count)]
                # Axes of a single value leave few points to ask: each is trained once.
                points = {point.id: point for _, point in self._asked if point.id not in self._told}
                self._exhausted = not points
                self._batches.append(list(points.values()))
                if missing := [point for point in points.values() if point.id not in results]:
                    return missing

    def _ask(self) -> tuple[optuna.Trial, Point]:
        trial = self._study.ask(dict(self._ranges))
        hps = Log2Hps({**defaults(self._space), **trial.params})
        return trial, Point(log2_hps=hps, seed=0, phase=self._search.phase)

    def _tell(self, results: Mapping[Hashable, Result]) -> None:
        state = optuna.trial.TrialState
        asked, self._asked = self._asked, []
        for trial, point in asked:
            # GridSampler stops the study at its last point, which raises outside of `optimize`.
            with suppress(RuntimeError):
                result = results[point.id]
                if point.id in self._told and not self._search.tells_again:
                    self._study.tell(trial, state=state.FAIL)
                    continue
                self._told[point.id] = (result.status, result.objective)
                if result.status == "pruned":
                    trial.report(result.curve[-1], result.steps)
                    self._study.tell(trial, state=state.PRUNED)
                else:
                    self._study.tell(trial, result.objective)


def _point_id(result: Result) -> Hashable:
    return hps_key(result.trial.log2_hps), result.trial.seed


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna's log and warnings from the terminal, and leave them as they were."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(level)


def _distribution(axis: Axis) -> BaseDistribution:
    """An axis as Optuna knows it: a range of logarithms, or categories by their places."""
    if axis.choices:
        return CategoricalDistribution(axis.grid(1.0))
    return FloatDistribution(axis.low, axis.high)
