"""An absorbed multiplier changes no step of any optimizer: the abc symmetry, written out."""

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
    """A step of relative length lr, back onto the sphere."""
    moved = w - lr * w.norm() * u / u.norm()
    return moved * w.norm() / moved.norm() - w


@pytest.mark.parametrize("update", list(Update))
@pytest.mark.parametrize("multiplier", [0.03, 1.0, 7.0])
def test_an_absorbed_multiplier_changes_no_step(update: Update, multiplier: float) -> None:
    """Of V = multiplier * W, to which the gradient is g: W sees multiplier * g."""
    generator = torch.Generator().manual_seed(0)
    w, g = (torch.randn(5, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    step, (lr, eps) = STEPS[update], absorbed_factors(update, multiplier)
    moved = multiplier * step(w, multiplier * g, 0.01, 0.05)
    torch.testing.assert_close(step(multiplier * w, g, 0.01 * lr, 0.05 * eps), moved)
    assert moved.abs().max() > 1e-6
