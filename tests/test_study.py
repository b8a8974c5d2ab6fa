import errno
import json
import logging
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from sweeper import mirror as module
from sweeper.errors import BadInput, ConfigError, SweeperError
from sweeper.mirror import redact, scrub
from sweeper.study import Study, check_study_name, latest_study
from sweeper.trial import FORMAT, Log2Hps, Result, Trial
from tests.specs import spec_of

ROOT = Path(__file__).parents[1]
SECRETIVE = "postgresql+psycopg2://user:s3cr%40t-pw@127.0.0.1:1/db?sslpassword=0ther-pw"
PASSWORDS = ("s3cr%40t-pw", "s3cr@t-pw", "0ther-pw")


SPEC = spec_of({"model": {"width": 64, "depth": 2}})


def make(number: int, status: str = "complete", **changes: Any) -> Result:
    trial = Trial(
        spec=SPEC,
        log2_hps=Log2Hps({"eta": number / 4 - 3, "alpha_attn": 1.0}),
        seed=number,
        phase="random",
    )
    objective = {"diverged": math.inf, "failed": math.nan}.get(status, 3.0 + number)
    fields = {"heldout": objective, "seconds": 2.0, "finished_at": 1e9 + number} | changes
    return Result(trial=trial, status=status, objective=objective, **fields)  # type: ignore[arg-type]


def files(folder: Path) -> list[Path]:
    """The files that are the record, oldest first."""
    return sorted((folder / "results").glob("*.jsonl"))


def filed(folder: Path) -> dict[str, tuple[str, float]]:
    """What the record says, by key: status and objective (failed ones as None)."""
    found = {}
    for line in "".join(path.read_text() for path in files(folder)).splitlines():
        result = Result.from_json(json.loads(line))
        value = None if result.status == "failed" else result.objective
        found[result.key] = (result.status, value)  # what gives way comes first
    return found


def mirrored(folder: Path, url: str | None = None) -> dict[str, tuple[str, float]]:
    """What Optuna says, read as any dashboard would read it; the newest trial of a key counts."""
    trials = shown(folder) if url is None else in_database(url, folder.name)
    assert all(t.state.is_finished() for t in trials)
    return {t.user_attrs["key"]: (t.user_attrs["status"], t.value) for t in trials}


def shown(folder: Path) -> list[FrozenTrial]:
    """The trials in the study's journal, read as a dashboard reads it."""
    storage = JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    return optuna.load_study(study_name=folder.name, storage=storage).trials


def in_database(url: str, name: str) -> list[FrozenTrial]:
    """The trials of a study in a database."""
    storage = optuna.storages.RDBStorage(url)
    try:
        return optuna.load_study(study_name=name, storage=storage).trials
    finally:
        storage.remove_session()
        storage.engine.dispose()


def refuse(code: int) -> Callable[..., Any]:
    def refused(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "first"


@pytest.fixture
def unmirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves Optuna out, for tests of the files alone."""
    monkeypatch.setattr(module.Mirror, "start", lambda self: None)
    monkeypatch.setattr(module.Mirror, "add", lambda self, results, bounds: None)


def test_importing_does_not_import_optuna() -> None:
    code = "import sys, sweeper.study; print('optuna' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr


def test_a_study_remembers_across_openings(folder: Path) -> None:
    some = [make(2), make(0, "diverged"), make(1, "failed", error="no memory")]
    with Study.open(folder) as study:
        assert (study.name, len(study), study.results(), study.notices) == ("first", 0, [], [])
        for result in some:
            study.record([result])
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "results").stat().st_mode & 0o777 == 0o700
    with Study.open(folder) as again:
        assert [r.trial.seed for r in again.results()] == [0, 1, 2]
        assert repr(again.results()) == repr(study.results())
        assert again.keys() == {r.key for r in some} and again.notices == []
        assert some[0].key in again and "other" not in again and len(again) == 3
        assert again.get(some[0].key) == some[0] and again.get("other") is None
    assert mirrored(folder) == filed(folder)


def test_order_is_by_time_then_key(folder: Path, unmirrored: None) -> None:
    study = Study.open(folder)
    for number in range(5):
        study.record([make(number, finished_at=float(number < 3))])
    order = [(r.finished_at, r.key) for r in study.results()]
    assert order == sorted(order)


def test_recording_twice_keeps_one_and_a_failure_gives_way(folder: Path) -> None:
    with Study.open(folder) as study:
        for result in (
            make(0),
            make(0, finished_at=5.0),
            make(1, "failed", error="first"),
            make(1, "failed", error="first"),
            make(1, "failed", error="second", finished_at=2e9),
            make(1, finished_at=3e9),
            make(1, "failed", finished_at=4e9),
            make(2, "diverged"),
            make(2),
        ):
            study.record([result])
        assert [(r.trial.seed, r.status, r.finished_at) for r in study.results()] == [
            (0, "complete", 1e9),
            (2, "diverged", 1e9 + 2),
            (1, "complete", 3e9),
        ]
    assert mirrored(folder) == filed(folder)
    assert len(shown(folder)) == 5


def test_what_the_mirror_shows(folder: Path) -> None:
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


def test_reading_writes_nothing_and_leaves_optuna_alone(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no study"):
        Study.read(folder)
    assert list(tmp_path.iterdir()) == []
    with Study.open(folder) as study:
        study.record([make(0)])
    results = folder / "results"
    (results / "000007.jsonl").write_text('{"trial"\n')
    (results / "000008.jsonl").write_text('{"being written')
    (results / ".x.tmp").touch()
    (folder / "study.journal").write_text("rubbish")
    before = {p: p.stat().st_mtime_ns for p in [folder, *folder.rglob("*")]}
    code = (
        "import sys; from pathlib import Path; from sweeper.study import Study;"
        "s = Study.read(Path(sys.argv[1])); s.close();"
        "assert len(s.results()) == 1 and '000007.jsonl' in s.notices[0] and len(s.notices) == 1;"
        "assert 'optuna' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, cwd=ROOT)
    assert {p: p.stat().st_mtime_ns for p in [folder, *folder.rglob("*")]} == before
    with pytest.raises(RuntimeError, match="reading"):
        Study.read(folder).record([make(1)])


DAMAGE: dict[str, Callable[[str], str | bytes]] = {
    "torn": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "binary": lambda text: b"\x00\xff\xfe" * 50,
    "carriage returns": lambda text: b"\r\x0b\x85\r",
    "list": lambda text: "[]",
    "deep": lambda text: "[" * 100_000,
    "other key": lambda text: text.replace('"seed": 1', '"seed": 7'),
    "status": lambda text: text.replace('"complete"', '"splendid"'),
    "null": lambda text: text.replace('"steps"', '"steqs"'),
    "number": lambda text: text.replace('"seconds": 2.0', '"seconds": 1' + "0" * 400),
    "curve": lambda text: text.replace('"curve": []', '"curve": [[]]'),
    "plain value": lambda text: text.replace('"alpha_attn": 2.0', '"alpha_attn": 2.1'),
    "specification": lambda text: text.replace('"width": 64', '"width": 65'),
    "no format": lambda text: text.replace(f'"format": {FORMAT}, ', ""),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("together", [True, False])
def test_damaged_line_is_set_aside_and_no_other_is_lost(
    folder: Path, unmirrored: None, kind: str, together: bool
) -> None:
    study, all_three = Study.open(folder), [make(0), make(1), make(2)]
    for results in [all_three] if together else [[each] for each in all_three]:
        study.record(results)
    (path,) = files(folder)
    lines = path.read_bytes().splitlines(keepends=True)
    content = DAMAGE[kind](lines[1].decode()[:-1])
    broken = (content if isinstance(content, bytes) else content.encode()) + b"\n"
    path.write_bytes(lines[0] + broken + lines[2])
    for study in (Study.read(folder), Study.open(folder)):
        assert study.results() == [make(0), make(2)]
        (notice,) = study.notices
        assert str(path) in notice and "(line 2" in notice
    assert path.read_bytes() == lines[0] + lines[2]
    assert path.with_name(f"{path.name}.damaged").read_bytes() == broken
    again = Study.open(folder)
    assert again.notices == [] and make(1).key not in again
    again.record([make(1)])
    assert Study.read(folder).results() == all_three
    assert [p.name for p in files(folder)] == ["000001.jsonl", "000002.jsonl"]


def test_a_line_without_its_end_is_being_written_or_was(folder: Path, unmirrored: None) -> None:
    Study.open(folder).record([make(0), make(1)])
    (path,) = files(folder)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    for study in (Study.read(folder), Study.open(folder)):
        assert study.results() == [make(0)]
    assert len(study.notices) == 1 and Study.read(folder).notices == []
    path.write_bytes(whole[:-1])
    assert Study.open(folder).results() == [make(0), make(1)]


def test_a_result_found_twice_counts_once(folder: Path, unmirrored: None) -> None:
    (folder / "results").mkdir(parents=True)
    for status, name in (("failed", "000001"), ("complete", "b"), ("complete", "a")):
        study = Study.open(folder.with_name(name))
        study.record([make(0, status), make(1)])
        (path,) = files(study.folder)
        (folder / "results" / f"{name}.jsonl").write_bytes(path.read_bytes())
    study = Study.open(folder)
    assert study.results() == [make(0), make(1)] and study.notices == []


def test_folder_are_removed_by_the_driver_only(folder: Path, unmirrored: None) -> None:
    Study.open(folder)
    (folder / "results" / ".0123.tmp").write_text("{")
    (folder / "results" / "notes.txt").write_text("mine")
    assert Study.read(folder).notices == []
    assert (folder / "results" / ".0123.tmp").exists()
    assert Study.open(folder).notices == []
    assert [p.name for p in (folder / "results").iterdir()] == ["notes.txt"]


def test_unreadable_result_is_an_error_not_a_second_run(folder: Path, unmirrored: None) -> None:
    study = Study.open(folder)
    study.record([make(0)])
    (path,) = files(folder)
    path.unlink()
    path.mkdir()
    with pytest.raises(SweeperError, match=f"cannot read.*{path.name}"):
        Study.read(folder)


def test_a_study_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="no study can be kept"):
        Study.open(tmp_path / "file")
    with pytest.raises(ConfigError):
        Study.open(tmp_path / "-x")


def test_full_disk_while_recording_is_one_clear_error(
    folder: Path, unmirrored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study.open(folder)
    study.record([make(0)])
    before = files(folder)[0].read_bytes()
    for place in ("write", "fsync", "open"):
        with monkeypatch.context() as patch:
            patch.setattr(os, place, refuse(errno.ENOSPC))
            with pytest.raises(SweeperError, match=r"No space left.*same command") as caught:
                study.record([make(1), make(2)])
        assert str(folder / "results") in str(caught.value)
        assert make(1).key not in study and make(2).key not in study
        assert list((folder / "results").iterdir()) == files(folder)
        assert [path.read_bytes() for path in files(folder)] == [before]
    study.record([make(1)])
    assert len(Study.read(folder).results()) == 2


def test_result_that_could_not_be_read_back_is_refused(folder: Path, unmirrored: None) -> None:
    study = Study.open(folder)
    odd = Trial(spec=SPEC, log2_hps={"eta": math.inf})
    with pytest.raises(ValueError, match="not a number"):
        study.record([make(1), replace(make(0), trial=odd)])
    assert len(study) == 0 and not list((folder / "results").iterdir())


def test_full_disk_of_the_mirror_loses_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Study.open(folder) as study:
        study.record([make(0)])
        with monkeypatch.context() as patch:
            patch.setattr(JournalFileBackend, "append_logs", refuse(errno.ENOSPC))
            patch.setattr(module, "RETRY_SECONDS", 0.0)
            for number in range(1, 5):
                study.record([make(number)])
        (notice,) = study.notices
        assert "study.journal, is behind" in notice and "No space left" in notice
        assert len(study.results()) == 5
        assert len(mirrored(folder)) == 1
    with Study.open(folder) as again:
        assert again.notices == []
    assert len(mirrored(folder)) == 5 and mirrored(folder) == filed(folder)


def test_mirror_catches_up_in_the_same_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Study.open(folder) as study:
        with monkeypatch.context() as patch:
            patch.setattr(JournalFileBackend, "append_logs", refuse(errno.EIO))
            study.record([make(0, "failed")])
            study.record([make(1)])
        study.record([make(2)])
        assert mirrored(folder) == {}
        study._mirror._retry_at = 0.0  # type: ignore[union-attr]
        study.record([make(3)])
        assert mirrored(folder) == filed(folder) and len(study.notices) == 1
        study.close()
        study.record([make(0)])
        assert mirrored(folder) == filed(folder)


def test_mirror_damaged_in_the_middle_of_a_run_is_rebuilt_in_it(
    folder: Path,
) -> None:
    with Study.open(folder) as study:
        study.record([make(0)])
        rubbish(folder / "study.journal")
        study.record([make(1)])
        study._mirror._retry_at = 0.0  # type: ignore[union-attr]
        study.record([make(2)])
        behind, damaged = study.notices
        assert "behind" in behind and "study.journal.damaged-1" in damaged
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


def rubbish(journal: Path) -> None:
    journal.write_bytes(os.urandom(5000))


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
def test_damaged_journal_is_set_aside_and_rebuilt(
    folder: Path, damage: Callable[[Path], None]
) -> None:
    with Study.open(folder) as study:
        for number in range(4):
            study.record([make(number, "failed" if number == 1 else "complete")])
    expected = mirrored(folder)
    assert expected == filed(folder)
    damage(folder / "study.journal")
    damaged = (folder / "study.journal").read_bytes()
    with Study.open(folder) as study:
        (notice,) = study.notices
        assert "damaged" in notice and "study.journal.damaged-1" in notice
        assert len(study) == 4
    assert (folder / "study.journal.damaged-1").read_bytes() == damaged
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


def test_deleted_or_empty_journal_is_rebuilt_and_old_damage_kept(folder: Path) -> None:
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
    (folder / "study.journal.damaged-1").write_text("kept")
    rubbish(journal)
    Study.open(folder).close()
    assert (folder / "study.journal.damaged-1").read_text() == "kept"
    assert (folder / "study.journal.damaged-2").exists()
    assert mirrored(folder) == filed(folder)


KILLED = """
import sys
from pathlib import Path
from sweeper.study import Study
from sweeper.trial import FORMAT, Result, Trial
from tests.specs import spec_of
spec = spec_of()
with Study.open(Path(sys.argv[1])) as study:
    for number in range(len(study), 100_000):
        trial = Trial(spec=spec, log2_hps={"eta": 0.0}, seed=number)
        study.record([Result(trial=trial, status="complete", objective=1.0, finished_at=number)])
        print(number, flush=True)
"""


def test_no_recorded_result_is_lost_by_a_kill(folder: Path) -> None:
    promised = -1
    for lines in (1, 7, 20):
        command = [sys.executable, "-c", KILLED, str(folder)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as driver:
            assert driver.stdout
            for _ in range(lines):
                promised = int(driver.stdout.readline())
            driver.kill()
            rest = driver.stdout.read().split()
        promised = int(rest[-1]) if rest else promised
    with Study.open(folder) as study:
        assert study.notices == []
        seeds = [r.trial.seed for r in study.results()]
        assert seeds == list(range(len(seeds))) and len(seeds) in (promised + 1, promised + 2)
        assert not list((folder / "results").glob(".*"))
    assert mirrored(folder) == filed(folder)


PACK = [make(number) for number in range(2, 6)]


def record_until(folder: Path, calls: int, torn: bool) -> bool:
    """Record `PACK` in a child that is killed before its n-th system call; whether it got done.

    If `torn`, a write that is to be the last one does half of its work.
    """
    if (child := os.fork()) == 0:
        left, write = [calls], os.write

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def wrapper(*args: Any, **options: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    if torn and call is write:
                        write(args[0], args[1][: len(args[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **options)

            return wrapper

        for name in ("open", "write", "fsync", "fstat", "close", "ftruncate", "replace"):
            setattr(os, name, counted(getattr(os, name)))
        Study.open(folder).record(PACK)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_pack_survives_a_kill_between_any_two_system_calls(
    folder: Path, unmirrored: None, torn: bool, damaged: bool
) -> None:
    for calls in range(100):
        here = folder / str(calls)
        Study.open(here).record([make(0), make(1)])
        if damaged:
            (path,) = files(here)
            path.write_bytes(b"{\n" + path.read_bytes())
        done = record_until(here, calls, torn)
        for study in (Study.read(here), Study.open(here)):
            found = study.results()
            assert (
                found[:2] == [make(0), make(1)] and found == [make(0), make(1), *PACK][: len(found)]
            )
            assert not done or found[2:] == PACK
        study.record(PACK)
        assert Study.open(here).results() == [make(0), make(1), *PACK]
        aside = list((here / "results").glob("*.damaged"))
        assert not damaged or b"{\n" in b"".join(path.read_bytes() for path in aside)
        if done:
            break
    assert done and calls >= 5


def test_results_are_in_the_file_before_record_returns(folder: Path) -> None:
    """A pack is one addition to one file, synced before anything is told to the mirror."""
    with Study.open(folder) as study:
        for first in (0, 20, 40):
            study.record([make(number) for number in range(first, first + 20)])
            assert len(files(folder)[0].read_bytes().splitlines()) == first + 20
        assert len(files(folder)) == 1 and mirrored(folder) == filed(folder)
    with Study.open(folder) as study:
        study.record([make(0)])
        assert len(files(folder)) == 1, "nothing new, nothing written"
        study.record([make(60)])
        assert len(files(folder)) == 2


RANKS = {"failed": 0, "pruned": 1, "diverged": 2, "complete": 2}


@pytest.mark.parametrize("old", RANKS)
@pytest.mark.parametrize("new", RANKS)
@pytest.mark.parametrize("together", [False, True])
def test_what_gives_way_to_what(folder: Path, old: str, new: str, together: bool) -> None:
    first, second = make(0, old), make(0, new, finished_at=2e9)
    kept = second if RANKS[new] > RANKS[old] or old == "failed" else first
    with Study.open(folder) as study:
        for results in [[first, second]] if together else [[first], [second]]:
            study.record(results)
        assert [r.status for r in study.results()] == [kept.status]
        assert repr(study.results()) == repr([kept])
    assert repr(Study.read(folder).results()) == repr([kept])
    assert mirrored(folder) == filed(folder) == {kept.key: filed(folder)[kept.key]}


def test_a_pruned_trial_is_shown_as_pruned(folder: Path) -> None:
    with Study.open(folder) as study:
        study.record([make(0, "pruned"), make(1, "pruned")])
    with Study.open(folder) as study:
        study.record([make(1, finished_at=2e9)])
    trials = shown(folder)
    ends = [TrialState.PRUNED, TrialState.PRUNED, TrialState.COMPLETE]
    assert [(t.state, t.value) for t in trials] == list(zip(ends, [3.0, 4.0, 4.0], strict=True))


def test_equal_specifications_and_losses_are_kept_once(folder: Path, unmirrored: None) -> None:
    curve = (*(2 + number / 1000 for number in range(50)), math.inf)
    Study.open(folder).record([make(number, curve=curve) for number in range(3)])
    first, second, _ = Study.read(folder).results()
    assert first == make(0, curve=curve) and first.trial.spec is second.trial.spec
    assert all(a is b for a, b in zip(first.curve[:-1], second.curve[:-1], strict=True))


def test_many_results_are_mirrored_at_once_when_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module.Mirror, "add", lambda *_: None)
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


def test_paths_may_hold_any_character(tmp_path: Path) -> None:
    folder = tmp_path / "a {b} %20 ?c=d #e é @f" / "x"
    with Study.open(folder) as study:
        study.record([make(0)])
        assert study.notices == []
    assert mirrored(folder) == filed(folder) and len(filed(folder)) == 1
    assert {p.name for p in folder.iterdir()} == {"results", "study.journal"}


def test_external_storage_is_used_and_never_repaired(folder: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared {v}.db'}"
    with Study.open(folder, url) as study:
        study.record([make(0)])
    assert not (folder / "study.journal").exists()
    assert mirrored(folder, url.replace("{", "{{").replace("}", "}}")) == filed(folder)
    with Study.open(folder.with_name("second"), url):
        pass
    rubbish(tmp_path / "shared {v}.db")
    content = (tmp_path / "shared {v}.db").read_bytes()
    with pytest.raises(BadInput, match="not a database"):
        Study.open(folder, url)
    assert (tmp_path / "shared {v}.db").read_bytes() == content


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("nodialect://user:s3cr%40t-pw@h/db", "nodialect"),
        ("user:s3cr@t-pw@h/db", "URL"),
        ("mysql://user:s3cr%40t-pw@h:s3cr@t-pw/db", "cannot be used"),
        ("sqlite:////no/such/folder/x.db", "unable to open"),
    ],
)
def test_unusable_storage_is_one_clear_error(folder: Path, url: str, told: str) -> None:
    with pytest.raises(BadInput, match=told) as caught:
        Study.open(folder, url)
    no_password_in(caught.value, folder)


def no_password_in(error: BaseException, folder: Path) -> None:
    shown = "".join(traceback.format_exception(error)) + repr(error)
    link: BaseException | None = error
    while link is not None:
        shown += str(link) + str(link.args)
        link = link.__context__ or link.__cause__
    shown += "".join(p.read_bytes().decode("latin-1") for p in folder.rglob("*") if p.is_file())
    assert not [password for password in PASSWORDS if password in shown]


def test_missing_driver_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(BadInput, match="pip install 'psycopg2-binary'") as caught:
        Study.open(folder, SECRETIVE)
    assert "user:***@127.0.0.1:1/db" in str(caught.value)
    assert caught.value.__context__ is None
    no_password_in(caught.value, folder)


@pytest.mark.parametrize("echo", ["s3cr%40t-pw", "s3cr@t-pw", SECRETIVE, "0ther-pw"])
def test_server_that_repeats_the_password_is_scrubbed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, echo: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        try:
            raise ConnectionError(f"could not connect with {echo}\nsecond line")
        except ConnectionError as error:
            raise RuntimeError(f"wrapped {echo}") from error

    monkeypatch.setattr(optuna.storages, "RDBStorage", fail)
    with pytest.raises(BadInput, match="could not connect") as caught:
        Study.open(folder, SECRETIVE)
    no_password_in(caught.value, folder)
    assert "second" not in str(caught.value)


def test_server_gone_later_is_a_notice_without_the_password(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise OSError("gone 0ther-pw")

    class Server(optuna.storages.RDBStorage):
        def __init__(self, url: str, **options: Any) -> None:
            super().__init__(url.partition("?")[0], **options)

    monkeypatch.setattr(optuna.storages, "RDBStorage", Server)
    url = f"sqlite:///{tmp_path / 'far.db'}?password=0ther-pw"
    with Study.open(folder, url) as study:
        monkeypatch.setattr(optuna.Study, "add_trials", gone)
        study.record([make(0)])
        study.record([make(1)])
        (notice,) = study.notices
    assert "gone ***" in notice and "?password=***" in notice and "0ther-pw" not in notice
    assert len(Study.read(folder)) == 2


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://user:secret@host:5432/db", "postgresql://user:***@host:5432/db"),
        ("postgresql+psycopg2://u:p%40ss%2F@h/db", "postgresql+psycopg2://u:***@h/db"),
        ("mysql://u:p@ss:w/rd@h/db", "mysql://u:***@h/db"),
        ("mysql://u@server:pw@h/db", "mysql://u@server:***@h/db"),
        ("redis://:secret@host", "redis://:***@host"),
        ("postgresql://user@host:5432/db", "postgresql://user@host:5432/db"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql:///db?host=/tmp&user=u", "postgresql:///db?host=/tmp&user=u"),
        ("postgresql:///db?user=u&password=secret", "postgresql:///db?user=u&password=***"),
        ("postgresql://u:a@h/db?sslpassword=b&x=y", "postgresql://u:***@h/db?sslpassword=***&x=y"),
        ("postgresql://h/db?Pass%77ord=b", "postgresql://h/db?Pass%77ord=***"),
        ("postgresql://h:1/db?password=a@b", "postgresql://***"),
        ("user:secret@host/db", "user:***@host/db"),
        ("sqlite:////tmp/a:b@c.db", "sqlite:////tmp/a:b@c.db"),
        ("sqlite:///C:/a@b.db", "sqlite:///C:/a@b.db"),
        ("sqlite:///study.db", "sqlite:///study.db"),
    ],
)
def test_redact(url: str, shown: str) -> None:
    assert redact(url) == shown
    assert redact(shown) == shown


encodable = st.characters(codec="utf-8")


@given(password=st.text(encodable, min_size=3), user=st.text(encodable))
def test_no_encoded_password_survives(password: str, user: str) -> None:
    hidden = f"\N{LOCK}{password}"
    coded = quote(hidden, safe="")
    url = f"postgresql://{quote(user, safe='')}:{coded}@h/db?password={coded}"
    assert coded not in redact(url) and redact(url).endswith(":***@h/db?password=***")
    for text in (coded, hidden, url):
        assert hidden not in scrub(f"no {text}!", url) and coded not in scrub(f"no {text}!", url)


@given(st.text(st.characters(exclude_characters="?&", codec="utf-8"), min_size=1))
def test_no_raw_password_survives(password: str) -> None:
    hidden = f"\N{LOCK}{password}\N{LOCK}"
    assert "\N{LOCK}" not in redact(f"mysql://user:{hidden}@h/db")


def test_optuna_is_kept_quiet_and_left_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    levels = []

    def add_trials(*_: object) -> None:
        levels.append(optuna.logging.get_verbosity())
        warnings.warn("experimental", optuna.exceptions.ExperimentalWarning, stacklevel=1)

    monkeypatch.setattr(optuna.Study, "add_trials", add_trials)
    optuna.logging.set_verbosity(logging.INFO)
    before = list(warnings.filters)
    with Study.open(folder) as study:
        study.record([make(0)])
        assert study.notices == []
    assert levels == [logging.ERROR] * 2  # one creates the study
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == logging.INFO
    assert list(warnings.filters) == before


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "0", "_x", "x" * 100])
def test_good_names(name: str) -> None:
    assert check_study_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".a", "-a", "a/b", "a\\b", "a b", "é", "a\n", "x" * 101, "a\0", 5, None]
)
def test_names_that_could_leave_the_folder_are_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape("study.name=")):
        check_study_name(name)


def test_latest_is_the_study_last_worked_on(tmp_path: Path) -> None:
    assert latest_study(tmp_path / "none") is None
    assert latest_study(tmp_path) is None
    for age, name in enumerate(["a", "b", "c", ".dot"]):
        (tmp_path / name / "results").mkdir(parents=True)
        for path in (tmp_path / name / "config.yaml", tmp_path / name / "results/000001.jsonl"):
            path.touch()
            os.utime(path, (100.0 + age,) * 2)
    (tmp_path / "no-config" / "results").mkdir(parents=True)
    (tmp_path / "file").touch()
    assert latest_study(tmp_path) == "c"
    os.utime(tmp_path / "a/results/000001.jsonl", (200.0,) * 2)
    assert latest_study(tmp_path) == "a"
    os.utime(tmp_path / "b" / "config.yaml", (300.0,) * 2)
    assert latest_study(tmp_path) == "b"
    (tmp_path / "b/results/000001.jsonl").unlink()
    assert latest_study(tmp_path) == "b"


OLDER = {
    "key": "0" * 32,
    "status": "complete",
    "objective": 3.0,
    "heldout": 3.0,
    "curve": [3.0],
    "seconds": 1.0,
    "steps": 10,
    "finished_at": 1e9,
    "error": "",
    "device": "cpu",
    "trial": {
        "hps": {"eta": 1.0},
        "seed": 0,
        "phase": "eta",
        "setup": {
            "numerics": 2,
            "parameterization": {"_target_": "sweeper.scaling.umup.UMuP"},
            "model": {"_target_": "sweeper.models.llama.Llama", "width": 16, "depth": 1},
            "base": {"width": 16, "depth": 1},
            "optimizer": {"_target_": "sweeper.training.adamw.AdamW"},
            "data": {"digest": "x", "classes": 256},
            "train": {"steps": 10, "batch_size": 1, "seq_len": 8},
        },
    },
}
"""A line before records named their format: `hps` are logarithms, plugins are import paths."""


@pytest.mark.parametrize("age", ["older", "newer"])
def test_a_study_of_another_format_is_refused_and_left_as_it_is(
    folder: Path, unmirrored: None, age: str
) -> None:
    Study.open(folder).record([make(0)])
    record = OLDER if age == "older" else make(1).to_json() | {"format": FORMAT + 1}
    other = folder / "results" / "000002.jsonl"
    other.write_text(json.dumps(record) + "\n")
    before = {path.name: path.read_bytes() for path in (folder / "results").iterdir()}
    for use in (Study.open, Study.read):
        with pytest.raises(BadInput, match=f"{folder} was written by an? {age} version") as caught:
            use(folder)
        assert "search anew under another study.name, or use that version" in str(caught.value)
    assert {path.name: path.read_bytes() for path in (folder / "results").iterdir()} == before


@pytest.mark.parametrize(
    ("config", "age"),
    [
        ("parameterization:\n  _target_: sweeper.scaling.umup.UMuP\n", "older"),
        (f"format: {FORMAT + 1}\nparameterization: {{}}\n", "newer"),
        (f"format: {FORMAT}\nparameterization: {{}}\n", ""),
        ("rubbish", ""),
        ("", ""),
    ],
)
def test_a_configuration_of_another_format_is_refused(
    folder: Path, unmirrored: None, config: str, age: str
) -> None:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    for use in (Study.open, Study.read):
        if age:
            with pytest.raises(BadInput, match=f"written by an? {age} version"):
                use(folder)
        else:
            assert len(use(folder)) == 0
