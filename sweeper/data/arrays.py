"""A corpus of labelled arrays, such as images: train samples, then held-out ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeper.data.corpus import Batch, even_positions, random_positions, replacing_in_cache
from sweeper.errors import BadInput

ByteArray = NDArray[np.uint8]


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
        }

    def check(self, batch_size: int, seq_len: int) -> None:
        """BadInput unless the train split fills a batch; `seq_len` says nothing here."""
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
        return self._samples(self.positions(seed, step, batch_size, seq_len))

    def heldout(self, batch_size: int, seq_len: int, batches: int) -> Iterator[Batch]:
        """Evenly spaced held-out samples; some are repeated where there are fewer."""
        count, heldout_size = batches * batch_size, len(self.labels) - self.train_size
        at = self.train_size + even_positions(count, heldout_size - 1)
        for first in range(0, count, batch_size):
            yield self._samples(at[first : first + batch_size])

    def _samples(self, at: NDArray[np.int64]) -> Batch:
        x = (self.inputs[at].astype(np.float32) - np.float32(self.mean)) / np.float32(self.std)
        return x, self.labels[at].astype(np.int64)


def save_arrays(cache: Path, inputs: ByteArray, labels: ByteArray, train_size: int) -> ArrayCorpus:
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
    )
    for name, array in (("inputs", inputs), ("labels", labels)):
        path = corpus.folder / f"{corpus.digest}.{name}.npy"
        if not path.exists():
            with replacing_in_cache(path) as file:
                np.save(file, array)
    return corpus


def _digest(inputs: ByteArray, labels: ByteArray, train_size: int) -> str:
    """SHA-256 (hex) of shapes, split and content."""
    content = hashlib.sha256(json.dumps([inputs.shape, train_size]).encode())
    for array in (inputs, labels):
        content.update(np.ascontiguousarray(array).data)
    return content.hexdigest()


def _open_npy(path: Path) -> ByteArray:
    try:
        return np.asarray(np.lib.format.open_memmap(path, mode="r"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {error}; remove it to have it made anew") from error
