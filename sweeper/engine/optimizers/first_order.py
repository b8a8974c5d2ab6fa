"""Optimizers that treat every entry alike: AdamW, Lion, SGD; and Adafactor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from sweeper.engine.optimizers.optimizer import (
    BaseOptimizer,
    Rate,
    State,
    StepInfo,
    UpdateHps,
    adam,
    apply_weight_decay,
    beside,
    current_lrs,
    empty_state,
    unsqueeze_like,
    update_averages,
)
from sweeper.records import Bounds, Positive
from sweeper.scaling.spec import ParamSpec, Update


@dataclass(frozen=True, kw_only=True)
class AdamW(BaseOptimizer):
    """`p -= schedule * (lr * m / (sqrt(v) + eps) + weight_decay * p)`, moments bias-corrected.

    The decay is independent (Loshchilov and Hutter, arXiv:1711.05101): it follows the schedule but
    not the rate, so its optimum does not move with eta or a rate's factor (u-muP paper, Table 6).
    With `atan2` the step is `lr * 4/pi * atan2(m, sqrt(v))` and eps plays no part: it has no
    scale that gradients could fall below (Everett et al., section 4.3). The 4/pi
    makes it 1 at m = sqrt(v), as Adam's is (erratum E3, docs/papers.md).
    """

    beta1: Rate = 0.9
    beta2: Rate = 0.999
    atan2: bool = False

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
    ) -> None:
        """One step in place; each trial has its learning rates, eps, decay and betas."""
        adam(params, grads, state["first"], state["second"], hps, now, atan2=self.atan2)


@dataclass(frozen=True, kw_only=True)
class Lion(BaseOptimizer):
    """`p -= schedule * (lr * sign(beta1 * m + (1 - beta1) * g) + weight_decay * p)`.

    Then `m = beta2 * m + (1 - beta2) * g` (Chen et al., arXiv:2302.06675, Algorithm 2). The decay
    is independent of the rate, as AdamW's; the paper's is coupled to it. `eps` plays no part.
    """

    averages: ClassVar[tuple[str, ...]] = ("momentum",)

    beta1: Rate = 0.9
    beta2: Rate = 0.99
    eps: Positive = 1.0

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
    ) -> None:
        """One step in place; each trial has its learning rates, decay and betas."""
        momentum = state["momentum"]
        lrs, rate = current_lrs(params, hps, now), 1 - hps.settings["beta1"]
        apply_weight_decay(params, hps, now)
        # By beta1 for the step, by beta2 for what is kept: the newest gradient counts more at once.
        for p, m, g, lr in zip(params, momentum, grads, lrs, strict=True):
            p.sub_(torch.lerp(m, g, beside(rate, m)).sign_().mul_(lr))
        update_averages(momentum, grads, hps.settings["beta2"])


@dataclass(frozen=True, kw_only=True)
class SGD(BaseOptimizer):
    """`b = momentum * b + g; p -= schedule * (lr * b + weight_decay * p)`.

    As torch's without dampening: with a momentum the steps add up to 1 / (1 - momentum) times
    the gradient. With `nesterov` the step is `g + momentum * b`. The decay is independent of
    the learning rate, as AdamW's. `eps` plays no part.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("one_minus_momentum",)
    averages: ClassVar[tuple[str, ...]] = ("momentum",)

    momentum: Rate = 0.9
    nesterov: bool = False
    eps: Positive = 1.0

    def kind(self, spec: ParamSpec) -> Update:
        """Every parameter's updates scale as its gradient."""
        return Update.GRADIENT

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


@dataclass(frozen=True, kw_only=True)
class Adafactor(BaseOptimizer):
    """One step: `p -= schedule * (lr * scale * u / max(1, RMS(u) / clip) + weight_decay * p)`.

    `scale = max(rms_floor, RMS(p))`, `u = g / sqrt(v)`, and v averages g^2, the newest with weight
    `t^beta2_decay`; of a matrix only the means of v by row and by column are kept (Shazeer and
    Stern, arXiv:1804.04235, Algorithms 4 and 5). sqrt(v) and the mean of the row means are at least
    eps, as in torch's Adafactor. Unlike there, the decay is independent of the rate; eps is the
    paper's, 1e-15, not the type's machine epsilon; and there is no cap on lr of t^-1/2, which
    would hold back the larger of the learning rates compared.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ()

    beta2_decay: Annotated[float, Bounds(least=-1, most=0, allowed="from -1 to 0")] = -0.8
    clip: Positive = 1.0
    rms_floor: Positive = 1e-3
    eps: Positive = 1e-15

    def kind(self, spec: ParamSpec) -> Update:
        """Every parameter's updates scale as its own RMS."""
        return Update.PARAMETER

    def init(self, params: list[Tensor], kinds: Sequence[Update]) -> State:
        """Zero means `row` [K, ..., rows, 1] and `column` [K, ..., 1, columns], or `full`."""
        return {
            "row": [
                torch.zeros_like(p[..., :1]) if _factored(p) else empty_state(p) for p in params
            ],
            "column": [
                torch.zeros_like(p[..., :1, :]) if _factored(p) else empty_state(p) for p in params
            ],
            "full": [empty_state(p) if _factored(p) else torch.zeros_like(p) for p in params],
        }

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: State, hps: UpdateHps, now: StepInfo
    ) -> None:
        """One step in place; each trial has its learning rates, eps and decay."""
        lr = current_lrs(params, hps, now)
        # The weight before the decay, as in torch.
        scale = [_rms(p).clamp(min=self.rms_floor) for p in params]
        apply_weight_decay(params, hps, now)
        for i, (p, g) in enumerate(zip(params, grads, strict=True)):
            # At step 1 the weight is 1: v starts as g^2 and needs no bias correction.
            step = beside(now.step, p) if now.step.dim() else now.step.to(p.dtype)
            weight = step**self.beta2_decay
            row, column, full = (state[name][i] for name in ("row", "column", "full"))
            squares = g.square()
            if _factored(g):
                _move(row, squares.mean(-1, keepdim=True), weight)
                _move(column, squares.mean(-2, keepdim=True), weight)
            else:
                _move(full, squares, weight)
            u = g / torch.maximum(_root(row, column, full, hps.eps[i]), hps.eps[i])
            # Clipped by its own RMS: a v that lags behind the gradients makes the update large.
            p.sub_(u.mul_(lr[i] * scale[i] / (_rms(u) / self.clip).clamp(min=1.0)))


def _factored(param: Tensor) -> bool:
    return param.dim() > 2


def _rms(values: Tensor) -> Tensor:
    return unsqueeze_like(values.reshape(len(values), -1).square().mean(1).sqrt(), values)


def _move(average: Tensor, values: Tensor, weight: Tensor) -> None:
    """Move `average` towards `values` by `weight`.

    Written out: torch 2.11 compiles a `lerp` among others on a CPU to wrong numbers.
    """
    average.add_(weight * (values - average))


def _root(row: Tensor, column: Tensor, full: Tensor, eps: Tensor) -> Tensor:
    if full.numel():
        return full.sqrt()
    # The outer product of the row and column means, over the mean of all: exact for v of rank 1.
    norm = torch.maximum(row.mean(-2, keepdim=True), eps)
    return (row / norm * column).sqrt_()
