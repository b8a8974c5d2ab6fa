"""Fields of transformers' own models against weights into which every factor is folded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sweeper
from sweeper.transfer.plan import TransferPlan
from tests.export.plans import COMPLETEP, executed, made, missing

transformers = pytest.importorskip("transformers", minversion="5.0")

HEAD, CLASSES = 8, 17
TOKENS = torch.zeros(2, 6, dtype=torch.long)
HPS = {"eta": 2.0**-6, "eta_emb": 2.0, "alpha_emb": 3.0, "alpha_attn": 0.7, "alpha_output": 1.5}
CLASSES_OF = {"granite": "Granite", "hyperclovax": "HyperCLOVAX"}
BRANCH_ENDS = {"granite": r"(o_proj|down_proj)\.weight$", "hyperclovax": r"post_norm[12]\.weight$"}
"""What the factor of a branch is folded into: HyperCLOVAX has norms behind its branches."""


def model(family: str, width: int, depth: int, **fields: Any) -> Any:
    """A tiny causal model without dropout, on any device."""
    config = getattr(transformers, f"{CLASSES_OF[family]}Config")(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=width // HEAD,
        num_key_value_heads=width // HEAD,
        intermediate_size=2 * width,
        vocab_size=CLASSES,
        max_position_embeddings=16,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        head_dim=HEAD,
        attn_implementation="sdpa",
        **{"tie_word_embeddings": False, **fields},
    )
    return getattr(transformers, f"{CLASSES_OF[family]}ForCausalLM")(config)


@cache
def planned(family: str, tied: bool = False) -> TransferPlan:
    """muP with CompleteP, from width 16 and depth 1 to width 32 and depth 3."""

    def build(width: int, depth: int) -> Any:
        return model(family, width, depth, tie_word_embeddings=tied)

    base, target = {"width": 16, "depth": 1}, {"width": 32, "depth": 3}
    return sweeper.plan_for(build, base, target, COMPLETEP, HPS, inputs=TOKENS)


@contextmanager
def exact_norms(net: nn.Module) -> Iterator[None]:
    """The norms, which transformers computes in float32, in float64."""

    def forward(self: Any, x: Tensor) -> Tensor:
        scale = x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon
        return self.weight * (x * torch.rsqrt(scale))  # type: ignore[no-any-return]

    for module in net.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(forward, module)  # type: ignore[method-assign]
    yield


def with_fields(family: str, plan: TransferPlan, **changed: float) -> tuple[Any, Any]:
    """The model with the exported fields and weights, and its groups."""
    names = executed(made(plan, "hf", family=family)["plan_hf.py"])
    tied = not any(p.role == "readout" for p in plan.parameters)
    fields = {**names["CONFIG"], **changed}
    net = model(family, 32, 3, tie_word_embeddings=tied, **fields).double()
    names["init_"](net)
    return net, names["param_groups"](net)


def folded(family: str, plan: TransferPlan) -> tuple[Any, Any]:
    """The model with neutral fields: the plan's weights, and every other factor folded into one.

    A factor c of what a weight gives is c times the weight, its learning rate, and 1/c its eps.
    """
    neutral = {"attention_multiplier": HEAD**-0.5}
    tied = not any(p.role == "readout" for p in plan.parameters)
    net = model(family, 32, 3, tie_word_embeddings=tied, **neutral).double()
    plan.init_(net)
    groups = {}
    for group in plan.param_groups(net):
        for parameter in group["params"]:
            groups[id(parameter)] = {**group, "params": [parameter]}
    attention = HPS["alpha_attn"] / HEAD / HEAD**-0.5
    for name, parameter in net.named_parameters():
        c = 1.0
        if name.endswith("q_proj.weight"):
            c = attention
        if re.search(BRANCH_ENDS[family], name):
            c = 1 / 3  # CompleteP: over depth / base depth
        parameter.data *= c
        group = groups[id(parameter)]
        # weight_decay times lr is the share that a step removes, and stays.
        group.update(
            lr=group["lr"] * c, eps=group["eps"] / c, weight_decay=group["weight_decay"] / c
        )
    return net, list(groups.values())


def losses(net: Any, groups: Any, steps: int = 20, logits: float = 1.0) -> Tensor:
    """Every step's loss; `logits` is a factor that the caller folds nowhere else."""
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    seen = []
    for step in range(steps):
        tokens = torch.randint(CLASSES, (4, 12), generator=torch.Generator().manual_seed(step))
        out = net(input_ids=tokens).logits[:, :-1] * logits
        loss = nn.functional.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach())
    return torch.stack(seen)


@pytest.mark.parametrize("family", CLASSES_OF)
def test_fields_train_as_folded_weights(family: str) -> None:
    plan = planned(family)
    assert missing(plan, "hf", family=family) == {}
    one, other = with_fields(family, plan), folded(family, plan)
    with exact_norms(one[0]), exact_norms(other[0]):
        ours, theirs = losses(*one), losses(*other)
    assert ours[-1] < ours[0]
    assert (ours - theirs).abs().max() <= 1e-9


@pytest.mark.parametrize("family", CLASSES_OF)
def test_norms_in_float32_leave_a_millionth(family: str) -> None:
    plan = planned(family)
    gap = (losses(*with_fields(family, plan)) - losses(*folded(family, plan))).abs().max()
    assert 0 < gap <= 1e-5


@pytest.mark.parametrize("family", CLASSES_OF)
def test_the_wrong_direction_of_logits_scaling_is_seen(family: str) -> None:
    plan = planned(family)
    fields = json.loads(made(plan, "hf", family=family)["plan_config.json"])
    flipped = {"logits_scaling": 1 / fields["logits_scaling"]}
    wrong, right = with_fields(family, plan, **flipped), folded(family, plan)
    assert (losses(*wrong, steps=3) - losses(*right, steps=3)).abs().max() > 1e-2


def test_granite_divides_the_logits_and_hyperclovax_multiplies_them() -> None:
    plan = planned("granite")
    granite, clova = (
        json.loads(made(plan, "hf", family=name)["plan_config.json"]) for name in CLASSES_OF
    )
    assert granite["logits_scaling"] == pytest.approx(1 / clova["logits_scaling"]) != 1
    rest = {"embedding_multiplier", "attention_multiplier", "residual_multiplier"}
    assert {name: granite[name] for name in rest} == {name: clova[name] for name in rest}


def test_a_tied_head_s_factor_is_with_that_of_the_rows() -> None:
    plan = planned("granite", tied=True)
    assert missing(plan, "hf", family="granite") == {}
    net, groups = with_fields("granite", plan)
    other, theirs = folded("granite", plan)
    factor = next(op["output"] for name, op in plan.operations.items() if "output" in op)
    with exact_norms(net), exact_norms(other):
        gap = losses(net, groups) - losses(other, theirs, logits=factor)
    assert gap.abs().max() <= 1e-9
