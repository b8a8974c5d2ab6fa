"""Models of transformers by name: their own loss, their sizes, a scheme's factors, packs."""

from __future__ import annotations

import copy
import math
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from sweeper.errors import BadInput, ConfigError
from sweeper.models.classifier import scaled_ops, specs_between
from sweeper.models.hf import HfModel
from sweeper.models.hf.masking import masked_positions
from sweeper.models.hf.names import known_classes, library, task_of
from sweeper.models.hf.operations import AttentionScale, BranchScale
from sweeper.scaling.relative import Standard
from sweeper.scaling.spec import Role, ScaledOp
from sweeper.training.pack import Pack
from sweeper.training.train import train
from sweeper.trial import PlainHps, Trial
from tests.models.arrays import images
from tests.specs import spec_of
from tests.training.tiny_trials import corpus

transformers = pytest.importorskip("transformers", minversion="5.0")
pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")

CAUSAL = [
    "LlamaForCausalLM",
    "GPT2LMHeadModel",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "GPTNeoXForCausalLM",
    "OPTForCausalLM",
    "PhiForCausalLM",
    "RobertaForCausalLM",
]
MASKED = ["BertForMaskedLM", "RobertaForMaskedLM", "ModernBertForMaskedLM"]
IMAGES = ["ViTForImageClassification", "DeiTForImageClassification"]
EVERY = [*CAUSAL, *MASKED, *IMAGES]
POST_NORM = ("BertForMaskedLM", "RobertaForMaskedLM", "RobertaForCausalLM")
CLASSES, SEQ = 61, 12


def made(name: str, width: int = 32, depth: int = 2, **more: Any) -> HfModel:
    """As transformers draws it, in float64."""
    torch.manual_seed(0)
    vision = name in IMAGES
    data: dict[str, Any] = {"input_shape": (8, 8)} if vision else {"seq_len": SEQ}
    sizes = {"classes": 10 if vision else CLASSES, "head_size": 8} | data
    return HfModel(name=name, width=width, depth=depth, **(sizes | more)).double()


def drawn(name: str, **more: Any) -> HfModel:
    """With weights so large that everything in the model matters."""
    model = made(name, **more)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model


def batch(name: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and targets of four examples."""
    torch.manual_seed(seed)
    if name in IMAGES:
        return torch.rand(4, 8, 8, dtype=torch.float64), torch.randint(10, (4,))
    tokens = torch.randint(CLASSES, (4, SEQ))
    return tokens[:, :-1], tokens[:, 1:]


@torch.no_grad()
def loss_of(model: nn.Module, name: str) -> float:
    return float(model(*batch(name)))


@torch.no_grad()
def transformers_loss(model: HfModel, name: str, **changed: float) -> float:
    """The loss of a plain transformers model of the same weights, by its own labels.

    Attributes of its modules are multiplied as `changed` says.
    """
    config = copy.deepcopy(model._net.config)
    config._attn_implementation, config._experts_implementation = None, "eager"
    net = getattr(transformers, name)(config).double()
    net.load_state_dict(model.state_dict())
    for module in net.modules():
        for key, factor in changed.items():
            if hasattr(module, key):
                setattr(module, key, factor * getattr(module, key))
    x, y = batch(name)
    if name in IMAGES:
        return float(net(pixel_values=x[:, None], labels=y).loss)
    if name in CAUSAL:
        tokens = torch.cat((x, y[:, -1:]), 1)
        # RoBERTa counts positions by its padding, of which there is none here.
        places = {"position_ids": torch.arange(SEQ)[None]} if "Roberta" in name else {}
        return float(net(input_ids=tokens, labels=tokens, **places).loss)
    hidden = masked_positions(x)
    tokens, labels = x.masked_fill(hidden, CLASSES), x.masked_fill(~hidden, -100)
    places = torch.arange(x.shape[1])[None]
    return float(net(input_ids=tokens, labels=labels, position_ids=places).loss)


@pytest.mark.parametrize("name", EVERY)
def test_the_loss_is_transformers_own(name: str) -> None:
    model = drawn(name)
    assert loss_of(model, name) == pytest.approx(transformers_loss(model, name), abs=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_the_first_loss_is_that_of_chance(name: str) -> None:
    classes = 10 if name in IMAGES else CLASSES + (name in MASKED)
    assert loss_of(made(name), name) == pytest.approx(math.log(classes), rel=0.05)


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


# A scheme's factors


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


def test_the_branch_factor_is_one_on_the_last_matrices() -> None:
    model = drawn("GPT2LMHeadModel")
    for module in model.modules():
        if isinstance(module, BranchScale):
            module.branch.fill_(0.5)
    halved = loss_of(model, "GPT2LMHeadModel")
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "c_proj" in key:
                parameter.mul_(0.5)
    assert halved == pytest.approx(transformers_loss(model, "GPT2LMHeadModel"), abs=1e-6)


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


GPT_NEO = {"attention_types": [[["global"], 2]]}


# Sizes


@pytest.mark.parametrize(
    ("name", "more", "shapes"),
    [
        (
            "LlamaForCausalLM",
            {"kv_heads": 2},
            {
                "model.layers.1.self_attn.q_proj.weight": (64, 64),
                "model.layers.1.self_attn.k_proj.weight": (32, 64),
                "model.layers.1.mlp.down_proj.weight": (64, 172),  # 64 x 11008 / 4096
                "lm_head.weight": (61, 64),
            },
        ),
        (
            "LlamaForCausalLM",
            {"kv_heads": 2, "width": 128, "ffn_ratio": 2.75},
            {
                "model.layers.1.self_attn.k_proj.weight": (32, 128),
                "model.layers.1.mlp.up_proj.weight": (352, 128),
            },
        ),
        (
            "Qwen3ForCausalLM",
            {},
            {
                "model.layers.0.self_attn.q_proj.weight": (64, 64),
                "model.layers.0.self_attn.k_proj.weight": (64, 64),
                "model.layers.0.self_attn.q_norm.weight": (16,),
            },
        ),
        ("MistralForCausalLM", {}, {"model.layers.0.self_attn.v_proj.weight": (64, 64)}),
        (
            "Gemma3ForCausalLM",
            {"kv_heads": 1},
            {"model.layers.0.self_attn.k_proj.weight": (16, 64)},
        ),
        (
            "GPT2LMHeadModel",
            {},
            {
                "transformer.h.1.attn.c_attn.weight": (64, 192),
                "transformer.h.1.mlp.c_fc.weight": (64, 256),
                "transformer.wpe.weight": (SEQ, 64),
            },
        ),
        (
            "GPT2LMHeadModel",
            {"ffn_ratio": 2},
            {"transformer.h.1.mlp.c_fc.weight": (64, 128)},
        ),
        (
            "OPTForCausalLM",
            {},
            {
                "model.decoder.layers.1.fc1.weight": (256, 64),
                "model.decoder.embed_positions.weight": (SEQ + 2, 64),
            },
        ),
        ("ArceeForCausalLM", {}, {"model.layers.0.mlp.up_proj.weight": (460, 64)}),  # 7.1875
        (
            "BertForMaskedLM",
            {},
            {
                "bert.embeddings.word_embeddings.weight": (62, 64),
                "bert.encoder.layer.1.intermediate.dense.weight": (256, 64),
            },
        ),
        (
            "ViTForImageClassification",
            {"patch_size": 4},
            {
                "vit.embeddings.patch_embeddings.projection.weight": (64, 1, 4, 4),
                "vit.embeddings.position_embeddings": (1, 5, 64),
                "classifier.weight": (10, 64),
            },
        ),
        (
            "ViTForImageClassification",
            {"input_shape": (3, 32, 32)},
            {"vit.embeddings.patch_embeddings.projection.weight": (64, 3, 8, 8)},
        ),
    ],
)
def test_sizes_follow_from_width(
    name: str, more: dict[str, Any], shapes: dict[str, tuple[int, ...]]
) -> None:
    model = made(name, **{"width": 64, "head_size": 16, **more})
    found = {key: tuple(value.shape) for key, value in model.named_parameters()}
    assert {key: found.get(key) for key in shapes} == shapes


def test_gemma_s_scale_is_of_its_heads() -> None:
    model = made("Gemma3ForCausalLM", width=64, head_size=16)
    assert model._net.model.layers[0].self_attn.scaling == 0.25


def test_small_models_have_no_dropout_cache_or_special_tokens() -> None:
    config = made("GPT2LMHeadModel")._net.config
    assert (config.attn_pdrop, config.resid_pdrop, config.embd_pdrop) == (0, 0, 0)
    assert config.use_cache is False and config.eos_token_id is None
    assert made("GPT2LMHeadModel", config={"attn_pdrop": 0.25})._net.config.attn_pdrop == 0.25


@pytest.mark.parametrize(
    ("name", "tie", "tied"),
    [
        ("LlamaForCausalLM", None, False),
        ("LlamaForCausalLM", True, True),
        ("GPT2LMHeadModel", None, True),
        ("GPT2LMHeadModel", False, False),
    ],
)
def test_tied_matrices_are_one_parameter(name: str, tie: bool | None, tied: bool) -> None:
    names = [key for key, _ in made(name, tie=tie).named_parameters()]
    assert ("lm_head.weight" not in names) == tied


@pytest.mark.parametrize(
    ("more", "key", "message"),
    [
        ({"name": "LamaForCausalLM"}, "name", "did you mean LlamaForCausalLM"),
        ({"name": "T5ForConditionalGeneration"}, "name", "ForCausalLM"),
        ({"name": "Trainer"}, "name", "ForMaskedLM"),
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
    ],
)
def test_what_cannot_be_built_is_refused_by_name(
    more: dict[str, Any], key: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**{"name": "LlamaForCausalLM", **more})
    assert caught.value.key == key and message in str(caught.value)


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"tie": True}, "tie"),
        ({"patch_size": 3}, "patch_size"),
        ({"input_shape": (8,)}, "input_shape"),
        ({"input_shape": None, "seq_len": 8}, "name"),
        ({"name": "ResNetForImageClassification"}, "name"),
    ],
)
def test_images_that_cannot_be_cut_are_refused(more: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**{"name": IMAGES[0], "input_shape": (8, 8), "seq_len": None, **more})
    assert caught.value.key == key


def test_every_class_of_the_three_tasks_is_known() -> None:
    names = known_classes()
    assert {task_of(name) for name in EVERY} == {"causal", "masked", "images"}
    assert len(names) > 200 and not any("ConditionalGeneration" in name for name in names)


def test_without_transformers_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BadInput, match=r"pip install 'sweeper\[hf\]'"):
        library()


def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    made("LlamaForCausalLM")(*batch("LlamaForCausalLM"))


# Masking


@pytest.mark.parametrize(("length", "hidden"), [(1, 1), (12, 2), (100, 15), (128, 19)])
def test_fifteen_percent_of_each_sequence_are_hidden(length: int, hidden: int) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(256, (64, length))
    found = masked_positions(tokens)
    assert torch.equal(found.sum(-1), torch.full((64,), hidden))
    assert torch.equal(found[7:8], masked_positions(tokens[7:8]))
    assert torch.equal(vmap(masked_positions)(tokens.view(8, 8, -1)).flatten(0, 1), found)


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


# Training


class Branches(Standard):
    """The standard parameterization; what a scheme does to the stream has no place here."""

    def scale_op(self, op: ScaledOp, hps: PlainHps) -> dict[str, float]:
        """The logits of attention follow the embedding's constant, so that trials differ."""
        factors = {k: v for k, v in super().scale_op(op, hps).items() if k != "skip"}
        if op.kind == "attention":
            factors["logit"] *= hps["gamma_embedding"]
        return factors


def trials(name: str, folder: Path, scheme: str = "Branches") -> list[Trial]:
    """Trials that differ in seed and in every hyperparameter; width 32 on base 16, float64."""
    data = (images(folder) if name in IMAGES else corpus(folder)).identity()
    settings = {"steps": 10, "batch_size": 4, "seq_len": 8, "precision": "float64"}
    tree = {
        "parameterization": {"_target_": f"{__name__}.{scheme}"},
        "model": {
            "_target_": "sweeper.models.hf.HfModel",
            "name": name,
            "head_size": 8,
            "width": 32,
            "depth": 2,
        },
        "base": {"width": 16, "depth": 1},
        "data": data,
        "train": settings | {"heldout_batches": 2},
    }
    hps = {"eta": -8.0, "gamma_embedding": 0.0, "gamma_hidden": 0.0, "gamma_readout": 0.0}
    spec, changed = spec_of(tree), [hps | {key: hps[key] + 1.0} for key in hps]
    return [Trial(spec=spec, log2_hps=h, seed=i % 2) for i, h in enumerate([hps, hps, *changed])]


@pytest.mark.parametrize(
    "name",
    ["LlamaForCausalLM", "GPT2LMHeadModel", "BertForMaskedLM", "ViTForImageClassification"],
)
def test_packed_equals_alone(name: str, tmp_path: Path) -> None:
    made_trials = trials(name, tmp_path)
    data = images(tmp_path) if name in IMAGES else corpus(tmp_path)
    together = train(Pack(trials=tuple(made_trials), corpus=data))
    for one, packed in zip(made_trials, together, strict=True):
        single = train(Pack(trials=(one,), corpus=data))[0]
        assert packed.objective == pytest.approx(single.objective, rel=1e-10)
        assert packed.heldout == pytest.approx(single.heldout, rel=1e-10)
    # The constant of readouts has nothing to act on where the head is the embedding.
    tied = name in ("GPT2LMHeadModel", "BertForMaskedLM")
    assert len({result.objective for result in together}) == len(made_trials) - tied


@pytest.mark.parametrize("name", EVERY)
def test_every_family_maps_over_trials(name: str) -> None:
    """Three trials that differ in weights, factors and inputs, against one after the other."""
    model = drawn(name)
    given = [batch(name, seed) for seed in range(3)]
    x, y = (torch.stack(each) for each in zip(*given, strict=True))
    params = {n: p + 0.05 * torch.randn(3, *p.shape).to(p) for n, p in model.named_parameters()}
    names = {f"{op.name}.{factor}" for op in scaled_ops(model) for factor in ("logit", "branch")}
    scales = {
        n: b * torch.tensor([0.8, 1.0, 1.3], dtype=b.dtype)
        for n, b in model.named_buffers()
        if n in names
    }
    assert len(scales) == 2 + 4 + 1

    def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional_call(model, p, (x, y), tie_weights=True)  # type: ignore[no-any-return]

    with torch.no_grad():
        mapped = vmap(loss)(params | scales, x, y)
    alone = [loss({n: p[i] for n, p in (params | scales).items()}, x[i], y[i]) for i in range(3)]
    torch.testing.assert_close(mapped, torch.stack(alone), rtol=1e-9, atol=1e-12)
    assert len(set(mapped.tolist())) == 3


@pytest.mark.parametrize("name", EVERY)
def test_every_family_maps_under_autocast(name: str) -> None:
    """Losses in bfloat16 of one trial in a pack, beside those in float32."""
    model, (x, y) = drawn(name).float(), batch(name)
    x = x.float() if name in IMAGES else x
    params = {n: p.detach()[None] for n, p in model.named_parameters()}

    def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional_call(model, p, (x, y), tie_weights=True)  # type: ignore[no-any-return]

    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        mapped = vmap(loss)(params, x[None], y[None])
    with torch.no_grad():
        assert float(mapped) == pytest.approx(float(model(x, y)), rel=0.02)


def test_roles_and_names_are_those_of_the_plain_model() -> None:
    def build(width: int, depth: int) -> HfModel:
        return HfModel(
            name="LlamaForCausalLM", width=width, depth=depth, classes=CLASSES, seq_len=SEQ
        )

    tokens = torch.empty(2, SEQ, dtype=torch.long, device="meta")
    specs = specs_between(build, base=(32, 1), target=(64, 2), inputs=(tokens, tokens))
    plain = {name for name, _ in build(64, 2)._net.named_parameters()}
    assert {spec.name for spec in specs} == plain
    roles = {spec.name: spec.role for spec in specs}
    assert roles.pop("model.embed_tokens.weight") is Role.EMBEDDING
    assert roles.pop("lm_head.weight") is Role.READOUT
    norms = {name for name in roles if "norm" in name}
    assert all((role is Role.VECTOR) == (name in norms) for name, role in roles.items())
    assert all(roles[name] is Role.HIDDEN for name in roles.keys() - norms) and len(norms) == 5
