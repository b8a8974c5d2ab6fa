from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sweeper.data.corpus import (
    Batch,
    TokenCorpus,
    open_tokens,
    read_record,
    replacing_in_cache,
    write_record,
)
from sweeper.errors import BadInput
from tests.data.conftest import Refused

COUNT = 1000


def joined(batch: Batch) -> NDArray[np.int64]:
    """The windows that a batch was cut from: targets are the inputs, one later."""
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
    assert read_record(path) == {"a": 1}
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"null"])
def test_a_broken_record_is_an_empty_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    assert read_record(tmp_path / "x.json") == {}


def test_a_full_disk_is_told_as_such(tmp_path: Path, refused: Refused) -> None:
    def fill() -> None:
        with replacing_in_cache(tmp_path / "x"):
            raise OSError(28, "No space left on device")

    with refused():
        fill()
    assert not list(tmp_path.iterdir())
