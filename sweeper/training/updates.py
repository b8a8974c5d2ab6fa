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


def per_param(values: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    """`values` [K] beside each parameter, as [K, 1, ..., 1] of its type."""
    return [unsqueeze_like(values, p).to(p.dtype) for p in params]


def empty_state(param: Tensor) -> Tensor:
    """A state of nothing, [K, 0]."""
    return param.new_zeros(len(param), 0)


def current_lrs(params: Sequence[Tensor], hps: UpdateHps, now: StepInfo) -> list[Tensor]:
    """Learning rates of this step, [K, 1, ..., 1]."""
    return list(torch._foreach_mul(hps.lr, per_param(now.schedule, params)))


def apply_weight_decay(params: list[Tensor], hps: UpdateHps, now: StepInfo) -> None:
    """`p *= 1 - schedule * weight_decay`, in place, whatever the learning rate."""
    removed = torch._foreach_mul(hps.weight_decay, per_param(-now.schedule, params))
    torch._foreach_mul_(params, torch._foreach_add(removed, 1.0))


def update_averages(averages: list[Tensor], values: list[Tensor], beta: Tensor) -> None:
    """Running averages in place: `a = beta * a + (1 - beta) * v`, beta [K]."""
    torch._foreach_lerp_(averages, values, per_param(1 - beta, averages))


def adam_roots(second: list[Tensor], hps: UpdateHps, step: Tensor | int) -> list[Tensor]:
    """Roots of the bias-corrected second moments after `step` steps, of their shapes.

    `1 - beta^t` is `-expm1(t log beta)`: a power near 1 would lose its digits in float32.
    """
    bias = -torch.expm1(torch.log(hps.settings["beta2"]) * step)
    roots = list(torch._foreach_sqrt(second))
    torch._foreach_mul_(roots, per_param(bias.rsqrt(), second))
    return roots


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
    # Lists go through torch._foreach, one kernel for all parameters: a pack of a small model has
    # many small tensors, and launching a kernel for each would take most of the step.
    beta1, beta2 = hps.settings["beta1"], hps.settings["beta2"]
    bias1 = -torch.expm1(torch.log(beta1) * now.step)
    update_averages(first, grads, beta1)
    torch._foreach_mul_(second, per_param(beta2, params))
    weighted = torch._foreach_mul(grads, per_param(1 - beta2, params))
    torch._foreach_addcmul_(second, weighted, grads)
    del weighted  # as large as all gradients together
    apply_weight_decay(params, hps, now)
    root = adam_roots(second, hps, now.step)
    lr = current_lrs(params, hps, now)
    if atan2:
        step = torch._foreach_div(first, per_param(bias1, params))
        angles = [torch.atan2(m, v) for m, v in zip(step, root, strict=True)]
        torch._foreach_mul_(angles, lr)
        torch._foreach_add_(params, angles, alpha=-4 / pi)
        return
    # eps joins the bias-corrected root, as in torch: joined before, it would weigh more at first.
    torch._foreach_add_(root, hps.eps)
    step = torch._foreach_mul(first, torch._foreach_div(lr, per_param(bias1, params)))
    torch._foreach_addcdiv_(params, step, root, -1.0)
