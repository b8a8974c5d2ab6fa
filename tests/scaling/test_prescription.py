"""An absorbed multiplier changes no step of any optimizer: the abc symmetry, written out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sweeper.scaling.prescription import absorbed_factors
from sweeper.scaling.spec import Update

Step = Callable[[Tensor, Tensor, float, float], Tensor]
"""The change of a weight, from the weight, its gradient, lr and eps."""

STEPS: dict[Update, Step] = {
    Update.GRADIENT: lambda w, g, lr, eps: -lr * g,
    Update.SIGN: lambda w, g, lr, eps: -lr * g / (g.abs() + eps),
    Update.PARAMETER: lambda w, g, lr, eps: -lr * w.pow(2).mean().sqrt() * g / (g.abs() + eps),
    Update.NORMALIZED: lambda w, g, lr, eps: -lr * g / (g.norm() + eps),
    Update.ORTHOGONAL: lambda w, g, lr, eps: -lr * orthogonal(g, eps),
    Update.HYPERBALL: lambda w, g, lr, eps: on_sphere(w, g / (g.abs() + eps), lr),
    Update.ORTHOGONAL_HYPERBALL: lambda w, g, lr, eps: on_sphere(w, orthogonal(g, eps), lr),
}


def orthogonal(g: Tensor, eps: float) -> Tensor:
    u, s, v = torch.linalg.svd(g, full_matrices=False)
    return u * (s / (s + eps)) @ v


def on_sphere(w: Tensor, u: Tensor, lr: float) -> Tensor:
    """A step of relative length lr, back onto the sphere; `losses` decays what it is added to."""
    moved = w - lr * w.norm() * u / u.norm()
    return moved * w.norm() / moved.norm() - 0.9 * w


def losses(update: Update, multiplier: float, lr: float, eps: float, absorbed: bool) -> list[float]:
    """Six steps of two layers, the second with a multiplier, weight decay 0.1 a step."""
    generator = torch.Generator().manual_seed(0)
    first, second, x, y = (
        torch.randn(5, 5, generator=generator, dtype=torch.float64) for _ in range(4)
    )
    lr_factor, eps_factor = absorbed_factors(update, multiplier) if absorbed else (1.0, 1.0)
    if absorbed:
        second = second * multiplier
    rates = ((lr, eps), (lr * lr_factor, eps * eps_factor))
    history = []
    for _ in range(6):
        weights = [first.requires_grad_(), second.requires_grad_()]
        out = (x @ first).tanh() @ second * (1.0 if absorbed else multiplier)
        loss = (out - y).pow(2).mean()
        grads = torch.autograd.grad(loss, weights)
        history.append(float(loss.detach()))
        first, second = (
            (w * 0.9 + STEPS[update](w, g, *rate)).detach()
            for w, g, rate in zip(weights, grads, rates, strict=True)
        )
    return history


@pytest.mark.parametrize("update", list(Update))
@pytest.mark.parametrize("multiplier", [0.03, 1.0, 7.0])
def test_an_absorbed_multiplier_changes_no_loss(update: Update, multiplier: float) -> None:
    plain = losses(update, multiplier, 0.01, 0.05, absorbed=False)
    assert losses(update, multiplier, 0.01, 0.05, absorbed=True) == pytest.approx(plain, rel=1e-11)
    assert plain[0] != plain[-1]
