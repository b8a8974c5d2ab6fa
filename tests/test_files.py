import errno
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeper.errors import SweeperError
from sweeper.files import (
    append,
    check_summed,
    make_folder,
    owners_folder,
    parse_json,
    parse_yaml,
    private_folder,
    read_bounded,
    read_json,
    remove_leftovers,
    take_damaged,
    try_json,
    write_atomically,
    write_json,
    write_summed,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_writes_text_and_bytes_privately(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomically(path, "größer\n")
    assert path.read_bytes() == "größer\n".encode()
    write_atomically(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert path.stat().st_mode & 0o077 == 0
    assert names(tmp_path) == ["a"]


FULL = OSError(errno.ENOSPC, "No space left")


@pytest.mark.parametrize(
    ("broken", "error"),
    [("replace", FULL), ("fsync", FULL), ("open", FULL), ("fsync", KeyboardInterrupt())],
)
def test_failure_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, error: BaseException
) -> None:
    path = tmp_path / "a"
    write_atomically(path, "old")

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, broken, fails)
    with pytest.raises(type(error)):
        write_atomically(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_the_folder_is_synced_unless_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.fsync, []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(code, os.strerror(code))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    code = errno.EINVAL
    write_atomically(tmp_path / "a", "x")
    assert len(calls) == 2
    calls.clear()
    code = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        write_atomically(tmp_path / "a", "y")


def test_append_goes_on_after_a_short_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    append(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


@pytest.mark.parametrize("broken", ["write", "fsync", "open"])
@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()])
def test_what_could_not_be_appended_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, error: BaseException
) -> None:
    append(tmp_path / "a", b"old")
    write = os.write

    def full(*arguments: int) -> None:
        if broken == "write":
            write(arguments[0], b"ne")
        raise error

    for name in "ab":
        with monkeypatch.context() as patch:
            patch.setattr(os, broken, full)
            with pytest.raises(type(error)):
                append(tmp_path / name, b"new")
    if broken == "fsync" and not isinstance(error, OSError):
        assert (tmp_path / "a").read_bytes() == b"oldnew", "an interrupt takes nothing whole back"
        assert (tmp_path / "b").read_bytes() == b"new"
    else:
        assert (tmp_path / "a").read_bytes() == b"old" and names(tmp_path) == ["a"]


def test_append_syncs_the_file_and_once_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    append(tmp_path / "a", b"x")
    append(tmp_path / "a", b"y")
    file = (tmp_path / "a").stat().st_ino
    assert synced == [file, tmp_path.stat().st_ino, file]


def test_json_is_strict_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"b": [1.5, math.inf, math.nan], "a": "\udc80 é", "n": None})
    assert json.loads(path.read_text(), parse_constant=pytest.fail)
    assert read_json(path) == {"b": [1.5, "inf", "nan"], "a": "\udc80 é", "n": None}
    assert list(read_json(path)) == ["b", "a", "n"]


def test_what_is_no_json_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert names(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\xff\xfe{", b"[" * 100_000])
def test_damaged_json_is_a_value_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError):  # noqa: PT011 - the parser words it
        read_json(path)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")


def test_folder_are_only_our_own(tmp_path: Path) -> None:
    for name in (".0123.tmp", "a.tmp", ".hidden", "a.json"):
        (tmp_path / name).touch()
    (tmp_path / ".folder.tmp").mkdir()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [".folder.tmp", ".hidden", "a.json", "a.tmp"]
    remove_leftovers(tmp_path / "none")


def test_a_changed_record_is_told_and_one_without_a_sum_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for value in ({"loss": 3.25, "curve": [1, 2.0, 1e-300]}, [{"a": 1}], 5):
        write_json(path, value)
        assert read_json(path) == value
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record))
        assert read_json(path) == value, "another indentation is no change"
    write_json(path, {"loss": 3.25})
    path.write_text(path.read_text().replace("3.25", "3.52"))
    with pytest.raises(ValueError, match="was changed since it was written"):
        read_json(path)
    take_damaged()
    assert try_json(path) == {} and list(take_damaged()) == [path] and not take_damaged()
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if '"sum"' not in line))
    assert read_json(path) == {"loss": 3.52}
    write_json(path, {"loss": 3.25}, summed=False)
    assert json.loads(path.read_text()) == {"loss": 3.25}


def test_a_changed_text_is_told_and_one_without_a_sum_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    write_summed(path, "a: 1\nb: é\n")
    check_summed(path.read_bytes())
    with pytest.raises(ValueError, match="was changed since it was written"):
        check_summed(path.read_bytes().replace(b"a: 1", b"a: 2"))
    check_summed(path.read_bytes().partition(b"\n")[2].replace(b"a: 1", b"a: 2"))


def test_what_lies_in_a_shared_folder_is_the_groups_too(tmp_path: Path) -> None:
    """But not what is run, and nothing where the folder above is merely open."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o775)
    (tmp_path / "team").mkdir()
    (tmp_path / "team").chmod(0o2770)
    before = os.umask(0o077)
    try:
        for root in (tmp_path / "open", tmp_path / "team"):
            private_folder(root / "mine")
            write_atomically(root / "mine" / "a.json", "{}")
            append(root / "mine" / "a.jsonl", b"x\n")
            owners_folder(root / "mine" / "jobs")
            private_folder(root / "mine" / "jobs" / "1")
            os.umask(0o022)
            private_folder(root / "mine" / "transfer" / "w64")
            make_folder(root / "mine" / "transfer" / "w64" / "export" / "hf")
            os.umask(0o077)
    finally:
        os.umask(before)

    def modes(root: str, *names: str) -> list[int]:
        return [(tmp_path / root / name).stat().st_mode & 0o7777 for name in names]

    assert modes("team", "mine", "mine/a.json", "mine/a.jsonl") == [0o2770, 0o660, 0o660]
    assert modes("open", "mine", "mine/a.json", "mine/a.jsonl") == [0o700, 0o600, 0o600]
    above = ("mine/transfer", "mine/transfer/w64", "mine/transfer/w64/export/hf")
    assert modes("team", *above) == 3 * [0o2770]
    assert modes("open", *above) == [0o755, 0o700, 0o755]
    for root in ("open", "team"):
        assert modes(root, "mine/jobs", "mine/jobs/1") == [0o700, 0o700]


def test_anothers_folder_of_what_is_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners_folder(tmp_path / "jobs")
    owners_folder(tmp_path / "jobs")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SweeperError, match=r"rm -r .*jobs"):
        owners_folder(tmp_path / "jobs")


NESTED = "a: &0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"b{i}: &{i} [{', '.join([f'*{i - 1}'] * 8)}]\n" for i in range(1, 12)
)
MERGED = "a0: &0 {x: 1}\n" + "".join(
    f"a{i}: &{i} {{<<: [{', '.join([f'*{i - 1}'] * 9)}], k{i}: 1}}\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (NESTED, "more than 100,000 values"),
        (MERGED, "more than 100,000 values"),
        ("a: [" + "1, " * 200_000 + "1]", "more than 100,000 values"),
        ("a: " + "[" * 1000 + "]" * 1000, "nested more than 64 deep"),
        ("".join(f"{'  ' * i}a:\n" for i in range(900)), "nested more than 64 deep"),
        ("a: &x [*x]", "for nothing, or for itself"),
        ("a: " + "9" * 5000, "digits"),
        ("a: !!python/object/apply:os.system [id]", "could not determine a constructor"),
        ("a: 2001-99-99", "month must be"),
        ("? [a]\n: 1", "unhashable"),
        ("a: \x00", "not allowed"),
    ],
)
def test_yaml_that_no_record_is_gets_one_message_in_no_time(text: str, says: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ValueError, match=says):
        parse_yaml(text)
    assert time.perf_counter() - start < 5


def test_yaml_of_plain_values_is_read_as_ever() -> None:
    text = "a: &x {b: [1, 2.5, true, null, text], c: 2020-01-01}\nd: *x\ne: {<<: *x, b: 0}\n"
    assert parse_yaml(text) == yaml.safe_load(text) and parse_yaml("") is None
    assert parse_yaml("1: 2") == {1: 2} and parse_yaml(b"a: \xc3\xa9") == {"a": "é"}


def test_json_is_no_deeper_than_what_reads_it(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(63):  # and the record around it
        deep = [deep]
    path = tmp_path / "a.json"
    write_json(path, deep)
    assert read_json(path) == deep
    for depth in (65, 400, 900, 100_000):
        with pytest.raises(ValueError, match="nested more than 64 deep"):
            parse_json(b'{"a": ' * depth + b"1" + b"}" * depth)
    assert parse_json(b"[" + b"[1]," * 10_000 + b"[]]")


def test_what_is_no_file_is_no_record_and_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(ValueError, match="no regular file"):
            read_bounded(path)
    big = tmp_path / "big"
    big.write_bytes(b"x" * 11)
    with pytest.raises(ValueError, match="larger than 0 MiB"):
        read_bounded(big, 10)
    with pytest.raises(IsADirectoryError):
        read_bounded(tmp_path)
