"""Files that are either whole or not there: what a study keeps survives a kill at any moment.

A record's file holds a `sum` of its content, so that a changed digit is not taken for another
number. One without it is taken as it is: who edits a record on purpose takes the sum away.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pwd
import re
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from sweeper.errors import Call, SweeperError
from sweeper.records import to_json

_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}

_SUM_LINE = re.compile(rb"\A# sum ([0-9a-f]{16})[^\n]*\n")
_ITEMS = "items"
"""In the file of a list, beside its sum: the list."""

RECORD_ERRORS = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""What reading a damaged record can raise: its JSON may be of any shape."""


@contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """A binary file to write that takes the name `path` once it is complete and on the disk.

    It is readable by those whom `create` lets. A kill or a crash at any moment leaves the old file
    or the new one, never a part. OSError when it cannot be written: the old file is then untouched.
    Without `sync` it does not wait for the disk, and a crash of the machine may leave anything.
    """
    # Beside `path`: a rename is atomic within one filesystem only. A dot hides it from globs.
    temporary = path.with_name(f".{uuid4().hex}.tmp")
    try:
        with os.fdopen(create(temporary, os.O_WRONLY | os.O_EXCL), "wb") as f:
            yield f
            if sync:
                f.flush()
                os.fsync(f.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError):  # a write says nothing of its file, `open` of the other one
            error.filename = str(path)
        with suppress(OSError):
            temporary.unlink()
        raise
    if sync:
        sync_folder(path.parent)


def write_atomically(path: Path, text: str | bytes) -> None:
    """Replace the file at `path` by `text` (UTF-8); see `replacing`."""
    with replacing(path) as file:
        file.write(text.encode() if isinstance(text, str) else text)


def append(path: Path, data: bytes) -> None:
    """Add `data` to the end of the file at `path`: when this returns, it is on the disk.

    A missing file is created, for whom `create` says. A kill or a crash at any moment leaves the
    old content, followed by nothing, a part or all of `data`; an interrupt, nothing or all.
    OSError when it cannot be written: the old content is then all there is, as far as the disk
    still allows it.
    """
    new = not path.exists()
    descriptor = create(path, os.O_WRONLY | os.O_APPEND)
    try:
        # The length to cut back to: a full disk takes a part of a line, and says so only then.
        before = os.fstat(descriptor).st_size
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
            if new:
                sync_folder(path.parent)
        except BaseException as error:
            # An interrupt leaves what is written whole: others may have read it by now.
            with suppress(OSError):
                part = os.fstat(descriptor).st_size < before + len(data)
                if part or isinstance(error, OSError):
                    path.unlink() if new else os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


def sum_of(data: bytes) -> str:
    """What tells a text that was changed from the one that was written."""
    # 64 bits tell accidents; who edits on purpose is told how to take the sum away.
    return hashlib.sha256(data).hexdigest()[:16]


def write_json(path: Path, value: object, *, summed: bool = True) -> None:
    """Write `value` as indented, strict JSON, atomically; non-finite floats become strings.

    The first key is a `sum` of the rest, which `read_json` holds it to. Files that are for other
    programs alone go without (`summed`). OSError as `replacing`, TypeError when `value` is no JSON.
    """
    record = to_json(value)
    if summed:
        record = record if isinstance(record, dict) else {_ITEMS: record}
        record.pop("sum", None)  # of the file that it was read from
        record = {"sum": _sum_of_record(record), **record}
    write_atomically(path, json.dumps(record, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The value in the file at `path` that `write_json` or anybody else wrote, without its `sum`.

    OSError when unreadable, ValueError when it is not JSON, or not what was written.
    """
    record = parse_json(path.read_bytes())
    if not isinstance(record, dict) or "sum" not in record:
        return record
    if record.pop("sum") != _sum_of_record(record):
        raise ValueError(
            "it was changed since it was written; if that was on purpose, delete its line with "
            '"sum"'
        )
    return record[_ITEMS] if record.keys() == {_ITEMS} else record


def _sum_of_record(record: dict[str, Any]) -> str:
    """The sum of the values, not of the text: to indent a file otherwise is no damage."""
    return sum_of(json.dumps(record).encode())


def write_summed(path: Path, text: str) -> None:
    """Write a text whose comments begin with "#", below a comment with its sum."""
    data = text.encode()
    head = f"# sum {sum_of(data)} of what is below; delete this line after a change of your own\n"
    write_atomically(path, head.encode() + data)


def check_summed(data: bytes) -> None:
    """ValueError when this is not the content that `write_summed` wrote; without a sum, any is."""
    if (line := _SUM_LINE.match(data)) and line[1].decode() != sum_of(data[line.end() :]):
        raise ValueError(
            "it was changed since it was written; if that was on purpose, delete its first line, "
            "with its sum"
        )


def try_json(path: Path) -> dict[str, Any]:
    """The JSON object at `path`; an empty one when it is not there or damaged, which is noted."""
    try:
        value = read_json(path)
        if not isinstance(value, dict):
            raise ValueError("it is no JSON object")
    except FileNotFoundError:
        return {}
    except (OSError, *RECORD_ERRORS) as error:
        note_damage(path, error)
        return {}
    return value


_damaged: dict[Path, str] = {}


def note_damage(path: Path, error: Exception) -> None:
    """Remember that a record is not used because of this error, for `take_damaged`."""
    _damaged[path] = f"{error}: it is not used; the command that wrote it writes it again"


def take_damaged() -> dict[Path, str]:
    """The records that could not be used since this was last asked, and why: a verb's end says it.

    Readers that go on without a record are many, and some deep: what they pass over in silence
    would change an output without a word.
    """
    damaged = dict(_damaged)
    _damaged.clear()
    return damaged


def parse_json(text: bytes) -> Any:
    """The JSON value that `text` is; ValueError when it is none."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def shared(folder: Path) -> bool:
    """Whether who made `folder` shares it with its group: set-group-ID, and writable by the group.

    `chmod g+rwxs` makes a folder so. Linux hands the group and the bit down to folders within.
    """
    mode = folder.stat().st_mode
    return bool(mode & stat.S_ISGID and mode & stat.S_IWGRP)


def create(path: Path, flags: int) -> int:
    """Open the file at `path`; a missing one is made for its owner only.

    In a folder that is `shared` it is for the group too. OSError when it cannot be opened.
    """
    descriptor = os.open(path, flags | os.O_CREAT, 0o600)
    if os.fstat(descriptor).st_uid == os.geteuid() and shared(path.parent):
        os.fchmod(descriptor, 0o660)  # whatever the umask is
    return descriptor


def make_folder(path: Path) -> None:
    """Create the folder at `path`, and those above that are missing, by the user's umask.

    Those within a folder that is `shared` are for the group too. OSError when it cannot be made.
    """
    if not path.is_dir():
        make_folder(path.parent)
        _mkdir(path, 0o777)


def private_folder(path: Path) -> None:
    """Create the folder at `path` where it is not there yet, as private as a study is.

    It is for its owner only; within a folder that is `shared`, for the group too. Missing folders
    above it are made as `make_folder` does. OSError when it cannot be created.
    """
    make_folder(path.parent)
    _mkdir(path, 0o700)


def _mkdir(path: Path, mode: int) -> None:
    try:
        path.mkdir(mode=mode)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        if shared(path.parent):
            path.chmod(0o2770)  # whatever the umask is


def owners_folder(path: Path) -> None:
    """Create the folder at `path` for its owner only, wherever it lies: what is in it is run.

    SweeperError where it is another user's, and closed.
    """
    make_folder(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        path.chmod(0o700)  # not the set-group-ID of a shared folder
    check_open(path)


def check_open(path: Path) -> None:
    """SweeperError where an `owners_folder` is there, and another user's."""
    if path.exists() and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise SweeperError(
            f"{path} is the user {owner_of(path)}'s, whose jobs may still run: what lies there "
            "is run, so that nobody shares it. Its owner ends them with ",
            Call("cancel"),
            f", and removes it: rm -r {shlex.quote(str(path))}",
        )


def owner_of(path: Path) -> str:
    """The name of the user whose `path` is, or the number where this machine knows none."""
    number = path.stat().st_uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def is_text(word: str) -> bool:
    """Whether a word or path can be written as UTF-8: Python hides other bytes as surrogates."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def remove_leftovers(folder: Path) -> None:
    """Delete what writers killed half-way left in `folder`; only its one writer may do so."""
    for path in folder.glob(".*.tmp"):
        with suppress(OSError):
            path.unlink()


def sync_folder(folder: Path) -> None:
    """Put the folder itself on the disk, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network filesystems sync folders by themselves and refuse to be asked.
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)
