"""Fields of transformers' own models against weights into which every factor is folded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from math import sqrt
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sweeper
from sweeper.engine.prepare import prepare
from sweeper.errors import ConfigError
from sweeper.export.transformers import FAMILIES, Multipliers, Shape, family_of_class
from sweeper.plan.plan import TransferPlan
from tests.engine.tiny_trials import tree
from tests.export.plans import COMPLETEP, executed, made, missing
from tests.plan.helpers import plan as study_plan
from tests.refusals import raises_config_error
from tests.specs import spec_of

transformers = pytest.importorskip("transformers", minversion="5.0")

HEAD, CLASSES = 8, 17
TOKENS = torch.zeros(2, 6, dtype=torch.long)
HPS = {"eta": 2.0**-6, "eta_emb": 2.0, "alpha_emb": 3.0, "alpha_attn": 0.7, "alpha_output": 1.5}


def granite(width: int, depth: int, **fields: Any) -> Any:
    config = transformers.GraniteConfig(
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
    return transformers.GraniteForCausalLM(config)


@cache
def planned() -> TransferPlan:
    """muP with CompleteP, from width 16 and depth 1 to width 32 and depth 3."""
    base, target = {"width": 16, "depth": 1}, {"width": 32, "depth": 3}
    return sweeper.plan_for(granite, base, target, COMPLETEP, HPS, inputs=TOKENS)


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


def losses(net: Any, groups: Any) -> Tensor:
    """Every step's loss."""
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    history = []
    for step in range(8):
        tokens = torch.randint(CLASSES, (4, 12), generator=torch.Generator().manual_seed(step))
        out = net(input_ids=tokens).logits[:, :-1]
        loss = nn.functional.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.detach())
    return torch.stack(history)


def test_a_plan_of_arrays_is_no_family_of_text() -> None:
    of_images = replace(planned(), source={"data": {"input_shape": [1, 8, 8]}})

    def build(width: int) -> nn.Module:
        patches = nn.Conv2d(1, width, 4, stride=4), nn.Flatten(), nn.Linear(4 * width, width)
        return nn.Sequential(*patches, nn.ReLU(), nn.Linear(width, 10))

    # By what the model is, where nothing says what it was trained on.
    of_patches = sweeper.plan_for(
        build, {"width": 8}, {"width": 32}, "mup", {"eta": 0.1}, inputs=torch.zeros(2, 1, 8, 8)
    )
    for of_arrays in (of_images, of_patches):
        with raises_config_error("family", "granite"):
            made(of_arrays, "hf", family="granite")


OWN = {
    "embedding_multiplier": 5.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.0,
}
"""Fields that a study's model has of its own."""


def of_a_study(tie: bool) -> tuple[TransferPlan, Any]:
    """The plan of a trial with such a model, and the model as the engine trains it."""
    made_of = tree("mup")
    made_of["model"] = {
        "_target_": "sweeper.models.hf.HfModel",
        "name": "GraniteForCausalLM",
        "width": 32,
        "depth": 2,
        "head_size": HEAD,
        "ffn_ratio": 2.0,
        "tie": tie,
        "config": OWN,
    }
    made_of["base"] = {"width": 16, "depth": 1}
    made_of["data"]["classes"] = CLASSES
    plan = study_plan("mup", made_of, alpha_emb=1.0, alpha_attn=-1.0, alpha_output=1.0)
    model = asdict(spec_of(made_of).model)
    engine: Any = prepare(spec_of(made_of)).model().double()
    buffers = dict(engine.named_buffers())
    for name, factors in plan.operations.items():
        for factor, value in factors.items():
            if f"{name}.{factor}" in buffers:
                buffers[f"{name}.{factor}"].fill_(value)
    return replace(plan, source={**plan.source, "model": model}), engine


@pytest.mark.parametrize("tie", [False, True])
def test_fields_train_as_the_engine_and_those_of_the_study_s_model_stay_in_force(
    tie: bool,
) -> None:
    plan, engine = of_a_study(tie)
    assert missing(plan, "hf") == {}
    names = executed(made(plan, "hf")["plan_hf.py"])
    assert names["CONFIG"]["embedding_multiplier"] == pytest.approx(2 * 5.0)
    assert names["CONFIG"]["attention_multiplier"] == pytest.approx(0.3 * 0.5 / HEAD * HEAD**0.5)
    assert names["CONFIG"]["residual_multiplier"] == pytest.approx(0.6 * 0.5**0.5)
    assert names["CONFIG"]["logits_scaling"] == pytest.approx(2.0 / 2 * 2)
    net = granite(32, 2, tie_word_embeddings=tie, **names["CONFIG"]).double()
    names["init_"](net)
    plan.init_(engine)

    class Logits(nn.Module):
        def forward(self, input_ids: Tensor) -> Any:
            return type("Out", (), {"logits": engine(input_ids)})

    with exact_norms(net), exact_norms(engine):
        ours = losses(net, names["param_groups"](net))
        theirs = losses(Logits(), plan.param_groups(engine))
    assert (ours - theirs).abs().max() <= 1e-9


def test_a_base_that_is_no_whole_number_leaves_the_rest_to_the_groups() -> None:
    """What MiniCPM's dim_model_base, a whole number, does not say of the logits, a group does."""
    plan = replace_output(planned(), 1.1)
    names = executed(made(plan, "hf", family="minicpm3")["plan_hf.py"])
    written = names["CONFIG"]["dim_model_base"] / 32
    wanted = next(p for p in plan.parameters if p.role == "readout").target.multiplier
    assert written != pytest.approx(wanted, rel=0.001)
    lacks = missing(plan, "hf", family="minicpm3")
    assert lacks.keys() == {"attention"}  # it has no field for that
    (row,) = [row for row in names["PLAN"] if "lm_head" in row[0]]
    absorbed = next(p for p in plan.absorbed() if p.name == "lm_head.weight")
    assert row[1][1] * written == pytest.approx(absorbed.init_std)
    assert row[2]["lr"] * written == pytest.approx(absorbed.lr)
    assert row[2]["eps"] / written == pytest.approx(absorbed.eps)


def replace_output(plan: TransferPlan, factor: float) -> TransferPlan:
    changed = []
    for parameter in plan.parameters:
        target = parameter.target
        if parameter.role == "readout":
            value = target.multiplier * factor
            target = replace(target, multiplier=value, backward_multiplier=value)
        changed.append(replace(parameter, target=target))
    return replace(plan, parameters=tuple(changed))


# What the fields of each family do, against a neutral model with folded weights.

SHAPE = Shape(width=32, depth=2, head_size=8)
WANTED = Multipliers(
    embedding=3.0, attention=0.2, attention_branch=0.4, ffn_branch=0.4, logits=0.25
)
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 17,
    "max_position_embeddings": 16,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": False,
    "attn_implementation": "sdpa",
}
MOE = {"num_local_experts": 2, "num_experts_per_tok": 1}
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 8, "v_head_dim": 8}
LATENT |= {"qk_nope_head_dim": 4, "qk_rope_head_dim": 4}
MAMBA = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
CASES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "granite": ("Granite", {}, r"q_proj\.weight", r"(o_proj|down_proj)\.weight"),
    "granitemoe": ("GraniteMoe", MOE, r"q_proj\.weight", r"o_proj\.weight|output_linear|down_proj"),
    "hyperclovax": ("HyperCLOVAX", {}, r"q_proj\.weight", r"post_norm[12]\.weight"),
    "minicpm3": ("MiniCPM3", LATENT, "none", r"(o_proj|down_proj)\.weight"),
    "falcon_h1": (
        "FalconH1",
        MAMBA,
        r"k_proj\.weight",
        r"(o_proj|down_proj|mamba\.out_proj)\.weight",
    ),
}
"""Class, further fields, and the weights that the factors of attention and branches fold into."""


def built(family: str, multipliers: Multipliers) -> Any:
    """A tiny model whose fields say `multipliers`, always of the same weights."""
    name, more, _, _ = CASES[family]
    fields = {**SMALL, **more, **FAMILIES[family].write(multipliers, SHAPE)}
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**fields)
    config._experts_implementation = "batched_mm"  # others want float32
    return getattr(transformers, f"{name}ForCausalLM")(config).double().eval()


@pytest.mark.parametrize("family", CASES)
def test_the_fields_do_what_is_read_from_them(family: str) -> None:
    neutral = Multipliers(attention=SHAPE.usual_attention)
    _, _, attention, ends = CASES[family]
    net, other = built(family, WANTED), built(family, neutral)
    read = FAMILIES[family].read(net.config.to_dict(), SHAPE)
    if family == "minicpm3":  # it has no field for attention
        assert read.attention == pytest.approx(SHAPE.usual_attention)
    else:
        assert read.attention == pytest.approx(WANTED.attention)
    assert read.embedding == 3 and read.logits == pytest.approx(0.25)
    assert read.attention_branch == read.ffn_branch == pytest.approx(0.4)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if "embed_tokens" in name:
                parameter *= read.embedding
            if re.search(attention, name):
                parameter *= read.attention / SHAPE.usual_attention
            if re.search(ends, name):
                parameter *= read.attention_branch
            if name == "lm_head.weight":
                parameter *= read.logits
        tokens = torch.arange(12).reshape(2, 6)
        ours, theirs = net(input_ids=tokens).logits, other(input_ids=tokens).logits
    assert ours.abs().max() > 1e-3
    assert (ours - theirs).abs().max() <= 1e-5 * ours.abs().max()  # norms are in float32
    assert (ours - built(family, neutral)(input_ids=tokens).logits).abs().max() > 1e-3


@pytest.mark.parametrize("family", CASES)
def test_what_a_configuration_leaves_out_is_what_its_class_has(family: str) -> None:
    name, more, _, _ = CASES[family]
    config = getattr(transformers, f"{name}Config")(**SMALL, **more).to_dict()
    read = FAMILIES[family].read
    assert vars(read({}, SHAPE)) == pytest.approx(vars(read(config, SHAPE)))


def test_minicpm_s_base_is_a_whole_number() -> None:
    wanted = Multipliers(attention=1.0, attention_branch=0.3, ffn_branch=0.3, logits=0.3)
    fields = FAMILIES["minicpm3"].write(wanted, SHAPE)
    assert fields["dim_model_base"] == 10 and fields["scale_depth"] == 0.3 * sqrt(2)
    assert FAMILIES["minicpm3"].read(fields, SHAPE).logits == 10 / 32


def test_only_classes_of_these_families_have_one() -> None:
    assert family_of_class("GraniteForCausalLM") == "granite"
    assert family_of_class("GraniteMoeForCausalLM") == "granitemoe"
    assert family_of_class("LlamaForCausalLM") is None


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        *(("granite", "logits_scaling", value) for value in (0, 1e-320, "x", True)),
        *(("falcon_h1", "mlp_multipliers", value) for value in (3, [1], [1, 0])),
    ],
)
def test_a_multiplier_that_no_model_has_is_refused(family: str, field: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        FAMILIES[family].read({field: value}, SHAPE)
    assert caught.value.key.partition("[")[0] == field
