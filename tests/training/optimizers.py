"""Optimizers whose updates follow the gradient or the weight, as plain as they can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sweeper.scaling.spec import Update
from sweeper.training.adamw import AdamW, AdamWState
from sweeper.training.optimizer import Factors


@dataclass(frozen=True, kw_only=True)
class PlainSGD:
    """`p -= share * (lr * g + weight_decay * p)`."""

    update_scale: ClassVar[Update] = Update.GRADIENT
    eps: float = 1.0
    weight_decay: float = 0.0

    def init(self, params: list[Tensor]) -> None:
        return None

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: None, factors: Factors, share: float
    ) -> None:
        for p, g, lr, decay in zip(params, grads, factors.lr, factors.weight_decay, strict=True):
            p.mul_(1 - share * decay).sub_(share * lr * g)


@dataclass(frozen=True, kw_only=True)
class ScaledAdam(AdamW):
    """Adam whose step is a share of the weight's own RMS (Everett et al., parameter scaling)."""

    update_scale: ClassVar[Update] = Update.PARAMETER

    def update(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        state: AdamWState,
        factors: Factors,
        share: float,
    ) -> None:
        dims = [tuple(range(1, p.dim())) for p in params]
        rms = [
            p.square().mean(dim, keepdim=True).sqrt() for p, dim in zip(params, dims, strict=True)
        ]
        rates = torch._foreach_mul(factors.lr, rms)
        scaled = Factors(lr=list(rates), eps=factors.eps, weight_decay=factors.weight_decay)
        super().update(params, grads, state, scaled, share)
