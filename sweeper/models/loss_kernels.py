"""The loss of a language model's head in two Triton kernels that write no logits.

`logsumexp(W x)` and its gradient to x, `softmax(W x) W`, are attention's: x asks, the rows of W are
keys and values. So one pass over the classes gives a token's loss and gradient, with a running sum
(as in FlashAttention, arXiv:2205.14135; for this loss, Cut Cross-Entropy, arXiv:2411.09009). The
gradient to W takes another pass over the tokens. Four products in place of three, and no logits in
memory: at 32,000 classes their traffic is all that this loss costs.
"""

from __future__ import annotations

# ruff: noqa: N803 (what a kernel is compiled for is in capitals)
import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 128, 64
"""Tokens (or classes) whose sums a program keeps, and classes (or tokens) that it reads at a time.

At the widest of `loss.MAX_KERNEL_WIDTH` the compiler spills no register of an sm_90 with these.
"""


@triton.jit
def _by_tokens(
    x, w, targets, scale, log_sum, losses, dx,
    N: tl.constexpr, V: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, TRAIN: tl.constexpr,
):  # fmt: skip
    """The loss of ROWS tokens, with its log sum exp(z), and softmax(z) W."""
    trial = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    inside, used = n[:, None] < N, d[None, :] < D
    tokens = (trial * N + n)[:, None] * D + d[None, :]
    rows = tl.load(x + tokens, mask=inside & used, other=0.0)
    target = tl.load(targets + trial * N + n, mask=n < N, other=0)
    factor = tl.load(scale + trial)
    most = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    hit = tl.zeros((ROWS,), tl.float32)
    pulled = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, V, COLUMNS):
        v = start + tl.arange(0, COLUMNS)
        classes = (trial * V + v)[:, None] * D + d[None, :]
        part = tl.load(w + classes, mask=(v[:, None] < V) & used, other=0.0)
        z = tl.dot(rows, tl.trans(part)) * factor
        z = tl.where(v[None, :] < V, z, float("-inf"))
        larger = tl.maximum(most, tl.max(z, 1))
        shrunk, p = tl.exp(most - larger), tl.exp(z - larger[:, None])
        total = total * shrunk + tl.sum(p, 1)
        hit += tl.sum(tl.where(v[None, :] == target[:, None], z, 0.0), 1)
        if TRAIN:
            pulled = tl.dot(p.to(part.dtype), part, pulled * shrunk[:, None])
        most = larger
    # The largest is subtracted before the sum: what is left is small, and keeps its digits.
    tl.store(losses + trial * N + n, tl.log(total) - (hit - most), mask=n < N)
    tl.store(log_sum + trial * N + n, tl.log(total) + most, mask=n < N)
    if TRAIN:
        tl.store(dx + tokens, pulled / total[:, None], mask=inside & used)


@triton.jit
def _by_classes(
    x, w, targets, scale, log_sum, dw,
    N: tl.constexpr, V: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradient of the mean loss to ROWS rows of w."""
    trial = tl.program_id(1).to(tl.int64)
    v = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    inside = (v[:, None] < V) & (d[None, :] < D)
    classes = (trial * V + v)[:, None] * D + d[None, :]
    part = tl.load(w + classes, mask=inside, other=0.0)
    factor = tl.load(scale + trial)
    pushed = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, N, COLUMNS):
        n = start + tl.arange(0, COLUMNS)
        tokens = (trial * N + n)[:, None] * D + d[None, :]
        rows = tl.load(x + tokens, mask=(n[:, None] < N) & (d[None, :] < D), other=0.0)
        target = tl.load(targets + trial * N + n, mask=n < N, other=0)
        log_total = tl.load(log_sum + trial * N + n, mask=n < N, other=float("inf"))
        z = tl.dot(part, tl.trans(rows)) * factor
        hit = (v[:, None] == target[None, :]) & (n[None, :] < N)
        gradient = tl.exp(z - log_total[None, :]) - tl.where(hit, 1.0, 0.0)
        pushed = tl.dot(gradient.to(rows.dtype), rows, pushed)
    tl.store(dw + classes, pushed * (factor / N), mask=inside)


def losses_and_gradients(
    x: Tensor, weight: Tensor, targets: Tensor, scale: Tensor, train: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean loss [K] of `z = scale * W x`, and its gradients to x and W, empty unless `train`.

    x [K, N, D] and weight [K, V, D] in the 16 bits of the products, targets [K, N], scale [K].
    What is returned is in float32.
    """
    x, weight, targets = x.contiguous(), weight.contiguous(), targets.contiguous()
    (trials, tokens, width), classes = x.shape, weight.shape[1]
    losses, log_sum = (x.new_empty(trials, tokens, dtype=torch.float32) for _ in range(2))
    dx, dw = (torch.empty_like(t if train else t[:0], dtype=torch.float32) for t in (x, weight))
    factor = scale.float()
    inputs = (x, weight, targets, factor, log_sum)
    sizes = {"N": tokens, "V": classes, "D": width, "WIDTH": max(16, 1 << (width - 1).bit_length())}
    sizes |= {"ROWS": ROWS, "COLUMNS": COLUMNS, "num_warps": 8, "num_stages": 3}
    _by_tokens[-(-tokens // ROWS), trials](*inputs, losses, dx, TRAIN=train, **sizes)
    if train:
        _by_classes[-(-classes // ROWS), trials](*inputs, dw, **sizes)
        own = torch.take_along_dim(weight, targets[:, :, None], 1)
        dx.sub_(own).mul_(factor[:, None, None] / tokens)
    return losses.mean(1), dx, dw
