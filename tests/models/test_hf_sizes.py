"""What a width and a depth are in a configuration of transformers, and what is refused."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest

from sweeper.errors import BadInput, ConfigError
from sweeper.models.hf_config import known_classes, library, task_of
from tests.golden import Golden
from tests.models.hf_families import EVERY, SEQ, batch, made
from tests.refusals import raises_config_error

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")


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
    ],
)
def test_what_cannot_be_built_is_refused_by_name(
    more: dict[str, Any], key: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**{"name": "LlamaForCausalLM", **more})
    assert caught.value.key == key and message in str(caught.value)


IMAGES_REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("tie", {"tie": True}),
    ("patch_size", {"patch_size": 3}),
    ("input_shape", {"input_shape": (8,)}),
    ("name", {"input_shape": None, "seq_len": 8}),
    ("name", {"name": "ResNetForImageClassification"}),
]


@pytest.mark.parametrize(("key", "more"), IMAGES_REFUSED)
def test_images_that_cannot_be_cut_are_refused(key: str, more: dict[str, Any]) -> None:
    with raises_config_error(key):
        made(**{"name": VIT, "input_shape": (8, 8), "seq_len": None, **more})


def test_every_class_of_the_three_tasks_is_known() -> None:
    names = known_classes()
    assert {task_of(name) for name in EVERY} == {"causal", "masked", "images"}
    assert len(names) > 200 and not any("ConditionalGeneration" in name for name in names)


def test_without_transformers_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BadInput) as caught:
        library()
    golden.says(caught)


def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    made("LlamaForCausalLM")(*batch("LlamaForCausalLM"))
