"""Optuna as a strategy, and the storages that it and a study's copy use."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial

from sweeper.records import Bounded
from sweeper.search.prune import PrunerKind
from sweeper.search.strategy import (
    FRESH_SEEDS,
    Conclusion,
    FreshSeedCount,
    History,
    Phase,
    Point,
    Until,
    best_result,
    chosen_axes,
    pruned_notes,
    running_best,
)
from sweeper.trial import ONE_OR_MORE, Axis, Log2Hps, Space, defaults

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

    def clear(self) -> None:
        """Throw the study away and create it again."""
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

    def clear(self) -> None:
        """Throw the study away and create it again; the database's other studies stay."""
        optuna.delete_study(study_name=self._name, storage=self._storage)
        self._study = _create(self._storage, self._name)

    def close(self) -> None:
        """Close all connections."""
        disconnect(self._storage)


class JournalStudy:
    """The study `name` in a journal file of its own at `path`, which is created if need be."""

    def __init__(self, path: Path, name: str) -> None:
        """Create the file where there is none."""
        self._path, self._name = path, name
        self._checked_size = 0
        self._create_empty()

    def trials(self) -> list[FrozenTrial]:
        """All trials that it has; ValueError when the file is not this study's journal."""
        self._checked_size = self._path.stat().st_size
        storage = JournalStorage(self._file())
        names = optuna.get_all_study_names(storage)
        if names != [self._name] or storage.get_study_id_from_name(self._name) != _FIRST_STUDY:
            raise ValueError(f"it holds the studies {names} in place of {self._name}")
        return optuna.load_study(study_name=self._name, storage=storage).get_trials(deepcopy=False)

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

    def clear(self) -> None:
        """Throw the file away and create it again."""
        self._path.unlink()
        self._create_empty()

    def close(self) -> None:
        """Do nothing: the file is open while it is read or written only."""

    def _create_empty(self) -> None:
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


# `search=tpe`: Optuna's tree-structured Parzen estimator, asked in batches; a reference.


@dataclass(frozen=True, kw_only=True)
class TPE(Bounded):
    """`runs` trials in batches of `batch`; the sampler is rebuilt from the history each time.

    The sampler is seeded by (`seed`, trials so far): Optuna repeats its points when a study is
    resumed with the same seed. A diverged trial has a loss worse than any, and one that was
    stopped early is pruned at its last step: Optuna ranks those below all others, by how far
    they came and then by their loss there.
    """

    runs: Annotated[int, ONE_OR_MORE] = 100
    batch: Annotated[int, ONE_OR_MORE] = 10
    seed: int = 0
    axes: tuple[str, ...] | None = None
    fresh_seeds: FreshSeedCount = FRESH_SEEDS
    until: Until = "planned"
    prune: PrunerKind = "none"

    def plan(self, space: Space) -> list[Phase]:
        """One phase."""
        chosen_axes(space, self.axes)
        return [Phase(name="tpe", trials=self.runs)]

    def propose(self, space: Space, history: History) -> list[Point]:
        """The next batch, once every trial of the last one has a result."""
        done = len(history.results)
        if done >= self.runs:
            return []
        points = self._ask(space, history, min(self.batch, self.runs - done))
        # Axes of a single value leave few points to ask: each is trained once.
        return list({point.id: point for point in points if point not in history}.values())

    def _ask(self, space: Space, history: History, count: int) -> list[Point]:
        """Tell a new sampler the history and ask it for `count` configurations."""
        names, state = chosen_axes(space, self.axes), optuna.trial.TrialState
        # In log2, as everywhere in the search: no `log=True`.
        ranges = {name: _distribution(space[name]) for name in names}
        seed = random.Random(f"{self.seed} {len(history.results)}").getrandbits(31)
        level = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
                for result in history.results:
                    pruned = result.status == "pruned"
                    trial = optuna.trial.create_trial(
                        state=state.PRUNED if pruned else state.COMPLETE,
                        params={name: result.trial.log2_hps[name] for name in names},
                        distributions=ranges,
                        value=None if pruned else result.objective,
                        intermediate_values={result.steps: result.curve[-1]} if pruned else None,
                    )
                    study.add_trial(trial)
                suggestions = [study.ask(ranges).params for _ in range(count)]
        finally:
            optuna.logging.set_verbosity(level)
        return [
            Point(log2_hps=Log2Hps({**defaults(space), **suggestion}), seed=0, phase="tpe")
            for suggestion in suggestions
        ]

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
            phase_ends={"tpe": len(objectives)},
        )


def _distribution(axis: Axis) -> BaseDistribution:
    """An axis as Optuna knows it: a range of logarithms, or categories by their places."""
    if axis.choices:
        return CategoricalDistribution(axis.grid(1.0))
    return FloatDistribution(axis.low, axis.high)
