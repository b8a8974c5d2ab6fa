"""AdamW with independent weight decay (Loshchilov and Hutter, arXiv:1711.05101)."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sqrt
from typing import ClassVar

import torch
from torch import Tensor

from sweeper.errors import ConfigError
from sweeper.scaling.spec import Update
from sweeper.training.optimizer import Factors


@dataclass
class AdamWState:
    """Moments of every parameter, and the number of steps taken."""

    first: list[Tensor]
    second: list[Tensor]
    steps: int = 0


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """`p -= share * (lr * m / (sqrt(v) + eps) + weight_decay * p)`, moments bias-corrected.

    The decay is independent: it follows the schedule but not the learning rate, so its optimum
    does not move with eta or with a parameter's learning-rate factor (u-muP paper, Table 6).
    With `atan2` the step is `lr * 4/pi * atan2(m, sqrt(v))` and eps plays no part: it has no
    scale of its own that gradients could fall below (Everett et al., section 4.3). The 4/pi
    makes it 1 at m = sqrt(v), as Adam's is (erratum E3).
    """

    update_scale: ClassVar[Update] = Update.SIGN

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 2.0**-13
    atan2: bool = False

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        for key in ("beta1", "beta2"):
            if not 0 <= getattr(self, key) < 1:
                raise ConfigError(key, getattr(self, key), "at least 0 and below 1")
        if self.eps <= 0:
            raise ConfigError("eps", self.eps, "a positive number")
        if not 0 <= self.weight_decay < 1:
            raise ConfigError("weight_decay", self.weight_decay, "at least 0 and below 1")

    def init(self, params: list[Tensor]) -> AdamWState:
        """Zero moments."""
        return AdamWState(
            [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params]
        )

    def update(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        state: AdamWState,
        factors: Factors,
        share: float,
    ) -> None:
        """One step in place, each trial with learning rates, eps and decay of its own."""
        state.steps += 1
        torch._foreach_lerp_(state.first, grads, 1 - self.beta1)
        torch._foreach_mul_(state.second, self.beta2)
        torch._foreach_addcmul_(state.second, grads, grads, 1 - self.beta2)
        root = torch._foreach_sqrt(state.second)
        torch._foreach_div_(root, sqrt(1 - self.beta2**state.steps))
        keep = torch._foreach_mul(factors.weight_decay, -share)
        torch._foreach_add_(keep, 1.0)
        torch._foreach_mul_(params, keep)
        bias = 1 - self.beta1**state.steps
        if self.atan2:
            first = torch._foreach_div(state.first, bias)
            angles = [torch.atan2(m, v) for m, v in zip(first, root, strict=True)]
            torch._foreach_mul_(angles, factors.lr)
            torch._foreach_add_(params, angles, alpha=-share * 4 / pi)
            return
        torch._foreach_add_(root, factors.eps)
        step = torch._foreach_mul(state.first, factors.lr)
        torch._foreach_addcdiv_(params, step, root, -share / bias)
