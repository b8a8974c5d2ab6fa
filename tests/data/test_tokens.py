from __future__ import annotations

import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeper.data import tokens
from sweeper.data.corpus import TokenCorpus
from sweeper.data.tokens import Tokens
from tests.data.conftest import Refused

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
    first = prepare(saved(tmp_path / "one.npy", IDS))
    same = prepare(saved(tmp_path / "same.npy", IDS))
    other = prepare(saved(tmp_path / "other.npy", IDS[::-1].copy()))
    assert first.digest == same.digest != other.digest


def test_chunks_make_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    path = saved(tmp_path / "t.npy", IDS)
    whole = Tokens(path=str(path)).prepare(tmp_path / "1")
    monkeypatch.setattr(tokens, "CHUNK_TOKENS", 7)
    assert Tokens(path=str(path)).prepare(tmp_path / "2") == whole
    with refused():
        prepare(path, vocab_size=90)


def test_a_scan_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    path = saved(tmp_path / "t.npy", IDS)
    first = prepare(path)
    with monkeypatch.context() as patch:
        patch.setattr(tokens, "scan_tokens", None)
        assert prepare(path) == first
        with refused():
            prepare(path, vocab_size=7)
    saved(path, IDS[:500] + 1)
    assert prepare(path).classes == 101


def test_a_broken_scan_is_made_anew(tmp_path: Path) -> None:
    path = saved(tmp_path / "t.npy", IDS)
    first = prepare(path)
    (kept,) = (tmp_path / "cache").iterdir()
    for content in ("{", "{}", '{"digest": "x"}'):
        kept.write_text(content)
        assert prepare(path) == first


class Bomb:
    """An object that must never be unpickled."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("unpickled",))


def npy(array: Any) -> bytes:
    file = BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


WHOLE = npy(IDS)
NO_TOKENS = {
    "an id too large": npy(np.array([5, 2**40])),
    "too large for int64": npy(np.array([1, 2**64 - 1], np.uint64)),
    "a negative id": npy(np.array([1, -100, -3])),
    "two dimensions": npy(np.zeros((2, 3), np.int64)),
    "no dimension": npy(np.array(3)),
    "floats": npy(np.zeros(3, np.float32)),
    "booleans": npy(np.zeros(3, bool)),
    "strings": npy(np.array(["a"])),
    "none": npy(np.zeros(0, np.uint16)),
    "objects": npy(np.array([Bomb(), 1], dtype=object)),
    "a pickle": pickle.dumps(Bomb()),
    **{f"cut at {cut}": WHOLE[:cut] for cut in (0, 9, 60, 500)},
    "header": WHOLE[:10] + b"{'descr': foo(" + WHOLE[24:],
    "header of nothing": WHOLE[:10] + b"\0" * 14 + WHOLE[24:],
}


@pytest.mark.parametrize("name", NO_TOKENS)
def test_arrays_that_are_no_tokens(name: str, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "t.npy").write_bytes(NO_TOKENS[name])
    with refused():
        prepare(tmp_path / "t.npy")


def test_files_that_are_no_tokens(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "odd.bin").write_bytes(b"123")
    (tmp_path / "empty.bin").touch()
    (tmp_path / "folder.npy").mkdir()
    for name in ("odd.bin", "empty.bin", "folder.npy", "none.bin"):
        with refused():
            prepare(tmp_path / name)


def test_a_cache_that_cannot_be_written(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "cache").touch()
    with refused():
        prepare(saved(tmp_path / "t.npy", IDS))
