"""scikit-learn's handwritten digits: images that come within its wheel."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from sweeper.data.arrays import ArrayCorpus, save_arrays
from sweeper.data.corpus import check_heldout
from sweeper.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Digits:
    """1,797 images of 8 x 8 pixels from 0 to 16, of which the fraction `heldout` is held out.

    The order is shuffled once and for all: the set lists writers one after the other.
    """

    heldout: float = 0.2

    input_shape: ClassVar[tuple[int, ...]] = (8, 8)

    def __post_init__(self) -> None:
        """ConfigError for a fraction that leaves nothing on a side."""
        check_heldout(self.heldout)

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
        order = sorted(range(len(labels)), key=lambda i: hashlib.sha256(str(i).encode()).digest())
        inputs = images.reshape(-1, *self.input_shape).astype(np.uint8)[order]
        train_size = len(labels) - round(len(labels) * self.heldout)
        return save_arrays(cache, inputs, labels.astype(np.uint8)[order], train_size)
