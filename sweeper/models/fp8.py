"""Simulated FP8 training: operands of matrix products cast to an 8-bit format and back.

A model is built without it. `Fp8.apply_to` then gives its `Linear` layers the formats of their
operands, and such a layer leaves its product to `Formats.product`.

The casts are torch's own, round to nearest even, so that an operand has exactly the values that
hardware would multiply; the product itself is computed in the model's precision. What lies beyond
a format's largest number becomes that number (torch's E4M3 cast of such gives NaN or saturates,
depending on its version); infinities become NaN, so that a run that diverged shows it. There are
no scales beside the model's: that u-muP needs none is its claim (u-muP paper, E.2).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sweeper.models.scaled import Linear

Format = Literal["e4m3", "e5m2"]

DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def rounded(x: Tensor, name: Format) -> Tensor:
    """The nearest numbers of the format, in the dtype of `x`; its gradient is not to be used."""
    dtype = DTYPES[name]
    largest = torch.finfo(dtype).max
    # The clamp alone would make the largest number of an infinity: hence the NaN.
    return x.clamp(-largest, largest).to(dtype).to(x.dtype).masked_fill(x.isinf(), torch.nan)


def round_value(x: Tensor, name: Format | None) -> Tensor:
    """`rounded(x)` going forward; the gradient passes unchanged. None: `x` itself. Any shape."""
    # The straight-through estimator: a rounding has slope 0 almost everywhere.
    if name is None or x.is_meta:  # values are rounded, and a meta tensor has none
        return x
    return rounded(x.detach(), name) + (x - x.detach())  # 0, with the gradient of x


def round_gradient(x: Tensor, name: Format | None) -> Tensor:
    """`x` itself going forward; its gradient is `rounded`. None: `x` itself. Any shape."""
    if name is None or x.is_meta:
        return x
    out: Tensor = _round_gradient(x, name)
    return out


# An operator, not an `autograd.Function`, whose backward `torch.compile(vmap(...))` would drop.
@torch.library.custom_op("sweeper::round_gradient", mutates_args=())
def _round_gradient(x: Tensor, name: str) -> Tensor:
    return x.clone()


@_round_gradient.register_fake
def _(x: Tensor, name: str) -> Tensor:
    return torch.empty_like(x)


def _keep_name(ctx: Any, inputs: tuple[Tensor, Format], output: Tensor) -> None:
    ctx.name = inputs[1]


def _round_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return rounded(gradient, ctx.name), None


_round_gradient.register_autograd(_round_backward, setup_context=_keep_name)


@_round_gradient.register_vmap
def _(info: Any, in_dims: tuple[int | None, None], x: Tensor, name: str) -> tuple[Tensor, Any]:
    return _round_gradient(x, name), in_dims[0]


@dataclass(frozen=True, kw_only=True)
class Formats:
    """Formats of one layer's operands: "e4m3", "e5m2" or None, the model's own precision.

    `gradient` is that of the output: going backward, it is an operand of two products.
    """

    input: Format | None = None
    weight: Format | None = None
    gradient: Format | None = None

    @property
    def casts(self) -> bool:
        """Whether any operand is cast."""
        return self != Formats()

    def product(self, x: Tensor, weight: Tensor, multiplier: Tensor) -> Tensor:
        """`multiplier * W x` [..., out_features] of rounded operands; W is [out, in_features].

        The multiplier comes after the product, forward and backward (u-muP paper, A.4): what is
        rounded has the scale that the parameterization gives it.
        """
        y = F.linear(round_value(x, self.input), round_value(weight, self.weight)) * multiplier
        return round_gradient(y, self.gradient)


KINDS = {"attention.out": "attention_out", "ffn.down": "ffn_down", "head": "head"}
"""How the names of layers end that are not of the kind "hidden"."""


@dataclass(frozen=True, kw_only=True)
class Fp8:
    """Formats by kind of layer; without any, nothing is cast.

    `attention_out` and `ffn_down` are the last products of the residual branches, `head` makes
    the logits, `hidden` is every other product with a weight; names tell them apart (`KINDS`).
    Look-ups, norms and attention's two products of activations are never cast.
    """

    hidden: Formats = Formats()
    attention_out: Formats = Formats()
    ffn_down: Formats = Formats()
    head: Formats = Formats()

    @property
    def casts(self) -> bool:
        """Whether any operand is cast."""
        return any(getattr(self, field.name).casts for field in fields(self))

    def apply_to(self, model: nn.Module) -> None:
        """Cast the operands of every `Linear` in `model` as its kind asks for."""
        for name, module in model.named_modules():
            if isinstance(module, Linear):
                kinds = (kind for end, kind in KINDS.items() if f".{name}".endswith(f".{end}"))
                formats: Formats = getattr(self, next(kinds, "hidden"))
                module.formats = formats if formats.casts else None
