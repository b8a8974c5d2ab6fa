"""What is run lies where nobody else can put it: tested with two users, where that may be."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sweeper.errors import SweeperError
from sweeper.files import make_folder, read_own
from sweeper.launch.own import (
    LONGEST,
    NAME,
    PICKLE,
    OwnFolder,
    remove_abandoned,
    safe_place,
    swappable,
)

OTHER = 4242
needs_two = pytest.mark.skipif(os.geteuid() != 0, reason="only root is two users")


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Of a short name: a place's path has a limit.
    place = tmp_path_factory.mktemp("own").resolve()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def test_a_place_is_ours_alone_and_near_or_another_is_taken(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert swappable(temporary) is None and safe_place() == temporary
    for mode in (0o777, 0o770, 0o702):
        temporary.chmod(mode)
        assert swappable(temporary) == temporary and safe_place() != temporary
    temporary.chmod(0o1777)
    assert safe_place() == temporary
    temporary.chmod(0o700)
    deep = temporary / ("x" * LONGEST)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert swappable(deep) is None and safe_place() in (Path("/tmp"), Path("/var/tmp"))
    monkeypatch.setattr("sweeper.launch.own.os.access", lambda *_: False)
    with pytest.raises(SweeperError, match="at most 72 bytes, or give launcher=inline"):
        safe_place()
    if os.geteuid() == 0:
        os.chown(temporary, OTHER, OTHER)
        assert swappable(temporary) == temporary


def test_what_a_killed_driver_left_goes_and_what_is_in_use_stays(temporary: Path) -> None:
    ours = OwnFolder.make()
    assert ours.path.stat().st_mode & 0o777 == 0o700 and ours.path.name.startswith(NAME)
    script = "from sweeper.launch.own import OwnFolder; import os; OwnFolder.make(); os._exit(9)"
    environment = {**os.environ, "TMPDIR": str(temporary)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert len([*temporary.glob(f"{NAME}*")]) == 2
    for left in {*temporary.iterdir()} - {ours.path}:
        (left / f"{os.getpid()}{PICKLE}").touch()  # of a process that lives: not waited for long
    remove_abandoned(0.0)
    assert [*temporary.iterdir()] == [ours.path]
    ours.remove()
    assert not [*temporary.iterdir()]


@needs_two
def test_anothers_folder_of_that_name_is_left_alone(temporary: Path) -> None:
    theirs = temporary / f"{NAME}x"
    theirs.mkdir()
    os.chown(theirs, OTHER, OTHER)
    (temporary / f"{NAME}link").symlink_to("/")
    remove_abandoned(0.0)
    assert theirs.is_dir() and (temporary / f"{NAME}link").is_symlink()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The file of a job, in two folders, all of them closed to others."""
    path = tmp_path / "jobs" / "a" / "job.json"
    make_folder(path.parent)
    path.write_text("1")
    for part in (path, path.parent, path.parent.parent):
        part.chmod(0o600 if part == path else 0o700)
    return path


def test_only_what_is_ours_alone_is_run(job: Path) -> None:
    assert read_own(job) == b"1"
    for part, mode in ((job, 0o660), (job.parent, 0o770), (job.parent.parent, 0o702)):
        before = part.stat().st_mode & 0o777
        part.chmod(mode)
        with pytest.raises(SweeperError, match="not yours alone"):
            read_own(job)
        part.chmod(before)
    aside = job.parent.rename(job.parent.with_name("aside"))
    job.parent.symlink_to(aside)
    with pytest.raises(OSError, match=r"symbolic|directory"):
        read_own(job)


@needs_two
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_what_another_user_owns_is_not_run(depth: int, job: Path) -> None:
    os.chown((job, *job.parents)[depth], OTHER, OTHER)
    with pytest.raises(SweeperError, match="not yours alone"):
        read_own(job)
