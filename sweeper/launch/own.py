"""Folders that are the user's alone, in which lies what is run: pickled jobs, and sockets.

A study may lie in a root that a group shares, and whoever may write a folder may swap what is in
it. These lie among the machine's temporary files.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

from sweeper.errors import SweeperError

NAME = "sweeper-worker-"
"""How the folders begin, so that those of a driver that was killed are found."""
LONGEST = 72
"""Bytes of a place's path: a socket in a folder there must fit into the 104 that systems allow."""
PICKLE = "_submitted.pkl"
"""Behind its process's number, the name of what a job of submitit's runs."""


@dataclass(frozen=True)
class OwnFolder:
    """The folder of one job, which this process holds by a lock on the open `descriptor`."""

    path: Path
    descriptor: int

    @classmethod
    def make(cls) -> OwnFolder:
        """A new one; SweeperError where every place for it can be written by others."""
        # It has its last name once it is locked: `remove_abandoned` takes no other.
        new = Path(tempfile.mkdtemp(prefix="sweeper-", dir=safe_place()))
        descriptor = os.open(new, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # a disk without locks: the folder is then abandoned by nobody
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        path = new.rename(new.with_name(f"{NAME}{new.name.removeprefix('sweeper-')}"))
        return cls(path, descriptor)

    def remove(self) -> None:
        """Remove it, and all in it."""
        rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            os.close(self.descriptor)


def safe_place() -> Path:
    """The folder of temporary files, or another in which nobody else can swap what is ours."""
    places = [Path(place).resolve() for place in (tempfile.gettempdir(), "/tmp", "/var/tmp")]
    for place in places:
        usable = place.is_dir() and os.access(place, os.W_OK)
        if usable and not swappable(place) and len(os.fsencode(place)) <= LONGEST:
            return place
    raise SweeperError(
        f"worker processes need a folder for temporary files, and {places[0]} is none, or can be "
        "written by others: set TMPDIR to a folder that you alone can write, with a path of at "
        f"most {LONGEST} bytes, or give launcher=inline"
    )


def swappable(path: Path) -> Path | None:
    """The part of a resolved path in which another user may rename what lies there; or None."""
    trusted = {0, os.geteuid(), os.stat("/").st_uid}
    for part in (path, *path.parents):
        status = part.stat()
        others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        # In a folder with the sticky bit each may rename their own alone.
        if status.st_uid not in trusted or (others and not status.st_mode & stat.S_ISVTX):
            return part
    return None


def remove_abandoned(seconds: float) -> None:
    """Remove the folders of drivers that were killed, once the jobs in them have read theirs.

    These end as soon as they find nobody who listens, for which is waited: without its folder
    submitit would wait a minute for it.
    """
    end = time.monotonic() + seconds
    for path in Path(safe_place()).glob(f"{NAME}*"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid != os.geteuid():
                    continue
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                pids = [int(each.name.partition("_")[0]) for each in path.glob(f"*{PICKLE}")]
                while any(map(_lives, pids)) and time.monotonic() < end:
                    time.sleep(0.05)
                rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:  # there is none, or somebody else has its number now
        return False
    return True
