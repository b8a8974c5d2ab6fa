"""What Optuna shows of a study, and what damages it."""

import errno
import json
import math
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from sweeper.errors import BadInput
from sweeper.search.optuna import copy as module
from sweeper.study.study import Study
from sweeper.trial import Log2Hps
from tests.golden import Golden
from tests.study.study_files import filed, make, mirrored, refuse, rubbish, shown

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "first"


def test_importing_does_not_import_optuna() -> None:
    code = "import sys, sweeper.study.study; print('optuna' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr


def test_what_the_copy_shows(folder: Path) -> None:
    with Study.open(folder) as study:
        study.record([make(4)], {"eta": (-3.0, 1.0), "alpha_attn": (-2.0, 2.0)})
        study.record([make(40, "diverged")])
        study.record([make(5, "failed", error="no memory")], {"eta": (-8.0, 8.0)})
        study.record([make(6, heldout=math.nan)])
    storage = JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    loaded = optuna.load_study(study_name=study.name, storage=storage)
    good, bad, failed, silent = loaded.trials
    assert loaded.direction.name == "MINIMIZE"
    assert good.params == {"eta": 0.25, "alpha_attn": 2.0}
    assert good.distributions == {
        "eta": optuna.distributions.FloatDistribution(0.125, 2.0, log=True),
        "alpha_attn": optuna.distributions.FloatDistribution(0.25, 4.0, log=True),
    }
    shown = {"key": make(4).key, "phase": "random", "width": 64, "depth": 2, "seed": 4}
    shown |= {"heldout": 7.0, "status": "complete", "seconds": 2.0, "finished_at": 1e9 + 4}
    assert good.user_attrs == shown and good.value == 7.0
    assert good.duration is not None and good.duration.total_seconds() == 2.0
    assert (bad.state, bad.value) == (TrialState.COMPLETE, math.inf)
    assert bad.user_attrs["heldout"] == "inf"
    assert bad.distributions["eta"].high == bad.params["eta"] == 2.0**7
    assert (failed.state, failed.values) == (TrialState.FAIL, None)
    assert failed.user_attrs["error"] == "no memory"
    assert silent.distributions["eta"].high == 2.0**8
    assert silent.user_attrs["heldout"] == "nan"
    assert loaded.best_trial.number == good.number


@pytest.mark.parametrize("database", [False, True])
def test_what_is_said_of_the_whole_study_is_kept_once(
    folder: Path, tmp_path: Path, database: bool
) -> None:
    url = f"sqlite:///{tmp_path / 'far.db'}" if database else None
    journal = folder / "study.journal"

    def attributes() -> dict[str, Any]:
        storage: Any = url or JournalStorage(JournalFileBackend(str(journal)))
        return dict(optuna.load_study(study_name="first", storage=storage).user_attrs)

    with Study.open(folder, url) as study:
        study.record([make(0)])
        study.describe({"loss": 2.5, "best": {"eta": 0.25}})
        study.record([make(1)])
    assert attributes() == {"loss": 2.5, "best": {"eta": 0.25}}
    size = 0 if database else journal.stat().st_size
    with Study.open(folder, url) as study:
        study.describe({"loss": 2.5, "best": {"eta": 0.25}})
        assert database or journal.stat().st_size == size, "nothing is written twice"
        study.describe({"loss": 2.25})
        assert not study.notices
    assert attributes() == {"loss": 2.25, "best": {"eta": 0.25}}
    assert mirrored(folder, url) == filed(folder) and len(filed(folder)) == 2


def test_a_trial_that_optuna_cannot_show_stops_nothing(folder: Path) -> None:
    # Its power of two is zero, which no logarithmic range holds.
    odd = replace(make(1), trial=replace(make(1).trial, log2_hps=Log2Hps({"eta": -1080.0})))
    with Study.open(folder) as study:
        study.record([odd])
        study.record([make(2)])
        study.record([replace(make(3), objective=math.nan)])
        assert len(study.results()) == 3
        assert [odd.key in notice for notice in study.notices] == [True]
    assert mirrored(folder).keys() == {make(2).key, make(3).key}


def test_full_disk_of_the_copy_loses_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    with Study.open(folder) as study:
        study.record([make(0)])
        with monkeypatch.context() as patch:
            patch.setattr(JournalFileBackend, "append_logs", refuse(errno.ENOSPC))
            patch.setattr(module, "RETRY_SECONDS", 0.0)
            for number in range(1, 5):
                study.record([make(number)])
        (notice,) = study.notices
        golden.says(notice)
        assert len(study.results()) == 5
        assert len(mirrored(folder)) == 1
    with Study.open(folder) as again:
        assert again.notices == []
    assert len(mirrored(folder)) == 5 and mirrored(folder) == filed(folder)


def test_the_copy_catches_up_in_the_same_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Study.open(folder) as study:
        with monkeypatch.context() as patch:
            patch.setattr(JournalFileBackend, "append_logs", refuse(errno.EIO))
            study.record([make(0, "failed")])
            study.record([make(1)])
        study.record([make(2)])
        assert mirrored(folder) == {}
        study._copy._retry_at = 0.0  # type: ignore[union-attr]
        study.record([make(3)])
        assert mirrored(folder) == filed(folder) and len(study.notices) == 1
        study.close()
        study.record([make(0)])
        assert mirrored(folder) == filed(folder)


def test_a_copy_damaged_in_the_middle_of_a_run_is_rebuilt_in_it(
    folder: Path,
) -> None:
    with Study.open(folder) as study:
        study.record([make(0)])
        rubbish(folder / "study.journal")
        study.record([make(1)])
        study._copy._retry_at = 0.0  # type: ignore[union-attr]
        study.record([make(2)])
        behind, damaged = study.notices
        assert "behind" in behind and "study.journal, was damaged" in damaged
    assert mirrored(folder) == filed(folder) and len(filed(folder)) == 3


def test_database_locked_by_another_program(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)  # between Optuna's five attempts
    database = tmp_path / "far.db"
    url = f"sqlite:///{database}?timeout=0.05"
    other = sqlite3.connect(database, isolation_level=None)
    with Study.open(folder, url) as study:
        study.record([make(0)])
        other.execute("BEGIN EXCLUSIVE")
        study.record([make(1)])
        (notice,) = study.notices
        assert "locked" in notice
    with pytest.raises(BadInput, match="locked"):
        Study.open(folder, url)
    other.execute("ROLLBACK")
    other.close()
    Study.open(folder, url).close()
    assert mirrored(folder, url) == filed(folder) and len(filed(folder)) == 2


def overwritten(journal: Path) -> None:
    content = bytearray(journal.read_bytes())
    content[len(content) // 3 : len(content) // 2] = b"\xa5" * (len(content) // 6)
    journal.write_bytes(content)


def from_the_future(journal: Path) -> None:
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    lines[2]["op_code"] = 99
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def other_fields(journal: Path) -> None:
    journal.write_text(journal.read_text().replace('"study_id"', '"studyId"'))


def other_study(journal: Path) -> None:
    journal.write_text(journal.read_text().replace('"first"', '"second"'))


def created_again(journal: Path) -> None:
    """Its study was deleted, and then created by someone else."""
    storage = JournalStorage(JournalFileBackend(str(journal)))
    optuna.delete_study(study_name="first", storage=storage)
    optuna.create_study(study_name="first", storage=storage)


@pytest.mark.parametrize(
    "damage",
    [rubbish, overwritten, from_the_future, other_fields, other_study, created_again],
)
def test_a_damaged_journal_is_written_again(folder: Path, damage: Callable[[Path], None]) -> None:
    with Study.open(folder) as study:
        for number in range(4):
            study.record([make(number, "failed" if number == 1 else "complete")])
    expected = mirrored(folder)
    assert expected == filed(folder)
    damage(folder / "study.journal")
    with Study.open(folder) as study:
        (notice,) = study.notices
        assert "study.journal, was damaged" in notice
        assert len(study) == 4
    assert mirrored(folder) == expected


def test_journal_that_was_cut_short_catches_up(folder: Path) -> None:
    """A kill, a full disk or a power cut may cut it anywhere."""
    with Study.open(folder) as study:
        study.record([make(0), make(1, "failed")])
        study.record([make(2)])
    journal, expected = folder / "study.journal", mirrored(folder)
    whole = journal.read_bytes()
    created = whole.index(b"\n") + 1
    for size in {*range(created, len(whole), 97), created, len(whole) - 1, len(whole)}:
        journal.write_bytes(whole[:size])
        with Study.open(folder) as study:
            assert study.notices == []
        assert mirrored(folder) == expected and len(shown(folder)) == 3


def test_a_deleted_or_empty_journal_is_written_again(folder: Path) -> None:
    journal = folder / "study.journal"
    with Study.open(folder) as study:
        study.record([make(0)])
    journal.unlink()
    with Study.open(folder) as study:
        assert study.notices == []
    assert mirrored(folder) == filed(folder)
    os.truncate(journal, 0)
    Study.open(folder).close()
    assert mirrored(folder) == filed(folder)


def test_a_pruned_trial_is_shown_as_pruned(folder: Path) -> None:
    with Study.open(folder) as study:
        study.record([make(0, "pruned"), make(1, "pruned")])
    with Study.open(folder) as study:
        study.record([make(1, finished_at=2e9)])
    trials = [(t.state, t.value) for t in shown(folder)]
    stopped = [(TrialState.PRUNED, 3.0), (TrialState.PRUNED, 4.0)]
    assert trials == [*stopped, (TrialState.COMPLETE, 4.0)]
    Study.open(folder).close()
    assert [(t.state, t.value) for t in shown(folder)] == [stopped[0], trials[-1]]


def another_value(study: optuna.Study, value: float = 77.0) -> None:
    trial = study.trials[-1]
    study.add_trial(optuna.trial.create_trial(value=value, user_attrs=trial.user_attrs))


def twice(study: optuna.Study) -> None:
    study.add_trial(study.trials[-1])


def by_someone_else(study: optuna.Study) -> None:
    study.add_trial(optuna.trial.create_trial(value=1.0))


@pytest.mark.parametrize("change", [another_value, twice, by_someone_else])
def test_a_journal_that_holds_anything_else_is_written_again(
    folder: Path, change: Callable[[optuna.Study], None]
) -> None:
    with Study.open(folder) as study:
        study.record([make(0), make(1, "failed"), make(2)])
    storage = JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    change(optuna.load_study(study_name="first", storage=storage))
    assert len(shown(folder)) == 4
    Study.open(folder).close()
    assert mirrored(folder) == filed(folder) and len(shown(folder)) == 3


def test_a_copy_that_matches_is_left_as_it_is(folder: Path) -> None:
    with Study.open(folder) as study:
        study.record([make(2, "diverged"), make(0), make(1, "failed"), make(3, "pruned")])
    before = (folder / "study.journal").read_bytes()
    Study.open(folder).close()
    assert (folder / "study.journal").read_bytes() == before


def test_many_results_are_mirrored_at_once_when_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module.OptunaCopy, "add", lambda *_: None)
        with Study.open(folder) as study:
            for number in reversed(range(60)):
                study.record([make(number)])
    writes: list[int] = []
    append = JournalFileBackend.append_logs

    def counted(backend: JournalFileBackend, logs: list[dict[str, Any]]) -> None:
        writes.append(len(logs))
        append(backend, logs)

    monkeypatch.setattr(JournalFileBackend, "append_logs", counted)
    Study.open(folder).close()
    assert writes == [60]
    assert list(mirrored(folder)) == [make(number).key for number in range(60)]
