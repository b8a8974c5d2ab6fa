"""Losses and gradients in the modes that training computes them in."""

from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

_WARNINGS = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

GRADIENT_MODES = [
    pytest.param(
        backend,
        batched,
        # `tests/engine/test_batched.py` compiles all of these operations in every run.
        marks=(_WARNINGS, pytest.mark.long) if backend else _WARNINGS,
        id=f"{backend or 'eager'}-{'batched' if batched else 'alone'}",
    )
    for backend, batched in (("", False), ("", True), ("aot_eager", True), ("inductor", True))
]
"""Arguments `backend` (of `torch.compile`; empty: eager) and `batched` of `run`."""
UNIT_MODES = [
    pytest.param(unit, *mode.values, marks=mode.marks, id=f"{mode.id}-{unit}")
    for mode in GRADIENT_MODES
    for unit in (False, True)
]
"""The same with `unit` before them."""

Tensors = dict[str, Tensor]


def stacked(model: nn.Module, trials: int, std: float = 1.0) -> tuple[Tensors, Tensors]:
    """Random weights, and scale buffers from .5 to 1.5, stacked over the trials."""
    params = {n: std * torch.randn(trials, *p.shape).to(p) for n, p in model.named_parameters()}
    scalars = {n: b for n, b in model.named_buffers() if b.dim() == 0}
    return params, {n: torch.rand(trials).to(b) + 0.5 for n, b in scalars.items()}


def run(
    model: nn.Module,
    params: Tensors,
    buffers: Tensors,
    inputs: tuple[Tensor, ...],
    *,
    backend: str,
    batched: bool,
) -> tuple[Tensor, Tensors]:
    """Losses [K] and stacked gradients; everything given has the trials in front."""

    def loss(p: Tensors, b: Tensors, *x: Tensor) -> Tensor:
        return cast(Tensor, functional_call(model, {**p, **b}, x))

    function: Callable[..., Tensor] = vmap(loss) if batched else loss
    if backend:
        torch.compiler.reset()
        function = torch.compile(function, backend=backend)
    if batched:
        return _differentiate(function, params, buffers, inputs)
    results = []
    for i in range(len(inputs[0])):
        p, b = ({n: t[i] for n, t in group.items()} for group in (params, buffers))
        results.append(_differentiate(function, p, b, tuple(x[i] for x in inputs)))
    gradients = {n: torch.stack([each[n] for _, each in results]) for n in params}
    return torch.stack([loss_of_trial for loss_of_trial, _ in results]), gradients


def _differentiate(
    function: Callable[..., Tensor], params: Tensors, buffers: Tensors, inputs: tuple[Tensor, ...]
) -> tuple[Tensor, Tensors]:
    """The loss or losses, and the gradients of 1.5 times their sum."""
    leaves = {n: p.clone().requires_grad_() for n, p in params.items()}
    loss = function(leaves, buffers, *inputs)
    gradients = torch.autograd.grad(1.5 * loss.sum(), list(leaves.values()))
    return loss.detach(), dict(zip(leaves, gradients, strict=True))
