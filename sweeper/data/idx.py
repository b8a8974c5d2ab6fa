"""The MNIST family: MNIST, Fashion-MNIST, KMNIST, EMNIST as idx files.

The format (Yann LeCun's MNIST page): two zero bytes, a type (8: unsigned bytes), the number of
dimensions, each size as a big-endian int32, then the values, the last dimension fastest.
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from sweeper.data.arrays import ArrayCorpus, ByteArray, save_arrays
from sweeper.errors import BadInput, ConfigError

SPLITS = {"train": ("train",), "test": ("t10k", "test")}
"""How the two splits are called in file names."""


@dataclass(frozen=True, kw_only=True)
class Idx:
    """The idx files in the folder `path`: train and test (t10k) images and labels, also .gz.

    The test split is held out. A file is found by the words in its name, such as
    `train-images-idx3-ubyte.gz` or `emnist-letters-test-labels-idx1-ubyte`.
    """

    path: str

    def __post_init__(self) -> None:
        """ConfigError for a path that is none."""
        if not isinstance(self.path, str) or not self.path:
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
        return save_arrays(cache, images, targets, train_size)

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


def open_idx(path: Path) -> BinaryIO:
    """The file, unpacked as it is read if its name ends in .gz."""
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def read_shape(path: Path) -> tuple[int, ...]:
    """The sizes that an idx file tells; BadInput as `read_idx`."""
    try:
        with open_idx(path) as file:
            return _read_header(path, file)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error


def read_idx(path: Path) -> ByteArray:
    """The values of an idx file; BadInput for anything but one of unsigned bytes, whole."""
    try:
        with open_idx(path) as file:
            sizes = _read_header(path, file)
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
    if len(data) != prod(sizes):
        raise BadInput(f"{path} holds {len(data)} values; its header tells {list(sizes)}")
    return np.frombuffer(data, np.uint8).reshape(sizes)


def _read_header(path: Path, file: BinaryIO) -> tuple[int, ...]:
    """Read the header: the sizes; BadInput for any other content than unsigned bytes."""
    magic = file.read(4)
    if len(magic) < 4 or magic[:3] != b"\0\0\x08" or not 1 <= magic[3] <= 4:
        raise BadInput(f"{path} is no idx file of unsigned bytes (it begins with {magic.hex()})")
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise BadInput(f"{path} ends within its header")
    return struct.unpack(f">{magic[3]}I", sizes)
