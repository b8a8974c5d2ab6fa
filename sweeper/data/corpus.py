"""What training asks of a corpus, and a corpus of tokens: one flat file with a held-out tail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from sweeper import files
from sweeper.errors import BadInput
from sweeper.records import Bounds

Batch = tuple[NDArray[Any], NDArray[Any]]
"""Inputs and targets, the batch first: int64 tokens [batch, seq] twice, or float32 arrays
[batch, ...] and labels [batch], of mixed images float32 shares [batch, classes]."""


class Corpus(Protocol):
    """A train split to draw batches from, and a held-out split. Small, and can be pickled.

    `classes` is the size of the model's last dimension. `seq_len` is for sequences alone; other
    corpora ignore it. Call `check` before the first batch.
    """

    @property
    def classes(self) -> int:
        """How many classes, or words of a vocabulary, a target is one of."""

    def identity(self) -> dict[str, Any]:
        """What determines a trial's data, in JSON: `classes`, and of arrays `input_shape`."""

    def check(self, batch_size: int, seq_len: int) -> None:
        """BadInput unless both splits can fill what is asked of them."""

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Batch:
        """Random samples of the train split that follow from `seed` and `step` alone.

        A trial's data are then the same whatever else runs beside it, and a larger batch begins
        with a smaller one.
        """

    def heldout(self, batch_size: int, seq_len: int, batches: int | None) -> Iterator[Batch]:
        """`batches` batches of evenly spaced held-out samples, the same at each call.

        None: each of them once, of text windows side by side; the last batch is what is left.
        """


def raw_draws(seed: int, step: int, count: int, part: int = 0) -> NDArray[np.uint64]:
    """`count` random words by `seed` and `step` (0 to 2**64 - 1), from `part` of their stream."""
    # Philox is a function of its key, and NumPy promises its raw stream (but not that of
    # `Generator`) forever.
    key, counter = (np.array(each, dtype=np.uint64) for each in ([seed, step], [0, 0, 0, part]))
    draws: NDArray[np.uint64] = np.random.Philox(key=key, counter=counter).random_raw(count)
    return draws


def random_positions(seed: int, step: int, count: int, below: int) -> NDArray[np.int64]:
    """`count` random positions from 0 to `below` - 1, by `seed` and `step` (0 to 2**64 - 1)."""
    # The bias of the remainder is below 1e-8 up to 1e11 positions.
    return (raw_draws(seed, step, count) % np.uint64(below)).astype(np.int64)


def even_positions(count: int, room: int) -> NDArray[np.int64]:
    """`count` positions evenly spaced from 0 to `room`, both included; 0 for a single one."""
    return np.arange(count) * room // max(count - 1, 1)


@dataclass(frozen=True, kw_only=True)
class TokenCorpus:
    """Tokens in a file, of which the last part is held out.

    `path` is a flat token file: `.npy` of any integer type, or nanoGPT's raw uint16 `.bin`.
    `digest` is the SHA-256 (hex) of the content that the tokens follow from, `classes` the size
    of the vocabulary, `heldout_fraction` the fraction of the tokens, at the end, that is never
    trained on. A corpus is small and can be pickled: the file is mapped on first use.
    """

    path: Path
    digest: str
    classes: int
    heldout_fraction: float

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: pickling the memory map would copy the whole file."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def tokens(self) -> NDArray[np.integer]:
        """All tokens [tokens], read through a memory map; BadInput as `open_tokens`."""
        return open_tokens(self.path)

    @property
    def train_size(self) -> int:
        """Number of tokens in the train split: the index of the first that is held out."""
        return len(self.tokens) - round(len(self.tokens) * self.heldout_fraction)

    def identity(self) -> dict[str, Any]:
        """What determines a trial's data, as plain JSON; where the file lies is no part of it."""
        return {
            "digest": self.digest,
            "classes": self.classes,
            "heldout_fraction": self.heldout_fraction,
        }

    def check(self, batch_size: int, seq_len: int) -> None:
        """BadInput unless the train split fills one batch and the held-out split one window."""
        count, train_size = len(self.tokens), self.train_size
        if (need := batch_size * seq_len + 1) > train_size:
            raise BadInput(
                f"{self.path} is too short to train on: {train_size} of its {count} tokens are for "
                f"training, and one batch of {batch_size} x {seq_len} needs {need}; "
                "use more text, or a smaller batch_size, seq_len or heldout"
            )
        if (need := seq_len + 1) > count - train_size:
            raise BadInput(
                f"{self.path} is too short to hold text out: {count - train_size} of its {count} "
                f"tokens are held out, and one window of seq_len {seq_len} needs {need}; "
                "use more text, a larger heldout or a smaller seq_len"
            )

    def positions(self, seed: int, step: int, batch_size: int, seq_len: int) -> NDArray[np.int64]:
        """First tokens of random windows of the train split [batch]."""
        # A window has seq_len + 1 tokens, so the last start is train_size - (seq_len + 1), and
        # there is one start more than that.
        return random_positions(seed, step, batch_size, self.train_size - seq_len)

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Batch:
        """Random windows of the train split: tokens and the ones that follow, [batch, seq]."""
        return self._windows(self.positions(seed, step, batch_size, seq_len), seq_len)

    def heldout(self, batch_size: int, seq_len: int, batches: int | None) -> Iterator[Batch]:
        """Evenly spaced windows of the held-out tail, the same at each call.

        No window overlaps the train split; windows overlap each other where the tail is shorter
        than all of them.
        """
        room = len(self.tokens) - self.train_size - (seq_len + 1)
        count = room // seq_len + 1 if batches is None else batches * batch_size
        starts = self.train_size + even_positions(count, room)
        for first in range(0, count, batch_size):
            yield self._windows(starts[first : first + batch_size], seq_len)

    def _windows(self, starts: NDArray[np.int64], seq_len: int) -> Batch:
        """Inputs and targets of the windows of seq_len + 1 tokens from each of `starts` [batch]."""
        windows = self.tokens[starts[:, None] + np.arange(seq_len + 1)].astype(np.int64)
        return windows[:, :-1], windows[:, 1:]


class Source(Protocol):
    """Where data come from; built from the configuration group `data`.

    A source of arrays also has `input_shape`, so that the model can be checked before `prepare`.
    """

    def prepare(self, cache: Path) -> Corpus:
        """The corpus, its files kept in the directory `cache`; BadInput when there is none."""


HeldoutShare = Annotated[
    float, Bounds(above=0, below=1, allowed="the held-out fraction, above 0 and below 1")
]


def open_tokens(path: Path) -> NDArray[np.integer]:
    """The tokens in `path` [tokens] as a read-only memory map; BadInput for any other content."""
    if path.suffix not in (".bin", ".npy"):
        raise BadInput(f"{path} is no token file: its name must end in .bin (uint16) or .npy")
    try:
        tokens = _map_bin(path) if path.suffix == ".bin" else _map_npy(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from error
    if not len(tokens):
        raise BadInput(f"{path} holds no tokens")
    return tokens


def _map_bin(path: Path) -> NDArray[np.integer]:
    """Map nanoGPT's format: uint16, little-endian, no header."""
    size = path.stat().st_size
    if size % 2:
        raise BadInput(
            f"{path} has an odd number of bytes ({size}), so it is no flat file of uint16 tokens"
        )
    return np.asarray(np.memmap(path, "<u2", mode="r")) if size else np.empty(0, "<u2")


def _map_npy(path: Path) -> NDArray[np.integer]:
    """Map a .npy file; objects in it are never unpickled, as memory maps cannot hold any."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # a broken header ends in any of half a dozen kinds
        raise BadInput(f"{path} is no .npy file of integers: {error}") from error
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise BadInput(
            f"{path} holds {array.dtype} of shape {array.shape}; tokens are integers in one row"
        )
    return np.asarray(array)


@contextmanager
def replacing_in_cache(path: Path) -> Iterator[BinaryIO]:
    """`files.replacing`, safe beside other jobs; BadInput when the folder cannot be written."""
    try:
        files.private_folder(path.parent)
        with files.replacing(path) as file:
            yield file
    except OSError as error:
        raise BadInput(
            f"the cache directory {path.parent} cannot be written: {error.strerror or error}"
        ) from error


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a small record under `path`; BadInput as `replacing_in_cache`."""
    with replacing_in_cache(path) as file:
        file.write(files.json_text(record).encode())


@dataclass(frozen=True, kw_only=True)
class UserData:
    """Data of a user command, `name`d in every trial's key; `classes` is the vocabulary's size."""

    name: str = ""
    classes: int = 256

    def prepare(self, cache: Path) -> UserData:
        """Nothing is read."""
        return self

    def identity(self) -> dict[str, Any]:
        """The name, and the classes."""
        return {"own": self.name, "classes": self.classes, "heldout_fraction": 0.0}

    def check(self, batch_size: int, seq_len: int) -> None:
        """The command knows what it can fill."""

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Batch:
        """There is none."""
        raise NotImplementedError("the user command reads the data")

    def heldout(self, batch_size: int, seq_len: int, batches: int | None) -> Iterator[Batch]:
        """There is none."""
        raise NotImplementedError("the user command reads the data")


def placeholder_data(source: Source) -> dict[str, Any]:
    """An identity of the data as far as its source tells it, before the data are read.

    Where only the data could tell, 256 classes stand in for tokens, which are bytes by default, and
    10 for arrays, as of digits. They change the shapes of embedding and readout in a dimension that
    no width makes grow, and so neither roles nor exponents.
    """
    classes = getattr(source, "vocab_size", None) or 256
    if isinstance(source, UserData):
        classes = source.classes
    data: dict[str, Any] = {"digest": "", "classes": classes, "heldout_fraction": 0.05}
    if (shape := getattr(source, "input_shape", None)) is not None:
        data |= {"input_shape": list(shape), "classes": 10}
    return data | getattr(source, "placeholder", {})
