"""Augmentation of images: what it does by hand, how often, and that only training sees it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sweeper.data.arrays import ArrayCorpus, Augmentation, Digits
from sweeper.errors import BadInput, ConfigError
from tests.models.arrays import images

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
    found = how.moved(np.repeat(IMAGE, count, 0), uniform)
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == 18 and np.abs(counts - 500).max() < 5 * 500**0.5


def test_rectangles_are_erased_as_often_as_asked_and_as_large_as_published() -> None:
    how, count, side = Augmentation(erase=0.25), 4000, 32
    still = np.zeros((count, side, side), np.float32)
    found = how.erased(still, np.random.default_rng(0).random((count, 5 + side * side)))
    erased = found != 0
    hit = erased.any((1, 2))
    assert hit.mean() == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / count) ** 0.5)
    rows, columns = erased[hit].any(2).sum(1), erased[hit].any(1).sum(1)
    assert np.array_equal(rows * columns, erased[hit].sum((1, 2))), "each is a rectangle"
    share = rows * columns / side**2
    # By Monte Carlo of the definition, without the rounding to pixels that 32 of them need.
    assert share.min() > 0.01 and share.max() < 0.37
    assert share.mean() == pytest.approx((0.02 + 0.33) / 2, rel=0.06)
    assert abs(np.log(rows / columns).mean()) < 0.1
    assert found[erased].std() == pytest.approx(1, rel=0.02)
    assert abs(found[erased].mean()) < 0.02


def augmented(folder: Path) -> ArrayCorpus:
    return replace(images(folder), augment=Augmentation(shift=2, flip=True, erase=0.5))


def test_batches_follow_from_seed_and_step_and_begin_with_smaller_ones(tmp_path: Path) -> None:
    data = augmented(tmp_path)
    x, y = data.batch(3, 7, 16, 1)
    again, smaller = data.batch(3, 7, 16, 1), data.batch(3, 7, 5, 1)
    assert np.array_equal(x, again[0]) and np.array_equal(x[:5], smaller[0])
    plain = images(tmp_path).batch(3, 7, 16, 1)
    assert np.array_equal(y, plain[1]) and not np.array_equal(x, plain[0])
    assert x.dtype == np.float32 and x.shape == plain[0].shape
    assert not np.array_equal(x, data.batch(3, 8, 16, 1)[0])


def test_held_out_images_stay_as_they_are_and_the_identity_tells(tmp_path: Path) -> None:
    data, plain = augmented(tmp_path), images(tmp_path)
    for (x, _), (other, _) in zip(data.heldout(8, 1, 2), plain.heldout(8, 1, 2), strict=True):
        assert np.array_equal(x, other)
    assert "augment" not in plain.identity()  # old trials keep their keys
    assert data.identity() == plain.identity() | {
        "augment": {"shift": 2, "flip": True, "erase": 0.5}
    }


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    for wrong, key in (({"shift": -1}, "shift"), ({"erase": 1.5}, "erase")):
        with pytest.raises(ConfigError) as caught:
            Augmentation(**wrong)  # type: ignore[arg-type]
        assert caught.value.key == key
    with pytest.raises(BadInput, match="shift=8"):
        replace(images(tmp_path), augment=Augmentation(shift=8)).check(8, 1)
    with pytest.raises(BadInput, match="images"):
        Augmentation(flip=True).check((64,))
    assert Digits(augment=Augmentation(shift=1)).augment.shift == 1
