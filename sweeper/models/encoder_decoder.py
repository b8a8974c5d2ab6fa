"""An encoder-decoder Transformer (papers/effective-theory-transformers.txt, sec. II 2 B).

As BART with its norms before each residual branch: bias-free blocks, layer norms without gains,
learned positions, GELU, one table of words for both stacks and, with `tie`, for the head.
"""

from __future__ import annotations

from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sweeper.models.fp8 import Fp8
from sweeper.models.loss import head_loss
from sweeper.models.scaled import (
    Attention,
    CrossEntropy,
    Embedding,
    Linear,
    Residual,
    check_heads,
    check_sizes,
    dropout_of,
    dropped,
)
from sweeper.models.vit import FeedForward, normalized

ENCODER_BRANCHES, DECODER_BRANCHES = 2, 3
"""Residual branches of a layer: attention and FFN; masked, then mixed attention, and FFN."""


class MultiHeadAttention(nn.Module):
    """Queries of `x`, keys and values of `source` (eqs. 1.12 and 2.2-2.4)."""

    def __init__(self, model: EncoderDecoder, source_len: int, *, causal: bool) -> None:
        super().__init__()
        width, head_size, unit = model.width, model.head_size, model.unit
        self.head_size = head_size
        self.query = Linear(width, width, unit=unit)
        self.key_value = Linear(width, 2 * width, unit=unit)
        drop = dropout_of(model.attention_dropout, "attention_dropout")
        self.core = Attention(head_size, source_len, causal=causal, unit=unit, dropout=drop)
        self.out = Linear(width, width, unit=unit)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        """[batch, seq, width] and [batch, source_len, width] -> the shape of `x`."""
        key, value = (self._heads(t) for t in self.key_value(source).chunk(2, -1))
        y = self.core(self._heads(self.query(x)), key, value)
        out: Tensor = self.out(y.transpose(1, 2).reshape(x.shape))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], -1, self.head_size).transpose(1, 2)


class EncoderLayer(nn.Module):
    """Two residual branches: attention in both directions, then feed-forward."""

    def __init__(self, index: int, model: EncoderDecoder) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(model, model.source_len, causal=False)
        self.attention_residual = model.residual(index, 0, ENCODER_BRANCHES)
        self.ffn = FeedForward(model.width, model.ffn_ratio * model.width, unit=model.unit)
        self.ffn_residual = model.residual(index, 1, ENCODER_BRANCHES)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, source_len, width] -> the same shape."""
        y = normalized(self.attention_residual.split(x))
        x = self.attention_residual.add(self.attention(y, y), x)
        y = normalized(self.ffn_residual.split(x))
        return self.ffn_residual.add(self.ffn(y), x)


class DecoderLayer(nn.Module):
    """Three residual branches: masked attention, mixed attention to the encoder, feed-forward."""

    def __init__(self, index: int, model: EncoderDecoder) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(model, model.target_len, causal=True)
        self.attention_residual = model.residual(index, 0, DECODER_BRANCHES)
        self.mixed = MultiHeadAttention(model, model.source_len, causal=False)
        self.mixed_residual = model.residual(index, 1, DECODER_BRANCHES)
        self.ffn = FeedForward(model.width, model.ffn_ratio * model.width, unit=model.unit)
        self.ffn_residual = model.residual(index, 2, DECODER_BRANCHES)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        """[batch, target_len, width], and the encoder's output, normalized -> the same shape."""
        y = normalized(self.attention_residual.split(x))
        x = self.attention_residual.add(self.attention(y, y), x)
        y = normalized(self.mixed_residual.split(x))
        x = self.mixed_residual.add(self.mixed(y, source), x)
        y = normalized(self.ffn_residual.split(x))
        return self.ffn_residual.add(self.ffn(y), x)


class EncoderDecoder(nn.Module):
    """Reads a sequence of `source_len` tokens and writes one of `target_len`.

    `depth` layers in each stack. `start` is the token that the decoder begins with: it reads the
    targets shifted by one. With `tie` the words' table is also the head. In training `dropout` is
    the share of dropped entries of embedded words and of branches' outputs, `attention_dropout`
    that of attention's weights. `base_depth` and `unit` as in every model: given by the
    parameterization's side.
    """

    def __init__(
        self,
        *,
        width: int,
        depth: int,
        classes: int,
        source_len: int,
        target_len: int,
        start: int,
        head_size: int = 16,
        ffn_ratio: int = 4,
        tie: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        base_depth: int | None = None,
        unit: bool = False,
        fp8: Fp8 | None = None,
    ) -> None:
        """The parameterization draws all parameters; ConfigError names a size that is off."""
        super().__init__()
        check_sizes(width=width, depth=depth, head_size=head_size, ffn_ratio=ffn_ratio)
        check_heads(width, head_size)
        self.width, self.depth, self.head_size, self.ffn_ratio = width, depth, head_size, ffn_ratio
        self.source_len, self.target_len, self.start = source_len, target_len, start
        self.dropout, self.attention_dropout = dropout, attention_dropout
        self.embedding_dropout = dropout_of(dropout)
        self.unit, self.base_depth, self.fp8 = unit, base_depth or depth, fp8 or Fp8()
        self.embedding = Embedding(classes, width, unit=unit)
        self.encoder_position = Embedding(source_len, width, unit=unit)
        self.encoder_layers = nn.ModuleList(EncoderLayer(i, self) for i in range(depth))
        self.decoder_position = Embedding(target_len, width, unit=unit)
        self.decoder_layers = nn.ModuleList(DecoderLayer(i, self) for i in range(depth))
        self.head = None if tie else Linear(width, classes, unit=unit, readout=True)
        self.loss = CrossEntropy(classes, unit=unit)
        self.fp8.apply_to(self)

    def residual(self, layer: int, place: int, per_layer: int) -> Residual:
        """Branch `place` of a layer of a stack whose layers have `per_layer`, both from 0."""
        # Each stack is a residual stream of its own: branches are counted within it, from 1. All
        # but the last branch of a layer are attention's.
        return Residual(
            layer * per_layer + place + 1,
            self.depth * per_layer,
            self.base_depth * per_layer,
            unit=self.unit,
            attentions=per_layer - 1,
            dropout=self.dropout,
        )

    def _embedded(self, tokens: Tensor, position: Embedding) -> Tensor:
        index = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape[0], -1)
        x: Tensor = self.embedding(tokens) + position(index)
        return dropped(self.embedding_dropout, normalized(x / sqrt(2) if self.unit else x))

    def example_inputs(self) -> tuple[Tensor, Tensor]:
        """Two examples and their targets, without memory."""
        lengths = (self.source_len, self.target_len)
        source, target = (torch.empty(2, n, dtype=torch.long, device="meta") for n in lengths)
        return source, target

    def encoded(self, tokens: Tensor) -> Tensor:
        """The encoder's output, normalized: [batch, source_len] -> [batch, source_len, width]."""
        x = self._embedded(tokens, self.encoder_position)
        for layer in self.encoder_layers:
            x = layer(x)
        return normalized(x)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of `targets` [batch, target_len], given `tokens` [batch, source_len]."""
        source = self.encoded(tokens)
        # The decoder reads the targets one place late: at each it has seen those before it alone.
        start = torch.full_like(targets[:, :1], self.start)
        x = self._embedded(torch.cat((start, targets[:, :-1]), 1), self.decoder_position)
        for layer in self.decoder_layers:
            x = layer(x, source)
        x = normalized(x)
        if self.head is not None:
            return head_loss(self.head, self.loss, x, targets)
        # What the table is multiplied with as looked up, it is as a head: a parameterization's
        # factor for a tied head counts on it.
        logits = F.linear(x, self.embedding.weight) * self.embedding.multiplier
        loss: Tensor = self.loss(logits, targets)
        return loss
