"""What optimizers share: ranges, clipping, the decay, and Adam's step, which Muon takes as well."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import Any

import torch
from torch import Tensor

from sweeper.errors import ConfigError
from sweeper.training.optimizer import StepInfo, UpdateHps, scale_distance_from_one, unsqueeze_like
from sweeper.trial import PlainHps


def check_ranges(optimizer: Any, *rates: str) -> None:
    """ConfigError unless eps is positive, and the decay and each of `rates` in [0, 1)."""
    for key in (*rates, "weight_decay"):
        if not 0 <= getattr(optimizer, key) < 1:
            raise ConfigError(key, getattr(optimizer, key), "at least 0 and below 1")
    if optimizer.eps <= 0:
        raise ConfigError("eps", optimizer.eps, "a positive number")


def searched_settings(optimizer: Any, hps: PlainHps) -> dict[str, float]:
    """Each rate that `optimizer.hyperparameters` names as `one_minus_<rate>`, with its factor."""
    rates = (name.removeprefix("one_minus_") for name in optimizer.hyperparameters)
    return {
        rate: scale_distance_from_one(getattr(optimizer, rate), hps.get(f"one_minus_{rate}", 1.0))
        for rate in rates
    }


def clip_gradients(grads: list[Tensor], max_norm: float) -> None:
    """Scale each trial's gradients [K, ...] in place so that their joint norm is at most this.

    As `torch.nn.utils.clip_grad_norm_`, a trial at a time.
    """
    squares = [grad.double().flatten(1).square().sum(1) for grad in grads]
    factor = (max_norm / (torch.stack(squares).sum(0).sqrt() + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(unsqueeze_like(factor.to(grad.dtype), grad))


def beside(values: Tensor, param: Tensor) -> Tensor:
    """`values` [K] as [K, 1, ..., 1] of a parameter's type."""
    return unsqueeze_like(values, param).to(param.dtype)


def empty_state(param: Tensor) -> Tensor:
    """A state of nothing, [K, 0]."""
    return param.new_zeros(len(param), 0)


def current_lrs(params: Sequence[Tensor], hps: UpdateHps, now: StepInfo) -> list[Tensor]:
    """Learning rates of this step, [K, 1, ..., 1]."""
    return [lr * beside(now.schedule, p) for lr, p in zip(hps.lr, params, strict=True)]


def apply_weight_decay(params: list[Tensor], hps: UpdateHps, now: StepInfo) -> None:
    """`p *= 1 - schedule * weight_decay`, in place, whatever the learning rate."""
    for p, decay in zip(params, hps.weight_decay, strict=True):
        p.mul_(decay * beside(-now.schedule, p) + 1.0)


def update_averages(averages: list[Tensor], values: list[Tensor], beta: Tensor) -> None:
    """Running averages in place: `a = beta * a + (1 - beta) * v`, beta [K]."""
    for average, value in zip(averages, values, strict=True):
        average.lerp_(value, beside(1 - beta, average))


def adam_roots(second: list[Tensor], hps: UpdateHps, step: Tensor | int) -> list[Tensor]:
    """Roots of the bias-corrected second moments after `step` steps, of their shapes.

    `1 - beta^t` is `-expm1(t log beta)`: a power near 1 would lose its digits in float32.
    """
    scale = bias(hps.settings["beta2"], step).rsqrt()
    return [v.sqrt().mul_(beside(scale, v)) for v in second]


def bias(beta: Tensor, step: Tensor | int) -> Tensor:
    """`1 - beta^step`: what an average that began at 0 is too small by, [K]."""
    return -torch.expm1(torch.log(beta) * step)


def _bias_of(name: str, hps: UpdateHps, now: StepInfo) -> Tensor:
    given = now.biases.get(name)
    return bias(hps.settings[name], now.step) if given is None else given


def adam(
    params: list[Tensor],
    grads: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    hps: UpdateHps,
    now: StepInfo,
    *,
    atan2: bool = False,
) -> None:
    """Adam's step with independent decay, in place; see `AdamW` for what it computes.

    `hps.settings` holds beta1 and beta2.
    """
    # A plain loop, not torch._foreach: the compiler makes one kernel of all that happens to a
    # parameter, but knows not all functions of lists. Uncompiled, those would loop as well, because
    # trials have settings of their own.
    beta1, beta2 = hps.settings["beta1"], hps.settings["beta2"]
    bias1, scale = _bias_of("beta1", hps, now), _bias_of("beta2", hps, now).rsqrt()
    update_averages(first, grads, beta1)
    apply_weight_decay(params, hps, now)
    lrs = current_lrs(params, hps, now)
    for p, g, m, v, lr, eps in zip(params, grads, first, second, lrs, hps.eps, strict=True):
        v.mul_(beside(beta2, v)).addcmul_(g * beside(1 - beta2, v), g)
        root = v.sqrt().mul_(beside(scale, v))
        if atan2:
            angle = torch.atan2(m / beside(bias1, p), root).mul_(lr)
            p.add_(angle, alpha=-4 / pi)
        else:
            # eps joins the bias-corrected root, as in torch: before, it would weigh more at first.
            p.addcdiv_(m * (lr / beside(bias1, p)), root.add_(eps), value=-1.0)
