"""Layers of Llama-style decoders: rotary causal attention, and SwiGLU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sweeper.models.scaled import Attention, GatedSiLU, Linear


def rotary_table(seq_len: int, head_size: int, theta: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines [seq_len, head_size / 2] of rotary position embedding."""
    frequency = theta ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    angle = torch.arange(seq_len, dtype=torch.float64)[:, None] * frequency
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of `x` [..., seq, head_size] by position; lengths are kept."""
    first, second = x.chunk(2, -1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class SelfAttention(nn.Module):
    """Multi-head causal attention with fused query, key and value projections."""

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, head_size: int, seq_len: int, *, unit: bool) -> None:
        """`width // head_size` heads."""
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


class FeedForward(nn.Module):
    """SwiGLU: `down(up(x) * silu(gate(x)))` with up and gate fused."""

    def __init__(self, width: int, hidden: int, *, unit: bool) -> None:
        """`hidden` is the inner width."""
        super().__init__()
        self.up_gate = Linear(width, 2 * hidden, unit=unit, parts=2)
        self.act = GatedSiLU(unit=unit)
        self.down = Linear(hidden, width, unit=unit)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> the same shape."""
        up, gate = self.up_gate(x).chunk(2, -1)
        out: Tensor = self.down(self.act(up, gate))
        return out
