"""What a trainer's factors of embedding and logits act on: the table and the head, nothing else."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

import sweeper
from sweeper.export.exporter import build_exporter, head_of, table_of
from sweeper.scaling.spec import Role
from tests.toy_models import TOKENS


class Layer(nn.Module):
    def __init__(self, n_embd: int) -> None:
        super().__init__()
        self.router = nn.Linear(n_embd, 2, bias=False)
        self.experts = nn.ModuleList(nn.Linear(n_embd, n_embd, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.router(x).softmax(-1)
        first, second = (shares[..., i : i + 1] * e(x) for i, e in enumerate(self.experts))
        return x + first + second


def routed(n_embd: int) -> nn.Module:
    """Two experts a layer, whose router reads the stream out as a head does."""
    parts: list[tuple[str, nn.Module]] = [("wte", nn.Embedding(17, n_embd))]
    parts += [("first", Layer(n_embd)), ("second", Layer(n_embd))]
    return nn.Sequential(OrderedDict([*parts, ("head", nn.Linear(n_embd, 17, bias=False))]))


def test_a_router_is_a_readout_and_no_head() -> None:
    hps = {"eta": 0.01, "alpha_output": 3.0, "alpha_emb": 2.0}
    plan = sweeper.plan_for(routed, {"n_embd": 32}, {"n_embd": 128}, "mup", hps, inputs=TOKENS)
    roles = {parameter.name: parameter.role for parameter in plan.parameters}
    assert roles["first.router.weight"] == Role.READOUT == roles["head.weight"]
    head, table = head_of(plan), table_of(plan)
    assert head is not None and head.name == "head.weight"
    assert table is not None and table.name == "wte.weight"
    # The factor of the logits is left to the head alone.
    for to, options in (("hf", {"family": "granitemoe"}), ("megatron", {})):
        exporter = build_exporter(to, options)
        forward = {p.name: exporter.setting(plan, p).forward for p in plan.parameters}
        assert forward.pop("head.weight") == 3 / 4
        assert forward.pop("wte.weight") == 2
        assert set(forward.values()) == {1.0}, to
