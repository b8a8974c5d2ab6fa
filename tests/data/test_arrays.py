"""Images from files of MNIST's kind, and of scikit-learn."""

import gzip
import pickle
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sweeper.data.arrays import Augmentation, Digits, Idx, save_arrays
from sweeper.data.corpus import Corpus
from sweeper.errors import BadInput
from sweeper.models.scaled import CrossEntropy
from tests.data.conftest import Refused
from tests.engine.runs import assert_as_alone
from tests.models.arrays import images, trials

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


# Augmentation: what it does by hand, how often, and that only training sees it.


IMAGE = np.arange(1, 17, dtype=np.uint8).reshape(1, 4, 4)


def draws(*values: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array([values])


def test_a_shift_by_hand() -> None:
    """Of -1, 0, 1 the draws choose down by one and left by one; black follows."""
    moved = Augmentation(shift=1).moved(IMAGE, draws(0.9, 0.1, 0.5))
    expected = np.zeros_like(IMAGE)
    expected[0, 1:, :-1] = IMAGE[0, :-1, 1:]
    assert moved.dtype == np.uint8 and np.array_equal(moved, expected)
    assert np.array_equal(Augmentation(shift=1).moved(IMAGE, draws(0.5, 0.5, 0.9)), IMAGE)


def test_a_mirrored_image_and_channels() -> None:
    coloured = np.stack([IMAGE, 100 + IMAGE], 1)
    moved = Augmentation(flip=True).moved(coloured, draws(0.5, 0.5, 0.4))
    assert np.array_equal(moved, coloured[..., ::-1])
    both = Augmentation(flip=True, shift=1).moved(coloured, draws(0.9, 0.1, 0.4))
    plain = Augmentation(shift=1).moved(coloured[..., ::-1], draws(0.9, 0.1, 0.9))
    assert np.array_equal(both, plain)


def test_every_shift_is_as_likely_and_half_are_mirrored() -> None:
    how, count = Augmentation(shift=1, flip=True), 9000
    uniform = np.random.default_rng(0).random((count, 3))
    moved = how.moved(np.repeat(IMAGE, count, 0), uniform)
    _, counts = np.unique(moved, axis=0, return_counts=True)
    assert len(counts) == 18 and np.abs(counts - 500).max() < 5 * 500**0.5


def test_rectangles_are_erased_as_often_as_asked_and_as_large_as_published() -> None:
    how, count, side = Augmentation(erase=0.25), 4000, 32
    still = np.zeros((count, side, side), np.float32)
    images_after = how.erased(still, np.random.default_rng(0).random((count, 5 + side * side)))
    erased = images_after != 0
    hit = erased.any((1, 2))
    assert hit.mean() == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / count) ** 0.5)
    rows, columns = erased[hit].any(2).sum(1), erased[hit].any(1).sum(1)
    assert np.array_equal(rows * columns, erased[hit].sum((1, 2))), "each is a rectangle"
    share = rows * columns / side**2
    # By Monte Carlo of the definition, without the rounding to pixels that 32 of them need.
    assert share.min() > 0.01 and share.max() < 0.37
    assert share.mean() == pytest.approx((0.02 + 0.33) / 2, rel=0.06)
    assert abs(np.log(rows / columns).mean()) < 0.1
    assert images_after[erased].std() == pytest.approx(1, rel=0.02)
    assert abs(images_after[erased].mean()) < 0.02


OWN = Augmentation(shift=2, flip=True, erase=0.5)


def test_held_out_images_stay_as_they_are_and_the_identity_tells(tmp_path: Path) -> None:
    plain = images(tmp_path)
    data = replace(plain, augment=OWN)
    for (x, _), (other, _) in zip(data.heldout(8, 1, 2), plain.heldout(8, 1, 2), strict=True):
        assert np.array_equal(x, other)
    assert "augment" not in plain.identity()  # old trials keep their keys
    asked = {"shift": 2, "flip": True, "erase": 0.5}
    assert data.identity() == plain.identity() | {"augment": asked}
    data = replace(plain, augment=Augmentation(crop=0.3, randaugment=2))
    asked = {"shift": 0, "flip": False, "erase": 0.0, "crop": 0.3, "randaugment": 2, "magnitude": 9}
    assert data.identity()["augment"] == asked


@pytest.fixture(scope="session")
def torchvision() -> Any:
    """Its transforms; a build for another torch lacks operators that no transform calls."""
    pytest.importorskip("PIL")
    try:
        return pytest.importorskip("torchvision.transforms.v2")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor a, Tensor b, float c) -> Tensor")
        return pytest.importorskip("torchvision.transforms.v2"), library


@pytest.mark.parametrize(
    "how",
    [OWN, Augmentation(crop=0.3, randaugment=2, flip=True)],
    ids=["own", "torchvision"],
)
def test_batches_follow_from_seed_and_step_and_begin_with_smaller_ones(
    how: Augmentation, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if how.crop:
        request.getfixturevalue("torchvision")
    data = replace(images(tmp_path), augment=how)
    data.check(16, 1)
    torch.manual_seed(5)
    x, y = data.batch(3, 7, 16, 1)
    drawn = torch.rand(1)
    again, smaller = data.batch(3, 7, 16, 1), data.batch(3, 7, 5, 1)
    assert np.array_equal(x, again[0]) and np.array_equal(x[:5], smaller[0])
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1)), "what others draw is not disturbed"
    plain = images(tmp_path).batch(3, 7, 16, 1)
    others = (data.batch(4, 7, 16, 1), data.batch(3, 8, 16, 1), plain)
    assert not any(np.array_equal(x, other[0]) for other in others)
    assert np.array_equal(y, plain[1]) and x.shape == plain[0].shape and x.dtype == np.float32


def test_a_crop_shows_a_part_at_the_whole_size(torchvision: Any) -> None:
    """Of an image whose rows count up, a crop's rows count up more slowly."""
    ramp = np.repeat(np.arange(64, dtype=np.uint8)[:, None], 64, 1)[None, None].repeat(300, 0)
    rows = Augmentation(crop=0.25).transformed(ramp, range(300))[:, 0, :, 0].astype(float)
    heights = (rows[:, -1] - rows[:, 0] + 1) / 64
    # The area is uniform from a quarter on, sides' ratio log-uniform from 3/4 to 4/3, which is
    # drawn again where it does not fit: the height is the root of the area, nearly.
    expected = np.sqrt(np.random.default_rng(0).uniform(0.25, 1, 100_000)).mean()
    assert heights.min() < 0.55 and heights.max() > 0.9
    assert heights.mean() == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("how", [{"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}])
def test_mixed_images_have_their_labels_in_the_shares_of_the_mixture(
    torchvision: Any, how: dict[str, float], tmp_path: Path
) -> None:
    """Images that are one number: the mean of a mixture is that of the labels' shares."""
    augment, labels = Augmentation(**how), np.arange(8)  # type: ignore[arg-type]
    plain = np.repeat(labels.astype(np.float32), 64).reshape(8, 8, 8)
    weights = []
    for seed in range(40):
        x, shares = augment.mixed(plain.copy(), labels, 8, seed)
        assert np.allclose(shares.sum(1), 1) and shares.shape == (8, 8)
        assert np.allclose(x.mean((1, 2)), shares @ labels, atol=1e-5)
        assert np.allclose(shares[1:, :][np.arange(7), labels[1:]], shares[1, 1])
        weights.append(shares[1, 1])
    assert np.std(weights) > 0.15  # Beta(1, 1) has 0.29


def test_a_loss_of_shares_is_the_mean_of_the_labels_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    first, second, share = torch.arange(6) % 5, (torch.arange(6) + 2) % 5, 0.3
    shares = share * torch.eye(5)[first] + (1 - share) * torch.eye(5)[second]
    for smoothing in (0.0, 0.1):
        loss = CrossEntropy(5, smoothing=smoothing)
        expected = share * loss(logits, first) + (1 - share) * loss(logits, second)
        assert loss(logits, shares).item() == pytest.approx(expected.item(), rel=1e-6)
        with monkeypatch.context() as patch:
            patch.setattr(torch.compiler, "is_compiling", lambda: True)
            assert loss(logits, shares).item() == pytest.approx(expected.item(), rel=1e-6)


def test_trials_of_mixed_images_are_batched_as_alone(torchvision: Any, tmp_path: Path) -> None:
    augment = Augmentation(mixup=0.8, cutmix=1.0, crop=0.5)
    data = replace(images(tmp_path), augment=augment)
    made = trials("mup", {"_target_": "sweeper.models.mlp.MLP"}, data, steps=3)[:3]
    assert assert_as_alone(made, data)[0].accuracy is not None


def test_without_torchvision_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.transforms", None)
    with pytest.raises(BadInput, match=r"data\.augment\.mixup .*'sweeper\[vision\]'"):
        Augmentation(mixup=0.8).check((8, 8))


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="shift=8"):
        replace(images(tmp_path), augment=Augmentation(shift=8)).check(8, 1)
    with pytest.raises(BadInput, match="images"):
        Augmentation(flip=True).check((64,))
    assert Digits(augment=Augmentation(shift=1)).augment.shift == 1
