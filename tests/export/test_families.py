"""What the fields of each family do, against a neutral model of it with folded weights."""

from __future__ import annotations

import re
from math import sqrt
from typing import Any

import pytest
import torch

from sweeper.errors import ConfigError
from sweeper.export.families import FAMILIES, Multipliers, Shape, family_of_class

transformers = pytest.importorskip("transformers", minversion="5.0")

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
