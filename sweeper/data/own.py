"""Data that nobody but the command reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.data.corpus import Batch


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """The command's own data, under a `name` that is part of every trial's key.

    `classes` is the size of the vocabulary, for a model that is built to be read.
    """

    name: str = ""
    classes: int = 256

    def prepare(self, cache: Path) -> OwnData:
        """Nothing is read."""
        return self

    def identity(self) -> dict[str, Any]:
        """The name, and the classes."""
        return {"own": self.name, "classes": self.classes, "heldout_fraction": 0.0}

    def check(self, batch_size: int, seq_len: int) -> None:
        """The command knows what it can fill."""

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Batch:
        """There is none."""
        raise NotImplementedError("the command reads its own data")

    def heldout(self, batch_size: int, seq_len: int, batches: int) -> Iterator[Batch]:
        """There is none."""
        raise NotImplementedError("the command reads its own data")
