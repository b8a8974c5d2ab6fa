from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeper.data import tokens
from sweeper.data.corpus import TokenCorpus
from sweeper.data.tokens import Tokens
from sweeper.errors import BadInput, ConfigError
from tests.golden import Golden

IDS = np.arange(1000) % 100


def prepare(path: Path, **options: Any) -> TokenCorpus:
    return Tokens(path=str(path), **options).prepare(path.parent / "cache")


def saved(path: Path, array: Any, **options: Any) -> Path:
    np.save(path, array, **options)
    return path


@pytest.mark.parametrize("kind", ["<u2", ">u2", "u1", "i1", ">i4", "<i8", ">u8"])
def test_npy_of_any_integer_type(tmp_path: Path, kind: str) -> None:
    path = saved(tmp_path / "t.npy", IDS.astype(kind))
    corpus = prepare(path)
    assert corpus.path == path and corpus.classes == 100
    assert np.array_equal(corpus.tokens, IDS)
    batch, _ = corpus.batch(0, 0, 4, 9)
    assert batch.dtype == np.int64 and batch.dtype.isnative
    assert (np.diff(batch) % 100 == 1).all()


def test_bin_is_little_endian_uint16(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    IDS.astype("<u2").tofile(path)
    corpus = prepare(path, vocab_size=50304)
    assert corpus.classes == 50304 and np.array_equal(corpus.tokens, IDS)
    same = prepare(saved(tmp_path / "t.npy", IDS.astype("<u2")), vocab_size=50304)
    assert corpus.identity() == same.identity()


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    one = prepare(saved(tmp_path / "one.npy", IDS))
    same = prepare(saved(tmp_path / "same.npy", IDS))
    other = prepare(saved(tmp_path / "other.npy", IDS[::-1].copy()))
    assert one.digest == same.digest != other.digest


def test_chunks_make_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    path = saved(tmp_path / "t.npy", IDS)
    whole = Tokens(path=str(path)).prepare(tmp_path / "1")
    monkeypatch.setattr(tokens, "CHUNK_TOKENS", 7)
    assert Tokens(path=str(path)).prepare(tmp_path / "2") == whole
    with pytest.raises(BadInput) as caught:
        prepare(path, vocab_size=90)
    golden.says(caught)


def test_a_scan_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    path = saved(tmp_path / "t.npy", IDS)
    first = prepare(path)
    with monkeypatch.context() as patch:
        patch.setattr(tokens, "scan_tokens", None)
        assert prepare(path) == first
        with pytest.raises(BadInput) as caught:
            prepare(path, vocab_size=7)
        golden.says(caught)
    saved(path, IDS[:500] + 1)
    assert prepare(path).classes == 101


def test_a_broken_scan_is_made_anew(tmp_path: Path) -> None:
    path = saved(tmp_path / "t.npy", IDS)
    first = prepare(path)
    (kept,) = (tmp_path / "cache").iterdir()
    for content in ("{", "{}", '{"digest": "x"}'):
        kept.write_text(content)
        assert prepare(path) == first


@pytest.mark.parametrize(
    ("ids", "size"),
    [([1, 2, 300, 400], 256), ([1, -100, -3], None), ([-1, -2], None), ([5, 2**40], None)],
)
def test_ids_out_of_range(tmp_path: Path, ids: list[int], size: int | None, golden: Golden) -> None:
    with pytest.raises(BadInput) as caught:
        prepare(saved(tmp_path / "t.npy", np.array(ids)), vocab_size=size)
    golden.says(caught)


def test_an_id_too_large_for_int64(tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(BadInput) as caught:
        prepare(saved(tmp_path / "t.npy", np.array([1, 2**64 - 1], np.uint64)))
    golden.says(caught)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 3), np.int64),
        np.array(3),
        np.zeros(3, np.float32),
        np.zeros(3, bool),
        np.array(["a"]),
        np.zeros(0, np.uint16),
    ],
)
def test_arrays_that_are_no_tokens(tmp_path: Path, array: Any, golden: Golden) -> None:
    with pytest.raises(BadInput) as caught:
        prepare(saved(tmp_path / "t.npy", array))
    golden.says(caught)


class Bomb:
    """An object that must never be unpickled."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("unpickled",))


def test_objects_are_never_unpickled(tmp_path: Path, golden: Golden) -> None:
    path = tmp_path / "t.npy"
    np.save(path, np.array([Bomb(), 1], dtype=object), allow_pickle=True)
    with pytest.raises(BadInput) as caught:
        prepare(path)
    golden.says(caught)
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(BadInput) as caught:
        prepare(path)
    golden.says(caught)


@pytest.mark.parametrize("cut", [0, 3, 9, 60, 128, 500])
def test_a_truncated_npy(tmp_path: Path, cut: int, golden: Golden) -> None:
    path = saved(tmp_path / "t.npy", IDS)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BadInput) as caught:
        prepare(path)
    golden.says(caught)


def test_a_header_that_makes_no_sense(tmp_path: Path, golden: Golden) -> None:
    path = saved(tmp_path / "t.npy", IDS)
    whole = path.read_bytes()
    for header in (b"{'descr': foo(", b"(" * 14, b"\0" * 14):
        path.write_bytes(whole[:10] + header + whole[24:])
        with pytest.raises(BadInput) as caught:
            prepare(path)
        golden.says(caught)


def test_files_that_are_no_tokens(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "odd.bin").write_bytes(b"123")
    with pytest.raises(BadInput) as caught:
        prepare(tmp_path / "odd.bin")
    golden.says(caught)
    (tmp_path / "empty.bin").touch()
    with pytest.raises(BadInput) as caught:
        prepare(tmp_path / "empty.bin")
    golden.says(caught)
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(BadInput) as caught:
        prepare(tmp_path / "folder.npy")
    golden.says(caught)
    with pytest.raises(BadInput) as caught:
        prepare(tmp_path / "none.bin")
    golden.says(caught)


def test_a_cache_that_cannot_be_written(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(BadInput) as caught:
        prepare(saved(tmp_path / "t.npy", IDS))
    golden.says(caught)


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("path", {"path": None}),
        ("vocab_size", {"vocab_size": 0}),
        ("vocab_size", {"vocab_size": True}),
        ("vocab_size", {"vocab_size": "50k"}),
        ("vocab_size", {"vocab_size": 2**31 + 1}),
        ("heldout", {"heldout": 1.0}),
    ],
)
def test_options_that_are_refused(key: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Tokens(**({"path": "a.npy"} | options))
    assert caught.value.key == key
