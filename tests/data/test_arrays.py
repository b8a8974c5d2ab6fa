"""Images from files of MNIST's kind, and of scikit-learn."""

from __future__ import annotations

import gzip
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeper.data.arrays import Digits, Idx, save_arrays
from sweeper.data.corpus import Corpus
from tests.data.conftest import Refused

KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")
NAMES = tuple(f"{split}-{kind}" for split in ("train", "t10k") for kind in KINDS)


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    head = bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape)
    return head + array.astype(np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six train and four test images [4, 5]; an image's pixels are its label, and a corner."""
    for split, count in (("train", 6), ("t10k", 4)):
        labels = np.arange(count) % 3
        images = np.tile(labels[:, None, None], (1, 4, 5))
        images[:, 0, 0] = 200
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(idx(images))
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(idx(labels))
    return tmp_path


def packed(folder: Path) -> Path:
    for name in NAMES:
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
        (folder / name).unlink()
    return folder


def prepare(folder: Path) -> Corpus:
    return Idx(path=str(folder)).prepare(folder / "cache")


def test_images_and_labels_belong_together(folder: Path) -> None:
    source = Idx(path=str(folder))
    corpus = source.prepare(folder / "cache")
    assert source.input_shape == corpus.input_shape == (4, 5)
    assert (corpus.classes, corpus.train_size) == (3, 6)
    for x, y in (corpus.batch(3, 1, 6, 1), *corpus.heldout(2, 1, 3)):
        assert np.allclose(x[:, 1, 1] * corpus.std + corpus.mean, y, atol=1e-4)
    sizes = {"classes": 3, "input_shape": [4, 5], "heldout": 4}
    assert corpus.identity() == {"digest": corpus.digest} | sizes
    labels = [int(label) for _, y in corpus.heldout(2, 1, 2) for label in y]
    assert labels == [0, 1, 2, 0], "those of the test file"


def test_gz_is_the_same_corpus_and_either_will_do(folder: Path) -> None:
    plain = prepare(folder)
    name = NAMES[0]
    (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
    assert prepare(folder) == plain
    (folder / f"{name}.gz").unlink()
    assert prepare(packed(folder)) == plain
    assert Idx(path=str(folder)).input_shape == (4, 5)


def test_a_batch_follows_from_seed_and_step_alone(folder: Path, refused: Refused) -> None:
    data = prepare(folder)
    small, large = data.batch(1, 2, 3, 1), data.batch(1, 2, 6, 1)
    assert all(np.array_equal(a, b[:3]) for a, b in zip(small, large, strict=True))
    data.check(6, 999)
    with refused():
        data.check(7, 1)


def test_names_of_emnist(folder: Path, refused: Refused) -> None:
    for name in NAMES:
        split = name.replace("t10k", "test")
        (folder / name).rename(folder / f"emnist-letters-{split}")
    assert prepare(folder).classes == 3
    (folder / "emnist-digits-test-images-idx3-ubyte").write_bytes(b"")
    with refused():
        prepare(folder)


BLACK = np.zeros((6, 4, 5))
BROKEN = {"empty": b"", "gz": b"\x1f\x8b\x08\x00", "kind": idx(BLACK, kind=0x0D)}
BROKEN |= {"header": idx(BLACK)[:9], "cut": idx(BLACK)[:-1], "labels": idx(BLACK[:5])}
BROKEN |= {"shapes": idx(BLACK[..., :4]), "constant": idx(BLACK)}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_broken_files(folder: Path, content: bytes, refused: Refused) -> None:
    (folder / NAMES[0]).write_bytes(content)
    with refused():
        prepare(folder)


def test_broken_gz(folder: Path, refused: Refused) -> None:
    file = packed(folder) / f"{NAMES[0]}.gz"
    whole = file.read_bytes()
    for content in (b"no gzip", whole[:-9], whole[:20] + b"\0\0\0\0" + whole[24:]):
        file.write_bytes(content)
        with refused():
            prepare(folder)


def test_folders_without_the_files(tmp_path: Path, refused: Refused) -> None:
    with refused():
        Idx(path=str(tmp_path / "none")).prepare(tmp_path)
    with refused():
        Idx(path=str(tmp_path)).prepare(tmp_path)


def test_nothing_to_train_on_or_to_hold_out(tmp_path: Path, refused: Refused) -> None:
    inputs, labels = np.zeros((3, 2, 2), np.uint8), np.zeros(3, np.uint8)
    for train_size in (0, 3):
        with refused():
            save_arrays(tmp_path, inputs, labels, train_size)


# scikit-learn's digits.


@pytest.fixture
def digits(tmp_path: Path) -> Any:
    pytest.importorskip("sklearn")
    return Digits().prepare(tmp_path)


def test_the_digits(digits: Any, tmp_path: Path) -> None:
    assert digits.classes == 10 and digits.input_shape == (8, 8) == Digits.input_shape
    assert digits.train_size == 1797 - 359
    x, y = digits.batch(0, 0, 64, 1)
    assert x.shape == (64, 8, 8) and x.dtype == np.float32 and y.dtype == np.int64
    assert set(y) == set(range(10))
    assert Digits().prepare(tmp_path) == digits != Digits(heldout=0.5).prepare(tmp_path)
    inputs, _ = digits._samples(np.arange(digits.train_size))
    assert float(inputs.mean()) == pytest.approx(0, abs=1e-5)
    assert float(inputs.std()) == pytest.approx(1, rel=1e-5)
    blob = pickle.dumps(digits)
    assert len(blob) < 1000
    assert np.array_equal(pickle.loads(blob).batch(0, 0, 64, 1)[0], x)


def test_all_held_out_images_are_seen_once(digits: Any) -> None:
    labels = [y for _, y in digits.heldout(32, 1, None)]
    assert [len(y) for y in labels] == [32] * 11 + [7]  # 359
    assert np.array_equal(np.concatenate(labels), digits.labels[digits.train_size :])
    assert np.bincount(np.concatenate(labels)).min() > 20  # shuffled: every class is held out


def test_without_scikit_learn_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with refused():
        Digits().prepare(tmp_path)
