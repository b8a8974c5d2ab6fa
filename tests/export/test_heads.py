"""What a trainer's factors of embedding and logits act on: the table and the head, nothing else."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

import sweeper
from sweeper.export.compare import header, lacking
from sweeper.export.exporter import build_exporter, head_of, table_of
from sweeper.export.hf import Hf
from sweeper.plan.plan import TransferPlan
from sweeper.records import from_json, to_json
from sweeper.scaling.spec import Role
from tests.toy_models import TOKENS


class Routed(nn.Module):
    """Two experts a layer, whose router reads the stream out as a head does."""

    def __init__(self, n_embd: int, n_layer: int = 2) -> None:
        super().__init__()
        self.wte = nn.Embedding(17, n_embd)
        self.layers = nn.ModuleList(Layer(n_embd) for _ in range(n_layer))
        self.head = nn.Linear(n_embd, 17, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, n_embd: int) -> None:
        super().__init__()
        self.router = nn.Linear(n_embd, 2, bias=False)
        self.experts = nn.ModuleList(nn.Linear(n_embd, n_embd, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.router(x).softmax(-1)
        found = [shares[..., i : i + 1] * one(x) for i, one in enumerate(self.experts)]
        return found[0] + found[1]


def routed() -> TransferPlan:
    hps = {"eta": 0.01, "alpha_output": 3.0, "alpha_emb": 2.0}
    return sweeper.plan_for(Routed, {"n_embd": 32}, {"n_embd": 128}, "mup", hps, inputs=TOKENS)


def test_a_router_is_a_readout_and_no_head() -> None:
    plan = routed()
    roles = {parameter.name: parameter.role for parameter in plan.parameters}
    assert roles["layers.0.router.weight"] == Role.READOUT == roles["head.weight"]
    head, table = head_of(plan), table_of(plan)
    assert head is not None and head.name == "head.weight"
    assert table is not None and table.name == "wte.weight"


def test_only_the_head_is_left_to_the_factor_of_the_logits() -> None:
    plan = routed()
    for to, options in (("hf", {"family": "granitemoe"}), ("megatron", {}), ("nanogpt-mup", {})):
        exporter = build_exporter(to, options)
        forward = {p.name: exporter.setting(plan, p).forward for p in plan.parameters}
        assert forward.pop("head.weight") == 3 / 4
        assert forward.pop("wte.weight") == 2
        assert set(forward.values()) == {1.0}, to


# Attention that was not seen: the size of its heads is nobody's to invent.


class Opaque(nn.Module):
    """Attention of a kind that no watch knows: a product written as a sum of products."""

    def __init__(self, n_embd: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(17, n_embd)
        self.att_qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.head = nn.Linear(n_embd, 17, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens)
        q, k, v = (t.unflatten(-1, (-1, 16)) for t in self.att_qkv(x).chunk(3, -1))
        products = (q.unsqueeze(2) * k.unsqueeze(1)).sum(-1)
        return self.head(  # type: ignore[no-any-return]
            (products.softmax(2).unsqueeze(-1) * v.unsqueeze(1)).sum(2).flatten(2)
        )


def opaque() -> TransferPlan:
    return sweeper.plan_for(Opaque, {"n_embd": 32}, {"n_embd": 128}, "mup", {}, inputs=TOKENS)


def test_no_head_size_is_invented() -> None:
    plan = opaque()
    (factor,) = (f for f in plan.factors or () if (f.kind, f.factor) == ("attention", "logit"))
    assert (factor.head_size, factor.rule) == (0, "1/d")
    assert "0.015625" not in "".join([*plan.needs, str(plan.factors)])
    assert from_json(TransferPlan, to_json(plan)).factors == plan.factors
    for to, options, lacks in (
        ("megatron", {}, False),
        ("nanogpt-mup", {}, False),
        ("pytorch", {}, True),
        ("hf", {"family": "granite"}, True),
        ("hf", {"family": "minicpm3"}, True),
    ):
        exporter = build_exporter(to, options)
        found = [lack for lack in lacking(plan, exporter) if lack.name == "attention"]
        assert bool(found) == lacks, to
        assert not lacks or "head_size=N" in str(found[0])
        assert "0.015625" not in header(plan, exporter, found, ["attention"])
    granite = Hf(family="granite").fields(plan)
    assert "attention_multiplier" not in granite and "logits_scaling" in granite


def test_a_head_size_that_is_told_counts() -> None:
    plan = opaque()
    known = replace(
        plan, factors=tuple(f.of_heads(16) if f.rule else f for f in plan.factors or ())
    )
    assert Hf(family="granite").fields(known)["attention_multiplier"] == 1 / 16
    found = {lack.name for lack in lacking(known, Hf(family="granite"))}
    assert "attention" not in found
