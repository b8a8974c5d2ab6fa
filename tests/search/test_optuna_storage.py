"""What a batch leaves in a journal or a database is what Optuna itself would have left there."""

import math
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.storages import InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from sweeper.search.optuna.storage import DatabaseStudy, JournalStudy, OptunaStudy

RANGE = optuna.distributions.FloatDistribution(2.0**-8, 2.0**8, log=True)
DONE = optuna.trial.create_trial(value=1.0, params={"a": 1.0}, distributions={"a": RANGE})
UNWRITABLE = optuna.trial.create_trial(value=1.0, user_attrs={"a": object()})
moments = st.datetimes(datetime(2001, 1, 1), datetime(2030, 1, 1))
attributes = st.text() | st.integers(-(2**31), 2**31) | st.floats(allow_nan=False) | st.none()


@st.composite
def trials(draw: st.DrawFn) -> FrozenTrial:
    """An ended trial as the mirror makes them."""
    state = draw(st.sampled_from([TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL]))
    value = draw(st.floats(allow_nan=False, width=32) | st.just(math.inf))
    hps = draw(st.dictionaries(st.sampled_from("abcd"), st.floats(-8, 8).map(lambda x: 2.0**x)))
    trial = optuna.trial.create_trial(
        state=state,
        value=None if state is TrialState.FAIL else value,
        params=hps,
        distributions=dict.fromkeys(hps, RANGE),
        user_attrs=draw(st.dictionaries(st.text(min_size=1, max_size=20), attributes, max_size=4)),
    )
    trial.datetime_complete = draw(moments)
    trial.datetime_start = trial.datetime_complete - timedelta(seconds=draw(st.floats(0, 1e6)))
    return trial


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "study.journal"


def loaded(path: Path, name: str = "s") -> optuna.Study:
    """The study in a journal, as a dashboard loads it."""
    return optuna.load_study(study_name=name, storage=JournalStorage(JournalFileBackend(str(path))))


def in_journal(folder: Path) -> OptunaStudy:
    return JournalStudy(folder / "study.journal", "s")


def in_database(folder: Path) -> OptunaStudy:
    return DatabaseStudy(f"sqlite:///{folder / 'study.db'}", "s")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database without a study: its tables take longer to make than a study to fill."""
    path = tmp_path_factory.mktemp("tables") / "study.db"
    RDBStorage(f"sqlite:///{path}").engine.dispose()
    return path


@pytest.mark.parametrize("make", [in_journal, in_database])
@settings(max_examples=settings.default.max_examples // 6)
@given(batches=st.lists(st.lists(trials(), max_size=3), max_size=3))
def test_as_optuna_would_have_kept_it(
    make: Callable[[Path], OptunaStudy], batches: list[list[FrozenTrial]], tables: Path
) -> None:
    expected = optuna.create_study(storage=InMemoryStorage())
    with TemporaryDirectory() as folder:
        copy(tables, folder)
        study = make(Path(folder))
        for batch in batches:
            study.add(batch)
            expected.add_trials(batch)
        study.close()
        again = make(Path(folder))
        assert [shown(trial) for trial in again.trials()] == [shown(t) for t in expected.trials]
        again.close()


def shown(trial: FrozenTrial) -> dict[str, Any]:
    """Everything public about a trial."""
    names = ("number", "state", "values", "params", "distributions", "user_attrs")
    names += ("intermediate_values", "datetime_start", "datetime_complete")
    return {name: getattr(trial, name) for name in names}


def test_a_journal_is_read_as_if_optuna_had_written_it(path: Path, tmp_path: Path) -> None:
    for _ in range(2):
        JournalStudy(path, "s").add([DONE, DONE])
    other = JournalStorage(JournalFileBackend(str(tmp_path / "other")))
    plain = optuna.create_study(study_name="s", storage=other, direction="minimize")
    plain.add_trials([DONE] * 4)
    mirrored = loaded(path)
    assert repr(mirrored.trials) == repr(plain.trials)
    assert mirrored.directions == plain.directions and mirrored.best_value == 1.0
    assert len(path.read_bytes().splitlines()) == 5


def test_optuna_goes_on_where_the_journal_ended(path: Path) -> None:
    study = JournalStudy(path, "s")
    study.add([DONE, DONE])
    dashboard = loaded(path)
    dashboard.set_user_attr("note", "kept")
    dashboard.add_trial(DONE)
    study.add([DONE])
    assert [trial.number for trial in study.trials()] == [0, 1, 2, 3]
    assert [trial.number for trial in dashboard.trials] == [0, 1, 2, 3]
    assert loaded(path).user_attrs == {"note": "kept"}


def test_a_batch_is_one_write_and_keeps_no_other_trial(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, append = [], JournalFileBackend.append_logs

    def counted(self: JournalFileBackend, logs: list[dict[str, Any]]) -> None:
        batches.append(len(logs))
        append(self, logs)

    def read_logs(*_: object) -> Iterator[dict[str, Any]]:
        raise AssertionError("the file is read")

    study = JournalStudy(path, "s")
    study.trials()
    with monkeypatch.context() as patch:
        patch.setattr(JournalFileBackend, "append_logs", counted)
        patch.setattr(JournalFileBackend, "read_logs", read_logs)
        for _ in range(3):
            study.add([DONE] * 64)
        study.add([])
    assert batches == [64] * 3 and len(study.trials()) == 192


def test_of_a_batch_the_journal_takes_all_or_none(path: Path) -> None:
    study = JournalStudy(path, "s")
    with pytest.raises(TypeError):
        study.add([DONE, UNWRITABLE])
    assert study.trials() == []
    study.add([DONE])
    assert len(study.trials()) == 1


def test_an_error_leaves_the_trials_before_it_in_a_database(tmp_path: Path) -> None:
    study = in_database(tmp_path)
    with pytest.raises(TypeError):
        study.add([DONE, UNWRITABLE])
    study.add([DONE])
    assert [trial.number for trial in study.trials()] == [0, 1]
    study.close()


def test_a_torn_line_is_dropped_and_does_not_spoil_the_next(path: Path) -> None:
    study = JournalStudy(path, "s")
    study.add([DONE, DONE])
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) - 40):
        path.write_bytes(whole[:size])
        study = JournalStudy(path, "s")
        assert len(study.trials()) == 1
        study.add([DONE])
        assert len(study.trials()) == len(loaded(path).trials) == 2


def test_what_others_did_to_the_file_is_seen_before_more_is_added(path: Path) -> None:
    study = JournalStudy(path, "s")
    study.add([DONE])
    content = path.read_bytes()
    path.write_bytes(b"rubbish\n" * 99)
    with pytest.raises(ValueError, match="Expecting value"):
        study.add([DONE])
    assert path.read_bytes() == b"rubbish\n" * 99
    path.write_bytes(content.replace(b'"s"', b'"other"'))
    with pytest.raises(ValueError, match=r"it holds the studies \['other'\] in place of s"):
        study.add([DONE])
    path.unlink()
    with pytest.raises(FileNotFoundError):
        study.add([DONE])
    assert not path.exists()


def test_a_lock_that_a_killed_dashboard_left_is_not_waited_for(path: Path) -> None:
    assert JournalFileOpenLock(str(path)).acquire()
    study = JournalStudy(path, "s")
    study.add([DONE])
    assert len(study.trials()) == 1
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name, f"{path.name}.lock"]
