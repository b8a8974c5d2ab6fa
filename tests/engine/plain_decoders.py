"""The same decoder twice: of torch's own modules, and of modules with scales."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sweeper.models import scaled

HEAD_SIZE = 8


class Decoder(nn.Module):
    """Pre-norm layers of attention and a perceptron; subclasses say what of."""

    linear: Any
    embedding: Any

    def __init__(self, *, width: int, depth: int, classes: int, seq_len: int) -> None:
        super().__init__()
        self.rows = self.embedding(classes, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        self.qkv = nn.ModuleList(self.linear(width, 3 * width) for _ in range(depth))
        self.out = nn.ModuleList(self.linear(width, width) for _ in range(depth))
        self.up = nn.ModuleList(self.linear(width, 2 * width) for _ in range(depth))
        self.down = nn.ModuleList(self.linear(2 * width, width) for _ in range(depth))
        self.head = self.linear(width, classes)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError

    def loss(self, logits: Tensor, targets: Tensor) -> Any:
        raise NotImplementedError

    def forward(self, tokens: Tensor, targets: Tensor) -> Any:
        x = self.rows(tokens)
        for i in range(len(self.qkv)):
            shape = (*x.shape[:2], -1, HEAD_SIZE)
            parts = self.qkv[i](self.norms[2 * i](x)).chunk(3, -1)
            y = self.attend(*(t.reshape(shape).transpose(1, 2) for t in parts))
            x = x + self.out[i](y.transpose(1, 2).reshape(x.shape))
            x = x + self.down[i](F.gelu(self.up[i](self.norms[2 * i + 1](x))))
        return self.loss(self.head(self.norms[-1](x)), targets)


def plain_linear(into: int, out: int) -> nn.Linear:
    return nn.Linear(into, out, bias=False)


class PlainDecoder(Decoder):
    """Returns `(logits, loss)`, as nanoGPT does."""

    linear, embedding = staticmethod(plain_linear), nn.Embedding

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def loss(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class ScaledDecoder(Decoder):
    """Returns the loss."""

    linear, embedding = scaled.Linear, scaled.Embedding

    def __init__(self, *, width: int, depth: int, classes: int, seq_len: int) -> None:
        super().__init__(width=width, depth=depth, classes=classes, seq_len=seq_len)
        self.core = scaled.Attention(HEAD_SIZE, seq_len, causal=True)
        self.cross_entropy = scaled.CrossEntropy(classes)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attended: Tensor = self.core(q, k, v)
        return attended

    def loss(self, logits: Tensor, targets: Tensor) -> Any:
        return self.cross_entropy(logits, targets)


class TiedDecoder(PlainDecoder):
    """Its head is the embedding's matrix."""

    def __init__(self, *, width: int, depth: int, classes: int, seq_len: int) -> None:
        super().__init__(width=width, depth=depth, classes=classes, seq_len=seq_len)
        self.head.weight = self.rows.weight


class TransposedDecoder(TiedDecoder):
    """Tied by a product that is no call of a linear layer."""

    def __init__(self, *, width: int, depth: int, classes: int, seq_len: int) -> None:
        super().__init__(width=width, depth=depth, classes=classes, seq_len=seq_len)
        del self.head
        self.head = self.product

    def product(self, x: Tensor) -> Tensor:
        return x @ self.rows.weight.T


class TwiceTiedDecoder(PlainDecoder):
    """The sum of two heads by calls, each tied; the second divides by the root of the width."""

    def __init__(self, *, width: int, depth: int, classes: int, seq_len: int) -> None:
        super().__init__(width=width, depth=depth, classes=classes, seq_len=seq_len)
        self.tables = nn.ModuleList([self.rows, nn.Embedding(classes, width)])
        del self.head, self.rows
        self.head, self.rows = self.heads, self.rows_of

    def rows_of(self, tokens: Tensor) -> Tensor:
        one, other = (table(tokens) for table in self.tables)
        total: Tensor = one + other
        return total

    def heads(self, x: Tensor) -> Tensor:
        tables: Any = self.tables
        one, other = (F.linear(x, table.weight) for table in tables)
        total: Tensor = one + other / x.shape[-1] ** 0.5
        return total


class MemoryDecoder(PlainDecoder):
    """Slots that are keys and values, before the head."""

    def __init__(self, *, width: int, depth: int, classes: int, seq_len: int) -> None:
        super().__init__(width=width, depth=depth, classes=classes, seq_len=seq_len)
        self.slots = nn.Parameter(torch.randn(6, width))
        self.readout = self.head
        del self.head
        self.head = self.read

    def read(self, x: Tensor) -> Tensor:
        logits: Tensor = self.readout(x + F.linear(x, self.slots).softmax(-1) @ self.slots)
        return logits


class PaddedDecoder(PlainDecoder):
    """Its third token is padding."""

    def __init__(self, *, width: int, depth: int, classes: int, seq_len: int) -> None:
        super().__init__(width=width, depth=depth, classes=classes, seq_len=seq_len)
        self.rows = nn.Embedding(classes, width, padding_idx=2)
