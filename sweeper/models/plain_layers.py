"""Layers of the effective theory's Transformers: norms without gains, GELU, no biases."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from sweeper.models.scaled import Activation, Linear


def normalized(x: Tensor) -> Tensor:
    """Layer norm over the last dimension, its gains fixed at 1 and biases at 0 (eq. 1.11)."""
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


class FeedForward(nn.Module):
    """`down(gelu(up(x)))`."""

    def __init__(self, width: int, hidden: int, *, unit: bool) -> None:
        """`hidden` is the inner width."""
        super().__init__()
        self.up = Linear(width, hidden, unit=unit)
        self.act = Activation("gelu", unit=unit)
        self.down = Linear(hidden, width, unit=unit)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> the same shape."""
        out: Tensor = self.down(self.act(self.up(x)))
        return out
