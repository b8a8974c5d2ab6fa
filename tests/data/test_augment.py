"""Augmentation of images: what it does by hand, how often, and that only training sees it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sweeper.data.arrays import Augmentation, Digits
from sweeper.errors import BadInput
from sweeper.models.scaled import CrossEntropy
from tests.engine.runs import assert_as_alone
from tests.models.arrays import images, trials

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
