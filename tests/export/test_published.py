"""Published models: the numbers of their config.json, and what they stand for."""

from __future__ import annotations

from typing import Any

import pytest

from sweeper.errors import BadInput, ConfigError
from sweeper.export.families import Published
from tests.golden import Golden

GRANITE_8B = {
    "model_type": "granite",
    "hidden_size": 4096,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "intermediate_size": 12800,
    "attention_multiplier": 0.0078125,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 16.0,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
}
MINICPM_2B = {
    "model_type": "minicpm",
    "hidden_size": 2304,
    "num_hidden_layers": 40,
    "num_attention_heads": 36,
    "intermediate_size": 5760,
    "scale_emb": 12,
    "scale_depth": 1.4,
    "dim_model_base": 256,
    "initializer_range": 0.1,
}
FALCON_H1_500M = {
    "model_type": "falcon_h1",
    "hidden_size": 1024,
    "num_hidden_layers": 36,
    "num_attention_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2048,
    "attention_in_multiplier": 1.0,
    "attention_out_multiplier": 0.9375,
    "embedding_multiplier": 5.656854249492381,
    "key_multiplier": 0.390625,
    "lm_head_multiplier": 0.0390625,
    "mlp_multipliers": [0.8838834764831844, 0.5859375],
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.23570226039551587,
}


def ours(model: Published) -> dict[str, Any]:
    return {row["what"]: row for row in model.ours}


def test_granite_3_8b_is_mup_from_width_256_and_branches_over_the_root_of_40() -> None:
    model = Published.of(GRANITE_8B)
    assert (model.base_width, model.attention_rule) == (256, "1/d")
    assert model.branch_constant == pytest.approx(1.4, rel=0.01)
    assert model.base_depth == 2
    assert model.parameterization.startswith(
        "muP with base width 256; branches over the root of the layers"
    )
    rows = ours(model)
    assert rows["attention: q k^T times"]["ours"] == 0.0078125
    assert rows["output: logits times"]["ours"] == 1 / 16
    assert rows["residual branches: outputs times"]["ours"] == pytest.approx((2 / 40) ** 0.5)
    hidden = rows["q, k, v, o, up, gate"]
    assert hidden["lr"] == hidden["eps"] == pytest.approx((2 / 40) ** 0.5 / 16)
    assert (hidden["published"], hidden["ours"]) == (0.02, pytest.approx(1 / 64))
    assert rows["embedding"]["ours"] == pytest.approx(0.5 / 16) and "head" not in rows


def test_granite_s_branches_follow_the_layers_by_one_constant() -> None:
    """The 30B of the same family has 64 layers and 0.175."""
    deep = Published.of({**GRANITE_8B, "num_hidden_layers": 64, "residual_multiplier": 0.175})
    assert deep.branch_constant == pytest.approx(1.4)


def test_minicpm_keeps_the_usual_attention(golden: Golden) -> None:
    model = Published.of(MINICPM_2B)
    assert (model.base_width, model.attention_rule) == (256, "1/sqrt(d)")
    assert model.branch_constant == pytest.approx(1.4)
    golden.says(model.parameterization)
    rows = ours(model)
    assert rows["attention: q k^T times"]["published"] == 0.125
    assert rows["attention: q k^T times"]["ours"] == 1 / 64
    assert "head" not in rows  # its class ties it to the embedding where the file is silent
    untied = ours(Published.of({**MINICPM_2B, "tie_word_embeddings": False}))
    assert untied["head"]["ours"] == pytest.approx(1 / 16)


def test_falcon_h1_has_constants_of_its_own(golden: Golden) -> None:
    model = Published.of(FALCON_H1_500M)
    assert model.multipliers.attention == pytest.approx(0.390625 / 8)
    assert model.attention_rule == "neither" and model.alpha_attention == pytest.approx(3.125)
    assert not model.even_branches
    golden.says(model.parameterization)
    assert any("0.9375 (attention's), 0.585938 (the FFN's)" in line for line in model.lines())
    for said in ("ssm_in_multiplier: 1.25", "ssm_out_multiplier: 0.2357"):
        assert any(line.startswith(said) for line in model.lines())


def test_neutral_fields_stand_for_the_standard_parameterization(golden: Golden) -> None:
    neutral = {"attention_multiplier": 128**-0.5, "residual_multiplier": 1.0, "logits_scaling": 1.0}
    model = Published.of({**GRANITE_8B, **neutral})
    assert model.parameterization.startswith("the standard parameterization")
    assert model.base_depth == 40 and model.base_width == 4096
    deep = Published.of({**GRANITE_8B, **neutral, "residual_multiplier": 0.22})
    assert deep.parameterization.startswith("the standard parameterization")
    golden.says(deep.parameterization)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, 10**400) for name in ("hidden_size", "num_hidden_layers", "attention_multiplier")),
        *((name, float("inf")) for name in ("embedding_multiplier", "residual_multiplier")),
        *(
            (name, value)
            for name in ("logits_scaling", "initializer_range")
            for value in (0, 1e-320)
        ),
        ("num_attention_heads", 8192),
        *(("head_dim", value) for value in (-1, 0, 1.5, "x", [1], True)),
        *(("qk_nope_head_dim", value) for value in (-5, "x")),
        ("tie_word_embeddings", "yes"),
        *(
            ("mlp_multipliers", value)
            for value in (3, [1], [1, 2, 3], [None, 1], [1, float("nan")])
        ),
    ],
)
def test_a_number_that_no_model_has_is_refused_by_name(field: str, value: object) -> None:
    family = "falcon_h1" if field == "mlp_multipliers" else "granite"
    fields = {**GRANITE_8B, "model_type": family, "qk_rope_head_dim": 32, field: value}
    with pytest.raises(ConfigError) as caught:
        Published.of(fields)
    assert caught.value.key.partition("[")[0] == field


def test_another_family_is_refused_with_those_that_are_known(golden: Golden) -> None:
    with pytest.raises(BadInput) as caught:
        Published.of({"model_type": "llama"})
    golden.says(caught)
