"""One driver a study: a lock that any death of its holder releases, on any filesystem.

The kernel's lock (flock) ends with its process, but filesystems differ in who sees it:

- Where all hosts see it, it decides alone.
- On some network filesystems only the processes of one host see it. Against a driver on another
  host, the lock file's content says who holds it and its mtime that the holder lives.
- Some refuse locks. The content and mtime then decide on the same host too, with the process id.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread

from sweeper.errors import BadInput, SweeperError
from sweeper.files import create, private_folder, write_json

HEARTBEAT_SECONDS = 10.0
"""Seconds between two heartbeats of a driver: each sets the lock file's mtime."""
STALE_SECONDS = 60.0
"""Seconds without a heartbeat after which a driver on another host may be dead, and is watched."""
WATCHED_HEARTBEATS = 2.5
"""Heartbeats for which it is watched: a clock that jumped ages a living driver's file too."""
LOCK_TIMEOUT_SECONDS = 0.5
"""Seconds for which a lock is tried: `live_holder` may be holding it for a moment."""

CANCEL_FILE = "cancel.json"
"""A request to the driver that holds the lock: to end."""

_UNSUPPORTED_ERRNOS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_RECORD_BYTES = 512


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The driver that a lock names; `started` is in seconds since the epoch."""

    host: str
    pid: int
    started: float

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.started))
        return f"process {self.pid} on {self.host}, since {since}"


class StudyLock:
    """Context manager that makes this process the only driver of the study in `folder`.

    The file `<folder>/lock` is never deleted: a process that had it open would then lock a file
    without a name, and another one the new file. A forked child does not keep the lock.

    `previous` is the driver that died holding the lock, if one did. Entering raises BadInput
    that names the living driver, and SweeperError when the file cannot be used at all.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.path = self.folder / "lock"
        self.previous: Holder | None = None
        self._holder: Holder | None = None
        self._fd: int | None = None
        self._stop = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> StudyLock:
        check_contents(self.folder)
        try:
            private_folder(self.folder)
            # Opened, not made anew: all drivers, past and present, lock the same file.
            fd = create(self.path, os.O_RDWR)
            try:
                self._claim(fd)
            except BaseException:
                os.close(fd)  # which unlocks it
                raise
        except OSError as error:
            raise SweeperError(f"cannot lock the study: {error}") from error
        self._fd = fd
        _HELD_LOCKS.append(self)
        self._stop.clear()
        self._thread = Thread(target=self._heartbeat, args=(fd,), name="study-lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock; in a forked child, where it is not held, do nothing."""
        if self._fd is None or self._thread is None:
            return
        self._stop.set()
        self._thread.join(timeout=5.0)
        _HELD_LOCKS.remove(self)
        with suppress(OSError):
            if _read(self._fd) == self._holder:  # else another driver took it for dead, and signed
                os.ftruncate(self._fd, 0)
        os.close(self._fd)
        self._fd = None

    def check(self) -> None:
        """SweeperError where the study is not this driver's any more: what it writes is lost."""
        try:
            fd = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            raise SweeperError(
                f"the study in {self.folder} was removed or moved while this driver worked on it: "
                "its last results are not kept"
            ) from None
        except OSError:  # that says nothing of the study
            return
        try:
            holder = _read(fd)
        finally:
            os.close(fd)
        if holder is not None and holder != self._holder:
            raise SweeperError(
                f"another driver has taken the study in {self.folder} meanwhile: {holder}"
            )

    def _claim(self, fd: int) -> None:
        # Locked here (False) does not say that no other host has it, and without locks (None)
        # nothing is said at all: then the signature in the file and its age decide.
        blocked = _try_lock(fd)
        rival = _read(fd)
        remote = rival is not None and rival.host != socket.gethostname()
        # A clock that went back makes the age negative: that is no sign of life either.
        age = abs(_age_seconds(fd, self.folder)) if remote and not blocked else 0.0
        if blocked or (rival and _is_alive(rival, self.path, blocked, age)):
            hint = f"; if it is dead, try again in {STALE_SECONDS - age:.0f} s" if remote else ""
            raise self._refusal(rival, hint)
        if remote and _has_heartbeat(fd, self.path):
            raise self._refusal(rival)
        # Before the file names this driver: who asks it to end reads the name first.
        (self.folder / CANCEL_FILE).unlink(missing_ok=True)
        holder = Holder(host=socket.gethostname(), pid=os.getpid(), started=time.time())
        _write(fd, holder)
        if blocked is None:
            # Without locks two that start together both write: the last to write stays.
            time.sleep(LOCK_TIMEOUT_SECONDS)
            if (winner := _read(fd)) != holder:
                raise self._refusal(winner)
        self.previous, self._holder = rival, holder

    def _refusal(self, rival: Holder | None, hint: str = "") -> BadInput:
        who = rival or "one that is just starting"
        return BadInput(
            f"study {self.folder.name} already has a driver: {who} ({self.path}): "
            f"wait for its end or stop it first{hint}"
        )

    def _heartbeat(self, fd: int) -> None:
        """Set the file's mtime now and then, for hosts that do not see the kernel's lock."""
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):
                os.utime(fd)


def check_contents(folder: Path) -> None:
    """BadInput for a link in the study in `folder` that leads out of it, a pipe, or a device.

    A study from elsewhere may have one in the place of any file: its lock, which is emptied at the
    end of a search, could be another file of this user's, and a pipe is waited for without end.
    The folder itself may be a link, in `trials` commands make what they like, and in `wandb` W&B
    makes links to its own cache: there nothing of ours is written.
    """
    home = folder.resolve()
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(place, name)
            try:
                mode = path.lstat().st_mode  # a link is not followed
            except OSError:  # it is gone by now
                continue
            if not any(kind(mode) for kind in (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)):
                raise BadInput(f"{path} is neither a file nor a folder: remove it")
            if not stat.S_ISLNK(mode):
                continue
            target = Path(os.path.realpath(path))  # `resolve` raises for links in a circle
            if not target.is_relative_to(home):
                raise BadInput(
                    f"{path} is a link that leads out of the study, to {target}: put the file or "
                    "the folder itself there, or remove the link"
                )
        if Path(place) == folder:
            folders[:] = [name for name in folders if name not in ("trials", "wandb")]


def live_holder(folder: Path) -> Holder | None:
    """The live driver of the study in `folder`, or None; writes nothing and locks nobody out."""
    path = folder.absolute() / "lock"
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        if (holder := _read(fd)) is None:
            return None
        # Shared, so that observers do not block each other, and gone before a driver gives up.
        blocked, age = _blocked(fd, fcntl.LOCK_SH), time.time() - os.fstat(fd).st_mtime
        return holder if _is_alive(holder, path, blocked, age) else None
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool | None:
    """Lock `fd`: False once it is locked, True when another holds it, None when unsupported."""
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while (blocked := _blocked(fd, fcntl.LOCK_EX)) and time.monotonic() < deadline:
        time.sleep(0.03)
    return blocked


def _blocked(fd: int, operation: int) -> bool | None:
    """Whether another process's lock prevents `operation`; None when locks are unsupported."""
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno in _UNSUPPORTED_ERRNOS:
            return None
        raise
    return False


def _is_alive(holder: Holder, path: Path, blocked: bool | None, age: float) -> bool:
    """Whether the driver named in the lock lives, by `_blocked` and the `age` of its heartbeat."""
    if blocked:
        return True
    if holder.host != socket.gethostname():
        return age < STALE_SECONDS
    return blocked is None and _is_running(holder.pid, path)


def _is_running(pid: int, path: Path) -> bool:
    """Whether process `pid` of this host runs (as a driver, if it is this one)."""
    if pid == os.getpid():
        # In containers every driver may have this id: without a lock here it is a dead one's.
        return any(lock.path == path for lock in _HELD_LOCKS)
    try:
        os.kill(pid, 0)  # signal 0 only asks
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs, and is another user's
        return True
    return True


def _age_seconds(fd: int, folder: Path) -> float:
    """Seconds since the file's mtime by the filesystem's own clock, which all hosts share."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        return os.fstat(probe.fileno()).st_mtime - os.fstat(fd).st_mtime


def _has_heartbeat(fd: int, path: Path) -> bool:
    """Whether the file's mtime changes while it is watched, whatever it is."""
    before = os.fstat(fd).st_mtime_ns
    deadline = time.monotonic() + WATCHED_HEARTBEATS * HEARTBEAT_SECONDS
    while time.monotonic() < deadline:
        time.sleep(HEARTBEAT_SECONDS / 20)
        with suppress(OSError):
            os.close(os.open(path, os.O_RDONLY))  # makes NFS ask its server again
        if os.fstat(fd).st_mtime_ns != before:
            return True
    return False


def _read(fd: int) -> Holder | None:
    try:
        record = json.loads(os.pread(fd, _RECORD_BYTES, 0))
        holder = Holder(
            host=str(record["host"]), pid=int(record["pid"]), started=float(record["started"])
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    return holder if 0 < holder.pid < 2**31 else None


def _write(fd: int, holder: Holder) -> None:
    """Name `holder` in the lock file, in place: a new file would not be the one that is locked."""
    # All of one length, or two that write together could leave a mixture of both.
    os.pwrite(fd, json.dumps(asdict(holder)).ljust(_RECORD_BYTES).encode(), 0)
    os.ftruncate(fd, _RECORD_BYTES)


_HELD_LOCKS: list[StudyLock] = []
# A lock by flock is one of the open file, which a forked child shares: as long as the child lives
# with its copy of the descriptor, the study stays locked.


def _close_inherited_locks() -> None:
    """In a forked child: close the parent's locks, or they would outlive the parent."""
    for lock in _HELD_LOCKS:
        if lock._fd is not None:
            os.close(lock._fd)
            lock._fd = None
    _HELD_LOCKS.clear()


os.register_at_fork(after_in_child=_close_inherited_locks)


def check_held(folder: Path) -> None:
    """SweeperError where this process took the lock of the study in `folder`, and has lost it."""
    for lock in _HELD_LOCKS:
        if lock.folder == folder.absolute():
            lock.check()


def request_cancel(folder: Path) -> None:
    """Ask the driver of the sweep in `folder` to end."""
    write_json(folder / CANCEL_FILE, {"at": time.time()})


def cancel_requested(folder: Path) -> bool:
    """Whether the driver of the sweep in `folder` should end.

    A driver that takes the study's lock removes what was asked of an earlier one. SweeperError
    where the study is not this driver's any more.
    """
    check_held(folder)
    return (folder / CANCEL_FILE).exists()
