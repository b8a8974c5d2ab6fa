"""Build a model of given sizes on the meta device, and trace one forward pass of it.

Tensors on the meta device have shapes and strides but no values: a model of any size costs no
memory. A forward pass that branches on values, or an operation without a meta kernel, cannot be
traced; the reason is kept, as roles may be given by hand.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from sweeper.errors import BadInput
from sweeper.models.classifier.dispatch import UseTracer, tensors_in
from sweeper.models.classifier.state import ActivationProduct, TraceState
from sweeper.models.classifier.uses import Use

Sizes = Mapping[str, Any]
Inputs = Any
"""What the model is called with: a tensor, a tuple or dict of them, or a function of the sizes."""

BATCH_SIZE = 2
"""Examples in a default input: with one, a weight repeated over the batch looks unrepeated."""


@dataclass(frozen=True)
class ModelTrace:
    """Parameters of a model of some size, and what its forward pass uses them for.

    `shapes` and `tied` (other names of the same parameter) are by parameter; `uses` is None where
    no forward pass was traced, for the reason `failure`.
    """

    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, tuple[str, ...]]
    uses: Mapping[str, list[Use]] | None = None
    activation_products: tuple[ActivationProduct, ...] = ()
    contracted_again: frozenset[str] = frozenset()
    failure: str = ""


def build_on_meta(build: Callable[[], nn.Module], sizes: Sizes) -> nn.Module:
    """The model, every tensor of it on the meta device; BadInput if it cannot be built there."""
    try:
        with torch.device("meta"):
            model = build()
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"the model cannot be built at {_text(sizes)} {_reason(error)}") from error
    if not isinstance(model, nn.Module):
        raise BadInput(f"build must return an nn.Module, not {type(model).__name__}")
    _to_meta(model)
    return model


def _to_meta(model: nn.Module) -> None:
    """Move what was made on another device; shared parameters stay shared."""
    moved: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_meta:
                module._buffers[name] = buffer.to("meta")
        for name, parameter in module._parameters.items():
            if parameter is not None and not parameter.is_meta:
                new = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
                module._parameters[name] = moved.setdefault(id(parameter), new)


def _parameters(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    """Parameters by their first name, and the other names of each.

    The prefix that `torch.compile` gives to names is left out.
    """
    first_names: dict[int, str] = {}
    parameters: dict[str, Tensor] = {}
    tied: dict[str, tuple[str, ...]] = {}
    for full_name, tensor in model.named_parameters(remove_duplicate=False):
        name = full_name.replace("_orig_mod.", "")
        first = first_names.setdefault(id(tensor), name)
        if first == name:
            parameters[first] = tensor
        else:
            tied[first] = (*tied.get(first, ()), name)
    return parameters, tied


def trace_shapes(model: nn.Module) -> ModelTrace:
    """Names and shapes alone, without a forward pass."""
    parameters, tied = _parameters(model)
    return ModelTrace({name: tuple(tensor.shape) for name, tensor in parameters.items()}, tied)


def trace_uses(model: nn.Module, sizes: Sizes, inputs: Inputs = None) -> ModelTrace:
    """Run `model`, which is on the meta device, and record how its parameters are used."""
    parameters, tied = _parameters(model)
    shapes = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
    try:
        args, kwargs = _arguments(model, sizes, inputs)
    except BadInput as error:
        return ModelTrace(shapes, tied, failure=str(error))
    state = TraceState(parameters.items(), tensors_in((args, kwargs)))
    try:
        with torch.device("meta"), _eager(), UseTracer(state):
            model(*args, **kwargs)
    except Exception as error:
        failure = f"the forward pass cannot be traced at {_text(sizes)} {_reason(error)}"
        return ModelTrace(shapes, tied, failure=failure)
    return ModelTrace(
        shapes,
        tied,
        uses=state.uses,
        activation_products=tuple(state.activation_products),
        contracted_again=frozenset(state.contracted_again),
    )


def _eager() -> AbstractContextManager[Any]:
    """Run compiled modules as they are written: the tracer cannot look into compiled code."""
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def _arguments(
    model: nn.Module, sizes: Sizes, inputs: Inputs
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of the forward pass, their tensors on the meta device."""
    given = inputs(sizes) if callable(inputs) else inputs
    given = _default_inputs(model) if given is None else given
    given = tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, given)
    if isinstance(given, Mapping):
        return (), dict(given)
    return (tuple(given) if isinstance(given, tuple | list) else (given,)), {}


def _default_inputs(model: nn.Module) -> Inputs:
    """Inputs of a model that says what it takes: `example_inputs`, `seq_len`, or a HF config."""
    inner: Any = getattr(model, "_orig_mod", model)
    if callable(getattr(inner, "example_inputs", None)):
        return inner.example_inputs()
    if isinstance(getattr(inner, "input_shape", None), tuple):
        return torch.zeros(BATCH_SIZE, *inner.input_shape, device="meta")
    if isinstance(getattr(inner, "seq_len", None), int):
        return torch.zeros(BATCH_SIZE, inner.seq_len, dtype=torch.long, device="meta")
    config, main = getattr(inner, "config", None), getattr(inner, "main_input_name", None)
    if config is not None and main == "input_ids":
        tokens = torch.zeros(BATCH_SIZE, 8, dtype=torch.long, device="meta")
        names = signature(inner.forward).parameters
        more = {"decoder_input_ids": tokens} if "decoder_input_ids" in names else {}
        return {"input_ids": tokens, **more}
    if config is not None and main == "pixel_values":
        size = config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        shape = (BATCH_SIZE, config.num_channels, height, width)
        return {"pixel_values": torch.zeros(shape, device="meta")}
    raise BadInput(
        f"the model does not say what a {type(inner).__name__} takes: give inputs=, a tensor, a "
        "tuple, a dict of named arguments, or a function of the sizes that returns one of them"
    )


def _text(sizes: Sizes) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items()) or "its size"


def _reason(error: Exception) -> str:
    """Where a model's own code failed, and why, in a line."""
    # The user's frame is what helps: the last one outside of torch and of the modules here.
    skipped = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(skipped)]
    place = f"({outside[-1].filename}:{outside[-1].lineno}) " if outside else ""
    first_line = (str(error).strip().splitlines() or [""])[0]
    where = f"{place}on the meta device, where tensors have no values"
    return f"{where}: {type(error).__name__}: {first_line}"
