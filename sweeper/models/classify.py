"""What every parameter and operation of a model is, read off the model at several sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from sweeper.errors import BadInput
from sweeper.models.scaled import Embedding, Linear, RMSNorm, ScaledModule
from sweeper.scaling.spec import ParamSpec, Role, Site

Build = Callable[[int, int], nn.Module]
"""Makes the model of a given width and depth."""


@dataclass(frozen=True)
class _Use:
    """How a parameter is used: fans, the dimension of each in its shape, and its start."""

    fan_in: int
    fan_out: int
    in_dim: int | None
    out_dim: int | None
    init: str = "normal"


def _use(module: nn.Module, name: str, shape: tuple[int, ...]) -> _Use | None:
    """How `module` uses its own parameter `name`; None when this is not known."""
    if isinstance(module, Linear | nn.Linear) and name == "weight":
        return _Use(shape[1], shape[0], 1, 0)
    if isinstance(module, Embedding | nn.Embedding) and name == "weight":
        return _Use(shape[0], shape[1], None, 1)
    if isinstance(module, RMSNorm | nn.LayerNorm | nn.RMSNorm) and len(shape) == 1:
        return _Use(1, shape[0], None, 0, "zeros" if name == "bias" else "ones")
    if isinstance(module, nn.Linear) and name == "bias":
        return _Use(1, shape[0], None, 0, "zeros")
    return None


def _uses(model: nn.Module) -> Iterator[tuple[str, tuple[int, ...], _Use]]:
    """Name, shape and use of every parameter; BadInput lists those that are not understood."""
    unknown = []
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            full = f"{prefix}.{name}" if prefix else name
            shape = tuple(parameter.shape)
            use = _use(module, name, shape)
            if use is None:
                unknown.append(f"{full} {list(shape)} of a {type(module).__name__}")
            else:
                yield full, shape, use
    if unknown:
        raise BadInput(
            "these parameters cannot be classified, so no scheme can scale them: "
            + "; ".join(unknown)
            + ". Linear, Embedding, RMSNorm and LayerNorm are understood."
        )


_LAYER_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def _first_layer(name: str, known: Container[str]) -> str:
    """`name` with one of its numbers replaced by 0, if that is a known name; else `name`."""
    for match in _LAYER_NUMBER.finditer(name):
        first = f"{name[: match.start()]}0{name[match.end() :]}"
        if first in known:
            return first
    return name


def _role(use: _Use, shape: tuple[int, ...], wider: tuple[int, ...]) -> Role:
    """Which of a parameter's dimensions grow when the model is made wider (Everett et al.)."""
    if len(shape) == 1:
        return Role.VECTOR
    grows_in = use.in_dim is not None and wider[use.in_dim] != shape[use.in_dim]
    grows_out = use.out_dim is not None and wider[use.out_dim] != shape[use.out_dim]
    if grows_in:
        return Role.HIDDEN if grows_out else Role.READOUT
    return Role.EMBEDDING if grows_out else Role.FIXED


def classify(build: Build, *, base: tuple[int, int], target: tuple[int, int]) -> list[ParamSpec]:
    """Every parameter of the model at `target` (width, depth), beside `base`.

    The model is built on the meta device at both sizes, at twice the base width, where a
    dimension that grows shows itself, and one layer deeper, which tells the repeated blocks.
    """
    with torch.device("meta"):
        at_target = list(_uses(build(*target)))
        at_base = {name: (shape, use) for name, shape, use in _uses(build(*base))}
        wider = {name: shape for name, shape, _ in _uses(build(2 * base[0], base[1]))}
        deeper = {name for name, _, _ in _uses(build(base[0], base[1] + 1))}
    repeated = {_first_layer(name, at_base) for name in deeper - at_base.keys()}
    specs = []
    for name, shape, use in at_target:
        known = name if name in at_base else _first_layer(name, at_base)
        if known not in at_base:
            raise BadInput(f"parameter {name} has no counterpart in the base model {base}")
        base_shape, base_use = at_base[known]
        specs.append(
            ParamSpec(
                name=name,
                role=_role(base_use, base_shape, wider[known]),
                shape=shape,
                base_shape=base_shape,
                fan_in=use.fan_in,
                fan_out=use.fan_out,
                base_fan_in=base_use.fan_in,
                base_fan_out=base_use.fan_out,
                residual=_first_layer(name, at_base) in repeated,
                depth=target[1],
                base_depth=base[1],
                init=use.init,
                projection=use.in_dim is not None,
                width=target[0],
                base_width=base[0],
            )
        )
    return specs


def sites(model: nn.Module) -> list[Site]:
    """Every scalable operation of `model`, by the name of its module."""
    found = []
    for name, module in model.named_modules():
        site = module.site(name) if isinstance(module, ScaledModule) else None
        if site is not None:
            found.append(site)
    return found
