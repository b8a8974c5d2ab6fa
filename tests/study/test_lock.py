import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweeper.errors import BadInput, SweeperError
from sweeper.study import lock
from sweeper.study.lock import StudyLock, cancel_requested, live_holder, request_cancel

ROOT = Path(__file__).parents[2]
HERE = socket.gethostname()


DRIVER = """
import os, sys, time
from pathlib import Path
from sweeper.study.lock import StudyLock

with StudyLock(Path(sys.argv[1])):
    if not os.fork():
        print(os.getpid(), flush=True)  # it has let go of the lock by now
        time.sleep(60)
        os._exit(0)
    sys.stdin.read()
"""


def sign(folder: Path, *, host: str, pid: int, age: float = 0.0) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / "lock"
    path.write_text(json.dumps({"host": host, "pid": pid, "started": time.time() - age}))
    os.utime(path, (time.time() - age,) * 2)


def dead() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def no_flock(monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOLCK) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    monkeypatch.setattr(lock, "LOCK_TIMEOUT_SECONDS", 0.02)


def test_held_then_released(tmp_path: Path) -> None:
    assert live_holder(tmp_path / "s") is None
    with StudyLock(tmp_path / "s") as holder:
        named = live_holder(tmp_path / "s")
        assert named is not None and (named.host, named.pid) == (HERE, os.getpid())
        assert abs(named.started - time.time()) < 10
        assert holder.previous is None
        with pytest.raises(BadInput) as caught, StudyLock(tmp_path / "s"):
            pytest.fail("two drivers")
        assert f"process {os.getpid()} on {HERE}" in str(caught.value)
        assert re.search(r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", str(caught.value))
    assert live_holder(tmp_path / "s") is None
    assert (tmp_path / "s" / "lock").read_bytes() == b""
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
    with pytest.raises(ZeroDivisionError), holder:  # usable again
        raise ZeroDivisionError
    assert live_holder(tmp_path / "s") is None


def test_a_killed_driver_is_succeeded_at_once_though_its_forked_child_lives(
    tmp_path: Path,
) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    first = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path / "s")], cwd=ROOT, **pipes)
    assert first.stdout
    child = int(first.stdout.readline())
    try:
        assert live_holder(tmp_path / "s") is not None
        first.kill()
        first.wait()
        assert live_holder(tmp_path / "s") is None
        with StudyLock(tmp_path / "s") as holder:
            assert holder.previous is not None and holder.previous.pid == first.pid
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        first.communicate()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_forked_child_that_unwinds_does_not_release_the_lock(tmp_path: Path) -> None:
    with StudyLock(tmp_path) as holder:
        child = os.fork()
        if not child:
            holder.__exit__(None, None, None)
            os._exit(0)
        os.waitpid(child, 0)
        assert live_holder(tmp_path) is not None


def test_driver_on_another_host_is_believed_while_it_gives_signs_of_life(tmp_path: Path) -> None:
    sign(tmp_path, host="elsewhere", pid=1, age=lock.STALE_SECONDS - 20)
    named = live_holder(tmp_path)
    assert named is not None and named.host == "elsewhere"
    before = (tmp_path / "lock").read_bytes()
    with (
        pytest.raises(BadInput, match=r"process 1 on elsewhere.*try again in"),
        StudyLock(tmp_path),
    ):
        pytest.fail("two drivers")
    assert (tmp_path / "lock").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


@pytest.mark.parametrize("age", [lock.STALE_SECONDS + 20, -3 * 3600.0])
def test_driver_on_another_host_without_signs_of_life_is_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float
) -> None:
    """Also when a clock that ran ahead left a time that is still to come."""
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.1)
    sign(tmp_path, host="elsewhere", pid=1, age=age)
    assert age < 0 or live_holder(tmp_path) is None
    with StudyLock(tmp_path) as holder:
        assert holder.previous is not None and holder.previous.host == "elsewhere"


def test_driver_on_another_host_that_lives_keeps_the_lock_when_a_clock_jumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file looks hours old; but its signs of life go on."""
    jump = 3 * 3600.0
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.1)
    sign(tmp_path, host="elsewhere", pid=1, age=jump)
    beats = (
        "import os, sys, time\n"
        "while True:\n    time.sleep(0.1); at = time.time() - float(sys.argv[2])\n"
        "    os.utime(sys.argv[1], (at, at))"
    )
    arguments = [sys.executable, "-c", beats, str(tmp_path / "lock"), str(jump)]
    with subprocess.Popen(arguments) as driver:
        try:
            with pytest.raises(BadInput, match="process 1 on elsewhere"), StudyLock(tmp_path):
                pytest.fail("two drivers")
        finally:
            driver.kill()


def test_driver_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.02)
    with StudyLock(tmp_path):
        os.utime(tmp_path / "lock", (1.0, 1.0))
        deadline = time.monotonic() + 5
        while (tmp_path / "lock").stat().st_mtime < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert time.time() - (tmp_path / "lock").stat().st_mtime < 10
    after = (tmp_path / "lock").stat().st_mtime_ns
    time.sleep(0.1)
    assert (tmp_path / "lock").stat().st_mtime_ns == after


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"3", b'{"host": "h"}', b'{"host": "h", "pid": -1, "started": 0}'),
        b'{"host": "h", "pid": 2147483648, "started": 0}',
        b'{"host": "h", "pid": Infinity, "started": 0}',
    ],
)
def test_lock_file_of_nonsense_names_nobody(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(content)
    assert live_holder(tmp_path) is None
    with StudyLock(tmp_path) as holder:
        assert holder.previous is None
        assert live_holder(tmp_path) is not None


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_without_kernel_locks_the_process_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    no_flock(monkeypatch, code)
    sign(tmp_path, host=HERE, pid=os.getppid(), age=1000)
    assert live_holder(tmp_path) is not None
    with pytest.raises(BadInput, match=str(os.getppid())), StudyLock(tmp_path):
        pytest.fail("two drivers")
    sign(tmp_path, host=HERE, pid=dead())
    assert live_holder(tmp_path) is None
    with StudyLock(tmp_path) as holder:
        assert holder.previous is not None
        assert live_holder(tmp_path) is not None
        with pytest.raises(BadInput), StudyLock(tmp_path):
            pytest.fail("two drivers")


def test_without_kernel_locks_this_very_number_may_have_been_a_dead_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_flock(monkeypatch)
    sign(tmp_path, host=HERE, pid=os.getpid())
    assert live_holder(tmp_path) is None
    with StudyLock(tmp_path):
        assert live_holder(tmp_path) is not None


def test_without_kernel_locks_the_last_to_sign_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other of two that saw an empty file signs after this one: this one gives way."""
    no_flock(monkeypatch)
    monkeypatch.setattr(lock.time, "sleep", lambda _: sign(tmp_path, host=HERE, pid=7))
    with pytest.raises(BadInput, match="process 7"), StudyLock(tmp_path):
        pytest.fail("two drivers")
    assert json.loads((tmp_path / "lock").read_text())["pid"] == 7


def test_driver_that_was_succeeded_leaves_the_name_of_its_successor(tmp_path: Path) -> None:
    with StudyLock(tmp_path):
        sign(tmp_path, host="elsewhere", pid=7)
    assert json.loads((tmp_path / "lock").read_text())["pid"] == 7


def test_unusable_folder_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SweeperError, match=r"cannot lock.*file"), StudyLock(tmp_path / "file"):
        pytest.fail("locked a file")
    no_flock(monkeypatch, errno.EIO)
    with pytest.raises(SweeperError, match="cannot lock"), StudyLock(tmp_path):
        pytest.fail("locked")


def test_a_request_to_end_is_void_for_the_next_driver(tmp_path: Path) -> None:
    with StudyLock(tmp_path):
        request_cancel(tmp_path)
        with pytest.raises(BadInput), StudyLock(tmp_path):
            pass
        assert cancel_requested(tmp_path), "who does not get the lock takes nothing away"
    assert cancel_requested(tmp_path)
    with StudyLock(tmp_path):
        assert not cancel_requested(tmp_path)
