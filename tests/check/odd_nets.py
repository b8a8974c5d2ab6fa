"""Nets whose weights no call of their own module shows, or whose biases hide them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Biased(nn.Module):
    """Linear layers with biases; the embedding is the head too."""

    def __init__(self, width: int, depth: int, classes: int = 64) -> None:
        super().__init__()
        self.e = nn.Embedding(classes, width)
        self.ls = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def layer(self, index: int, h: Tensor) -> Tensor:
        return self.ls[index](h)  # type: ignore[no-any-return]

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(h, self.e.weight).flatten(0, 1), y.flatten())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.e(x)
        for index in range(len(self.ls)):
            h = h + F.gelu(self.layer(index, h))
        return self.loss(h, y)


class Functional(Biased):
    """Its layers hold weights, and are never called."""

    def layer(self, index: int, h: Tensor) -> Tensor:
        return F.linear(h, self.ls[index].weight, self.ls[index].bias)


class Listed(Biased):
    """Its weights are in a list of parameters, and its loss is of log-probabilities."""

    def __init__(self, width: int, depth: int, classes: int = 64) -> None:
        super().__init__(width, depth, classes)
        self.ls = nn.ParameterList(torch.randn(width, width) for _ in range(depth))
        self.out = nn.Parameter(torch.randn(classes, width))

    def layer(self, index: int, h: Tensor) -> Tensor:
        return h @ self.ls[index].T

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        return F.nll_loss(F.log_softmax(h @ self.out.T, -1).flatten(0, 1), y.flatten())


class Unseen(Functional):
    """Its products are no function's that is known."""

    def layer(self, index: int, h: Tensor) -> Tensor:
        return (h[..., None, :] * self.ls[index].weight).sum(-1) + self.ls[index].bias


class Merged(Functional):
    """Its matrices are products of two that are never called."""

    def layer(self, index: int, h: Tensor) -> Tensor:
        return F.linear(h, self.ls[index].weight @ self.ls[index - 1].weight)


class Called(nn.MultiheadAttention):
    """Attention of torch, whose last matrix is used without a call of its module."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


class Attending(Biased):
    """Layers of torch's attention."""

    def __init__(self, width: int, depth: int, classes: int = 64) -> None:
        super().__init__(width, depth, classes)
        self.ls = nn.ModuleList(Called(width) for _ in range(depth))
