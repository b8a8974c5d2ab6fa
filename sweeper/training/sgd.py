"""Stochastic gradient descent with momentum and independent weight decay."""

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
)
from sweeper.trial import PlainHps


@dataclass(frozen=True, kw_only=True)
class SGD:
    """`b = momentum * b + g; p -= schedule * (lr * b + weight_decay * p)`.

    As torch's without dampening: with a momentum the steps add up to 1 / (1 - momentum) times
    the gradient. With `nesterov` the step is `g + momentum * b`. The decay is independent of
    the learning rate, as AdamW's. `eps` plays no part.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("one_minus_momentum",)

    momentum: float = 0.9
    nesterov: bool = False
    eps: float = 1.0
    weight_decay: float = 2.0**-13

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_ranges(self, "momentum")

    def kind(self, spec: ParamSpec) -> Update:
        """As the gradient, of every parameter."""
        return Update.GRADIENT

    def settings(self, hps: PlainHps) -> dict[str, float]:
        """`momentum`."""
        return searched_settings(self, hps)

    def init(self, params: list[Tensor], kinds: Sequence[Update]) -> State:
        """Zero `momentum` of the parameters' shapes."""
        return {"momentum": [torch.zeros_like(p) for p in params]}

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
    ) -> None:
        """One step in place; each trial has its learning rates, decay and momentum."""
        momentum, lrs = hps.settings["momentum"], current_lrs(params, hps, now)
        apply_weight_decay(params, hps, now)
        for p, g, average, lr in zip(params, grads, state["momentum"], lrs, strict=True):
            step = average.mul_(beside(momentum, p)).add_(g)
            if self.nesterov:
                step = step * beside(momentum, p) + g
            p.sub_(step * lr)
