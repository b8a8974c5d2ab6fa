"""Lion: the sign of a momentum (Chen et al., arXiv:2302.06675, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sweeper.scaling.spec import ParamSpec, Update
from sweeper.training.optimizer import State, StepInfo, UpdateHps
from sweeper.training.updates import (
    apply_weight_decay,
    beside,
    check_ranges,
    current_lrs,
    searched_settings,
    update_averages,
)
from sweeper.trial import PlainHps


@dataclass(frozen=True, kw_only=True)
class Lion:
    """`p -= schedule * (lr * sign(beta1 * m + (1 - beta1) * g) + weight_decay * p)`.

    Then `m = beta2 * m + (1 - beta2) * g`. The decay is independent of the learning rate, as
    AdamW's; the paper's is coupled to it. `eps` plays no part.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("one_minus_beta1", "one_minus_beta2")

    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1.0
    weight_decay: float = 2.0**-13

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_ranges(self, "beta1", "beta2")

    def kind(self, spec: ParamSpec) -> Update:
        """A sign, of every parameter."""
        return Update.SIGN

    def settings(self, hps: PlainHps) -> dict[str, float]:
        """`beta1` and `beta2`."""
        return searched_settings(self, hps)

    def init(self, params: list[Tensor], kinds: Sequence[Update]) -> State:
        """Zero `momentum` of the parameters' shapes."""
        return {"momentum": [torch.zeros_like(p) for p in params]}

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
    ) -> None:
        """One step in place; each trial has its learning rates, decay and betas."""
        momentum = state["momentum"]
        lrs, rate = current_lrs(params, hps, now), 1 - hps.settings["beta1"]
        apply_weight_decay(params, hps, now)
        for p, m, g, lr in zip(params, momentum, grads, lrs, strict=True):
            p.sub_(torch.lerp(m, g, beside(rate, m)).sign_().mul_(lr))
        update_averages(momentum, grads, hps.settings["beta2"])
