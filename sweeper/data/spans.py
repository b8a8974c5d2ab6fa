"""Span corruption: sequences with spans of tokens cut out, beside what was there.

After BART (Lewis et al., 2020; the task of arXiv:2304.02034, II.2) and T5 (Raffel et al., 2020).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from math import sqrt
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sweeper.data.corpus import Batch, HeldoutShare, Source, TokenCorpus, raw_draws
from sweeper.errors import BadInput, ConfigError
from sweeper.records import Bounds, check_bounds
from sweeper.registry import build_plugin

IntArray = NDArray[np.int64]
Target = Literal["whole", "spans"]
Lengths = Literal["uniform", "poisson", "drawn"]
HELDOUT_SEED = 2**64 - 1
"""The seed that spans of held-out windows are drawn with: no trial's."""
SPANS_COUNTER, SENTENCES_COUNTER = 1, 2
"""Spans and the order of sentences are drawn from other parts of a seed's stream than the windows'
positions, and from each other's."""


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """How windows are corrupted.

    Of a window of T tokens `round(rate * T)` are cut out, in `round(that / mean_span)` spans, at
    least one of each; spans do not touch. Their places are uniform over all that is possible. So
    are their `lengths`, 1 at least; or they are Poisson's, given their sum, and a span of none is a
    mark between two tokens (BART). "drawn" are Poisson's one after the other, as BART's code has
    them, until the input is as short as it shall be: the number of spans is drawn, too, and with it
    the share that is cut out, of which `rate` is the mean.

    With `target` "whole" each span becomes the same token and the target is the window; with
    "spans" the i-th becomes the i-th of the `sentinels`, and the target is every sentinel with its
    span, then one more sentinel.

    Before that the input's sentences, which end with one of the tokens `sentence_ends`, are put in
    random order; what stands before the first end and after the last counts as one each.
    """

    rate: float
    mean_span: float
    target: Target
    sentinels: int
    lengths: Lengths = "uniform"
    sentence_ends: tuple[int, ...] = ()

    def counts(self, seq_len: int) -> tuple[int, int]:
        """Tokens that are cut out of a window, and spans."""
        cut = max(1, round(self.rate * seq_len))
        # A span has a token or more, and between two spans one stays: spans - 1 <= seq_len - cut.
        return cut, max(1, min(round(cut / self.mean_span), seq_len - cut + 1))

    def identity(self) -> dict[str, Any]:
        """Plain JSON of what changes anything."""
        settings: dict[str, Any] = {
            name: getattr(self, name) for name in ("rate", "mean_span", "target")
        }
        settings |= {"sentinels": self.sentinels} if self.target == "spans" else {}
        settings |= {"lengths": self.lengths} if self.lengths != "uniform" else {}
        return settings | ({"sentence_ends": [*self.sentence_ends]} if self.sentence_ends else {})

    @property
    def marks(self) -> int:
        """Tokens that stand for spans."""
        return 1 if self.target == "whole" else self.sentinels

    def sizes(self, seq_len: int) -> tuple[int, int]:
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

    def groups(
        self, draws: NDArray[np.uint64], seq_len: int
    ) -> Iterator[tuple[IntArray, IntArray]]:
        """Windows [rows] of one number of spans each, and their `runs` [rows, 2 * spans + 1]."""
        if self.lengths != "drawn":
            yield np.arange(len(draws)), self.runs(draws, seq_len)
            return
        lengths, spans = self.drawn(draws[:, :seq_len], seq_len)
        for count in np.unique(spans):
            (rows,) = np.nonzero(spans == count)
            yield rows, _between(lengths[rows, :count], draws[rows, seq_len:], seq_len)

    def drawn(self, draws: NDArray[np.uint64], seq_len: int) -> tuple[IntArray, IntArray]:
        """Lengths of spans [batch, most spans], and of how many of them a window has [batch]."""
        cut, spans = self.counts(seq_len)
        # A span of n tokens shortens the input by n - 1, its mark being left. All windows lose as
        # many so that they keep one length, without padding: the last span is cut down to it. One
        # token stays between two spans, which bounds their number.
        lost, most = cut - spans, (seq_len - cut + spans + 1) // 2
        uniform = np.float64(2.0**-53) * (draws[:, :most] >> np.uint64(11))
        lengths = np.searchsorted(_poisson(self.mean_span), uniform, side="right").astype(np.int64)
        so_far = np.cumsum(lengths - 1, 1)
        so_far[:, -1] = np.maximum(so_far[:, -1], lost)
        last = (so_far >= lost).argmax(1)
        row = np.arange(len(draws))
        before = np.where(last > 0, so_far[row, last - 1], 0)
        lengths[row, last] = lost - before + 1
        return lengths, (last + 1).astype(np.int64)

    def runs(self, draws: NDArray[np.uint64], seq_len: int) -> IntArray:
        """Gap, span, ..., gap [batch, 2 spans + 1]; `draws` [batch, 2 (seq_len + 1)]."""
        cut, spans = self.counts(seq_len)
        if self.lengths == "uniform":
            lengths = _parts(draws[:, :seq_len], cut, spans)
        else:
            # Independent Poisson numbers, given their sum, are what comes of putting each of its
            # units into one of them at random: all windows keep one length, without padding.
            places = (draws[:, :cut] % np.uint64(spans)).astype(np.int64)
            lengths = (places[:, :, None] == np.arange(spans)).sum(1)
        return _between(lengths, draws[:, seq_len:], seq_len)

    def permuted(self, windows: IntArray, draws: NDArray[np.uint64]) -> IntArray:
        """`windows` [batch, seq_len], their sentences in the order of `draws` [batch, seq_len]."""
        ends = np.isin(windows, self.sentence_ends)
        ends[:, :-1] &= ~ends[:, 1:]  # of several in a row the last ends the sentence
        sentence: IntArray = np.cumsum(ends, 1) - ends
        order = np.argsort(np.take_along_axis(draws, sentence, 1), axis=1, kind="stable")
        return np.take_along_axis(windows, order, 1)

    def corrupted(self, windows: IntArray, runs: IntArray, first: int) -> Batch:
        """Inputs and targets of `windows` [batch, seq_len]; `first` is the first mark's id."""
        # Gap, mark, span, gap, ...: a window with a mark before each of its spans.
        batch, spans = len(windows), runs.shape[1] // 2
        lengths = np.ones((batch, 3 * spans + 1), np.int64)
        lengths[:, ::3], lengths[:, 2::3] = runs[:, ::2], runs[:, 1::2]
        kinds = np.arange(3 * spans + 1) % 3
        kind = np.stack([np.repeat(kinds, row) for row in lengths])
        marked = np.empty(kind.shape, np.int64)
        marked[kind != 1] = windows.ravel()
        ids = np.arange(spans) if self.target == "spans" else np.zeros(spans, np.int64)
        marked[kind == 1] = np.tile(first + ids, batch)
        # All rows keep as many tokens, `sizes`, so that the flat selection is a batch again.
        inputs = marked[kind != 2].reshape(batch, -1)
        if self.target == "whole":
            return inputs, windows
        closing = np.full((batch, 1), first + spans)
        return inputs, np.concatenate([marked[kind != 0].reshape(batch, -1), closing], 1)


def _between(lengths: IntArray, draws: NDArray[np.uint64], seq_len: int) -> IntArray:
    """`runs` of spans of `lengths` [batch, spans]: what is kept of the windows between them."""
    batch, spans = lengths.shape
    runs = np.empty((batch, 2 * spans + 1), np.int64)
    runs[:, 1::2] = lengths
    # Tokens stay between spans, at least one, and perhaps before the first and after the last:
    # parts of two tokens more, of which the first and the last then lose one.
    for kept in np.unique(seq_len - lengths.sum(1)):
        (rows,) = np.nonzero(seq_len - lengths.sum(1) == kept)
        runs[rows, ::2] = _parts(draws[rows], kept + 2, spans + 1)
    runs[:, [0, -1]] -= 1
    return runs


@cache
def _poisson(mean: float) -> NDArray[np.float64]:
    """Poisson's cumulative probabilities of 0, 1, ..., until they are 1."""
    counts = np.arange(1, int(mean + 12 * sqrt(mean) + 12))
    logs = np.concatenate([[-mean], np.cumsum(np.log(mean / counts)) - mean])
    return np.cumsum(np.exp(logs))


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
    """Corrupted windows of tokens; marks follow their ids, then the start token, in no batch."""

    tokens: TokenCorpus
    corruption: Corruption

    @property
    def classes(self) -> int:
        """The tokens' vocabulary, the marks and the start token."""
        return self.tokens.classes + self.corruption.marks + 1

    def identity(self) -> dict[str, Any]:
        """The tokens' identity, and how they are corrupted."""
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

    def heldout(self, batch_size: int, seq_len: int, batches: int | None) -> Iterator[Batch]:
        """Evenly spaced held-out windows, corrupted alike at each call."""
        for index, (windows, _) in enumerate(self.tokens.heldout(batch_size, seq_len, batches)):
            yield self._corrupted(windows, HELDOUT_SEED, index)

    def _corrupted(self, windows: IntArray, seed: int, step: int) -> Batch:
        count, seq_len = windows.shape

        def drawn(part: int, each: int) -> NDArray[np.uint64]:
            # A window's draws stand where its row does: a larger batch begins with a smaller one.
            return raw_draws(seed, step, count * each, part).reshape(count, each)

        how, sources = self.corruption, windows
        if how.sentence_ends:
            sources = how.permuted(windows, drawn(SENTENCES_COUNTER, seq_len))
        inputs, targets = (np.empty((count, size), np.int64) for size in how.sizes(seq_len))
        for rows, runs in how.groups(drawn(SPANS_COUNTER, 2 * (seq_len + 1)), seq_len):
            inputs[rows], targets[rows] = how.corrupted(sources[rows], runs, self.tokens.classes)
        return inputs, windows if how.target == "whole" else targets


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
    lengths: Lengths = "uniform"
    sentence_ends: tuple[Annotated[int, Bounds(least=0)], ...] = ()
    target: Target = "whole"
    sentinels: Annotated[int, Bounds(least=2, most=2**16, allowed=f"from 2 to {2**16}")] = 100
    heldout: HeldoutShare = 0.05
    tokenizer: str = "bytes"
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        """ConfigError for a corruption that is none, or a source that refuses its keys."""
        check_bounds(self)
        if self.lengths == "drawn" and (self.target != "whole" or self.mean_span <= 1):
            allowed = (
                "uniform or poisson with target=spans, whose targets have one length, and with a "
                "mean_span of 1, by which inputs get no shorter"
            )
            raise ConfigError("lengths", self.lengths, allowed)
        if self.sentence_ends and self.target != "whole":
            allowed = "[] with target=spans: sentences are put back in order where all is written"
            raise ConfigError("sentence_ends", list(self.sentence_ends), allowed)
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
        return Corruption(**{each.name: getattr(self, each.name) for each in fields(Corruption)})

    @property
    def placeholder(self) -> dict[str, Any]:
        """What of the corpus's identity a model is built by, before the data are read."""
        how = self.corruption
        return {"classes": (self.vocab_size or 256) + how.marks + 1, "spans": how.identity()}
