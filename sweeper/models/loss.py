"""The language model's loss without ever holding all logits.

Head product, cross entropy and their gradients are computed for some tokens at a time, in one
pass: the softmax of a chunk is at once turned into its share of the gradients (as in Liger's
fused linear cross entropy, arXiv:2410.10989). The loss is a scalar, so that the backward pass has
only to multiply them. On a GPU narrow models in 16 bits take `loss_kernels.py`, which holds none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from sweeper.errors import first_line
from sweeper.models.scaled import CrossEntropy, Linear, scale_gradient, tokens_in

MIN_CHUNKED_CLASSES = 4096
"""The loss is computed in chunks from this many classes on; below, the logits are small."""
MAX_LOGITS = 2**26
"""Logits held at once on a GPU, which wants large products. MIN_TOKENS goes before."""
MAX_LOGITS_CPU = 2**22
"""Likewise on a CPU, which wants its caches: from 2^24 on it was half as fast as at 2^22."""
MIN_TOKENS = 128
"""A chunk has no fewer tokens of a trial: smaller products are slow."""
MAX_KERNEL_WIDTH = 256
"""On a GPU, `loss_kernels.py` serves products in 16 bits up to this width, and no logits are held:
it keeps sums over a row of the width in registers, where a wider one has no room."""


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
    # Head and loss each multiply the logits; the product of both is one factor.
    scale = head.multiplier * loss.logit
    if head.unit:
        x, weight = _unit_gradients(head, loss, x, weight)
    # Products are computed in autocast's type where it is on, as a Linear's would be.
    kind = x.device.type
    autocast = torch.is_autocast_enabled(kind)
    means: Tensor = _chunked(
        x.flatten(0, -2)[None],
        weight[None],
        targets.flatten()[None],
        scale.detach()[None],
        torch.get_autocast_dtype(kind) if autocast else x.dtype,
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
    # What comes back is the gradient of the mean loss with both factors of `scale` in it. Unit
    # scaling has none of `logit`'s going backward, and at the weight none of `multiplier`'s.
    gradient = tokens * loss.classes / sqrt(loss.classes - 1) / loss.logit
    weight = scale_gradient(weight, gradient / (sqrt(tokens) * head.multiplier))
    backward = head.backward_multiplier / head.multiplier if head.has_backward_multiplier else 1
    return scale_gradient(x, gradient * backward), weight


# An operator, not an `autograd.Function`, whose backward `torch.compile(vmap(...))` would drop.
@torch.library.custom_op("sweeper::chunked_cross_entropy", mutates_args=())
def _chunked(
    x: Tensor, weight: Tensor, targets: Tensor, scale: Tensor, dtype: torch.dtype, train: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean loss [K] of `scale * W x` for K trials, and its gradients, empty unless `train`.

    x [K, N, D], weight [K, V, D], targets [K, N], scale [K]; products in `dtype`, all else in
    float32 at least. One trial after the other: their chunks are large, their number is not.
    """
    served = x.is_cuda and dtype.itemsize == 2 and x.shape[-1] <= MAX_KERNEL_WIDTH
    if served and (kernels := _kernels(x.device, x.shape[-1])) is not None:
        means, dx, dw = kernels(x.to(dtype), weight.to(dtype), targets, scale, train)
        return means, dx.to(x.dtype), dw.to(weight.dtype)
    (trials, tokens, _), classes = x.shape, weight.shape[1]
    wide = torch.promote_types(dtype, torch.float32)
    total = torch.zeros(trials, dtype=wide, device=x.device)
    dx = torch.empty_like(x if train else x[:0])
    dw = torch.zeros_like(weight if train else weight[:0], dtype=wide)
    most = MAX_LOGITS if x.is_cuda else MAX_LOGITS_CPU
    count = max(MIN_TOKENS, most // classes)
    factor = scale.to(wide) / tokens
    # `dtype` says what products are computed in: autocast, where it is on, would decide again.
    with torch.autocast(x.device.type, enabled=False):
        for k in range(trials):
            low = weight[k].to(dtype)
            for start in range(0, tokens, count):
                rows = slice(start, start + count)
                part = x[k, rows].to(dtype)
                losses, gradient = _losses(part @ low.mT, targets[k, rows], scale[k].to(wide))
                total[k] += losses
                if train:
                    dx[k, rows] = (gradient @ low).to(wide) * factor[k]
                    dw[k] += gradient.mT @ part
            if train:
                dw[k] *= factor[k]
    return total / tokens, dx, dw.to(weight.dtype)


def _losses(logits: Tensor, targets: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of losses of `factor * logits` [n, V], and its gradient; compiled on a GPU."""
    if logits.is_cuda and not _fused_fails:
        try:
            return _fused()(logits, targets, factor)
        except Exception as error:
            _refuse(error, _fused_fails)
    return _written_out(logits, targets, factor)


def _refuse(error: Exception, fails: list[str]) -> None:
    if "out of memory" in str(error).lower():
        raise error
    fails.append(first_line(error))
    _unreported.append(fails[-1])


@cache
def _kernels(
    device: torch.device, width: int
) -> Callable[..., tuple[Tensor, Tensor, Tensor]] | None:
    """The kernels of `loss_kernels.py`, where they agree with torch's own operations at this width.

    A compiler of another version, or for another GPU, is not trusted unseen.
    """
    try:
        from sweeper.models.loss_kernels import losses_and_gradients

        generator, rows = torch.Generator().manual_seed(0), (160, 200)
        with torch.device("cpu"):
            x, w = (torch.randn(n, width, generator=generator) / width**0.25 for n in rows)
            targets, scale = torch.arange(len(x)), torch.ones(1)
        loss, gradient = _written_out(x @ w.mT, targets, scale[0])
        right = [loss, gradient @ w, gradient.mT @ x]
        low_x, low_w = (t.to(device, torch.bfloat16)[None] for t in (x, w))
        results = losses_and_gradients(
            low_x, low_w, targets[None].to(device), scale.to(device), train=True
        )
        for values, wanted in zip(results, right, strict=True):
            wanted = wanted / len(x)
            if (values[0].cpu() - wanted).norm() > 0.02 * wanted.norm():
                raise RuntimeError("the loss's kernels disagree with torch's own operations")
    except Exception as error:
        _refuse(error, [])
        return None
    return losses_and_gradients


@cache
def _fused() -> Callable[..., tuple[Tensor, Tensor]]:
    return torch.compile(_written_out, dynamic=True)


_fused_fails: list[str] = []
"""Why the loss cannot be compiled in this process, once that has been seen: it is tried once."""
_unreported: list[str] = []
"""The same reason, until `take_refusal` has handed it to the user's notices."""


def take_refusal() -> str | None:
    """Why the loss is not compiled in this process, for the first who asks; None otherwise."""
    return _unreported.pop() if _unreported else None


def _written_out(logits: Tensor, targets: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    if torch.compiler.is_compiling():
        return _in_one_pass(logits, targets, factor)
    log_p = torch.log_softmax(logits.to(factor.dtype) * factor, -1)
    index = targets[:, None]
    loss = -log_p.gather(-1, index).sum()
    # By z = factor * logits the loss has the gradient p - onehot; it takes the memory of log p.
    gradient = log_p.exp_()
    gradient.scatter_add_(-1, index, -torch.ones_like(gradient[:, :1]))
    return loss, gradient.to(logits.dtype)


def _in_one_pass(logits: Tensor, targets: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """`_written_out` for the compiler: what it looks up in a tensor, it writes to memory first."""
    z = logits.to(factor.dtype) * factor
    most = z.amax(-1, keepdim=True)
    weights = (z - most).exp()
    total = weights.sum(-1, keepdim=True)
    hit = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    # The largest is subtracted before the sum: what is left is small, and keeps its digits.
    loss = (total.log().squeeze(-1) - torch.where(hit, z - most, 0).sum(-1)).sum()
    return loss, (weights / total - hit.to(z.dtype)).to(logits.dtype)


@_chunked.register_fake
def _(
    x: Tensor, weight: Tensor, targets: Tensor, scale: Tensor, dtype: torch.dtype, train: bool
) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.promote_types(dtype, torch.float32)
    dx, dw = (torch.empty_like(t if train else t[:0]) for t in (x, weight))
    return x.new_empty(x.shape[0], dtype=wide), dx, dw


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    # The gradients were computed going forward and are outputs that nobody differentiates: zeros
    # of their size for the backward pass would be the memory that this file saves.
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
