import errno
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweeper.errors import BadInput, ConfigError, SweeperError
from sweeper.files import take_damaged
from sweeper.records import to_json
from sweeper.study.lock import StudyLock, cancel_requested
from sweeper.study.study import StudyRecord, check_study_name, find_study, latest_study
from sweeper.trial import FORMAT, Trial
from tests.golden import Golden
from tests.refusals import raises_config_error, refused
from tests.study.study_files import SPEC, filed, files, make, mirrored, refuse

ROOT = Path(__file__).parents[1]


def test_a_study_remembers_across_openings(folder: Path) -> None:
    some = [make(2), make(0, "diverged"), make(1, "failed", error="no memory")]
    with StudyRecord.open(folder) as study:
        assert (study.name, len(study), study.results(), study.notices) == ("first", 0, [], [])
        for result in some:
            study.record([result])
            assert mirrored(folder) == filed(folder) and len(files(folder)) == 1
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "results").stat().st_mode & 0o777 == 0o700
    with StudyRecord.open(folder) as again:
        assert [r.trial.seed for r in again.results()] == [0, 1, 2]
        assert repr(again.results()) == repr(study.results())
        assert {r.key for r in again.results()} == {r.key for r in some} and again.notices == []
        assert len(again) == 3
        again.record(some[:2])
        assert len(files(folder)) == 1, "nothing new, nothing written"
        again.record([make(number, finished_at=float(number < 6)) for number in range(3, 8)])
        order = [(result.finished_at, result.key) for result in again.results()]
        assert order == sorted(order)
        assert again.get(some[0].key) == some[0] and again.get("other") is None
    assert mirrored(folder) == filed(folder)


def test_reading_writes_nothing_and_leaves_optuna_alone(
    folder: Path, tmp_path: Path, golden: Golden
) -> None:
    with refused(golden):
        StudyRecord.read(folder)
    assert list(tmp_path.iterdir()) == []
    with StudyRecord.open(folder) as study:
        study.record([make(0)])
    results = folder / "results"
    (results / "000007.jsonl").write_text('{"trial"\n')
    (results / "000008.jsonl").write_text('{"being written')
    (results / ".x.tmp").touch()
    (folder / "study.journal").write_text("rubbish")
    before = {p: p.stat().st_mtime_ns for p in [folder, *folder.rglob("*")]}
    code = (
        "import sys; from pathlib import Path; from sweeper.study.study import StudyRecord;"
        "s = StudyRecord.read(Path(sys.argv[1])); s.close();"
        "assert len(s.results()) == 1 and '000007.jsonl' in s.notices[0];"
        "assert '000008.jsonl' in s.notices[1] and len(s.notices) == 2;"
        "assert 'optuna' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, cwd=ROOT)
    assert {p: p.stat().st_mtime_ns for p in [folder, *folder.rglob("*")]} == before
    with pytest.raises(RuntimeError, match="reading"):
        StudyRecord.read(folder).record([make(1)])


def test_lines_that_were_put_in_or_exchanged_are_told(tmp_path: Path) -> None:
    folder, other = tmp_path / "a", tmp_path / "b"
    for place, numbers in ((folder, (0, 1)), (folder, (2,)), (other, (7, 8))):
        with StudyRecord.open(place) as study:
            study.record([make(number) for number in numbers])
    first, last = sorted((folder / "results").glob("*.jsonl"))
    (foreign,) = (other / "results").glob("*.jsonl")
    line = foreign.read_bytes().splitlines(keepends=True)[0]
    for path, content in (
        (first, first.read_bytes() + line),
        (first, line + first.read_bytes().splitlines(keepends=True)[1]),
        (last, line),
    ):
        whole = path.read_bytes()
        path.write_bytes(content)
        assert f"{path.name} is not what was written" in " ".join(StudyRecord.read(folder).notices)
        path.write_bytes(whole)
    # As a driver that was killed leaves its own file.
    last.write_bytes(last.read_bytes() + line)
    assert not StudyRecord.read(folder).notices


DAMAGE: dict[str, Callable[[str], str | bytes]] = {
    "torn": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "binary": lambda text: b"\x00\xff\xfe" * 50,
    "carriage returns": lambda text: b"\r\x0b\x85\r",
    "deep": lambda text: "[" * 100_000,
    "status": lambda text: text.replace('"complete"', '"splendid"'),
    "number": lambda text: text.replace('"seconds": 2.0', '"seconds": 1' + "0" * 400),
    "curve": lambda text: text.replace('"curve": []', '"curve": [[]]'),
    "no format": lambda text: text.replace(f'"format": {FORMAT}, ', ""),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_line_is_set_aside_and_no_other_is_lost(
    folder: Path, unmirrored: None, kind: str
) -> None:
    all_three = [make(0), make(1), make(2)]
    StudyRecord.open(folder).record(all_three)
    (path,) = files(folder)
    lines = path.read_bytes().splitlines(keepends=True)
    content = DAMAGE[kind](lines[1].decode()[:-1])
    broken = (content if isinstance(content, bytes) else content.encode()) + b"\n"
    path.write_bytes(lines[0] + broken + lines[2])
    for study in (StudyRecord.read(folder), StudyRecord.open(folder)):
        assert study.results() == [make(0), make(2)]
        (notice,) = study.notices
        assert str(path) in notice and "(line 2" in notice
    assert path.read_bytes() == lines[0] + lines[2]
    assert path.with_name(f"{path.name}.damaged").read_bytes() == broken
    again = StudyRecord.open(folder)
    assert again.notices == [] and again.get(make(1).key) is None
    again.record([make(1)])
    assert StudyRecord.read(folder).results() == all_three
    assert [p.name for p in files(folder)] == ["000001.jsonl", "000002.jsonl"]


def test_whoever_reads_a_study_tells_of_results_that_are_gone(
    folder: Path, unmirrored: None
) -> None:
    with StudyRecord.open(folder) as study:
        study.record([make(0), make(1)])
    (path,) = files(folder)
    whole = path.read_bytes()
    for content, message in ((b"", "0 of the 2 lines"), (whole.replace(b'"', b"", 1), "(line 1")):
        take_damaged()
        path.write_bytes(content)
        (notice,) = StudyRecord.read(folder).notices
        assert message in notice and notice.endswith(take_damaged()[path].removeprefix("it "))
    path.write_bytes(whole)
    assert not StudyRecord.read(folder).notices and not take_damaged()


def test_a_line_without_its_end_is_being_written_or_was(folder: Path, unmirrored: None) -> None:
    StudyRecord.open(folder).record([make(0), make(1)])
    (path,) = files(folder)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    for study in (StudyRecord.read(folder), StudyRecord.open(folder)):
        assert study.results() == [make(0)]
    assert len(study.notices) == 1 and StudyRecord.read(folder).notices == []
    path.write_bytes(whole[:-1])
    assert StudyRecord.open(folder).results() == [make(0), make(1)]


def test_folder_are_removed_by_the_driver_only(folder: Path, unmirrored: None) -> None:
    StudyRecord.open(folder)
    (folder / "results" / ".0123.tmp").write_text("{")
    (folder / "results" / "notes.txt").write_text("mine")
    assert StudyRecord.read(folder).notices == []
    assert (folder / "results" / ".0123.tmp").exists()
    assert StudyRecord.open(folder).notices == []
    assert [p.name for p in (folder / "results").iterdir()] == ["notes.txt"]


def test_unreadable_result_is_an_error_not_a_second_run(
    folder: Path, unmirrored: None, golden: Golden
) -> None:
    study = StudyRecord.open(folder)
    study.record([make(0)])
    (path,) = files(folder)
    path.unlink()
    path.mkdir()
    with refused(golden, SweeperError):
        StudyRecord.read(folder)


def test_a_study_in_the_place_of_a_file_is_refused(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "file").touch()
    with refused(golden):
        StudyRecord.open(tmp_path / "file")
    with pytest.raises(ConfigError):
        StudyRecord.open(tmp_path / "-x")


def test_result_that_could_not_be_read_back_is_refused(folder: Path, unmirrored: None) -> None:
    study = StudyRecord.open(folder)
    odd = Trial(spec=SPEC, log2_hps={"eta": math.inf})
    with pytest.raises(ValueError, match="not a number"):
        study.record([make(1), replace(make(0), trial=odd)])
    assert len(study) == 0 and not list((folder / "results").iterdir())


RANKS = {"failed": 0, "pruned": 1, "diverged": 2, "complete": 2}


@pytest.mark.parametrize("old", RANKS)
@pytest.mark.parametrize("new", RANKS)
def test_what_gives_way_to_what(folder: Path, unmirrored: None, old: str, new: str) -> None:
    first, second = make(0, old), make(0, new, finished_at=2e9)
    kept = second if RANKS[new] > RANKS[old] or old == "failed" else first
    for place, batches in (("together", [[first, second]]), ("apart", [[first], [second]])):
        with StudyRecord.open(folder / place) as study:
            for results in batches:
                study.record(results)
            assert repr(study.results()) == repr([kept])
        assert repr(StudyRecord.read(folder / place).results()) == repr([kept])


def test_equal_specifications_and_losses_are_kept_once(folder: Path, unmirrored: None) -> None:
    curve = (*(2 + number / 1000 for number in range(50)), math.inf)
    StudyRecord.open(folder).record([make(number, curve=curve) for number in range(3)])
    first, second, _ = StudyRecord.read(folder).results()
    assert first == make(0, curve=curve) and first.trial.spec is second.trial.spec
    assert all(a is b for a, b in zip(first.curve[:-1], second.curve[:-1], strict=True))


def test_names_that_could_leave_the_folder_are_refused() -> None:
    for name in ("a", "A-1_b.c", "0", "_x", "x" * 100):
        assert check_study_name(name) == name
    bad: tuple[Any, ...] = ("", ".", "..", ".a", "-a", "a/b", "a\\b", "a b", "é", "a\n", "x" * 101)
    for name in (*bad, "a\0", 5, None):
        with raises_config_error("study.name"):
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


@pytest.mark.parametrize("change", [-1, 1])
def test_a_study_of_another_format_is_refused_and_left_as_it_is(
    folder: Path, unmirrored: None, change: int, golden: Golden
) -> None:
    StudyRecord.open(folder).record([make(0)])
    record = to_json(make(1)) | {"format": FORMAT + change}
    other = folder / "results" / "000002.jsonl"
    other.write_text(json.dumps(record) + "\n")
    before = {path.name: path.read_bytes() for path in (folder / "results").iterdir()}
    for use in (StudyRecord.open, StudyRecord.read):
        with refused(golden):
            use(folder)
    assert {path.name: path.read_bytes() for path in (folder / "results").iterdir()} == before


def test_a_configuration_of_another_format_is_refused(folder: Path, unmirrored: None) -> None:
    folder.mkdir(parents=True)
    for use in (StudyRecord.open, StudyRecord.read):
        for config in (f"format: {FORMAT}\n", "rubbish"):
            (folder / "config.yaml").write_text(config)
            assert len(use(folder)) == 0
        (folder / "config.yaml").write_text(f"format: {FORMAT - 1}\n")
        with pytest.raises(BadInput, match="written by an older version"):
            use(folder)


@pytest.mark.parametrize("seed", range(30))
def test_no_change_of_a_line_is_silent(seed: int, folder: Path, unmirrored: None) -> None:
    draw = random.Random(seed)
    with StudyRecord.open(folder) as study:
        study.record([make(number) for number in range(4)])
    before = {result.key: repr(result) for result in study.results()}
    (path,) = (folder / "results").glob("*.jsonl")
    data = bytearray(path.read_bytes())
    at = draw.randrange(len(data) - 1)
    kind = draw.choice(["flip", "delete", "truncate"])
    if kind == "flip":
        data[at] ^= 1 << draw.randrange(8)
    elif kind == "delete":
        del data[at : at + draw.randrange(1, 50)]
    else:
        del data[at:]
    path.write_bytes(data)
    try:
        read = StudyRecord.read(folder)
    except BadInput:  # its format was changed
        return
    after = {result.key: repr(result) for result in read.results()}
    assert after.items() <= before.items()
    at_a_line = kind == "truncate" and bytes(data[-1:]) in (b"", b"\n", b"}")
    assert after == before or read.notices or at_a_line


def test_an_end_that_a_driver_may_still_write_is_no_damage(folder: Path, unmirrored: None) -> None:
    with StudyLock(folder), StudyRecord.open(folder) as study:
        study.record([make(0)])
        (folder / "results" / "000008.jsonl").write_text('{"being written')
        assert StudyRecord.read(folder).notices == []
    assert len(StudyRecord.read(folder).notices) == 1


@pytest.mark.parametrize("name", ["results/000001.jsonl.damaged", "trials"])
def test_a_link_that_leads_out_of_a_study_is_refused(
    folder: Path, tmp_path: Path, unmirrored: None, name: str
) -> None:
    """What a foreign study's lock or damaged lines lead to would be emptied, or added to."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    outside = tmp_path / "profile"
    outside.write_text("mine\n")
    (folder / name).symlink_to(outside)
    for use in (StudyRecord.open, StudyRecord.read, lambda folder: StudyLock(folder).__enter__()):
        with pytest.raises(BadInput, match=re.escape(f"{folder / name} is a link")):
            use(folder)
    assert outside.read_text() == "mine\n"


def test_a_pipe_in_a_study_is_refused_and_not_waited_for(folder: Path, unmirrored: None) -> None:
    (folder / "results").mkdir(parents=True)
    os.mkfifo(folder / "results/000001.jsonl")
    for use in (StudyRecord.open, StudyRecord.read, lambda folder: StudyLock(folder).__enter__()):
        with pytest.raises(BadInput, match=r"000001\.jsonl is neither a file nor a folder"):
            use(folder)


def test_a_study_that_is_closed_to_this_user_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    with pytest.raises(BadInput, match="there is no study in"):
        find_study(None, tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "theirs")
    for name in (None, "theirs"):
        with pytest.raises(BadInput, match=r"theirs is the user .*'s, and closed to others"):
            find_study(name, tmp_path)
    with pytest.raises(BadInput, match="there is no study in"):
        find_study("other", tmp_path)


@pytest.mark.parametrize("fate", ["removed", "moved", "taken"])
def test_a_driver_that_has_lost_its_study_ends(
    folder: Path, tmp_path: Path, unmirrored: None, fate: str
) -> None:
    """What it wrote into another driver's study, or into none, nobody would find."""
    with StudyLock(folder), StudyRecord.open(folder) as study:
        study.record([make(0)])
        assert not cancel_requested(folder)
        if fate == "removed":
            shutil.rmtree(folder)
        elif fate == "moved":
            folder.rename(tmp_path / "elsewhere")
        else:
            (folder / "lock").write_text('{"host": "other", "pid": 5, "started": 1.0}')
        for use in (lambda: study.record([make(1)]), lambda: cancel_requested(folder)):
            with pytest.raises(
                SweeperError, match="another driver" if fate == "taken" else "moved"
            ):
                use()
    assert folder.exists() == (fate == "taken")
    if fate != "removed":
        assert len(StudyRecord.read(folder if fate == "taken" else tmp_path / "elsewhere")) == 1


@pytest.mark.parametrize("loss", ["removed", "cut"])
def test_what_is_lost_while_a_driver_runs_is_written_again(
    folder: Path, unmirrored: None, loss: str
) -> None:
    """All of it is in the driver's memory, and no later run trains it anew."""
    some = [make(i) for i in range(4)]
    with StudyRecord.open(folder) as study:
        study.record(some[:2])
        (file,) = (folder / "results").glob("*.jsonl")
        if loss == "removed":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-40])
        study.record(some[2:3])
        study.record(some[3:])
        (notice,) = study.notices
    again = StudyRecord.read(folder)
    assert str(file) in notice
    assert {r.key for r in again.results()} == {entry.key for entry in some} and not again.notices


def test_full_disk_while_recording_is_one_clear_error(
    folder: Path, unmirrored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = StudyRecord.open(folder)
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
    assert len(StudyRecord.read(folder).results()) == 2


BATCH = [make(number) for number in range(2, 6)]


def record_until(folder: Path, calls: int) -> bool:
    """Record `BATCH` in a child that is killed in its n-th system call; whether it got done."""
    if (child := os.fork()) == 0:
        remaining, write = [calls], os.write

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def wrapper(*args: Any, **options: Any) -> Any:
                remaining[0] -= 1
                if remaining[0] < 0:
                    if call is write:
                        write(args[0], args[1][: len(args[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **options)

            return wrapper

        for name in ("open", "write", "fsync", "fstat", "close", "ftruncate", "replace"):
            setattr(os, name, counted(getattr(os, name)))
        StudyRecord.open(folder).record(BATCH)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def test_a_batch_survives_a_kill_between_any_two_system_calls(
    folder: Path, unmirrored: None
) -> None:
    for calls in range(100):
        here = folder / str(calls)
        StudyRecord.open(here).record([make(0), make(1)])
        (path,) = files(here)
        path.write_bytes(b"{\n" + path.read_bytes())
        done = record_until(here, calls)
        for study in (StudyRecord.read(here), StudyRecord.open(here)):
            kept = study.results()
            assert len(kept) >= 2 and kept == [make(0), make(1), *BATCH][: len(kept)]
            assert not done or kept[2:] == BATCH
        study.record(BATCH)
        assert StudyRecord.open(here).results() == [make(0), make(1), *BATCH]
        aside = (here / "results").glob("*.damaged")
        assert b"{\n" in b"".join(path.read_bytes() for path in aside)
        if done:
            break
    assert done and calls >= 5
