"""Models of transformers by name: their own loss, and batches of them."""

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from sweeper.classifier.classify import scaled_ops
from sweeper.errors import ConfigError
from sweeper.models.hf import AttentionScale, BranchScale, HfModel, masked_positions
from sweeper.models.hf_config import known_classes, library, task_of
from sweeper.scaling.spec import ScaledOp
from tests.golden import Golden
from tests.models.hf_families import (
    CAUSAL,
    CLASSES,
    EVERY,
    GPT_NEO,
    IMAGES,
    POST_NORM,
    SEQ,
    batch,
    drawn,
    loss_of,
    made,
    transformers_loss,
)
from tests.refusals import refused

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")


@pytest.mark.parametrize("name", EVERY)
def test_the_loss_is_transformers_own(name: str) -> None:
    model = drawn(name)
    assert loss_of(model, name) == pytest.approx(transformers_loss(model, name), abs=1e-6)


def test_the_loss_of_routers_joins_where_it_is_asked_for() -> None:
    name = "MixtralForCausalLM"
    plain, balanced = drawn(name), drawn(name, config={"output_router_logits": True})
    difference = loss_of(balanced, name) - loss_of(plain, name)
    assert difference > 1e-3
    # transformers is given a token more, which its routers see.
    own = transformers_loss(balanced, name) - transformers_loss(plain, name)
    assert difference == pytest.approx(own, rel=0.05)


@pytest.mark.parametrize("name", CAUSAL)
def test_no_position_sees_what_follows(name: str) -> None:
    model, (x, _) = drawn(name), batch(name)
    changed = x.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % CLASSES
    with torch.no_grad():
        before, after = model(x), model(changed)
    torch.testing.assert_close(before[:, :6], after[:, :6], rtol=0, atol=1e-6)
    assert (before[:, 6:] - after[:, 6:]).abs().max() > 1e-2


def by_tensors(model: HfModel) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    return lambda p, x, y: functional_call(model, p, (x, y), tie_weights=True)


@pytest.mark.parametrize("name", EVERY)
def test_every_family_maps_over_trials(name: str) -> None:
    """Three trials that differ in weights, factors and inputs, against one after the other."""
    model = drawn(name)
    batches = [batch(name, seed) for seed in range(3)]
    x, y = (torch.stack(each) for each in zip(*batches, strict=True))
    params = {n: p + 0.05 * torch.randn(3, *p.shape).to(p) for n, p in model.named_parameters()}
    names = {f"{op.name}.{factor}" for op in scaled_ops(model) for factor in ("logit", "branch")}
    scales = {
        n: b * torch.tensor([0.8, 1.0, 1.3], dtype=b.dtype)
        for n, b in model.named_buffers()
        if n in names
    }
    assert len(scales) == 2 + 4 + 1

    loss = by_tensors(model)
    leaves = {n: p.detach().requires_grad_() for n, p in params.items()}
    mapped = vmap(loss)(leaves | scales, x, y)
    alone = torch.stack(
        [loss({n: p[i] for n, p in (leaves | scales).items()}, x[i], y[i]) for i in range(3)]
    )
    torch.testing.assert_close(mapped, alone, rtol=1e-9, atol=1e-12)
    assert len(set(mapped.tolist())) == 3
    gradients, expected = (
        torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
        for losses in (mapped, alone)
    )
    torch.testing.assert_close(gradients, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", EVERY)
def test_every_family_maps_under_autocast(name: str) -> None:
    """Losses in bfloat16 of one trial in a batch, beside those in float32."""
    model, (x, y) = drawn(name).float(), batch(name)
    x = x.float() if name in IMAGES else x
    params = {n: p.detach()[None] for n, p in model.named_parameters()}

    loss = by_tensors(model)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        mapped = vmap(loss)(params, x[None], y[None])
    with torch.no_grad():
        assert float(mapped) == pytest.approx(float(model(x, y)), rel=0.02)


@pytest.mark.parametrize(("length", "hidden"), [(1, 1), (12, 2), (100, 15), (128, 19)])
def test_fifteen_percent_of_each_sequence_are_hidden(length: int, hidden: int) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(256, (64, length))
    hidden_places = masked_positions(tokens)
    assert torch.equal(hidden_places.sum(-1), torch.full((64,), hidden))
    assert torch.equal(hidden_places[7:8], masked_positions(tokens[7:8]))
    assert torch.equal(vmap(masked_positions)(tokens.view(8, 8, -1)).flatten(0, 1), hidden_places)


def test_every_position_is_hidden_as_often() -> None:
    """Over 4000 sequences that differ in one token: 15 % at each of 20 places, +-5 sigma."""
    tokens = torch.arange(4000)[:, None].expand(-1, 20).clone()
    tokens[:, 1:] = 7
    share = masked_positions(tokens).double().mean(0)
    assert (share - 0.15).abs().max() < 5 * math.sqrt(0.15 * 0.85 / 4000)


def test_a_hidden_token_is_not_seen() -> None:
    """The model is shown the same for two sequences that differ in a hidden token alone."""
    seen: list[Tensor] = []
    model = made("BertForMaskedLM")
    model.bert.embeddings.word_embeddings.register_forward_hook(  # type: ignore[union-attr]
        lambda module, args, out: seen.append(args[0])
    )
    x, y = batch("BertForMaskedLM")
    model(x, y)
    hidden = masked_positions(x)
    assert (seen[0][hidden] == CLASSES).all() and torch.equal(seen[0][~hidden], x[~hidden])


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


LLAMA, GPT2, BERT = "LlamaForCausalLM", "GPT2LMHeadModel", "BertForMaskedLM"
VIT = "ViTForImageClassification"
PATCHES = "vit.embeddings.patch_embeddings.projection"
SHAPES: list[tuple[str, dict[str, Any], str, tuple[int, ...]]] = [
    (LLAMA, {"kv_heads": 2}, "model.layers.1.self_attn.q_proj", (64, 64)),
    (LLAMA, {"kv_heads": 2}, "model.layers.1.self_attn.k_proj", (32, 64)),
    (LLAMA, {}, "model.layers.1.mlp.down_proj", (64, 172)),  # 64 x 11008 / 4096
    (LLAMA, {}, "lm_head", (61, 64)),
    (LLAMA, {"width": 128, "ffn_ratio": 2.75}, "model.layers.1.mlp.up_proj", (352, 128)),
    ("Qwen3ForCausalLM", {}, "model.layers.0.self_attn.q_norm", (16,)),
    ("Gemma3ForCausalLM", {"kv_heads": 1}, "model.layers.0.self_attn.k_proj", (16, 64)),
    (GPT2, {}, "transformer.h.1.attn.c_attn", (64, 192)),
    (GPT2, {}, "transformer.h.1.mlp.c_fc", (64, 256)),
    (GPT2, {}, "transformer.wpe", (SEQ, 64)),
    (GPT2, {"ffn_ratio": 2}, "transformer.h.1.mlp.c_fc", (64, 128)),
    ("OPTForCausalLM", {}, "model.decoder.embed_positions", (SEQ + 2, 64)),
    ("ArceeForCausalLM", {}, "model.layers.0.mlp.up_proj", (460, 64)),  # 7.1875
    (BERT, {}, "bert.embeddings.word_embeddings", (62, 64)),
    (BERT, {}, "bert.encoder.layer.1.intermediate.dense", (256, 64)),
    (VIT, {"patch_size": 4}, PATCHES, (64, 1, 4, 4)),
    (VIT, {"patch_size": 4}, "vit.embeddings.position_embeddings", (1, 5, 64)),
    (VIT, {"input_shape": (3, 32, 32)}, PATCHES, (64, 3, 8, 8)),
]


@pytest.mark.parametrize(("name", "more", "key", "shape"), SHAPES)
def test_sizes_follow_from_width(
    name: str, more: dict[str, Any], key: str, shape: tuple[int, ...]
) -> None:
    parameters = dict(made(name, **{"width": 64, "head_size": 16, **more}).named_parameters())
    [value] = [parameters[each] for each in (key, f"{key}.weight") if each in parameters]
    assert tuple(value.shape) == shape


def test_gemma_s_scale_is_of_its_heads() -> None:
    model = made("Gemma3ForCausalLM", width=64, head_size=16)
    assert model._net.model.layers[0].self_attn.scaling == 0.25


def test_small_models_have_no_dropout_cache_or_special_tokens() -> None:
    config = made("GPT2LMHeadModel")._net.config
    assert (config.attn_pdrop, config.resid_pdrop, config.embd_pdrop) == (0, 0, 0)
    assert config.use_cache is False and config.eos_token_id is None
    assert made("GPT2LMHeadModel", config={"attn_pdrop": 0.25})._net.config.attn_pdrop == 0.25


@pytest.mark.parametrize(
    ("name", "tie", "tied"), [(LLAMA, None, 0), (LLAMA, True, 1), (GPT2, None, 1), (GPT2, False, 0)]
)
def test_tied_matrices_are_one_parameter(name: str, tie: bool | None, tied: int) -> None:
    names = [key for key, _ in made(name, tie=tie).named_parameters()]
    assert ("lm_head.weight" not in names) == tied


IMAGE = {"name": VIT, "input_shape": (8, 8), "seq_len": None}


@pytest.mark.parametrize(
    ("more", "key", "message"),
    [
        ({"name": "LamaForCausalLM"}, "name", "did you mean LlamaForCausalLM"),
        ({"name": "T5ForConditionalGeneration"}, "name", "ForCausalLM"),
        ({"name": "XLNetLMHeadModel"}, "name", "sees what follows"),
        ({"name": "BeitForImageClassification"}, "name", "arrays, such as data=digits"),
        ({"width": 36}, "width", "a multiple of head_size, which is 8"),
        ({"depth": 0}, "depth", "at least 1"),
        ({"kv_heads": 3}, "kv_heads", "a divisor of the 4 heads of width 32"),
        ({"ffn_ratio": 0.3}, "ffn_ratio", "a whole number"),
        ({"config": {"hiden_act": "relu"}}, "config.hiden_act", "did you mean hidden_act"),
        ({"config": {"hidden_size": 8}}, "config.hidden_size", "model.width: give that"),
        ({"config": {"vocab_size": 8}}, "config.vocab_size", "model.data: give that"),
        ({"config": {"hidden_act": "nothing"}}, "name", "KeyError"),
        ({"name": "GPT2LMHeadModel", "kv_heads": 2}, "kv_heads", "null"),
        ({"name": "GPT2LMHeadModel", "config": {"hidden_size": 8}}, "config.hidden_size", "width"),
        ({**IMAGE, "tie": True}, "tie", ""),
        ({**IMAGE, "patch_size": 3}, "patch_size", ""),
        ({**IMAGE, "input_shape": (8,)}, "input_shape", ""),
        ({**IMAGE, "input_shape": None, "seq_len": 8}, "name", ""),
        ({**IMAGE, "name": "ResNetForImageClassification"}, "name", ""),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(
    more: dict[str, Any], key: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**{"name": "LlamaForCausalLM", **more})
    assert caught.value.key == key and message in str(caught.value)


def test_every_class_of_the_three_tasks_is_known() -> None:
    names = known_classes()
    assert {task_of(name) for name in EVERY} == {"causal", "masked", "images"}
    assert len(names) > 200 and not any("ConditionalGeneration" in name for name in names)


def test_without_transformers_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with refused(golden):
        library()
