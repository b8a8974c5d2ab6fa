import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sweeper.data import tokens
from sweeper.data.corpus import (
    Batch,
    TokenCorpus,
    open_tokens,
    replacing_in_cache,
    write_record,
)
from sweeper.data.tokens import Tokens
from sweeper.errors import BadInput
from sweeper.files import read_json
from tests.data.conftest import Refused

COUNT = 1000


def joined(batch: Batch) -> NDArray[np.int64]:
    x, y = batch
    assert np.array_equal(x[:, 1:], y[:, :-1])
    return np.concatenate([x, y[:, -1:]], 1)


seeds = st.integers(0, 2**64 - 1)
sizes = st.integers(1, 8)
lengths = st.integers(1, 40)


def corpus(folder: Path, heldout: float = 0.1, count: int = COUNT) -> TokenCorpus:
    """Tokens that are their own positions, so that windows tell where they come from."""
    path = folder / f"{count}.npy"
    if not path.exists():
        np.save(path, np.arange(count, dtype=np.uint16))
    return TokenCorpus(path=path, digest="d", classes=count, heldout_fraction=heldout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


@given(seed=seeds, step=seeds, size=sizes, length=lengths, heldout=st.floats(0.05, 0.6))
def test_a_batch_is_windows_of_the_train_split(
    folder: Path, seed: int, step: int, size: int, length: int, heldout: float
) -> None:
    data = corpus(folder, heldout)
    data.check(size, length)
    batch = joined(data.batch(seed, step, size, length))
    assert batch.dtype == np.int64 and batch.shape == (size, length + 1)
    assert (np.diff(batch) == 1).all()
    assert batch.min() >= 0 and batch.max() < data.train_size


@given(seed=seeds, step=seeds, size=sizes, length=lengths)
def test_a_batch_follows_from_seed_and_step_alone(
    folder: Path, seed: int, step: int, size: int, length: int
) -> None:
    first = joined(corpus(folder).batch(seed, step, size, length))
    fresh = corpus(folder)
    joined(fresh.batch(seed, (step + 1) % 2**64, 3, 5))
    assert np.array_equal(first, joined(fresh.batch(seed, step, size, length)))
    assert np.array_equal(first, joined(fresh.batch(seed, step, size + 4, length))[:size])


def test_batches_differ_by_seed_and_by_step(folder: Path) -> None:
    data = corpus(folder)
    drawn = {
        joined(data.batch(s, t, 8, 10)).tobytes() for s in (0, 1, 2**32) for t in (0, 1, 2**32)
    }
    assert len(drawn) == 9


def test_batches_are_the_same_on_every_machine_and_version(folder: Path) -> None:
    assert joined(corpus(folder).batch(7, 3, 4, 1))[:, 0].tolist() == [270, 558, 576, 221]


def test_windows_cover_the_whole_train_split(folder: Path) -> None:
    data = corpus(folder)
    drawn = np.concatenate([joined(data.batch(0, step, 500, 1)) for step in range(20)])
    assert set(drawn.ravel()) == set(range(data.train_size))


@given(size=sizes, length=lengths, batches=st.integers(1, 5), heldout=st.floats(0.05, 0.6))
def test_heldout_windows_never_touch_the_train_split(
    folder: Path, size: int, length: int, batches: int, heldout: float
) -> None:
    data = corpus(folder, heldout)
    data.check(size, length)
    windows = [joined(batch) for batch in data.heldout(size, length, batches)]
    assert [batch.shape for batch in windows] == [(size, length + 1)] * batches
    rows = np.concatenate(windows)
    assert (np.diff(rows) == 1).all()
    assert rows.min() == data.train_size and rows.max() < COUNT
    assert len(rows) == 1 or rows.max() == COUNT - 1
    again = map(joined, data.heldout(size, length, batches))
    assert all(np.array_equal(first, second) for first, second in zip(windows, again, strict=True))


@given(size=sizes, length=lengths, count=st.integers(2, 200), heldout=st.floats(0.05, 0.9))
def test_what_passes_the_check_can_be_used(
    folder: Path, size: int, length: int, count: int, heldout: float
) -> None:
    data = corpus(folder, heldout, count)
    enough = data.train_size > size * length and count - data.train_size > length
    if enough:
        data.check(size, length)
        assert joined(data.batch(0, 0, size, length)).max() < data.train_size
    else:
        with pytest.raises(BadInput, match="too short"):
            data.check(size, length)


def test_the_check_says_what_is_missing(folder: Path, refused: Refused) -> None:
    with refused():
        corpus(folder).check(16, 64)
    with refused():
        corpus(folder).check(1, 100)


def test_the_identity_holds_no_path(folder: Path) -> None:
    assert corpus(folder).identity() == {"digest": "d", "classes": COUNT, "heldout_fraction": 0.1}


def test_a_corpus_is_pickled_without_its_tokens(folder: Path) -> None:
    data = corpus(folder, count=50_000)
    before = joined(data.batch(1, 2, 3, 4))
    small = pickle.dumps(data)
    copy = pickle.loads(small)
    assert len(small) < 1000
    assert copy == data and np.array_equal(joined(copy.batch(1, 2, 3, 4)), before)


@pytest.mark.parametrize("name", ["t.txt", "t", "t.npz"])
def test_other_names_are_no_token_files(tmp_path: Path, name: str, refused: Refused) -> None:
    with refused():
        open_tokens(tmp_path / name)


def test_a_file_takes_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.json"
    write_record(path, {"a": 1})

    def fail() -> None:
        with replacing_in_cache(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert read_json(path) == {"a": 1}
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]


def test_a_full_disk_is_told_as_such(tmp_path: Path, refused: Refused) -> None:
    def fill() -> None:
        with replacing_in_cache(tmp_path / "x"):
            raise OSError(28, "No space left on device")

    with refused():
        fill()
    assert not list(tmp_path.iterdir())


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
