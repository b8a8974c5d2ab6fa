"""GPT-2 and Llama as transformers writes them, every parameter by a table written by hand."""

from __future__ import annotations

from typing import Any

import pytest

import sweeper
from sweeper.scaling.spec import ParamSpec

transformers = pytest.importorskip("transformers")

Row = tuple[str, int, int, tuple[int, ...]]
"""Role, fan-in and fan-out at width 128, and the dimensions that grow."""
VECTOR: Row = ("vector", 1, 128, (0,))
SQUARE: Row = ("hidden", 128, 128, (0, 1))
LAYERS = 2


def gpt2(width: int) -> Any:
    config = transformers.GPT2Config(
        n_embd=width,
        n_head=width // 16,
        n_layer=LAYERS,
        vocab_size=50,
        n_positions=32,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def llama(width: int) -> Any:
    config = transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=3 * width,
        num_attention_heads=width // 16,
        num_key_value_heads=width // 32,
        num_hidden_layers=LAYERS,
        vocab_size=50,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.LlamaForCausalLM(config)


GPT2_LAYER: dict[str, Row] = {
    "ln_1.weight": VECTOR,
    "ln_1.bias": VECTOR,
    "attn.c_attn.weight": ("hidden", 128, 384, (0, 1)),
    "attn.c_attn.bias": ("vector", 1, 384, (0,)),
    "attn.c_proj.weight": SQUARE,
    "attn.c_proj.bias": VECTOR,
    "ln_2.weight": VECTOR,
    "ln_2.bias": VECTOR,
    "mlp.c_fc.weight": ("hidden", 128, 512, (0, 1)),
    "mlp.c_fc.bias": ("vector", 1, 512, (0,)),
    "mlp.c_proj.weight": ("hidden", 512, 128, (0, 1)),
    "mlp.c_proj.bias": VECTOR,
}
GPT2: dict[str, Row] = {
    "transformer.wte.weight": ("embedding", 50, 128, (1,)),
    "transformer.wpe.weight": ("embedding", 32, 128, (1,)),
    "transformer.ln_f.weight": VECTOR,
    "transformer.ln_f.bias": VECTOR,
}
LLAMA_LAYER: dict[str, Row] = {
    "self_attn.q_proj.weight": SQUARE,
    "self_attn.k_proj.weight": ("hidden", 128, 64, (0, 1)),
    "self_attn.v_proj.weight": ("hidden", 128, 64, (0, 1)),
    "self_attn.o_proj.weight": SQUARE,
    "mlp.gate_proj.weight": ("hidden", 128, 384, (0, 1)),
    "mlp.up_proj.weight": ("hidden", 128, 384, (0, 1)),
    "mlp.down_proj.weight": ("hidden", 384, 128, (0, 1)),
    "input_layernorm.weight": VECTOR,
    "post_attention_layernorm.weight": VECTOR,
}
LLAMA: dict[str, Row] = {
    "model.embed_tokens.weight": ("embedding", 50, 128, (1,)),
    "model.norm.weight": VECTOR,
    "lm_head.weight": ("readout", 128, 50, (1,)),
}


def facts(specs: dict[str, ParamSpec]) -> dict[str, Row]:
    return {
        name: (str(spec.role), spec.fan_in, spec.fan_out, spec.width_dims)
        for name, spec in specs.items()
    }


def in_layers(prefix: str, rows: dict[str, Row]) -> dict[str, Row]:
    return {f"{prefix}.{i}.{name}": row for i in range(LAYERS) for name, row in rows.items()}


def test_gpt2() -> None:
    specs = sweeper.classify(gpt2, {"width": 64}, {"width": 128})
    assert facts(specs) == GPT2 | in_layers("transformer.h", GPT2_LAYER)
    assert specs["transformer.wte.weight"].tied == ("lm_head.weight",)
    starts = {spec.init for name, spec in specs.items() if name.endswith("bias")}
    assert starts == {"zeros"} and specs["transformer.ln_f.weight"].init == "ones"


def test_llama() -> None:
    specs = sweeper.classify(llama, {"width": 64}, {"width": 128})
    assert facts(specs) == LLAMA | in_layers("model.layers", LLAMA_LAYER)
    assert not any("head size" in spec.note for spec in specs.values())
