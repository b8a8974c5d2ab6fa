"""Files that are either whole or not there: what a study keeps survives a kill at any moment."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from sweeper.records import to_json

_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}

RECORD_ERRORS = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""What reading a damaged record can raise: its JSON may be of any shape."""


@contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """A binary file to write that takes the name `path` once it is complete and on the disk.

    It is readable by its owner only. A kill or a crash at any moment leaves the old file or the
    new one, never a part. OSError when it cannot be written: the old file is then untouched.
    Without `sync` it does not wait for the disk, and a crash of the machine may leave anything.
    """
    # Beside `path`: a rename is atomic within one filesystem only. A dot hides it from globs.
    temporary = path.with_name(f".{uuid4().hex}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
            yield f
            if sync:
                f.flush()
                os.fsync(f.fileno())
        os.replace(temporary, path)
    except BaseException:
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

    A missing file is created, for its owner only. A kill or a crash at any moment leaves the
    old content, followed by nothing, a part or all of `data`; an interrupt, nothing or all.
    OSError when it cannot be written: the old content is then all there is, as far as the disk
    still allows it.
    """
    new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
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


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented, strict JSON, atomically; non-finite floats become strings.

    OSError as `replacing`, TypeError when `value` is no JSON.
    """
    write_atomically(path, json.dumps(to_json(value), indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The JSON value in the file at `path`; OSError when unreadable, ValueError when not JSON."""
    return parse_json(path.read_bytes())


def try_json(path: Path) -> dict[str, Any]:
    """The JSON object at `path`; an empty one when it is not there or damaged."""
    try:
        value = read_json(path)
    except (OSError, *RECORD_ERRORS):
        return {}
    return value if isinstance(value, dict) else {}


def parse_json(text: bytes) -> Any:
    """The JSON value that `text` is; ValueError when it is none."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def private_folder(path: Path) -> None:
    """Create the folder at `path` for its owner only, where it is not there yet.

    Folders above it get the usual permissions. OSError when it cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


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
