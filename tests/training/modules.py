"""Models of a user's own that a map over trials finds hard."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Doubled(torch.autograd.Function):
    """Twice the input, in a form that `torch.func` refuses to map."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:
        return 2 * grad


class Base(nn.Module):
    """Embedding, one hidden layer and a head; `middle` is what is special."""

    def __init__(self, *, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, classes, bias=False)

    def middle(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.embedding(x)
        for layer in self.hidden:
            x = self.middle(F.gelu(layer(x)))
        return F.cross_entropy(self.head(x).flatten(0, 1), y.flatten())


class Plain(Base):
    """Nothing special."""


class Unmappable(Base):
    def middle(self, x: Tensor) -> Tensor:
        # On the meta device, where roles are read off, as what it computes.
        return 2 * x if x.is_meta else Doubled.apply(x)


class WithDropout(Base):
    def middle(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.2, training=self.training and not x.is_meta)


class WithStatistics(Base):
    """Keeps a running mean and uses it, as batch normalization does."""

    running: Tensor

    def __init__(self, *, width: int, depth: int, classes: int) -> None:
        super().__init__(width=width, depth=depth, classes=classes)
        self.register_buffer("running", torch.zeros(()))

    def middle(self, x: Tensor) -> Tensor:
        if x.is_meta:
            return x
        if self.training:
            self.running.mul_(0.9).add_(0.1 * x.detach().mean())
        return x - self.running
