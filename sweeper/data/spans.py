"""Span corruption: sequences with spans of tokens cut out, beside what was there.

After BART (Lewis et al., 2020; the task of arXiv:2304.02034, II.2) and T5 (Raffel et al., 2020).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sweeper.data.corpus import Batch, HeldoutShare, Source, TokenCorpus
from sweeper.errors import BadInput, ConfigError
from sweeper.records import Bounds, check_bounds
from sweeper.registry import build_plugin

IntArray = NDArray[np.int64]
Target = Literal["whole", "spans"]
HELDOUT_SEED = 2**64 - 1
"""The seed that spans of held-out windows are drawn with: no trial's."""
SPANS_COUNTER = 1
"""Spans are drawn from another part of a seed's stream than the windows' positions."""


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """How windows are corrupted.

    Of a window of T tokens `round(rate * T)` are cut out, in `round(that / mean_span)` spans, at
    least one of each; spans do not touch. Their places and lengths are uniform over all that is
    possible. With `target` "whole" each span becomes the same token and the target is the window;
    with "spans" the i-th becomes the i-th of the `sentinels`, and the target is every sentinel
    with its span, then one more sentinel.
    """

    rate: float
    mean_span: float
    target: Target
    sentinels: int

    def counts(self, seq_len: int) -> tuple[int, int]:
        """Tokens that are cut out of a window, and spans."""
        cut = max(1, round(self.rate * seq_len))
        # A span has a token or more, and between two spans one stays: spans - 1 <= seq_len - cut.
        return cut, max(1, min(round(cut / self.mean_span), seq_len - cut + 1))

    def identity(self) -> dict[str, Any]:
        """As plain JSON, as far as it changes anything."""
        settings: dict[str, Any] = {
            name: getattr(self, name) for name in ("rate", "mean_span", "target")
        }
        return settings | ({"sentinels": self.sentinels} if self.target == "spans" else {})

    @property
    def marks(self) -> int:
        """Tokens that stand for spans."""
        return 1 if self.target == "whole" else self.sentinels

    def lengths(self, seq_len: int) -> tuple[int, int]:
        """Tokens of an input and of a target that come of a window."""
        cut, spans = self.counts(seq_len)
        return seq_len - cut + spans, seq_len if self.target == "whole" else cut + spans + 1

    def check(self, seq_len: int) -> None:
        """BadInput for windows too short to be corrupted, or with more spans than sentinels."""
        cut, spans = self.counts(seq_len)
        if cut >= seq_len:
            raise BadInput(
                f"windows of seq_len {seq_len} are too short to cut {self.rate:.0%} out of them: "
                "nothing would be left; use a larger train.seq_len or a smaller data.rate"
            )
        if self.target == "spans" and spans + 1 > self.sentinels:
            raise BadInput(
                f"windows of seq_len {seq_len} have {spans} spans, which need {spans + 1} "
                f"sentinels, and data.sentinels is {self.sentinels}; use more, a larger "
                "data.mean_span or a smaller train.seq_len"
            )

    def masks(self, draws: NDArray[np.uint64], seq_len: int) -> NDArray[np.bool_]:
        """Which tokens are cut out [batch, seq_len]; `draws` [batch, 2 * seq_len] are random."""
        cut, spans = self.counts(seq_len)
        lengths = _parts(draws[:, :seq_len], cut, spans)
        # Tokens stay between spans, at least one, and perhaps before the first and after the last:
        # parts of two tokens more, of which the first and the last then lose one.
        gaps = _parts(draws[:, seq_len:], seq_len - cut + 2, spans + 1)
        gaps[:, [0, -1]] -= 1
        # A window is gap, span, gap, ..., span, gap: the lengths of these runs, one row a window.
        runs = np.empty((len(draws), 2 * spans + 1), np.int64)
        runs[:, ::2], runs[:, 1::2] = gaps, lengths
        kinds = np.arange(2 * spans + 1) % 2 == 1
        return np.stack([np.repeat(kinds, row) for row in runs])

    def corrupted(self, windows: IntArray, masks: NDArray[np.bool_], first: int) -> Batch:
        """Inputs and targets of `windows` [batch, seq_len]; `first` is the first mark's id."""
        # The first token of each span [batch, seq_len]; of a span the input keeps its place alone.
        starts = masks.copy()
        starts[:, 1:] &= ~masks[:, :-1]
        # At every position the mark of the last span that began there or before.
        marks = first + (0 if self.target == "whole" else np.cumsum(starts, 1) - 1)
        # All rows keep as many tokens, `lengths`, so that the flat selection is a batch again.
        inputs = np.where(starts, marks, windows)[starts | ~masks].reshape(len(windows), -1)
        if self.target == "whole":
            return inputs, windows
        _, length = self.lengths(windows.shape[1])
        # Filled with the closing sentinel, the one after the last span's; its place stays so.
        targets = np.full((len(windows), length), first + np.sum(starts, 1)[:, None])
        # A span takes its tokens and one place before them, for its sentinel.
        place, row = np.cumsum(masks + starts.astype(int), 1) - 1, np.arange(len(windows))[:, None]
        rows = np.broadcast_to(row, masks.shape)
        targets[rows[masks], place[masks]] = windows[masks]
        targets[rows[starts], place[starts] - 1] = np.broadcast_to(marks, masks.shape)[starts]
        return inputs, targets


def _parts(draws: NDArray[np.uint64], total: int, parts: int) -> IntArray:
    """`total` as a sum of `parts` positive numbers [batch, parts], each such sum as likely."""
    # Of the total - 1 places between units, parts - 1 are cut: the first ones of a permutation,
    # which the order of the random draws is.
    cuts = np.sort(np.argsort(draws[:, : total - 1], axis=1, kind="stable")[:, : parts - 1], axis=1)
    ends = np.full((len(draws), parts + 1), total)
    ends[:, 0], ends[:, 1:-1] = 0, cuts + 1
    return np.diff(ends, axis=1)


@dataclass(frozen=True, kw_only=True)
class SpanCorpus:
    """A corpus of tokens whose windows are corrupted; marks and the start token follow its ids.

    The last id is that of the start token, with which a decoder begins: no batch holds it.
    """

    tokens: TokenCorpus
    corruption: Corruption

    @property
    def classes(self) -> int:
        """The tokens' vocabulary, the marks and the start token."""
        return self.tokens.classes + self.corruption.marks + 1

    def identity(self) -> dict[str, Any]:
        """That of the tokens, and how they are corrupted."""
        spans = self.corruption.identity()
        return self.tokens.identity() | {"classes": self.classes, "spans": spans}

    def check(self, batch_size: int, seq_len: int) -> None:
        """BadInput unless windows can be corrupted and both splits fill what is asked of them."""
        self.corruption.check(seq_len)
        self.tokens.check(batch_size, seq_len)

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Batch:
        """Corrupted random windows and what the decoder is to write; see `Corpus`."""
        windows, _ = self.tokens.batch(seed, step, batch_size, seq_len)
        return self._corrupted(windows, seed, step)

    def heldout(self, batch_size: int, seq_len: int, batches: int) -> Iterator[Batch]:
        """Evenly spaced held-out windows, corrupted alike at each call."""
        for index, (windows, _) in enumerate(self.tokens.heldout(batch_size, seq_len, batches)):
            yield self._corrupted(windows, HELDOUT_SEED, index)

    def _corrupted(self, windows: IntArray, seed: int, step: int) -> Batch:
        key = np.array([seed, step], dtype=np.uint64)
        counter = np.array([0, 0, 0, SPANS_COUNTER], dtype=np.uint64)
        count, seq_len = windows.shape
        # A window's draws stand where its row does: a larger batch begins with a smaller one.
        draws = np.random.Philox(key=key, counter=counter).random_raw(count * 2 * (seq_len + 1))
        draws = draws.reshape(count, -1)
        how = self.corruption
        return how.corrupted(windows, how.masks(draws, seq_len), self.tokens.classes)


@dataclass(frozen=True, kw_only=True)
class Spans:
    """Span corruption of any text or tokens, for models that read one sequence and write another.

    `path` is a token file (.bin or .npy), text files as for `Text`, or null: the standard
    library's sources. `vocab_size` null is 256 for bytes, and for tokens the largest id and one.
    The corruption is `Corruption`'s; `heldout` and `tokenizer` as in `Text`.
    """

    path: str | None = None
    rate: Annotated[
        float, Bounds(above=0, below=1, allowed="the fraction cut out, above 0 and below 1")
    ] = 0.3
    mean_span: Annotated[float, Bounds(least=1, allowed="tokens of a span, at least 1")] = 3.0
    target: Target = "whole"
    sentinels: Annotated[int, Bounds(least=2, most=2**16, allowed=f"from 2 to {2**16}")] = 100
    heldout: HeldoutShare = 0.05
    tokenizer: str = "bytes"
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        """ConfigError for a corruption that is none, or a source that refuses its keys."""
        check_bounds(self)
        if self.target not in ("whole", "spans"):
            raise ConfigError("target", self.target, "whole or spans")
        self.source()

    def source(self) -> Source:
        """Where the tokens come from; ConfigError as that source's."""
        arguments: dict[str, Any] = {"heldout": self.heldout}
        if self.path is not None and self.path.endswith((".bin", ".npy")):
            if self.tokenizer != "bytes":
                allowed = f"bytes with a file of tokens, which {self.path} is: it is tokenized"
                raise ConfigError("tokenizer", self.tokenizer, allowed)
            kind, arguments["vocab_size"] = "tokens.Tokens", self.vocab_size
        else:
            kind = "text.Stdlib" if self.path is None else "text.Text"
            arguments["tokenizer"] = self.tokenizer
            arguments["vocab_size"] = 256 if self.vocab_size is None else self.vocab_size
        if self.path is not None:
            arguments["path"] = self.path
        source: Source = build_plugin({"_target_": f"sweeper.data.{kind}", **arguments})
        return source

    def prepare(self, cache: Path) -> SpanCorpus:
        """The corpus; BadInput as the source's."""
        tokens = self.source().prepare(cache)
        assert isinstance(tokens, TokenCorpus)
        return SpanCorpus(tokens=tokens, corruption=self.corruption)

    @property
    def corruption(self) -> Corruption:
        """How windows are corrupted."""
        return Corruption(
            rate=self.rate,
            mean_span=self.mean_span,
            target=self.target,
            sentinels=self.sentinels,
        )

    @property
    def placeholder(self) -> dict[str, Any]:
        """What of the corpus's identity a model is built by, before the data are read."""
        how = self.corruption
        return {"classes": (self.vocab_size or 256) + how.marks + 1, "spans": how.identity()}
