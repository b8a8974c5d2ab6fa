"""Simulated FP8 training: operands of matrix products cast to an 8-bit format and back.

A model is built without it. `Fp8.apply_to` then gives its `Linear` layers the formats of their
operands, and such a layer leaves its product to `Formats.product`.

The casts are torch's own, round to nearest even, so that an operand has exactly the values that
hardware would multiply; the product itself is computed in the model's precision. What lies beyond
a format's largest number becomes that number (torch's E4M3 cast of such gives NaN or saturates,
depending on its version); infinities become NaN, so that a run that diverged shows it. By default
there are no scales beside the model's: that u-muP needs none is its claim (u-muP paper, E.2). What
others need (E.1) is `Scaling`: each tensor times largest / absmax, of itself or of steps before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sweeper.models.scaled import Linear
from sweeper.records import WRITTEN_IF_SET

Format = Literal["e4m3", "e5m2"]

Scaling = Literal["none", "tensor", "delayed"]
HISTORY = 16
"""Passes whose largest entry a delayed scale is made of."""

DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def rounded(x: Tensor, name: Format) -> Tensor:
    """The nearest numbers of the format, in the dtype of `x`; its gradient is not to be used."""
    dtype = DTYPES[name]
    largest = torch.finfo(dtype).max
    # The clamp alone would make the largest number of an infinity: hence the NaN.
    return x.clamp(-largest, largest).to(dtype).to(x.dtype).masked_fill(x.isinf(), torch.nan)


def scaled_rounded(x: Tensor, name: Format, peak: Tensor) -> Tensor:
    """`rounded(x s) / s`, s = largest / `peak` (size 1 where it has no dimension), 1 at peak 0."""
    # bfloat16 would round the scaled number first.
    wide = torch.promote_types(x.dtype, torch.float32)
    # Of a peak near the smallest numbers the scale itself would be infinite.
    most = torch.finfo(DTYPES[name]).max / peak.to(wide)
    scale = torch.where(peak > 0, most.clamp(max=torch.finfo(wide).max), 1.0)
    return (rounded(x.to(wide) * scale, name) / scale).to(x.dtype)


def round_value(x: Tensor, name: Format | None, peak: Tensor | None = None) -> Tensor:
    """`rounded(x)`, by `peak` if given; the gradient passes unchanged. None: `x` itself."""
    # The straight-through estimator: a rounding has slope 0 almost everywhere.
    if name is None or x.is_meta:  # values are rounded, and a meta tensor has none
        return x
    value = x.detach()
    at = rounded(value, name) if peak is None else scaled_rounded(value, name, peak)
    return at + (x - value)  # 0, with the gradient of x


def round_gradient(
    x: Tensor, name: Format | None, scaling: Scaling = "none", peaks: Tensor | None = None
) -> Tensor:
    """`x` itself going forward; its gradient is rounded. None: `x` itself. Any shape.

    `peaks` [HISTORY] are those of passes before, of a delayed scale; this one's is noted in them.
    """
    if name is None or x.is_meta:
        return x
    if peaks is None:
        peaks = x.new_zeros(0)
    out: Tensor = _round_gradient(x, peaks, name, scaling, False)
    return out


# An operator, not an `autograd.Function`, whose backward `torch.compile(vmap(...))` would drop.
@torch.library.custom_op("sweeper::round_gradient", mutates_args=())
def _round_gradient(x: Tensor, peaks: Tensor, name: str, scaling: str, stacked: bool) -> Tensor:
    return x.clone()


@_round_gradient.register_fake
def _(x: Tensor, peaks: Tensor, name: str, scaling: str, stacked: bool) -> Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Format, Scaling, bool], output: Tensor) -> None:
    ctx.peaks, ctx.name, ctx.scaling, ctx.stacked = inputs[1:]


def _round_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
    if ctx.scaling == "none":
        return rounded(gradient, ctx.name), None, None, None, None
    # One slice of the first dimension is one trial's.
    own = tuple(range(1, gradient.dim())) if ctx.stacked else tuple(range(gradient.dim()))
    now = peak_of(gradient, own)
    peak = now
    if ctx.scaling == "delayed":
        before = ctx.peaks.amax(-1)
        peak = before.view(-1, *[1] * len(own)) if ctx.stacked else before
        note(ctx.peaks, now.reshape(before.shape))
    return scaled_rounded(gradient, ctx.name, peak), None, None, None, None


_round_gradient.register_autograd(_round_backward, setup_context=_keep)


@_round_gradient.register_vmap
def _(
    info: Any, in_dims: Any, x: Tensor, peaks: Tensor, name: str, scaling: str, stacked: bool
) -> tuple[Tensor, Any]:
    x_dim, peaks_dim = in_dims[:2]
    x = x.expand(info.batch_size, *x.shape) if x_dim is None else x.movedim(x_dim, 0)
    # Views of the trials' own: what is noted in them stays.
    peaks = peaks if peaks_dim is None else peaks.movedim(peaks_dim, 0)
    return _round_gradient(x, peaks, name, scaling, True), 0


def peak_of(x: Tensor, dims: tuple[int, ...] | None = None) -> Tensor:
    """The largest magnitude; over `dims`, which stay with size 1."""
    size = x.detach().abs()
    return size.amax() if dims is None else size.amax(dims, keepdim=True)


def note(peaks: Tensor, now: Tensor) -> None:
    """Put the newest peak, [...], first among `peaks` [..., HISTORY]; the oldest is forgotten."""
    peaks.copy_(torch.cat([now[..., None].to(peaks.dtype), peaks[..., :-1]], -1))


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

    def product(self, x: Tensor, weight: Tensor, layer: Linear) -> Tensor:
        """`multiplier * W x` [..., out_features] of rounded operands; W is [out, in_features].

        The multiplier comes after the product, forward and backward (u-muP paper, A.4): what is
        rounded has the scale that the parameterization gives it.
        """
        history = layer.peaks if layer.scaling == "delayed" else None
        peaks: list[Tensor | None] = [None, None]
        if layer.scaling != "none":
            now = [peak_of(x), peak_of(weight)]
            peaks = [*now] if history is None else [h.amax(-1) for h in history[:2].unbind(0)]
            if history is not None and layer.training and not x.is_meta:
                note(history[:2], torch.stack(now))
        y = F.linear(
            round_value(x, self.input, peaks[0]), round_value(weight, self.weight, peaks[1])
        )
        going_back = None if history is None else history[2]
        return round_gradient(y * layer.multiplier, self.gradient, layer.scaling, going_back)


KINDS = {"attention.out": "attention_out", "ffn.down": "ffn_down", "head": "head"}
"""How the names of layers end that are not of the kind "hidden"."""


@dataclass(frozen=True, kw_only=True)
class Fp8:
    """Formats by kind of layer; without any, nothing is cast.

    `attention_out` and `ffn_down` are the last products of the residual branches, `head` makes
    the logits, `hidden` is every other product with a weight; names tell them apart (`KINDS`).
    Look-ups, norms and attention's two products of activations are never cast. `scaling` brings
    every operand to the format's largest number: by the operand itself ("tensor"), or by the
    largest of the last `HISTORY` passes ("delayed", Transformer Engine's), 1 at the first.
    """

    hidden: Formats = Formats()
    attention_out: Formats = Formats()
    ffn_down: Formats = Formats()
    head: Formats = Formats()
    scaling: Scaling = field(default="none", metadata=WRITTEN_IF_SET)

    @property
    def casts(self) -> bool:
        """Whether any operand is cast."""
        return any(formats.casts for formats in vars(self).values() if isinstance(formats, Formats))

    def apply_to(self, model: nn.Module) -> None:
        """Cast the operands of every `Linear` in `model` as its kind asks for."""
        for name, module in model.named_modules():
            if isinstance(module, Linear):
                kinds = (kind for end, kind in KINDS.items() if f".{name}".endswith(f".{end}"))
                formats: Formats = getattr(self, next(kinds, "hidden"))
                module.formats = formats if formats.casts else None
                module.scaling = self.scaling
                if formats.casts and self.scaling == "delayed":
                    # Input, weight, gradient. Kept in checkpoints, as running statistics are.
                    module.register_buffer("peaks", torch.zeros(3, HISTORY))
