"""Simulated FP8 training: operands of matrix products cast to an 8-bit format and back.

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
from torch import Tensor

Format = Literal["e4m3", "e5m2"]

DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def rounded(x: Tensor, name: Format) -> Tensor:
    """The nearest numbers of the format, in the dtype of `x`; its gradient is not to be used."""
    dtype = DTYPES[name]
    most = torch.finfo(dtype).max
    return x.clamp(-most, most).to(dtype).to(x.dtype).masked_fill(x.isinf(), torch.nan)


def round_value(x: Tensor, name: Format | None) -> Tensor:
    """`rounded(x)` going forward; the gradient passes unchanged. None: `x` itself. Any shape."""
    if name is None or x.is_meta:  # values are rounded, and a meta tensor has none
        return x
    return rounded(x.detach(), name) + (x - x.detach())


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

    `gradient` is that of the output, which backward is an operand of two products.
    """

    input: Format | None = None
    weight: Format | None = None
    gradient: Format | None = None


@dataclass(frozen=True, kw_only=True)
class Fp8:
    """Formats by kind of layer; without any, nothing is cast.

    `attention_out` and `ffn_down` are the last products of the residual branches, `head` makes
    the logits, `hidden` is every other product with a weight. Look-ups, norms and attention's
    two products of activations are never cast.
    """

    hidden: Formats = Formats()
    attention_out: Formats = Formats()
    ffn_down: Formats = Formats()
    head: Formats = Formats()

    @property
    def casts(self) -> bool:
        """Whether any operand is cast."""
        return any(getattr(self, field.name) != Formats() for field in fields(self))
