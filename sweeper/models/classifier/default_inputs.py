"""What a model is called with if nobody says: what the model or its configuration says itself."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from sweeper.errors import BadInput

BATCH_SIZE = 2
"""Examples in a default input: with one, a weight repeated over the batch looks unrepeated."""
SEQUENCE_LENGTH = 8
IMAGE_SIZE = 64
"""Pixels, where a configuration of images does not say how many: its model takes any number."""
SAMPLES = 6400
"""Of sound: a convolution encodes 320 in one, and wav2vec2 masks ten of these at a time."""


def default_inputs(model: Any) -> Any:
    """Inputs of a model that says what it takes: `example_inputs`, `seq_len`, or a HF config.

    Tensors are on the default device. BadInput for other models.
    """
    inner = getattr(model, "_orig_mod", model)
    if callable(getattr(inner, "example_inputs", None)):
        given: Any = inner.example_inputs()
        return given
    if isinstance(getattr(inner, "input_shape", None), tuple):
        return torch.zeros(BATCH_SIZE, *inner.input_shape)
    if isinstance(getattr(inner, "seq_len", None), int):
        return torch.zeros(BATCH_SIZE, inner.seq_len, dtype=torch.long)
    config, main = getattr(inner, "config", None), getattr(inner, "main_input_name", None)
    found = _of_transformers(inner, config, main) if config is not None else None
    if found is not None:
        return found
    raise BadInput(
        f"the model does not say what a {type(inner).__name__} takes: give inputs=, a tensor, a "
        "tuple, a dict of named arguments, or a function of the sizes that returns one of them"
    )


def _of_transformers(model: Any, config: Any, main: Any) -> dict[str, Tensor] | None:
    """Named inputs of a model of transformers, by the name of its main input."""
    names = signature(model.forward).parameters
    given: dict[str, Tensor] = {}
    if main in ("input_ids", "inputs"):
        given[main] = _tokens(config)
    elif main == "input_values" and not hasattr(config, "num_mel_bins"):
        given[main] = torch.randn(BATCH_SIZE, SAMPLES)
    elif main in ("input_values", "input_features"):
        given[main] = _spectrogram(config, transposed=main == "input_features")
    if main == "pixel_values" or ("vision_config" in config.to_dict() and "pixel_values" in names):
        given["pixel_values"] = _images(config)
    if given and "decoder_input_ids" in names and getattr(config, "is_encoder_decoder", True):
        given["decoder_input_ids"] = _tokens(config)
    return given or None


def _tokens(config: Any) -> Tensor:
    """Tokens of all kinds, as routers choose by them, and the end's at the end."""
    size = _field(config, "vocab_size", 2)
    tokens: Tensor = torch.arange(BATCH_SIZE * SEQUENCE_LENGTH).reshape(BATCH_SIZE, -1) * 7 % size
    end = _field(config, "eos_token_id", None)
    if isinstance(end, int) and 0 <= end < size:
        tokens = torch.where(tokens == end, (end + 1) % size, tokens)
        last = torch.arange(SEQUENCE_LENGTH) == SEQUENCE_LENGTH - 1
        tokens = torch.where(last, end, tokens)
    return tokens


def _images(config: Any) -> Tensor:
    size = _field(config, "image_size", IMAGE_SIZE)
    height, width = (size, size) if isinstance(size, int) else size
    channels = _field(config, "num_channels", 3)
    return torch.randn(BATCH_SIZE, channels, height, width)


def _spectrogram(config: Any, *, transposed: bool) -> Tensor:
    """Frames of mel bins: [frames, bins], or transposed with two frames for each position."""
    bins = config.num_mel_bins
    if not transposed:
        return torch.randn(BATCH_SIZE, _field(config, "max_length", 128), bins)
    return torch.randn(BATCH_SIZE, bins, 2 * _field(config, "max_source_positions", 64))


def _field(config: Any, name: str, otherwise: Any) -> Any:
    """A field of a configuration, or of one within it (of the text, of the images)."""
    return next(
        (v for c in _configs(config) if (v := getattr(c, name, None)) is not None), otherwise
    )


def _configs(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if hasattr(value, "to_dict"):
            yield from _configs(value)
