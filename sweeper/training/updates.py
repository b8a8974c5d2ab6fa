"""What optimizers share: their ranges, the decay, and Adam's step, which Muon takes as well."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import Any

import torch
from torch import Tensor

from sweeper.errors import ConfigError
from sweeper.training.optimizer import Factors, Now, along, complement
from sweeper.trial import PlainHps


def check(optimizer: Any, *rates: str) -> None:
    """ConfigError unless eps is positive, and the decay and each of `rates` in [0, 1)."""
    for key in (*rates, "weight_decay"):
        if not 0 <= getattr(optimizer, key) < 1:
            raise ConfigError(key, getattr(optimizer, key), "at least 0 and below 1")
    if optimizer.eps <= 0:
        raise ConfigError("eps", optimizer.eps, "a positive number")


def searched(optimizer: Any, hps: PlainHps) -> dict[str, float]:
    """Each rate that `optimizer.hyperparameters` names as `one_minus_<rate>`, with its factor."""
    rates = (name.removeprefix("one_minus_") for name in optimizer.hyperparameters)
    return {
        rate: complement(getattr(optimizer, rate), hps.get(f"one_minus_{rate}", 1.0))
        for rate in rates
    }


def spread(values: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    """`hps` [K] beside each parameter, as [K, 1, ..., 1] of its type."""
    return [along(values, p).to(p.dtype) for p in params]


def empty(param: Tensor) -> Tensor:
    """A state of nothing, [K, 0]."""
    return param.new_zeros(len(param), 0)


def rates(params: Sequence[Tensor], factors: Factors, now: Now) -> list[Tensor]:
    """Learning rates of this step, [K, 1, ..., 1]."""
    return list(torch._foreach_mul(factors.lr, spread(now.share, params)))


def decay(params: list[Tensor], factors: Factors, now: Now) -> None:
    """`p *= 1 - share * weight_decay`, in place, whatever the learning rate."""
    removed = torch._foreach_mul(factors.weight_decay, spread(-now.share, params))
    torch._foreach_mul_(params, torch._foreach_add(removed, 1.0))


def blend(averages: list[Tensor], values: list[Tensor], beta: Tensor) -> None:
    """Running averages in place: `a = beta * a + (1 - beta) * v`, beta [K]."""
    torch._foreach_lerp_(averages, values, spread(1 - beta, averages))


def adam_roots(second: list[Tensor], factors: Factors, step: Tensor | int) -> list[Tensor]:
    """Roots of the bias-corrected second moments after `step` steps, of their shapes.

    `1 - beta^t` is `-expm1(t log beta)`: a power near 1 would lose its digits in float32.
    """
    bias = -torch.expm1(torch.log(factors.own["beta2"]) * step)
    roots = list(torch._foreach_sqrt(second))
    torch._foreach_mul_(roots, spread(bias.rsqrt(), second))
    return roots


def adam(
    params: list[Tensor],
    grads: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    factors: Factors,
    now: Now,
    *,
    atan2: bool = False,
) -> None:
    """Adam's step with a decay of its own, in place; see `AdamW` for what it computes.

    `factors.own` holds beta1 and beta2.
    """
    beta1, beta2 = factors.own["beta1"], factors.own["beta2"]
    bias1 = -torch.expm1(torch.log(beta1) * now.step)
    blend(first, grads, beta1)
    torch._foreach_mul_(second, spread(beta2, params))
    weighted = torch._foreach_mul(grads, spread(1 - beta2, params))
    torch._foreach_addcmul_(second, weighted, grads)
    del weighted
    decay(params, factors, now)
    root = adam_roots(second, factors, now.step)
    lr = rates(params, factors, now)
    if atan2:
        step = torch._foreach_div(first, spread(bias1, params))
        angles = [torch.atan2(m, v) for m, v in zip(step, root, strict=True)]
        torch._foreach_mul_(angles, lr)
        torch._foreach_add_(params, angles, alpha=-4 / pi)
        return
    torch._foreach_add_(root, factors.eps)
    step = torch._foreach_mul(first, torch._foreach_div(lr, spread(bias1, params)))
    torch._foreach_addcdiv_(params, step, root, -1.0)
