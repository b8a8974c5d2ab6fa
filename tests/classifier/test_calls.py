"""transformers' models in their usual calls: each gives what the plainest one gives."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from sweeper.classifier.classify import Comparison, compare
from sweeper.errors import BadInput

transformers = pytest.importorskip("transformers")

TOKENS = torch.arange(12).reshape(2, 6) + 3
MASK = torch.ones(2, 6, dtype=torch.long)
CALLS: dict[str, dict[str, Any]] = {
    "mask": {"attention_mask": MASK},
    "no cache": {"use_cache": False},
    "cache": {"use_cache": True},
    "mask and labels": {"attention_mask": MASK, "labels": TOKENS},
}
EVERY_RUN = {"llama": ["mask", "cache"], "bert": ["mask and labels"]}
"""The calls of every run; in `long` all models are called in all ways."""
IDS = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
HEAD_SIZE = 16


def model(name: str, **fields: Any) -> Callable[..., Any]:
    def build(width: int) -> Any:
        stem, _, kind = name.partition("For")
        sizes = {
            "hidden_size": width,
            "intermediate_size": 3 * width,
            "num_attention_heads": width // HEAD_SIZE,
            "num_hidden_layers": 2,
            "vocab_size": 50,
        }
        own = {key: value(width) if callable(value) else value for key, value in fields.items()}
        config = getattr(transformers, f"{stem}Config")(**{**sizes, **IDS, **own})
        return getattr(transformers, f"{stem}For{kind}")(config)

    return build


def heads(width: int) -> int:
    return width // HEAD_SIZE


def width_(width: int) -> int:
    return width


def same_sides(**more: Any) -> dict[str, Any]:
    sides = ("encoder", "decoder")
    return {
        "d_model": width_,
        "decoder_start_token_id": 2,
        **{f"{side}_layers": 1 for side in sides},
        **{f"{side}_attention_heads": heads for side in sides},
        **{f"{side}_ffn_dim": lambda width: 2 * width for side in sides},
        **more,
    }


T5 = {
    "d_model": width_,
    "d_kv": HEAD_SIZE,
    "d_ff": lambda width: 4 * width,
    "num_heads": heads,
    "num_layers": 2,
    "decoder_start_token_id": 0,
}
TEXT: dict[str, Callable[..., Any]] = {
    "llama": model("LlamaForCausalLM", num_key_value_heads=heads),
    "gemma": model("GemmaForCausalLM", num_key_value_heads=heads, head_dim=HEAD_SIZE),
    "bert": model("BertForMaskedLM"),
    "bart": model("BartForConditionalGeneration", **same_sides()),
    "t5": model("T5ForConditionalGeneration", **T5),
}
OTHERS: dict[str, Callable[..., Any]] = {
    "wav2vec2": model(
        "Wav2Vec2ForCTC",
        conv_dim=(32,) * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    ),
    "whisper": model("WhisperForConditionalGeneration", **same_sides(max_source_positions=32)),
    "resnet": model(
        "ResNetForImageClassification",
        embedding_size=width_,
        hidden_sizes=lambda width: [width, 2 * width],
        depths=[2, 2],
    ),
}


def classified(build: Callable[..., Any], inputs: Any = None) -> Comparison:
    return compare(build, base={"width": 32}, target={"width": 64}, inputs=inputs)


@cache
def plain(name: str) -> Comparison:
    return classified((TEXT | OTHERS)[name])


def roles(comparison: Comparison) -> dict[str, tuple[str, int, int]]:
    return {s.name: (str(s.role), s.fan_in, s.fan_out) for s in comparison.specs}


@pytest.mark.parametrize(
    ("name", "calls"),
    [*EVERY_RUN.items(), *(pytest.param(name, [*CALLS], marks=pytest.mark.long) for name in TEXT)],
)
def test_every_call_gives_the_same(name: str, calls: list[str]) -> None:
    for call in calls:
        if "cache" in call and name == "bert":
            continue
        inputs = {"input_ids": TOKENS, **CALLS[call]}
        if name == "t5" and "labels" not in inputs:
            inputs["decoder_input_ids"] = TOKENS
        assert roles(classified(TEXT[name], inputs)) == roles(plain(name)), call


@pytest.mark.parametrize("name", OTHERS)
def test_models_that_say_what_they_take(name: str) -> None:
    unused = [spec.name for spec in plain(name).specs if "never used" in spec.note]
    assert unused == (["wav2vec2.masked_spec_embed"] if name == "wav2vec2" else [])


def test_a_call_that_the_model_refuses_is_told_with_its_line() -> None:
    inputs = {"input_ids": TOKENS, "token_type_ids": torch.zeros(2, 7, dtype=torch.long)}
    with pytest.raises(BadInput) as error:
        classified(TEXT["bert"], inputs)
    message = str(error.value)
    assert "token_type_ids: int64 [2, 7]" in message and "Give another call by inputs=" in message
    assert ".py:" in message and "roles={" not in message


def test_a_factor_that_depends_on_the_width_is_told() -> None:
    """With fake tensors it is written into its buffer when the weights are drawn."""
    (gemma,) = plain("gemma").cautions
    call = {"input_ids": TOKENS, "use_cache": False}
    assert classified(TEXT["gemma"], call).cautions == [gemma]
    assert "model.embed_tokens multiplies by 5.657 at width=32 and 8 at width=64" in gemma
