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
import sys
from collections.abc import Callable, Iterable, Iterator
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
    """The sum that tells a text that was changed from the one that was written."""
    return digest_of(hashlib.sha256(data))


def digest_of(content: hashlib._Hash) -> str:
    """The `sum_of` what was put into `content` part by part."""
    # 64 bits tell accidents; who edits on purpose is told how to take the sum away.
    return content.hexdigest()[:16]


def write_json(path: Path, value: object, *, summed: bool = True) -> None:
    """Write `value` as indented, strict JSON, atomically; non-finite floats become strings.

    The first key is a `sum` of the rest, which `read_json` holds it to. Files that are for other
    programs alone go without (`summed`). OSError as `replacing`, TypeError when `value` is no JSON.
    """
    write_atomically(path, json_text(value, summed=summed))


def json_text(value: object, *, summed: bool = True) -> str:
    """The text that `write_json` writes."""
    record = to_json(value)
    if summed:
        record = record if isinstance(record, dict) else {_ITEMS: record}
        record.pop("sum", None)  # of the file that it was read from
        record = {"sum": _sum_of_record(record), **record}
    return json.dumps(record, indent=1, allow_nan=False) + "\n"


MOST_BYTES, MOST_YAML, MOST_NODES, DEEPEST = 2**28, 2**24, 100_000, 64
"""What no record of ours comes near: bytes, those of YAML and its values; lists within lists."""


def read_bounded(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of the file at `path`, which may be anybody's; OSError when unreadable.

    ValueError for what is no file, such as a pipe that never ends, and for one of more bytes.
    """
    # Without O_NONBLOCK a pipe without a writer would be waited for.
    return _read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), path, most)


def _read(descriptor: int, path: Path, most: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is larger than {most >> 20} MiB, and so no record")
    return content


def read_own(path: Path) -> bytes:
    """The content of a file that is run: it and two folders above it are this user's alone.

    Each part is looked at as it is opened, so that nobody swaps it in between. SweeperError for
    what another user owns or may write; else as `read_bounded`.
    """
    parts = path.parts[-2:]
    descriptor = os.open(path.parents[1], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    for part in (*parts, None):
        if not is_own(descriptor):
            os.close(descriptor)
            raise SweeperError(f"{path} is not yours alone, and what lies there is run: it is not")
        if part is None:
            break
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            inner = os.open(part, flags, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return _read(descriptor, path, MOST_BYTES)


def is_own(descriptor: int) -> bool:
    """Whether what is open is this user's, and nobody else may write it."""
    status = os.fstat(descriptor)
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def read_json(path: Path) -> Any:
    """The value in the file at `path` that `write_json` or anybody else wrote, without its `sum`.

    OSError when unreadable, ValueError when it is not JSON, or not what was written.
    """
    return parse_record(read_bounded(path))


def parse_record(content: bytes) -> Any:
    """The value in a file of that `content`, as `read_json`."""
    record = parse_json(content)
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
    note_record(path, f"{error}: it is not used; the command that wrote it writes it again")


def note_record(path: Path, why: str) -> None:
    """Remember what is to be said of a record, for `take_damaged`."""
    _damaged[path] = why


def take_damaged() -> dict[Path, str]:
    """The records that could not be used since this was last asked, and why: a verb's end says it.

    Readers that go on without a record are many, and some deep: what they pass over in silence
    would change an output without a word.
    """
    damaged = dict(_damaged)
    _damaged.clear()
    return damaged


def parse_json(text: bytes, decode: Callable[[bytes], Any] = json.loads) -> Any:
    """The JSON value that `text` is; ValueError when it is none, or nested deeper than any record.

    What reads it later calls itself for every list within a list.
    """
    try:
        value = decode(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError as error:
        digits = sys.get_int_max_str_digits()
        raise ValueError(f"a whole number has more than {digits:,} digits") from error
    # No more lists lie within each other than begin: true of every line of results.
    level: list[Any] = [value] if text.count(b"[") + text.count(b"{") > DEEPEST else []
    for _ in range(DEEPEST * bool(level)):
        items = (each.values() if isinstance(each, dict) else each for each in level)
        level = [item for each in items for item in each if isinstance(item, dict | list)]
    if level:
        raise ValueError(_TOO_DEEP)
    return value


_TOO_DEEP = f"nested more than {DEEPEST} deep"


def parse_yaml(text: str | bytes) -> Any:
    """The value of a YAML document of plain values; ValueError when it is none, or a bomb.

    An alias counts as what it stands for: ten lines of them may be more than any memory holds.
    """
    # It takes a while, which most commands need not wait for.
    import yaml  # type: ignore[import-untyped]

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if len(text) > MOST_YAML:
            raise ValueError(f"it is larger than {MOST_YAML >> 20} MiB, and so no record")
        # Of bytes yaml guesses the encoding; records are UTF-8.
        text = text.decode() if isinstance(text, bytes) else text
        _check_events(yaml.parse(text, Loader=loader))
        return yaml.load(text, Loader=loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from error
    except (KeyError, TypeError, AttributeError) as error:  # of dates, sexagesimals, odd keys
        raise ValueError(f"it is no YAML of plain values: {error}") from error


def _check_events(events: Iterable[Any]) -> None:
    """ValueError for a document of more values, or deeper, than a record, aliases written out."""
    anchors: dict[str, tuple[int, int]] = {}  # of an anchor its values and its depth
    open_nodes: list[tuple[str | None, int, int]] = [(None, 0, 0)]
    for event in events:
        kind = type(event).__name__
        if kind in ("MappingStartEvent", "SequenceStartEvent"):
            open_nodes.append((event.anchor, 1, 0))
            count, depth = 0, len(open_nodes)
        elif kind == "AliasEvent":
            if event.anchor not in anchors:
                raise ValueError(f"the alias *{event.anchor} stands for nothing, or for itself")
            count, depth = anchors[event.anchor]
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            anchor, count, depth = open_nodes.pop()
            depth += 1
            if anchor:
                anchors[anchor] = (count, depth)
        elif kind == "ScalarEvent":
            count, depth = 1, 0
            if event.anchor:
                anchors[event.anchor] = (count, depth)
        else:
            continue
        anchor, values, deepest = open_nodes[-1]
        open_nodes[-1] = (anchor, values + count, max(deepest, depth))
        if values + count > MOST_NODES:
            raise ValueError(f"it has more than {MOST_NODES:,} values, aliases written out")
        if len(open_nodes) + depth > DEEPEST:
            raise ValueError(_TOO_DEEP)


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


def is_path(place: str | os.PathLike[str]) -> bool:
    """Whether a text can be a path at all: not empty, no longer than systems take, without NUL."""
    text = os.fspath(place)
    parts = text.split(os.sep)
    return 0 < len(text) < 4096 and "\0" not in text and max(map(len, parts)) < 256


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
