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
            self.update(x.detach().mean())
        return x - self.running

    def update(self, mean: Tensor) -> None:
        self.running.mul_(0.9).add_(0.1 * mean)


class WithReplacedBuffers(WithStatistics):
    """Puts a new tensor in the place of its running mean, where others write into theirs."""

    def update(self, mean: Tensor) -> None:
        self.running = 0.5 * self.running + 0.5 * mean


class Tied(Base):
    """Look-up and head are one matrix, as GPT-2's."""

    def __init__(self, *, width: int, depth: int, classes: int) -> None:
        super().__init__(width=width, depth=depth, classes=classes)
        self.head.weight = self.embedding.weight


class Shared(Base):
    """One block with a norm, under several names and called as often."""

    def __init__(self, *, width: int, depth: int, classes: int) -> None:
        super().__init__(width=width, depth=depth, classes=classes)
        self.norm = nn.BatchNorm1d(width)
        block = nn.Linear(width, width)
        self.blocks = nn.ModuleList([block, block])
        self.again = self.norm

    def middle(self, x: Tensor) -> Tensor:
        if x.is_meta:  # BatchNorm cannot be watched: it mixes samples
            x = x * self.norm.weight + self.norm.bias
        else:
            x = self.again(x.flatten(0, 1)).view_as(x)
        for block in self.blocks:
            x = x + block(x)
        return x


class WithExtraState(Base):
    """Its state holds more than tensors."""

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"version": 3}


class ReadsItsValues(Base):
    """In evaluation alone it cannot be mapped."""

    def middle(self, x: Tensor) -> Tensor:
        if x.is_meta or self.training:
            return x
        return x if x.mean().item() > -1e9 else 2 * x


class Frozen(Base):
    """Does not train all of its parameters."""

    def __init__(self, *, width: int, depth: int, classes: int) -> None:
        super().__init__(width=width, depth=depth, classes=classes)
        self.head.weight.requires_grad_(False)


class ReturnsMore(Base):
    """Returns two scalars, either of which might be the loss."""

    def forward(self, x: Tensor, y: Tensor) -> Any:
        loss = super().forward(x, y)
        return loss, loss * 2


class Raises(Base):
    """Fails with an error that is no RuntimeError."""

    def middle(self, x: Tensor) -> Tensor:
        if x.is_meta:
            return x
        raise IndexError("index out of range in self")
