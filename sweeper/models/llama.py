"""A Llama-style decoder: pre-norm RMSNorm, rotary attention, SwiGLU, untied head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sweeper.errors import ConfigError
from sweeper.models.fp8 import Fp8
from sweeper.models.loss import head_loss
from sweeper.models.scaled import (
    Attention,
    CrossEntropy,
    Dropout,
    Embedding,
    GatedSiLU,
    Linear,
    Residual,
    RMSNorm,
    check_heads,
    check_sizes,
    dropout_of,
    dropped,
)


def rotary_table(seq_len: int, head_size: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [seq_len, head_size / 2] of rotary position embedding."""
    # In float64: the angles of late positions are large, and float32 leaves them few decimals.
    frequency = 10000.0 ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    angle = torch.arange(seq_len, dtype=torch.float64)[:, None] * frequency
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of `x` [..., seq, head_size] by position; lengths are kept."""
    # Entry i is paired with i + head_size / 2, as in transformers; the paper pairs neighbours.
    # With random weights it is the same model, its rows in another order.
    first, second = x.chunk(2, -1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class CausalSelfAttention(nn.Module):
    """Multi-head causal attention with fused query, key and value projections."""

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, head_size: int, seq_len: int, *, unit: bool) -> None:
        super().__init__()
        self.heads, self.head_size = width // head_size, head_size
        self.qkv = Linear(width, 3 * width, unit=unit, parts=3)
        self.core = Attention(head_size, seq_len, causal=True, unit=unit)
        self.out = Linear(width, width, unit=unit)
        cos, sin = rotary_table(seq_len, head_size)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, width] -> the same shape."""
        batch, seq, width = x.shape
        shape = (batch, seq, self.heads, self.head_size)
        q, k, v = (t.reshape(shape).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        cos, sin = self.cos[:seq], self.sin[:seq]
        y = self.core(rotate(q, cos, sin), rotate(k, cos, sin), v)
        out: Tensor = self.out(y.transpose(1, 2).reshape(batch, seq, width))
        return out


class SwiGLU(nn.Module):
    """SwiGLU: `down(up(x) * silu(gate(x)))` with up and gate fused."""

    def __init__(self, width: int, hidden: int, *, unit: bool) -> None:
        super().__init__()
        self.up_gate = Linear(width, 2 * hidden, unit=unit, parts=2)
        self.act = GatedSiLU(unit=unit)
        self.down = Linear(hidden, width, unit=unit)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> the same shape."""
        up, gate = self.up_gate(x).chunk(2, -1)
        out: Tensor = self.down(self.act(up, gate))
        return out


class DecoderBlock(nn.Module):
    """One layer: two residual branches, attention then feed-forward."""

    def __init__(self, index: int, model: Llama) -> None:
        super().__init__()
        unit, branches, base = model.unit, 2 * model.depth, 2 * model.base_depth
        self.attention_norm = RMSNorm(model.width, gain=model.norm_gain, unit=unit)
        self.attention = CausalSelfAttention(model.width, model.head_size, model.seq_len, unit=unit)
        drop = model.dropout
        self.attention_residual = Residual(2 * index + 1, branches, base, unit=unit, dropout=drop)
        self.ffn_norm = RMSNorm(model.width, gain=model.norm_gain, unit=unit)
        self.ffn = SwiGLU(model.width, model.ffn_width, unit=unit)
        self.ffn_residual = Residual(2 * index + 2, branches, base, unit=unit, dropout=drop)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, width] -> the same shape."""
        y = self.attention(self.attention_norm(self.attention_residual.split(x)))
        x = self.attention_residual.add(y, x)
        y = self.ffn(self.ffn_norm(self.ffn_residual.split(x)))
        return self.ffn_residual.add(y, x)


def inner_width(width: int, ffn_ratio: float) -> int:
    """`ffn_ratio * width`; ConfigError where that is no positive whole number."""
    if ffn_ratio <= 0 or not float(ffn_ratio * width).is_integer():
        allowed = f"a positive ratio that makes {width} x ratio a whole number"
        raise ConfigError("ffn_ratio", ffn_ratio, allowed)
    return round(ffn_ratio * width)


class Decoder(nn.Module):
    """The stream of a decoder: words in, layers, a norm, and a head of its own."""

    embedding: Embedding
    embedding_dropout: Dropout | None
    layers: nn.ModuleList
    norm: RMSNorm
    head: Linear
    loss: CrossEntropy

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits [batch, seq, classes] of `tokens` [batch, seq]; with `targets`, the mean loss."""
        x = dropped(self.embedding_dropout, self.embedding(tokens))
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        if targets is not None:
            return head_loss(self.head, self.loss, x, targets)
        logits: Tensor = self.head(x)
        return logits


class Llama(Decoder):
    """Decoder of any width and depth.

    `width` must be a multiple of `head_size`; `ffn_ratio * width` must be whole. `norm_gain`
    makes the norms' gains trainable. `dropout` is the share of entries that training drops from
    words and from branches' outputs. `base_depth` is the depth of the model that was tuned,
    and `unit` asks for unit-scaled operations; both are given by the parameterization's side.
    """

    def __init__(
        self,
        *,
        width: int,
        depth: int,
        classes: int,
        seq_len: int,
        head_size: int = 16,
        ffn_ratio: float = 2.75,
        norm_gain: bool = False,
        dropout: float = 0.0,
        base_depth: int | None = None,
        unit: bool = False,
        fp8: Fp8 | None = None,
    ) -> None:
        """The parameterization draws all parameters; ConfigError names a size that is off."""
        super().__init__()
        check_sizes(width=width, depth=depth, head_size=head_size)
        check_heads(width, head_size, rotary=True)
        self.width, self.depth, self.seq_len, self.head_size = width, depth, seq_len, head_size
        self.ffn_width, self.norm_gain, self.unit = inner_width(width, ffn_ratio), norm_gain, unit
        self.base_depth, self.fp8 = base_depth or depth, fp8 or Fp8()
        self.dropout = dropout
        self.embedding = Embedding(classes, width, unit=unit)
        self.embedding_dropout = dropout_of(dropout)
        self.layers = nn.ModuleList(DecoderBlock(i, self) for i in range(depth))
        self.norm = RMSNorm(width, gain=norm_gain, unit=unit)
        self.head = Linear(width, classes, unit=unit, readout=True)
        self.loss = CrossEntropy(classes, unit=unit)
        self.fp8.apply_to(self)
