"""One driver a study: a lock that any death of its holder releases, on any filesystem."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from types import TracebackType

from sweeper.errors import BadInput, SweeperError
from sweeper.files import private_folder

HEARTBEAT_SECONDS = 10.0
"""Seconds between two signs of life of a driver (its lock file's mtime)."""
STALE_SECONDS = 60.0
"""Seconds without one after which a driver on another host is taken for dead, and watched."""
WATCHED_HEARTBEATS = 2.5
"""So many beats it is watched then: a clock that jumped ages the file of one that lives, too."""
LOCK_TIMEOUT_SECONDS = 0.5
"""Seconds that a lock is tried for: `live_holder` may be looking at it right now."""

_UNSUPPORTED_ERRNOS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_RECORD_BYTES = 512


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The driver that a lock names; `started` is in seconds since the epoch."""

    host: str
    pid: int
    started: float

    def __str__(self) -> str:
        """As a message shows it."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.started))
        return f"process {self.pid} on {self.host}, since {since}"


class StudyLock:
    """Context manager that makes this process the only driver of the study in `folder`.

    The kernel's lock on `<folder>/lock` decides; where it cannot be seen by other hosts or is
    not supported, the file's content (who) and mtime (alive when) decide. The file is never
    deleted: whoever had it open would lock a ghost. A forked child does not keep the lock.

    `previous` is the driver that died holding the lock, if one did. Entering raises BadInput
    that names the living driver, and SweeperError when the file cannot be used at all.
    """

    def __init__(self, folder: Path) -> None:
        """Prepare the lock of the study in `folder`, which entering creates if need be."""
        self.folder = folder.absolute()
        self.path = self.folder / "lock"
        self.previous: Holder | None = None
        self._me: Holder | None = None
        self._fd: int | None = None
        self._stop = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> StudyLock:
        """Take the lock, or raise BadInput that names the driver that has it."""
        try:
            private_folder(self.folder)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self._claim(fd)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise SweeperError(f"cannot lock the study: {error}") from error
        self._fd = fd
        _HELD_LOCKS.append(self)
        self._stop.clear()
        self._thread = Thread(target=self._beat, args=(fd,), name="study-lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lock; in a forked child, where it is not held, do nothing."""
        if self._fd is None or self._thread is None:
            return
        self._stop.set()
        self._thread.join(timeout=5.0)
        _HELD_LOCKS.remove(self)
        with suppress(OSError):
            if _read(self._fd) == self._me:
                os.ftruncate(self._fd, 0)
        os.close(self._fd)
        self._fd = None

    def _claim(self, fd: int) -> None:
        """Lock and sign the open file; BadInput when another driver lives."""
        seen = _try_lock(fd)
        rival = _read(fd)
        foreign = rival is not None and rival.host != socket.gethostname()
        age = abs(_age_seconds(fd, self.folder)) if foreign and not seen else 0.0
        if seen or (rival and _is_alive(rival, self.path, seen, age)):
            hint = f"; if it is dead, try again in {STALE_SECONDS - age:.0f} s" if foreign else ""
            raise self._refusal(rival, hint)
        if foreign and _has_heartbeat(fd, self.path):
            raise self._refusal(rival)
        me = Holder(host=socket.gethostname(), pid=os.getpid(), started=time.time())
        _write(fd, me)
        if seen is None:
            # Nothing but the content tells two that start together apart: the last one stays.
            time.sleep(LOCK_TIMEOUT_SECONDS)
            if (winner := _read(fd)) != me:
                raise self._refusal(winner)
        self.previous, self._me = rival, me

    def _refusal(self, rival: Holder | None, hint: str = "") -> BadInput:
        """The error for a study that `rival` drives."""
        who = rival or "one that is just starting"
        return BadInput(
            f"study {self.folder.name} already has a driver: {who} ({self.path}): "
            f"wait for its end or stop it first{hint}"
        )

    def _beat(self, fd: int) -> None:
        """Give a sign of life now and then, for hosts that do not see the kernel's lock."""
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):
                os.utime(fd)


def live_holder(folder: Path) -> Holder | None:
    """The live driver of the study in `folder`, or None; writes nothing and locks nobody out."""
    path = folder.absolute() / "lock"
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        if (named := _read(fd)) is None:
            return None
        # Shared, so that observers do not see each other, and gone before a driver gives up.
        seen = _blocked(fd, fcntl.LOCK_SH)
        return named if _is_alive(named, path, seen, time.time() - os.fstat(fd).st_mtime) else None
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool | None:
    """Lock `fd`: False when it is ours now, True when another has it, None when unsupported."""
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while (seen := _blocked(fd, fcntl.LOCK_EX)) and time.monotonic() < deadline:
        time.sleep(0.03)
    return seen


def _blocked(fd: int, operation: int) -> bool | None:
    """Whether another's lock stands in the way of `operation`; None when locks do not work."""
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno in _UNSUPPORTED_ERRNOS:
            return None
        raise
    return False


def _is_alive(named: Holder, path: Path, seen: bool | None, age: float) -> bool:
    """Whether the driver named in the lock lives; `seen` is what the kernel says, `age` in s."""
    if seen:
        return True
    if named.host != socket.gethostname():
        return age < STALE_SECONDS
    return seen is None and _is_running(named.pid, path)


def _is_running(pid: int, path: Path) -> bool:
    """Whether process `pid` of this host runs (as a driver, if it is this one)."""
    if pid == os.getpid():
        # In containers all drivers have the same number: then it is the dead one's.
        return any(lock.path == path for lock in _HELD_LOCKS)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _age_seconds(fd: int, folder: Path) -> float:
    """Seconds since the file's mtime by the filesystem's own clock, which all hosts share."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        return os.fstat(probe.fileno()).st_mtime - os.fstat(fd).st_mtime


def _has_heartbeat(fd: int, path: Path) -> bool:
    """Whether the file gets signs of life while it is watched, whatever its times say."""
    before = os.fstat(fd).st_mtime_ns
    deadline = time.monotonic() + WATCHED_HEARTBEATS * HEARTBEAT_SECONDS
    while time.monotonic() < deadline:
        time.sleep(HEARTBEAT_SECONDS / 20)
        with suppress(OSError):
            os.close(os.open(path, os.O_RDONLY))  # has NFS ask its server again
        if os.fstat(fd).st_mtime_ns != before:
            return True
    return False


def _read(fd: int) -> Holder | None:
    """The driver that the lock file names; None when empty or unreadable."""
    try:
        record = json.loads(os.pread(fd, _RECORD_BYTES, 0))
        named = Holder(
            host=str(record["host"]), pid=int(record["pid"]), started=float(record["started"])
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    return named if 0 < named.pid < 2**31 else None


def _write(fd: int, me: Holder) -> None:
    """Sign the lock file in place: a new file would not be the one that is locked."""
    # All of one length, or two that write together could leave a mixture of both.
    os.pwrite(fd, json.dumps(asdict(me)).ljust(_RECORD_BYTES).encode(), 0)
    os.ftruncate(fd, _RECORD_BYTES)


_HELD_LOCKS: list[StudyLock] = []


def _close_inherited_locks() -> None:
    """In a forked child: close the parent's locks, or they would outlive the parent."""
    for lock in _HELD_LOCKS:
        if lock._fd is not None:
            os.close(lock._fd)
            lock._fd = None
    _HELD_LOCKS.clear()


os.register_at_fork(after_in_child=_close_inherited_locks)
