"""Text that someone else has tokenized: nanoGPT's `.bin`, or a `.npy` of integers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from sweeper.data.corpus import HeldoutShare, TokenCorpus, open_tokens, write_record
from sweeper.errors import BadInput, ConfigError
from sweeper.files import try_json
from sweeper.records import check_bounds
from sweeper.trial import digest

CHUNK_TOKENS = 2**22
MAX_VOCAB_SIZE = 2**31
"""No vocabulary is larger; it keeps ids apart from garbage, and within an int64."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The tokens in the file `path`, used where it is: no copy is made.

    A `.bin` holds uint16, little-endian, without a header (nanoGPT's format); a `.npy` one row
    of integers of any type. `vocab_size` None stands for the largest id and one. `heldout` is
    the fraction of the tokens held out, at the end.
    """

    path: str
    vocab_size: int | None = None
    heldout: HeldoutShare = 0.05

    def __post_init__(self) -> None:
        """ConfigError for a path that is none, or a vocabulary or fraction out of range."""
        check_bounds(self)
        if not self.path:
            raise ConfigError("path", self.path, "a token file, .bin (uint16) or .npy")
        size = self.vocab_size
        if size is not None and not 1 <= size <= MAX_VOCAB_SIZE:
            raise ConfigError("vocab_size", size, f"null, or from 1 to {MAX_VOCAB_SIZE}")

    def prepare(self, cache: Path) -> TokenCorpus:
        """The corpus; `cache` keeps the scan of the file for the next time.

        BadInput for a file that holds anything but tokens of the vocabulary (naming the first
        other id and its position), and where the cache cannot be written.
        """
        path = Path(os.path.expanduser(self.path)).resolve()
        tokens = open_tokens(path)
        scan = cached_scan(path, tokens, cache.resolve())
        classes = self.vocab_size or min(scan.high + 1, MAX_VOCAB_SIZE)
        if scan.low < 0 or scan.high >= classes:
            raise_out_of_range(path, tokens, classes)
        return TokenCorpus(
            path=path, digest=scan.digest, classes=classes, heldout_fraction=self.heldout
        )


@dataclass(frozen=True, kw_only=True)
class TokenScan:
    """Facts of a token file: its SHA-256, and the lowest and highest id."""

    digest: str
    low: int
    high: int


def cached_scan(path: Path, tokens: NDArray[np.integer], cache: Path) -> TokenScan:
    """The scan of `path`, from the cache where the file is as it was: minutes for 10 GB."""
    state = path.stat()
    key = digest([str(path), state.st_size, state.st_mtime_ns])
    sidecar = cache / f"scan-{key}.json"
    record = try_json(sidecar)
    if record.keys() == TokenScan.__dataclass_fields__.keys():
        return TokenScan(**record)
    scan = scan_tokens(tokens)
    write_record(sidecar, asdict(scan))
    return scan


def scan_tokens(tokens: NDArray[np.integer]) -> TokenScan:
    """Read all tokens once, in chunks."""
    # The type is part of it: the same bytes are other tokens in another width or byte order.
    content, lows, highs = hashlib.sha256(tokens.dtype.str.encode()), [], []
    for _, chunk in token_chunks(tokens):
        content.update(chunk.view(np.uint8).data)
        lows.append(int(chunk.min()))
        highs.append(int(chunk.max()))
    return TokenScan(digest=content.hexdigest(), low=min(lows), high=max(highs))


def token_chunks(tokens: NDArray[np.integer]) -> Iterator[tuple[int, NDArray[np.integer]]]:
    """All tokens in turn, each chunk beside the position of its first."""
    for start in range(0, len(tokens), CHUNK_TOKENS):
        yield start, tokens[start : start + CHUNK_TOKENS]


def raise_out_of_range(path: Path, tokens: NDArray[np.integer], classes: int) -> NoReturn:
    """BadInput that names the first id out of range, which only this error needs to look up."""
    for start, chunk in token_chunks(tokens):
        outside = np.flatnonzero((chunk < 0) | (chunk >= classes))
        if len(outside):
            at = int(outside[0])
            raise BadInput(
                f"{path} holds the id {chunk[at]} at position {start + at} (counted from 0), and "
                f"with vocab_size {classes} ids are from 0 to {classes - 1}"
            )
    raise BadInput(f"{path} changed while being read; try again")
