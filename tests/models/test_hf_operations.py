"""Where a parameterization's factors act in a model of transformers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sweeper.classifier.classify import scaled_ops
from sweeper.models.hf import AttentionScale, BranchScale
from sweeper.scaling.spec import ScaledOp
from tests.models.hf_families import (
    CLASSES,
    EVERY,
    GPT_NEO,
    POST_NORM,
    SEQ,
    drawn,
    loss_of,
    made,
    transformers_loss,
)

transformers = pytest.importorskip("transformers", minversion="5.0")


pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")


@pytest.mark.parametrize("name", [n for n in EVERY if n != "ModernBertForMaskedLM"])
def test_the_logit_factor_replaces_one_over_the_root_of_the_head_size(name: str) -> None:
    """ModernBERT has no attribute in which its scale could be changed for comparison."""
    model = drawn(name)
    scales = [m for m in model.modules() if isinstance(m, AttentionScale)]
    assert len(scales) == 2 and all(float(m.logit) == pytest.approx(8**-0.5) for m in scales)
    for scale in scales:
        scale.logit.fill_(1 / 8)
    expected = transformers_loss(model, name, scaling=8**-0.5)
    assert loss_of(model, name) == pytest.approx(expected, abs=1e-6)
    assert abs(expected - transformers_loss(model, name)) > 1e-5


def test_the_output_factor_is_one_on_what_reads_attention() -> None:
    name = "LlamaForCausalLM"
    model = drawn(name)
    plain = transformers_loss(model, name)
    for scale in model.modules():
        if isinstance(scale, AttentionScale):
            scale.output.fill_(0.25)
    scaled = loss_of(model, name)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "o_proj" in key:
                parameter.mul_(0.25)
    expected = transformers_loss(model, name)
    assert scaled == pytest.approx(expected, abs=1e-6) and abs(expected - plain) > 1e-5


@pytest.mark.parametrize("name", EVERY)
def test_without_its_branches_a_layer_returns_its_input(name: str) -> None:
    model = drawn(name)
    branches = [m for m in model.modules() if isinstance(m, BranchScale)]
    assert [m.geometry["branch"] for m in branches] == [1, 2, 3, 4]
    for branch in branches:
        branch.branch.fill_(0.0)
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []
    layers = next(m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == 2)
    for layer in layers:
        layer.register_forward_hook(
            lambda m, args, out: seen.append((m, args[0], out[0] if type(out) is tuple else out))
        )
    loss_of(model, name)
    for layer, before, after in seen:
        expected = before
        if name in POST_NORM:
            expected = layer.output.LayerNorm(layer.attention.output.LayerNorm(before))
        torch.testing.assert_close(after, expected)
    assert len(seen) == 2


def test_operations_are_declared_with_their_geometry() -> None:
    ops = scaled_ops(made("LlamaForCausalLM", base_depth=1))
    assert [op.name for op in ops[:3]] == [
        "model.layers.0.self_attn.scaled_attention",
        "model.layers.0.self_attn.scaled_residual",
        "model.layers.0.mlp.scaled_residual",
    ]
    assert ops[0].geometry == {"head_size": 8, "seq_len": SEQ, "causal": True}
    assert ops[2].geometry == {"branch": 2, "branches": 4, "base_branches": 2}
    assert ops[-1] == ScaledOp(name="loss", kind="loss", geometry={"classes": CLASSES})
    bert = scaled_ops(made("BertForMaskedLM"))
    assert bert[0].geometry["causal"] is False and bert[-1].geometry == {"classes": CLASSES + 1}
    assert scaled_ops(made("ViTForImageClassification"))[0].geometry["seq_len"] == 16


def test_a_family_without_a_place_declares_nothing() -> None:
    """GPT-Neo has an attention of its own; BART's branches are not known.

    Nor has BART's attention to an encoder, which is never called, any factor.
    """
    assert [op.kind for op in scaled_ops(made("GPTNeoForCausalLM", config=GPT_NEO))] == [
        *["residual"] * 4,
        "loss",
    ]
    bart = scaled_ops(made("BartForCausalLM"))
    assert [op.kind for op in bart] == ["attention", "attention", "loss"]
    assert all(op.name.endswith("self_attn.scaled_attention") for op in bart[:2])
