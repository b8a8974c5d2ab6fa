"""Roles and fans read off the model; nothing is guessed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sweeper.classifier.classify import scaled_ops, specs_between
from sweeper.errors import BadInput
from sweeper.models.llama import Llama
from sweeper.scaling.spec import Role
from tests.golden import Golden


def llama(width: int, depth: int) -> Llama:
    return Llama(width=width, depth=depth, classes=50, seq_len=8, norm_gain=True)


def test_every_parameter_of_the_decoder() -> None:
    found = {s.name: s for s in specs_between(llama, base=(32, 2), target=(64, 3))}
    assert found.keys() == dict(llama(64, 3).named_parameters()).keys()
    down = found["layers.2.ffn.down.weight"]
    assert (down.role, down.fan_in, down.fan_out) == (Role.HIDDEN, 176, 64)
    assert (down.base_fan_in, down.base_shape) == (88, (32, 88))
    assert (down.residual, down.depth, down.base_depth) == (True, 3, 2)
    embedding, head = found["embedding.weight"], found["head.weight"]
    assert (embedding.role, embedding.fan_in, embedding.fan_out) == (Role.EMBEDDING, 50, 64)
    assert (head.role, head.fan_in, head.fan_out) == (Role.READOUT, 64, 50)
    assert not embedding.residual and not head.residual
    gain = found["layers.0.attention_norm.gain"]
    assert (gain.role, gain.init, gain.residual) == (Role.VECTOR, "ones", True)
    assert not found["norm.gain"].residual


def test_at_base_the_shapes_are_the_base_s() -> None:
    for spec in specs_between(llama, base=(32, 2), target=(32, 2)):
        assert spec.shape == spec.base_shape
        assert spec == spec.at_base()


def test_at_base_undoes_the_target() -> None:
    small = {s.name: s for s in specs_between(llama, base=(32, 2), target=(32, 2))}
    for spec in specs_between(llama, base=(32, 2), target=(96, 2)):
        assert spec.at_base() == small[spec.name]


class Users(nn.Module):
    """A model of torch's own layers, one dimension of which grows with nothing."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(10, width)
        self.bottleneck = nn.Linear(width, 7)
        self.fixed = nn.Linear(7, 5, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))

    def example_inputs(self) -> torch.Tensor:
        return torch.zeros(2, 3, dtype=torch.long)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.fixed(self.bottleneck(x))


def test_torch_s_own_layers() -> None:
    roles = {s.name: s.role for s in specs_between(Users, base=(16, 2), target=(64, 3))}
    assert roles == {
        "table.weight": Role.EMBEDDING,
        "bottleneck.weight": Role.READOUT,
        "bottleneck.bias": Role.VECTOR,
        "fixed.weight": Role.FIXED,
        "blocks.0.weight": Role.HIDDEN,
        "blocks.1.weight": Role.HIDDEN,
        "blocks.2.weight": Role.HIDDEN,
    }


class Strange(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.mystery = nn.Parameter(torch.empty(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.linalg.inv(self.mystery)


def test_what_is_not_understood_is_named(golden: Golden) -> None:
    with pytest.raises(BadInput) as caught:
        specs_between(Strange, base=(16, 1), target=(16, 1), inputs=lambda s: torch.zeros(1))
    golden.says(caught)


def test_scaled_ops_of_the_decoder() -> None:
    found = {op.name: op for op in scaled_ops(llama(32, 2))}
    assert sorted({op.kind for op in found.values()}) == [
        "attention",
        "gated_silu",
        "loss",
        "residual",
    ]
    assert found["layers.1.ffn_residual"].geometry["branch"] == 4
    assert found["layers.0.attention.core"].geometry["causal"] is True
