"""Text as tokens: files or a library's sources, as bytes or a byte-level BPE trained on them."""

from __future__ import annotations

import codecs
import glob
import hashlib
import json
import os
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from sweeper.data.corpus import (
    HeldoutShare,
    TokenCorpus,
    replacing_in_cache,
    write_record,
)
from sweeper.errors import BadInput, ConfigError
from sweeper.files import try_json
from sweeper.records import check_bounds

BLOCK_BYTES = 2**20
CHUNK_CHARACTERS = 2**20
BPE_SAMPLE_BYTES = 2**28
"""Bytes of text, roughly, that a BPE is trained on at most: its memory grows with the words."""
WORD_PATTERN = (
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}{1,64}| ?\p{N}{1,64}| ?[^\s\p{L}\p{N}]{1,64}"
    r"|\s{1,64}(?!\S)|\s{1,64}"
)
"""GPT-2's pattern of words, each cut after 64 characters: training takes the square of a word's
length, and a megabyte of text without a space (a genome, base64) would take hours."""

Encode = Callable[[str], NDArray[np.integer]]


class NotUtf8(BadInput):
    """A file that is no UTF-8 text, and at which byte."""


@dataclass(frozen=True, kw_only=True)
class TextFiles(ABC):
    """Text files as one corpus, tokenized once and kept in the cache.

    `heldout` is the fraction of the tokens held out, at the end. `tokenizer` is "bytes" or "bpe";
    `vocab_size` is 256 for bytes, and the largest allowed for a BPE (a short text has fewer).
    """

    heldout: HeldoutShare = 0.05
    tokenizer: Literal["bytes", "bpe"] = "bytes"
    vocab_size: int = 256

    def __post_init__(self) -> None:
        """ConfigError for a vocabulary that the tokenizer cannot have."""
        check_bounds(self)
        low, high = (256, 256) if self.tokenizer == "bytes" else (257, 2**20)
        if not low <= self.vocab_size <= high:
            allowed = f"256 with tokenizer=bytes, and from 257 to {2**20} with tokenizer=bpe"
            raise ConfigError("vocab_size", self.vocab_size, allowed)

    @abstractmethod
    def files(self) -> list[Path]:
        """The files in the order they are read; BadInput when there is none."""

    def prepare(self, cache: Path) -> TokenCorpus:
        """The corpus, tokenized unless `cache` has it already.

        The cache holds `<digest>.npy`, its sidecar `<digest>.json` and, of a BPE,
        `<digest>.tokenizer.json`. BadInput for text that is empty or not UTF-8, and where the
        cache cannot be written.
        """
        files = self.files()
        digest, size = self._fingerprint(text_chunks(files))
        if size < len(files):  # nothing but the line ends between them
            raise BadInput(f"there is no text in {describe_files(files)}: all is empty")
        path = cache.resolve() / f"{digest}.npy"
        if not self._complete(path):
            self._build(files, digest, size, path)
        classes = int(try_json(path.with_suffix(".json"))["classes"])
        return TokenCorpus(path=path, digest=digest, classes=classes, heldout_fraction=self.heldout)

    def _fingerprint(self, text: Iterable[str]) -> tuple[str, int]:
        content, size = self._settings(), 0
        for chunk in text:
            data = chunk.encode()
            content.update(data)
            size += len(data)
        return content.hexdigest(), size

    def _settings(self) -> Any:
        settings: dict[str, Any] = {"tokenizer": self.tokenizer}
        if self.tokenizer == "bpe":
            # No two releases of the library promise the same merges.
            settings |= {"vocab_size": self.vocab_size, "library": tokenizers.__version__}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode() + b"\n")

    def _complete(self, path: Path) -> bool:
        if self.tokenizer == "bpe" and not os.path.exists(path.with_suffix(".tokenizer.json")):
            return False
        size = os.path.getsize(path) if os.path.exists(path) else -1
        record = try_json(path.with_suffix(".json"))
        return record.keys() == {"bytes", "classes"} and record["bytes"] == size

    def _build(self, files: list[Path], digest: str, size: int, path: Path) -> None:
        """Tokenize `files` into `path`; the sidecar comes last, and says that all is there."""
        encode, classes = self._encoder(files, size, path.with_suffix(".tokenizer.json"))
        seen = self._settings()
        dtype = np.min_scalar_type(classes - 1)
        with replacing_in_cache(path) as out:
            # NumPy pads its header so that a larger count fits in the place of this one.
            write_header(out, dtype, 0)
            start = out.tell()
            for chunk in text_chunks(files):
                seen.update(chunk.encode())
                out.write(encode(chunk).astype(dtype).tobytes())
            end = out.tell()
            out.seek(0)
            write_header(out, dtype, (end - start) // dtype.itemsize)
            if seen.hexdigest() != digest:  # within `with`: the file is not kept then
                raise BadInput(f"{describe_files(files)} changed while being read; try again")
        write_record(path.with_suffix(".json"), {"bytes": end, "classes": classes})

    def _encoder(self, files: list[Path], size: int, path: Path) -> tuple[Encode, int]:
        if self.tokenizer == "bytes":
            return encode_bytes, 256
        # Every n-th chunk: of all parts of the text, and the same ones each time.
        every = 1 + size // BPE_SAMPLE_BYTES
        bpe = train_bpe(islice(text_chunks(files), 0, None, every), self.vocab_size)
        with replacing_in_cache(path) as out:
            out.write(bpe.to_str().encode())
        return partial(encode_bpe, bpe), bpe.get_vocab_size()


def describe_files(files: list[Path]) -> str:
    """The files in a message."""
    return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


def decoded_blocks(path: Path) -> Iterator[str]:
    """A file's text in blocks; BadInput where it cannot be read, NotUtf8 where it is not."""
    decoder, block, end = codecs.getincrementaldecoder("utf-8")(), b"-", 0
    try:
        with path.open("rb") as file:
            while block:
                # The decoder keeps back the first bytes of a character that the block cuts.
                start = end - len(decoder.getstate()[0])
                block = file.read(BLOCK_BYTES)
                end += len(block)
                yield decoder.decode(block, final=not block)
    except UnicodeDecodeError as error:
        raise NotUtf8(
            f"{path} is not UTF-8: {error.reason} at byte {start + error.start}; "
            "convert it first (iconv -t UTF-8)"
        ) from error
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from error


def text_chunks(files: Iterable[Path]) -> Iterator[str]:
    """The text of all files, a line end between, in chunks that depend on the text alone."""
    rest = ""
    for index, file in enumerate(files):
        rest += "\n" if index else ""
        for text in decoded_blocks(file):
            rest += text
            while len(rest) >= CHUNK_CHARACTERS:
                yield rest[:CHUNK_CHARACTERS]
                rest = rest[CHUNK_CHARACTERS:]
    if rest:
        yield rest


def write_header(out: Any, dtype: np.dtype[Any], count: int) -> None:
    """Write the header of a .npy file of `count` numbers."""
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": (count,),
    }
    np.lib.format.write_array_header_1_0(out, header)


def encode_bytes(text: str) -> NDArray[np.integer]:
    """The UTF-8 bytes of `text` [bytes]."""
    return np.frombuffer(text.encode(), np.uint8)


def encode_bpe(bpe: Tokenizer, text: str) -> NDArray[np.integer]:
    """The tokens of `text` [tokens]; parts of it are encoded at the same time on all cores."""
    parts = [text[start : start + 2**16] for start in range(0, len(text), 2**16)]
    encodings = bpe.encode_batch_fast(parts, add_special_tokens=False)
    return np.concatenate([np.array(part.ids, np.uint32) for part in encodings])


def train_bpe(text: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE of at most `vocab_size` tokens; the same text gives the same."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(text, trainer)
    return bpe


@dataclass(frozen=True, kw_only=True)
class Text(TextFiles):
    """The text in `path`, a file or a glob (`**`, `~`): files in order, one line end between."""

    path: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise ConfigError("path", self.path, "a text file, or a glob such as texts/**/*.txt")

    def files(self) -> list[Path]:
        """The files that `path` stands for; BadInput for a directory or a glob without match."""
        path = os.path.expanduser(self.path)
        if os.path.lexists(path) or not glob.has_magic(path):
            if os.path.exists(path) and not os.path.isfile(path):
                raise BadInput(f"{path} is no regular file; a glob such as {path}/**/*.txt is fine")
            return [Path(path)]
        names = sorted(set(filter(os.path.isfile, glob.glob(path, recursive=True))))
        if not names:
            raise BadInput(f"no file matches {path}")
        return [Path(name) for name in names]


SKIPPED_NAMES = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
"""Directories that are no part of the library proper; `tests` has lib2to3's test data, too."""
GENERATED_PREFIXES = ("config-", "_sysconfigdata")
"""How names begin that a build writes: they differ between machines with the same Python."""


@dataclass(frozen=True, kw_only=True)
class Stdlib(TextFiles):
    """The `.py` sources of this interpreter's standard library: each version has its own digest."""

    def files(self) -> list[Path]:
        """The sources, shuffled; BadInput for an interpreter that comes without any."""
        root = Path(sysconfig.get_path("stdlib"))
        # The order is that of hashed names: the same everywhere, and yet a shuffle, so that the
        # held-out tail is representative of the whole and not the packages from x to z.
        by_name = {path.relative_to(root).as_posix(): path for path in sources(root)}
        shuffled = (by_name[name] for name in sorted(by_name, key=shuffle_key))
        files = [path for path in shuffled if is_utf8(path)]
        if not files:
            raise BadInput(f"this Python has no sources in {root}; use data=text or data=tokens")
        return files


def sources(root: Path) -> Iterator[Path]:
    """All `.py` files below `root` but those in `SKIPPED_NAMES` and `GENERATED_PREFIXES`."""
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if is_library_name(name)]
        texts = (name for name in names if name.endswith(".py") and is_library_name(name))
        yield from (Path(folder, name) for name in texts)


def is_library_name(name: str) -> bool:
    """Whether a file or directory of this name belongs to the text."""
    return name not in SKIPPED_NAMES and not name.startswith(GENERATED_PREFIXES)


def shuffle_key(name: str) -> bytes:
    """A key that sorts names in an arbitrary but fixed order."""
    return hashlib.sha256(name.encode()).digest()


def is_utf8(path: Path) -> bool:
    """Whether a file can be part of the text: some versions have a few in other encodings."""
    try:
        for _ in decoded_blocks(path):
            pass
    except NotUtf8:
        return False
    return True
