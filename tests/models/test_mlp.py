"""The perceptron: scale at initialization, sizes, and training in batches."""

from __future__ import annotations

import pytest
import torch

from sweeper.classifier.classify import specs_between
from tests.models.own import at, made


def test_roles() -> None:
    specs = specs_between(at("mlp"), base=(32, 2), target=(64, 2))
    roles = {spec.name: str(spec.role) for spec in specs}
    assert roles == {
        "input.weight": "embedding",
        "layers.0.weight": "hidden",
        "layers.1.weight": "hidden",
        "head.weight": "readout",
    }


def test_signal_and_gradient_keep_their_scale() -> None:
    """Under fan-in initialization."""
    torch.manual_seed(0)
    model = made("mlp", width=512, depth=6)
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, std=(64 if name == "input.weight" else 512) ** -0.5)
    x = torch.randn(64, 8, 8, requires_grad=True)
    seen: list[torch.Tensor] = []
    for layer in (model.input, *model.layers):
        layer.register_forward_hook(lambda m, i, out: (out.retain_grad(), seen.append(out))[0])
    logits = model(x)
    logits.backward(torch.randn_like(logits))
    for out in seen:
        assert float(out.detach().pow(2).mean().sqrt()) == pytest.approx(1.0, rel=0.25)
    grads = [float(out.grad.pow(2).mean().sqrt()) for out in seen if out.grad is not None]
    assert max(grads) < 1.5 * min(grads)
