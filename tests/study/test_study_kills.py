import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeper.errors import SweeperError
from sweeper.study.study import StudyRecord
from tests.study.study_files import files, make, refuse


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
