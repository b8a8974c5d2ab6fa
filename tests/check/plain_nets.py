"""Nets as newcomers write them: no scales, heads of torch, with and without a last norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Causal(nn.Conv1d):
    """A convolution over the sequence that sees no later token."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)


class Mixing(nn.Module):
    """Attention by hand, heads of 8."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], -1, 8)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        weights = (q @ k.mT / 8**0.5).masked_fill(later, -torch.inf).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Recurrent(nn.RNN):
    """Its states alone."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


LAYERS = {
    "linear": lambda w: nn.Linear(w, w),
    "conv": Causal,
    "attention": Mixing,
    "rnn": Recurrent,
}


class PlainNet(nn.Module):
    """Embedding, layers of one kind, perhaps a norm, head; the mean loss."""

    def __init__(
        self,
        width: int,
        depth: int,
        classes: int = 64,
        kind: str = "conv",
        norm: bool = False,
        residual: bool = True,
        bare: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.layers = nn.ModuleList(LAYERS[kind](width) for _ in range(depth))
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.head = nn.Linear(width, classes)
        self.residual, self.bare = residual, bare

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embedding(x)
        for layer in self.layers:
            h = h * self.residual + (layer(h) if self.bare else F.gelu(layer(h)))
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())
