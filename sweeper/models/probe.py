"""Build a model of given sizes on the meta device, and watch one forward pass of it."""

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
from sweeper.models.ledger import Ledger, Product
from sweeper.models.provenance import Use
from sweeper.models.trace import Watch, tensors_of

Sizes = Mapping[str, Any]
Inputs = Any
"""What the model is called with: a tensor, a tuple or dict of them, or a function of the sizes."""

BATCH = 2
"""Examples in a guessed input: with one, a weight repeated over the batch looks unrepeated."""


@dataclass(frozen=True)
class Probe:
    """What a model of some size showed.

    `shapes` and `tied` (other names) are by parameter; `uses` is None where no forward pass
    could be watched, for the reason `why`.
    """

    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, tuple[str, ...]]
    uses: Mapping[str, list[Use]] | None = None
    products: tuple[Product, ...] = ()
    fed: frozenset[str] = frozenset()
    why: str = ""


def plain(name: str) -> str:
    """The name of a parameter without what `torch.compile` puts in it."""
    return name.replace("_orig_mod.", "")


def built(build: Callable[[], nn.Module], sizes: Sizes) -> nn.Module:
    """The model, every tensor of it on the meta device; BadInput if it cannot be built there."""
    try:
        with torch.device("meta"):
            model = build()
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"the model cannot be built at {_show(sizes)} {_reason(error)}") from error
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


def look(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    """Parameters by their first name, and the other names of each."""
    first: dict[int, str] = {}
    found: dict[str, Tensor] = {}
    tied: dict[str, tuple[str, ...]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(tensor), plain(name))
        if known == plain(name):
            found[known] = tensor
        else:
            tied[known] = (*tied.get(known, ()), plain(name))
    return found, tied


def shapes_of(model: nn.Module) -> Probe:
    """Names and shapes alone."""
    found, tied = look(model)
    return Probe({name: tuple(tensor.shape) for name, tensor in found.items()}, tied)


def watch(model: nn.Module, sizes: Sizes, inputs: Inputs = None) -> Probe:
    """Run `model`, which is on the meta device, and see how its parameters are used."""
    found, tied = look(model)
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    try:
        args, kwargs = _arguments(model, sizes, inputs)
    except BadInput as error:
        return Probe(shapes, tied, why=str(error))
    ledger = Ledger(found.items(), tensors_of((args, kwargs)))
    try:
        with torch.device("meta"), _eager(), Watch(ledger):
            model(*args, **kwargs)
    except Exception as error:
        why = f"the forward pass cannot be traced at {_show(sizes)} {_reason(error)}"
        return Probe(shapes, tied, why=why)
    return Probe(shapes, tied, ledger.uses, tuple(ledger.products), frozenset(ledger.fed))


def _eager() -> AbstractContextManager[Any]:
    """Run compiled modules as they are written."""
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def _arguments(
    model: nn.Module, sizes: Sizes, inputs: Inputs
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of the forward pass, their tensors on the meta device."""
    given = inputs(sizes) if callable(inputs) else inputs
    given = _guess(model) if given is None else given
    given = tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, given)
    if isinstance(given, Mapping):
        return (), dict(given)
    return (tuple(given) if isinstance(given, tuple | list) else (given,)), {}


def _guess(model: nn.Module) -> Inputs:
    """Inputs of a model that says what it takes: `example_inputs`, `seq_len`, or a HF config."""
    bare: Any = getattr(model, "_orig_mod", model)
    if callable(getattr(bare, "example_inputs", None)):
        return bare.example_inputs()
    if isinstance(getattr(bare, "input_shape", None), tuple):
        return torch.zeros(BATCH, *bare.input_shape, device="meta")
    if isinstance(getattr(bare, "seq_len", None), int):
        return torch.zeros(BATCH, bare.seq_len, dtype=torch.long, device="meta")
    config, main = getattr(bare, "config", None), getattr(bare, "main_input_name", None)
    if config is not None and main == "input_ids":
        tokens = torch.zeros(BATCH, 8, dtype=torch.long, device="meta")
        names = signature(bare.forward).parameters
        more = {"decoder_input_ids": tokens} if "decoder_input_ids" in names else {}
        return {"input_ids": tokens, **more}
    if config is not None and main == "pixel_values":
        size = config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        shape = (BATCH, config.num_channels, height, width)
        return {"pixel_values": torch.zeros(shape, device="meta")}
    raise BadInput(
        f"it is not known what a {type(bare).__name__} takes: give inputs=, a tensor, a tuple, "
        "a dict of named arguments, or a function of the sizes that returns one of them"
    )


def _show(sizes: Sizes) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items()) or "its size"


def _reason(error: Exception) -> str:
    """Where a model's own code failed, and why, in a line."""
    torch_home = str(Path(torch.__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((torch_home, str(Path(__file__).parent)))]
    at = f"({own[-1].filename}:{own[-1].lineno}) " if own else ""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{at}on the meta device: {type(error).__name__}: {first}"
