"""The language model's loss without ever holding all logits.

Head product, cross entropy and their gradients are computed for some tokens at a time, in one
pass: the softmax of a chunk is at once turned into its share of the gradients (as in Liger's
fused linear cross entropy, arXiv:2410.10989). The loss is a scalar, so that the backward pass has
only to multiply them.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from sweeper.models.scaled import CrossEntropy, Linear, scale_gradient, tokens_in

MIN_CHUNKED_CLASSES = 4096
"""The loss is computed in chunks from this many classes on; below, the logits are small."""
MAX_LOGITS = 2**24
"""Logits held at once, over all stacked trials. MIN_TOKENS goes before."""
MIN_TOKENS = 128
"""A chunk has no fewer tokens of a trial: smaller products are slow."""


def head_loss(head: Linear, loss: CrossEntropy, x: Tensor, targets: Tensor) -> Tensor:
    """`loss(head(x), targets)`: [..., width] and [...] integers in 0 .. V-1 -> a scalar.

    In chunks if there are MIN_CHUNKED_CLASSES or more. A head in FP8 or with a hook, and models on
    the meta device, which the classifier traces, take the plain way. In chunks the hooks of `loss`
    are not called, and the buffers of both get no gradient.
    """
    observed = x.is_meta or bool(head._forward_hooks)
    if head.out_features < MIN_CHUNKED_CLASSES or head.formats is not None or observed:
        plain: Tensor = loss(head(x), targets)
        return plain
    weight: Tensor = head.weight
    scale = head.multiplier * loss.logit
    if head.unit:
        x, weight = _unit_gradients(head, loss, x, weight)
    means: Tensor = _chunked(
        x.flatten(0, -2)[None],
        weight[None],
        targets.flatten()[None],
        scale.detach()[None],
        _product_dtype(x),
        torch.is_grad_enabled(),
    )[0]
    return means[0]


def _unit_gradients(
    head: Linear, loss: CrossEntropy, x: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Bring the gradients of the mean loss of `scale * W x` to those of unit scaling.

    CrossEntropy's gradient to the logits, in place of its own with `logit`; then Linear's.
    """
    tokens = tokens_in(x)
    gradient = tokens * loss.classes / sqrt(loss.classes - 1) / loss.logit
    weight = scale_gradient(weight, gradient / (sqrt(tokens) * head.multiplier))
    backward = head.backward_multiplier / head.multiplier if head.has_backward_multiplier else 1
    return scale_gradient(x, gradient * backward), weight


def _product_dtype(x: Tensor) -> torch.dtype:
    """What products are computed in: autocast's dtype where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


# An operator, not an `autograd.Function`, whose backward `torch.compile(vmap(...))` would drop.
@torch.library.custom_op("sweeper::chunked_cross_entropy", mutates_args=())
def _chunked(
    x: Tensor, weight: Tensor, targets: Tensor, scale: Tensor, dtype: torch.dtype, train: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean loss [K] of `scale * W x` for K trials, and its gradients, empty unless `train`.

    x [K, N, D], weight [K, V, D], targets [K, N], scale [K]; products in `dtype`, all else in
    float32 at least.
    """
    (trials, tokens, _), classes = x.shape, weight.shape[1]
    wide = torch.promote_types(dtype, torch.float32)
    low, factor = weight.to(dtype), scale.to(wide)[:, None, None]
    total = torch.zeros(trials, dtype=wide, device=x.device)
    dx = torch.empty_like(x if train else x[:0])
    dw = torch.zeros_like(weight if train else weight[:0], dtype=wide)
    count = max(MIN_TOKENS, MAX_LOGITS // (trials * classes))
    with torch.autocast(x.device.type, enabled=False):
        for start in range(0, tokens, count):
            part = x[:, start : start + count].to(dtype)
            index = targets[:, start : start + count, None]
            logits = torch.bmm(part, low.mT).to(wide).mul_(factor)
            total += _losses(logits, index, factor / tokens)
            if train:
                gradient = logits.to(dtype)  # what `_losses` left there
                dx[:, start : start + count] = torch.bmm(gradient, low)
                dw += torch.bmm(gradient.mT, part)
    return total / tokens, dx, dw.to(weight.dtype)


def _losses(logits: Tensor, index: Tensor, factor: Tensor) -> Tensor:
    """Sums [K] of the losses of `logits` [K, n, V]; in place, their gradients times `factor`."""
    chosen = logits.gather(-1, index)
    highest = logits.amax(-1, keepdim=True)  # taken out, so that no exponential overflows
    mass = logits.sub_(highest).exp_().sum(-1, keepdim=True)
    logits.mul_(factor / mass).scatter_add_(-1, index, -factor.expand_as(chosen))
    return (mass.log() + highest - chosen).sum((1, 2))


@_chunked.register_fake
def _(
    x: Tensor, weight: Tensor, targets: Tensor, scale: Tensor, dtype: torch.dtype, train: bool
) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.promote_types(dtype, torch.float32)
    dx, dw = (torch.empty_like(t if train else t[:0]) for t in (x, weight))
    return x.new_empty(x.shape[0], dtype=wide), dx, dw


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    dx, dw = (g * gradient[:, None, None].to(g.dtype) for g in ctx.saved_tensors)
    return dx, dw, None, None, None, None


_chunked.register_autograd(_backward, setup_context=_keep_gradients)


@_chunked.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], *args: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """More trials: the mapped dimension joins that of the trials."""
    batch = info.batch_size
    tensors = [
        (t[None].expand(batch, *t.shape) if dim is None else t.movedim(dim, 0)).flatten(0, 1)
        for t, dim in zip(args[:4], in_dims[:4], strict=True)
    ]
    outputs = _chunked(*tensors, *args[4:])
    return tuple(out.unflatten(0, (batch, -1)) for out in outputs), (0, 0, 0)
