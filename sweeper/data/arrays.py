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

from sweeper.data.cache import replacing
from sweeper.data.corpus import Batch, drawn, spaced
from sweeper.errors import BadInput

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class ArrayCorpus:
    """Samples uint8 [samples, *input_shape] and labels in a folder; the first `border` train.

    Inputs are given to the model as float32 with the train split's `mean` and `std` taken out,
    one of each for all entries. Small, and pickled without its samples.
    """

    folder: Path
    digest: str
    classes: int
    input_shape: tuple[int, ...]
    border: int
    mean: float
    std: float

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: pickling the memory maps would copy the files."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def inputs(self) -> Bytes:
        """All samples, through a memory map."""
        return _opened(self.folder / f"{self.digest}.inputs.npy")

    @cached_property
    def labels(self) -> Bytes:
        """All labels [samples]."""
        return _opened(self.folder / f"{self.digest}.labels.npy")

    def identity(self) -> dict[str, Any]:
        """What determines a trial's data; the digest is of samples, labels and border."""
        return {
            "digest": self.digest,
            "classes": self.classes,
            "input_shape": list(self.input_shape),
            "heldout": len(self.labels) - self.border,
        }

    def check(self, batch_size: int, seq_len: int) -> None:
        """BadInput unless the train split fills a batch; `seq_len` says nothing here."""
        if batch_size > self.border:
            raise BadInput(
                f"a batch of {batch_size} is more than the {self.border} samples for training; "
                "use a smaller batch_size"
            )

    def positions(self, seed: int, step: int, batch_size: int, seq_len: int) -> NDArray[np.int64]:
        """Indices of random train samples [batch]."""
        return drawn(seed, step, batch_size, self.border)

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Batch:
        """Random train samples float32 [batch, *input_shape] and labels [batch]; see `Corpus`."""
        return self._taken(self.positions(seed, step, batch_size, seq_len))

    def heldout(self, batch_size: int, seq_len: int, batches: int) -> Iterator[Batch]:
        """Evenly spaced held-out samples; some are repeated where there are fewer."""
        count, left = batches * batch_size, len(self.labels) - self.border
        at = self.border + spaced(count, left - 1)
        for first in range(0, count, batch_size):
            yield self._taken(at[first : first + batch_size])

    def _taken(self, at: NDArray[np.int64]) -> Batch:
        x = (self.inputs[at].astype(np.float32) - np.float32(self.mean)) / np.float32(self.std)
        return x, self.labels[at].astype(np.int64)


def save(cache: Path, inputs: Bytes, labels: Bytes, border: int) -> ArrayCorpus:
    """The corpus of these samples, the first `border` for training, its files kept in `cache`.

    BadInput where nothing is left on a side, where all inputs are alike, and where the cache
    cannot be written.
    """
    if not 0 < border < len(labels) or len(labels) != len(inputs):
        raise BadInput(f"{border} of {len(labels)} labels train on {len(inputs)} images: too few")
    train = inputs[:border]
    std = float(train.std(dtype=np.float64))
    if std == 0:
        raise BadInput("all inputs are the same number")
    corpus = ArrayCorpus(
        folder=cache.resolve(),
        digest=_digest(inputs, labels, border),
        classes=int(labels.max()) + 1,
        input_shape=tuple(inputs.shape[1:]),
        border=border,
        mean=float(train.mean(dtype=np.float64)),
        std=std,
    )
    for name, array in (("inputs", inputs), ("labels", labels)):
        path = corpus.folder / f"{corpus.digest}.{name}.npy"
        if not path.exists():
            with replacing(path) as file:
                np.save(file, array)
    return corpus


def _digest(inputs: Bytes, labels: Bytes, border: int) -> str:
    """SHA-256 (hex) of shapes, border and content."""
    found = hashlib.sha256(json.dumps([inputs.shape, border]).encode())
    for array in (inputs, labels):
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _opened(path: Path) -> Bytes:
    try:
        return np.asarray(np.lib.format.open_memmap(path, mode="r"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {error}; remove it to have it made anew") from error
