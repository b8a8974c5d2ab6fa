"""A corpus of labelled arrays, such as images: train samples, then held-out ones."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import log, prod, sqrt
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from sweeper.data.corpus import (
    Batch,
    HeldoutShare,
    even_positions,
    random_positions,
    raw_draws,
    replacing_in_cache,
)
from sweeper.errors import BadInput, ConfigError, first_line
from sweeper.records import Bounded, Bounds, to_json

ByteArray = NDArray[np.uint8]
AUGMENTATION_COUNTER, TORCHVISION_COUNTER = 2, 3
"""Augmentations are drawn from other parts of a seed's stream than the samples' positions."""


@dataclass(frozen=True, kw_only=True)
class Augmentation(Bounded):
    """How images are changed at every step that trains on them; held-out ones never are.

    `shift` moves an image by up to so many pixels along both sides, black following. `flip`
    mirrors half of them, left to right. `erase` is the share of images in which a rectangle is
    replaced by noise of the images' variance (Random Erasing, arXiv:1708.04896: its area 2 to 33 %
    of the image's, its sides' ratio 0.3 to 1/0.3).

    torchvision does the rest. `crop` is the least share of the area of a random crop, which is
    brought to the image's size; `randaugment` so many random operations in a row, of `magnitude`.
    `mixup` and `cutmix` are alphas: an image is mixed with the one before it in its batch, and so
    are their labels, in a share of Beta(alpha, alpha); with both, half of the batches each.
    """

    shift: Annotated[int, Bounds(least=0)] = 0
    flip: bool = False
    erase: Annotated[float, Bounds(least=0, most=1, allowed="a share from 0 to 1")] = 0.0
    crop: Annotated[float, Bounds(least=0, most=1, allowed="a share from 0 (none) to 1")] = 0.0
    randaugment: Annotated[int, Bounds(least=0)] = 0
    magnitude: Annotated[int, Bounds(least=0, most=30, allowed="from 0 to 30")] = 9
    mixup: Annotated[float, Bounds(least=0)] = 0.0
    cutmix: Annotated[float, Bounds(least=0)] = 0.0

    AREAS: ClassVar[tuple[float, float]] = (0.02, 0.33)
    RATIO: ClassVar[float] = 0.3

    @property
    def is_none(self) -> bool:
        """Whether images stay as they are."""
        return not (self.shift or self.flip or self.erase or self.by_torchvision)

    @property
    def by_torchvision(self) -> list[str]:
        """What is asked of torchvision."""
        names = ("crop", "randaugment", "mixup", "cutmix")
        return [name for name in names if getattr(self, name)]

    def identity(self) -> dict[str, Any]:
        """Plain JSON; of torchvision's, which came later, what changes anything."""
        asked = {*self.by_torchvision, *(["magnitude"] if self.randaugment else [])}
        return {
            name: value
            for name, value in to_json(self).items()
            if name in ("shift", "flip", "erase") or name in asked
        }

    def check(self, shape: tuple[int, ...]) -> None:
        """BadInput for what is no image, images smaller than the shift, or without torchvision."""
        if self.is_none:
            return
        if len(shape) not in (2, 3):
            raise BadInput(f"data.augment is for images; the inputs have the shape {list(shape)}")
        if self.shift >= min(shape[-2:]):
            raise BadInput(
                f"data.augment.shift={self.shift} moves images of {shape[-2]} x {shape[-1]} out of "
                "sight; use a smaller one"
            )
        if self.by_torchvision:
            self.transforms()
        if self.randaugment and len(shape) == 3 and shape[0] not in (1, 3):
            raise BadInput(
                f"data.augment.randaugment is for images of 1 or 3 channels; these have {shape[0]}"
            )

    def transforms(self) -> Any:
        """The module of torchvision's; BadInput where it cannot be imported."""
        try:
            from torchvision.transforms import v2
        except (ImportError, RuntimeError) as error:  # Runtime: it was built for another torch
            raise BadInput(
                f"data.augment.{self.by_torchvision[0]} needs torchvision: pip install "
                f"'sweeper[vision]', in the build that goes with this torch ({first_line(error)})"
            ) from error
        return v2

    def transformed(self, images: ByteArray, seeds: Sequence[int]) -> ByteArray:
        """`images` [batch, ..., height, width], each cropped and changed by its seed."""
        import torch

        v2, shape = self.transforms(), images.shape
        steps = [v2.RandAugment(self.randaugment, self.magnitude)] if self.randaugment else []
        if self.crop:
            steps = [v2.RandomResizedCrop(shape[-2:], scale=(self.crop, 1.0)), *steps]
        pixels = torch.from_numpy(np.array(images)).reshape(len(images), -1, *shape[-2:])
        for image, seed in zip(pixels, seeds, strict=True):
            with _drawn_by(seed):
                image.copy_(v2.Compose(steps)(image))
        return cast(ByteArray, pixels.numpy().reshape(shape))

    def mixed(
        self, x: NDArray[np.float32], labels: NDArray[np.int64], classes: int, seed: int
    ) -> Batch:
        """Images [batch, ..., height, width] mixed in pairs; shares of labels [batch, classes]."""
        import torch

        v2 = self.transforms()
        kinds = (v2.MixUp, self.mixup), (v2.CutMix, self.cutmix)
        made = [kind(alpha=alpha, num_classes=classes) for kind, alpha in kinds if alpha]
        pixels = torch.from_numpy(x).reshape(len(x), -1, *x.shape[-2:])
        with _drawn_by(seed):
            pixels, shares = v2.RandomChoice(made)(pixels, torch.from_numpy(labels))
        return pixels.numpy().reshape(x.shape), shares.numpy()

    def moved(self, images: ByteArray, draws: NDArray[np.float64]) -> ByteArray:
        """`images` [batch, ..., height, width], shifted and mirrored by `draws` [batch, 3]."""
        high, wide = images.shape[-2:]
        reach = 2 * self.shift + 1
        by = np.floor(draws[:, :2] * reach).astype(int) - self.shift
        rows, columns = np.arange(high) - by[:, :1], np.arange(wide) - by[:, 1:]
        seen = ((rows >= 0) & (rows < high))[:, :, None] & ((columns >= 0) & (columns < wide))[
            :, None
        ]
        if self.flip:
            mirrored = draws[:, 2:3] < 0.5
            columns = np.where(mirrored, wide - 1 - columns, columns)
        # One channel dimension for all, so that grey images are the case of a single one.
        pixels = images.reshape(len(images), -1, high, wide)
        index = np.arange(len(images))[:, None, None]
        at = (
            index,
            slice(None),
            rows.clip(0, high - 1)[:, :, None],
            columns.clip(0, wide - 1)[:, None],
        )
        # The slice between index arrays goes last: [batch, height, width, channels].
        moved: ByteArray = np.moveaxis(pixels[at], -1, 1) * seen[:, None].astype(np.uint8)
        return moved.reshape(images.shape)

    def erased(
        self, images: NDArray[np.float32], draws: NDArray[np.float64]
    ) -> NDArray[np.float32]:
        """`images` [batch, ..., height, width] of variance 1, with rectangles of noise.

        `draws` are uniform in [0, 1): [batch, 5 + entries of an image].
        """
        high, wide = images.shape[-2:]
        low, most = self.AREAS
        area = (low + (most - low) * draws[:, 1]) * high * wide
        ratio = np.exp((2 * draws[:, 2] - 1) * log(1 / self.RATIO))
        sides = [np.sqrt(area * ratio), np.sqrt(area / ratio)]
        inside = np.ones((len(images), high, wide), dtype=bool)
        for axis, (length, side, draw) in enumerate(
            zip((high, wide), sides, (draws[:, 3], draws[:, 4]), strict=True)
        ):
            # A rectangle longer than the image is cut down to it, where the paper draws anew.
            size = np.clip(np.round(side), 1, length)
            first = np.floor(draw * (length - size + 1))
            place = np.arange(length)
            within = (place >= first[:, None]) & (place < (first + size)[:, None])
            inside &= within[:, :, None] if axis == 0 else within[:, None]
        inside &= (draws[:, 0] < self.erase)[:, None, None]
        # Uniform on an interval of half-length sqrt 3: variance 1.
        noise = (sqrt(3) * (2 * draws[:, 5:] - 1)).reshape(images.shape).astype(np.float32)
        mask = inside if images.ndim == 3 else inside[:, None]
        return np.where(mask, noise, images)


@contextmanager
def _drawn_by(seed: int) -> Iterator[None]:
    """What torch draws on the host follows from `seed`; its own stream goes on afterwards."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@dataclass(frozen=True, kw_only=True)
class ArrayCorpus:
    """Samples uint8 [samples, *input_shape] and labels in a folder; the first `train_size` train.

    Inputs are given to the model as float32 with the train split's `mean` and `std` taken out,
    one of each for all entries. Small, and pickled without its samples.
    """

    folder: Path
    digest: str
    classes: int
    input_shape: tuple[int, ...]
    train_size: int
    mean: float
    std: float
    augment: Augmentation = field(default_factory=Augmentation)

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: pickling the memory maps would copy the files."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def inputs(self) -> ByteArray:
        """All samples, through a memory map."""
        return _open_npy(self.folder / f"{self.digest}.inputs.npy")

    @cached_property
    def labels(self) -> ByteArray:
        """All labels [samples]."""
        return _open_npy(self.folder / f"{self.digest}.labels.npy")

    def identity(self) -> dict[str, Any]:
        """What determines a trial's data; the digest is of samples, labels and the split."""
        return {
            "digest": self.digest,
            "classes": self.classes,
            "input_shape": list(self.input_shape),
            "heldout": len(self.labels) - self.train_size,
            **({} if self.augment.is_none else {"augment": self.augment.identity()}),
        }

    def check(self, batch_size: int, seq_len: int) -> None:
        """BadInput unless the train split fills a batch; `seq_len` says nothing here."""
        self.augment.check(self.input_shape)
        if batch_size > self.train_size:
            raise BadInput(
                f"a batch of {batch_size} is more than the {self.train_size} samples for training; "
                "use a smaller batch_size"
            )

    def positions(self, seed: int, step: int, batch_size: int, seq_len: int) -> NDArray[np.int64]:
        """Indices of random train samples [batch]."""
        return random_positions(seed, step, batch_size, self.train_size)

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Batch:
        """Random train samples float32 [batch, *input_shape] and labels [batch]; see `Corpus`."""
        at = self.positions(seed, step, batch_size, seq_len)
        how, images = self.augment, self.inputs[at]
        if how.is_none:
            return self._samples(at)
        # A row's draws stand where its image does: a larger batch begins with a smaller one.
        count = 8 + prod(self.input_shape)
        raw = raw_draws(seed, step, len(at) * count, AUGMENTATION_COUNTER)
        draws = np.float64(2.0**-53) * (raw >> np.uint64(11)).reshape(len(at), count)
        words = raw_draws(seed, step, 1 + len(at), TORCHVISION_COUNTER)
        whole, *each = (words >> np.uint64(1)).tolist()
        if how.crop or how.randaugment:
            images = how.transformed(images, each)
        x, labels = self._normalized(how.moved(images, draws[:, :3])), self._classes(at)
        if how.mixup or how.cutmix:
            x, labels = how.mixed(x, labels, self.classes, whole)
        return how.erased(x, draws[:, 3:]) if how.erase else x, labels

    def heldout(self, batch_size: int, seq_len: int, batches: int | None) -> Iterator[Batch]:
        """Evenly spaced held-out samples, some repeated where few; None: each once."""
        heldout_size = len(self.labels) - self.train_size
        count = heldout_size if batches is None else batches * batch_size
        # The held-out samples follow the train split; the last one has the index heldout_size - 1.
        at = self.train_size + even_positions(count, heldout_size - 1)
        for first in range(0, count, batch_size):
            yield self._samples(at[first : first + batch_size])

    def _samples(self, at: NDArray[np.int64]) -> Batch:
        return self._normalized(self.inputs[at]), self._classes(at)

    def _classes(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.labels[at].astype(np.int64)

    def _normalized(self, images: ByteArray) -> NDArray[np.float32]:
        return (images.astype(np.float32) - np.float32(self.mean)) / np.float32(self.std)


def save_arrays(
    cache: Path,
    inputs: ByteArray,
    labels: ByteArray,
    train_size: int,
    augment: Augmentation = Augmentation(),
) -> ArrayCorpus:
    """The corpus of these samples, the first `train_size` for training, its files kept in `cache`.

    BadInput where nothing is left on a side, where all inputs are alike, and where the cache
    cannot be written.
    """
    if not 0 < train_size < len(labels) or len(labels) != len(inputs):
        raise BadInput(
            f"{len(inputs)} images with {len(labels)} labels are too few to train on {train_size} "
            "and to hold out the rest"
        )
    train = inputs[:train_size]
    # Of the train split alone: training must know nothing of held-out samples.
    std = float(train.std(dtype=np.float64))
    if std == 0:
        raise BadInput("all inputs are the same number: there is nothing to learn from them")
    corpus = ArrayCorpus(
        folder=cache.resolve(),
        digest=_digest(inputs, labels, train_size),
        classes=int(labels.max()) + 1,
        input_shape=tuple(inputs.shape[1:]),
        train_size=train_size,
        mean=float(train.mean(dtype=np.float64)),
        std=std,
        augment=augment,
    )
    for name, array in (("inputs", inputs), ("labels", labels)):
        path = corpus.folder / f"{corpus.digest}.{name}.npy"
        if not path.exists():
            with replacing_in_cache(path) as file:
                np.save(file, array)
    return corpus


def _digest(inputs: ByteArray, labels: ByteArray, train_size: int) -> str:
    content = hashlib.sha256(json.dumps([inputs.shape, train_size]).encode())
    for array in (inputs, labels):
        content.update(np.ascontiguousarray(array).data)
    return content.hexdigest()


def _open_npy(path: Path) -> ByteArray:
    try:
        return np.asarray(np.lib.format.open_memmap(path, mode="r"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {error}; remove it to have it made anew") from error


@dataclass(frozen=True, kw_only=True)
class Digits(Bounded):
    """1,797 images of 8 x 8 pixels from 0 to 16, shuffled once for all; a share is `heldout`."""

    heldout: HeldoutShare = 0.2
    augment: Augmentation = field(default_factory=Augmentation)

    input_shape: ClassVar[tuple[int, ...]] = (8, 8)

    def prepare(self, cache: Path) -> ArrayCorpus:
        """The corpus; BadInput without scikit-learn, which is an optional dependency."""
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise BadInput(
                "data=digits needs scikit-learn, which has the images: "
                "pip install 'sweeper[digits]' (or scikit-learn)"
            ) from error
        images, labels = load_digits(return_X_y=True)
        # A shuffle by hashes: the same with every version of NumPy.
        order = sorted(range(len(labels)), key=lambda i: hashlib.sha256(str(i).encode()).digest())
        inputs = images.reshape(-1, *self.input_shape).astype(np.uint8)[order]
        train_size = len(labels) - round(len(labels) * self.heldout)
        targets = labels.astype(np.uint8)[order]
        return save_arrays(cache, inputs, targets, train_size, self.augment)


# The MNIST family: MNIST, Fashion-MNIST, KMNIST, EMNIST as idx files.
# The format (Yann LeCun's MNIST page): two zero bytes, a type (8: unsigned bytes), the number of
# dimensions, each size as a big-endian int32, then the values, the last dimension fastest.


SPLITS = {"train": ("train",), "test": ("t10k", "test")}


@dataclass(frozen=True, kw_only=True)
class Idx:
    """The idx files in the folder `path`: train and test (t10k) images and labels, also .gz.

    The test split is held out. A file is found by the words in its name, such as
    `train-images-idx3-ubyte.gz` or `emnist-letters-test-labels-idx1-ubyte`.
    """

    path: str
    augment: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("path", self.path, "a folder with idx files, also .gz")

    @cached_property
    def input_shape(self) -> tuple[int, ...]:
        """An image's shape, from the header alone; BadInput as `prepare`."""
        return read_shape(self.file("train", "images"))[1:]

    def prepare(self, cache: Path) -> ArrayCorpus:
        """The corpus; BadInput for a file that is missing, not alone, or no idx file of bytes."""
        inputs, labels = {}, {}
        for split in SPLITS:
            inputs[split] = read_idx(self.file(split, "images"))
            labels[split] = read_idx(self.file(split, "labels"))
            if labels[split].shape != inputs[split].shape[:1]:
                raise BadInput(
                    f"{self.path}: {inputs[split].shape[0]} {split} images, and labels of shape "
                    f"{list(labels[split].shape)}"
                )
        if inputs["train"].shape[1:] != inputs["test"].shape[1:]:
            raise BadInput(f"{self.path}: train and test images differ in shape")
        train_size = len(labels["train"])
        images, targets = (np.concatenate([p["train"], p["test"]]) for p in (inputs, labels))
        return save_arrays(cache, images, targets, train_size, self.augment)

    def file(self, split: str, kind: str) -> Path:
        """The one file of a split; BadInput when there is none, or more than one."""
        folder = Path(os.path.expanduser(self.path))
        if not folder.is_dir():
            raise BadInput(f"{folder} is no folder; give the one with the idx files")
        candidates = sorted(
            path
            for path in folder.iterdir()
            if kind in path.name
            and "idx" in path.name
            and any(w in path.name for w in SPLITS[split])
        )
        # A file and its .gz count as one; the unpacked one comes last and is taken.
        plain = {path.name.removesuffix(".gz"): path for path in reversed(candidates)}
        if len(plain) != 1:
            names = ", ".join(path.name for path in candidates) or "none"
            example = f"{SPLITS[split][0]}-{kind}-idx{3 if kind == 'images' else 1}-ubyte[.gz]"
            raise BadInput(f"{folder} must have one file such as {example}; found: {names}")
        return plain.popitem()[1]


@contextmanager
def open_idx(path: Path) -> Iterator[BinaryIO]:
    """The file, unpacked as it is read if its name ends in .gz; BadInput where it is unreadable."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield cast(BinaryIO, file)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error


def read_shape(path: Path) -> tuple[int, ...]:
    """The sizes that an idx file tells; BadInput as `read_idx`."""
    with open_idx(path) as file:
        return _read_header(path, file)


def read_idx(path: Path) -> ByteArray:
    """The values of an idx file; BadInput for anything but one of unsigned bytes, whole."""
    with open_idx(path) as file:
        sizes = _read_header(path, file)
        data = file.read()
    if len(data) != prod(sizes):
        raise BadInput(f"{path} holds {len(data)} values; its header tells {list(sizes)}")
    return np.frombuffer(data, np.uint8).reshape(sizes)


def _read_header(path: Path, file: BinaryIO) -> tuple[int, ...]:
    # Two zero bytes, the type 8, the number of dimensions (four at most: nothing here has more).
    magic = file.read(4)
    if len(magic) < 4 or magic[:3] != b"\0\0\x08" or not 1 <= magic[3] <= 4:
        raise BadInput(f"{path} is no idx file of unsigned bytes (it begins with {magic.hex()})")
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise BadInput(f"{path} ends within its header")
    return struct.unpack(f">{magic[3]}I", sizes)
