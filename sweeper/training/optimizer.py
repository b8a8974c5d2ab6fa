"""What the training loop asks of an optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from sweeper.scaling.spec import Update


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Per-parameter, per-trial settings: lists over parameters of tensors [K, 1, ..., 1].

    `lr` is the peak learning rate, `eps` the epsilon and `weight_decay` the share of a weight
    that one step at the schedule's peak removes.
    """

    lr: list[Tensor]
    eps: list[Tensor]
    weight_decay: list[Tensor]


class Optimizer(Protocol):
    """Init and update over stacked parameters: lists of tensors [K, ...], one slice a trial."""

    update_scale: ClassVar[Update]
    eps: float
    weight_decay: float

    def init(self, params: list[Tensor]) -> Any:
        """Fresh state for `params`."""
        ...

    def update(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        state: Any,
        factors: Factors,
        share: float,
    ) -> None:
        """One step in place; `share` is the schedule's value. A slice must never touch another."""
        ...
