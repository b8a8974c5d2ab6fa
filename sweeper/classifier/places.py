"""Where the tensors of a trace live: on the meta device, as fake CPU tensors, or with values.

Tensors on the meta device have shapes and strides but no values, and a model of any size costs
no memory. Code that asks which device a tensor is on, or whether values may be looked at, often
works with fake tensors: transformers skips its checks of masks for them. Code that follows values
(loops over the experts that were chosen) needs real ones, which are made for small models alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from sweeper.classifier.numbers import Numbers
from sweeper.errors import BadInput

MAX_REAL = 50_000_000
"""Parameters of the largest model that is built with values."""


class TooLarge(BadInput):
    """A model has too many parameters to be built with values."""


class MetaPlace:
    """Tensors on the meta device; `name` says in words what they are."""

    name = "on the meta device, where tensors have no values"

    def entered(self) -> ExitStack:
        """Make the meta device the default."""
        stack = ExitStack()
        stack.enter_context(torch.device("meta"))
        return stack

    def holds(self, tensor: Tensor) -> bool:
        """Whether it is on the meta device."""
        return tensor.is_meta

    def moved(self, tensor: Tensor) -> Tensor:
        """The tensor on the meta device."""
        return tensor.to("meta")


class FakePlace:
    """Tensors that say they are on the CPU, and have no values either."""

    name = "with fake tensors, which have no values"

    def __init__(self) -> None:
        # Not at the top: the import takes as long as the rest of the classifier.
        from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

        self._kind: type[Tensor] = FakeTensor
        self._mode: Any = FakeTensorMode(allow_non_fake_inputs=True)

    def entered(self) -> ExitStack:
        """Enter the mode; the CPU is the default device."""
        stack = _on_cpu()
        # It logs the traceback of what it cannot do, where the next place is simply tried.
        logger = logging.getLogger("torch._subclasses.fake_tensor")
        stack.callback(setattr, logger, "disabled", logger.disabled)
        logger.disabled = True
        stack.enter_context(self._mode)
        return stack

    def holds(self, tensor: Tensor) -> bool:
        """Whether it is fake."""
        return isinstance(tensor, self._kind)

    def moved(self, tensor: Tensor) -> Tensor:
        """A fake tensor of the same shape."""
        with self._mode:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


class RealPlace:
    """Tensors on the CPU with values, the same ones every time."""

    name = "with values on the CPU"

    def entered(self) -> ExitStack:
        """Seed torch's generator and bound the memory."""
        stack = _on_cpu()
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(0)
        stack.enter_context(_Bounded())
        return stack

    def holds(self, tensor: Tensor) -> bool:
        """Whether it is a tensor on the CPU."""
        return tensor.device.type == "cpu"

    def moved(self, tensor: Tensor) -> Tensor:
        """A copy on the CPU; of a tensor without values small numbers, and zeros of integers."""
        if not tensor.is_meta:
            return tensor.to("cpu")
        if tensor.is_floating_point():
            return torch.randn(tensor.shape, dtype=tensor.dtype, device="cpu") * 0.02
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")


def _on_cpu() -> ExitStack:
    stack = ExitStack()
    # oneDNN has operations of its own, such as whole LSTMs, where others share what torch has.
    # Not by `torch.backends.mkldnn.flags`, which warns where there is no GPU of Intel's.
    stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
    torch._C._set_mkldnn_enabled(False)
    stack.enter_context(torch.device("cpu"))
    return stack


Place = MetaPlace | FakePlace | RealPlace


class _Bounded(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Refuses to make more than `MAX_REAL` new numbers that are made of no other tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        size = args[0] if args and isinstance(args[0], list | tuple) else ()
        if all(isinstance(n, int) for n in size) and size:
            # Functions that make a tensor of nothing, such as `torch.empty`, have its size first.
            self.made += torch.Size(size).numel()
            if self.made > MAX_REAL:
                raise TooLarge(
                    f"a model of more than {MAX_REAL // 10**6} million parameters is not built "
                    "with values, as smaller ones are"
                )
        return func(*args, **dict(kwargs or {}))


def move_model(model: nn.Module, place: Place, numbers: Numbers) -> None:
    """Move what was made elsewhere; shared parameters stay shared, known values known."""
    moved: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not place.holds(buffer):
                module._buffers[name] = there = place.moved(buffer)
                if buffer.numel() == 1 and buffer.device.type == "cpu":
                    numbers.note(there, buffer)
        for name, parameter in module._parameters.items():
            if parameter is not None and not place.holds(parameter):
                # `setdefault`, so that a tied parameter is one object at its new place too.
                new = nn.Parameter(place.moved(parameter.detach()), parameter.requires_grad)
                module._parameters[name] = moved.setdefault(id(parameter), new)


def move_inputs(inputs: Any, place: Place) -> Any:
    """The same tree of inputs, every tensor of it moved."""

    def moved(leaf: Any) -> Any:
        outside = isinstance(leaf, Tensor) and not place.holds(leaf)
        return place.moved(leaf) if outside else leaf

    return tree_map(moved, inputs)


def described_inputs(inputs: Any) -> str:
    """What a model was called with, in words: shapes and types of tensors, other values."""

    def leaf_text(leaf: Any) -> str:
        if isinstance(leaf, Tensor):
            return f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)}"
        return repr(leaf) if isinstance(leaf, str | int | float | None) else type(leaf).__name__

    leaves = inputs.items() if isinstance(inputs, Mapping) else enumerate(tree_leaves(inputs))
    return ", ".join(f"{name}: {leaf_text(leaf)}" for name, leaf in leaves)


ATTEMPTS: tuple[tuple[Callable[[], Place], bool], ...] = (
    (MetaPlace, False),
    (MetaPlace, True),
    (FakePlace, False),
    (FakePlace, True),
    (RealPlace, True),
)
"""Places in the order that they are tried in, as the model is built or, if true, after `eval()`.

A model in training may skip layers at random, which depends on a value; with real values it would
skip some. What is only used in training (the mask token of wav2vec2) is then not seen used.
"""


BATCH_SIZE = 2
"""Examples in a default input: with one, a weight repeated over the batch looks unrepeated."""
SEQUENCE_LENGTH = 8
IMAGE_SIZE = 64
"""Pixels, where a configuration of images does not say how many: its model takes any number."""
SAMPLES = 6400
"""Numbers of sound: a convolution encodes 320 in one, and wav2vec2 masks ten of these at once."""


def default_inputs(model: Any) -> Any:
    """Inputs by `example_inputs`, `seq_len` or a HF config, on the usual device; else BadInput."""
    inner = getattr(model, "_orig_mod", model)
    if callable(getattr(inner, "example_inputs", None)):
        inputs: Any = inner.example_inputs()
        return inputs
    if isinstance(getattr(inner, "input_shape", None), tuple):
        return torch.zeros(BATCH_SIZE, *inner.input_shape)
    if isinstance(getattr(inner, "seq_len", None), int):
        return torch.zeros(BATCH_SIZE, inner.seq_len, dtype=torch.long)
    config, main = getattr(inner, "config", None), getattr(inner, "main_input_name", None)
    named = _of_transformers(inner, config, main) if config is not None else None
    if named is not None:
        return named
    raise BadInput(
        f"the model does not say what a {type(inner).__name__} takes: give inputs=, a tensor, a "
        "tuple, a dict of named arguments, or a function of the sizes that returns one of them"
    )


def _of_transformers(model: Any, config: Any, main: Any) -> dict[str, Tensor] | None:
    names = signature(model.forward).parameters
    inputs: dict[str, Tensor] = {}
    if main in ("input_ids", "inputs"):
        inputs[main] = _tokens(config)
    # Both take sound: as samples, or as a spectrogram where the configuration counts mel bins.
    elif main == "input_values" and not hasattr(config, "num_mel_bins"):
        inputs[main] = torch.randn(BATCH_SIZE, SAMPLES)
    elif main == "input_values":
        frames = _field(config, "max_length", 128)
        inputs[main] = torch.randn(BATCH_SIZE, frames, config.num_mel_bins)
    elif main == "input_features":
        # Whisper's lie the other way round, and two frames make one position.
        frames = 2 * _field(config, "max_source_positions", 64)
        inputs[main] = torch.randn(BATCH_SIZE, config.num_mel_bins, frames)
    if main == "pixel_values" or ("vision_config" in config.to_dict() and "pixel_values" in names):
        size = _field(config, "image_size", IMAGE_SIZE)
        height, width = (size, size) if isinstance(size, int) else size
        channels = _field(config, "num_channels", 3)
        inputs["pixel_values"] = torch.randn(BATCH_SIZE, channels, height, width)
    if inputs and "decoder_input_ids" in names and getattr(config, "is_encoder_decoder", True):
        inputs["decoder_input_ids"] = _tokens(config)
    return inputs or None


def _tokens(config: Any) -> Tensor:
    # Some classifiers read the sequence's output where its token of the end stands.
    size = _field(config, "vocab_size", 2)
    tokens: Tensor = torch.arange(BATCH_SIZE * SEQUENCE_LENGTH).reshape(BATCH_SIZE, -1) * 7 % size
    end = _field(config, "eos_token_id", None)
    if isinstance(end, int) and 0 <= end < size:
        tokens = torch.where(tokens == end, (end + 1) % size, tokens)
        last = torch.arange(SEQUENCE_LENGTH) == SEQUENCE_LENGTH - 1
        tokens = torch.where(last, end, tokens)
    return tokens


def _field(config: Any, name: str, otherwise: Any) -> Any:
    return next(
        (v for c in _configs(config) if (v := getattr(c, name, None)) is not None), otherwise
    )


def _configs(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if hasattr(value, "to_dict"):
            yield from _configs(value)
