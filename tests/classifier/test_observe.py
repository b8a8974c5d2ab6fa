"""Attention is seen however it is written, and nothing else is taken for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sweeper.classifier.observe import AttentionWatch, SeenAttention

X = torch.randn(2, 5, 12)


def heads(x: Tensor) -> Tensor:
    """[2, 3 heads, 5 positions, head size 4]."""
    return x.view(2, 5, 3, 4).transpose(1, 2)


def fused(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(heads(x), heads(x), heads(x))


def fused_with_a_scale(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(heads(x), heads(x), heads(x), scale=0.25)


def by_hand(x: Tensor) -> Tensor:
    """As nanoGPT without its flash."""
    att = (heads(x) @ heads(x).transpose(-2, -1)) * 0.5
    att = att.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    return F.softmax(att, dim=-1) @ heads(x)


def by_bmm(x: Tensor) -> Tensor:
    q = heads(x).flatten(0, 1)
    return torch.bmm(torch.bmm(q, q.transpose(1, 2)).softmax(-1), q)


def whole(x: Tensor) -> Tensor:
    return nn.MultiheadAttention(12, 3, batch_first=True)(x, x, x)[0]  # type: ignore[no-any-return]


def none(x: Tensor) -> Tensor:
    """A router, and a classifier's softmax."""
    weight = nn.Parameter(torch.randn(12, 5))
    return torch.softmax(F.linear(x, torch.randn(7, 12)), -1) @ torch.ones(7, 12) @ weight


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (fused, SeenAttention(4, 0.5, 5)),
        (fused_with_a_scale, SeenAttention(4, 0.25, 5)),
        (by_hand, SeenAttention(4, None, 5)),
        (by_bmm, SeenAttention(4, None, 5)),
        (whole, SeenAttention(4, 0.5, 5)),
        (none, None),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_seen(call: object, expected: SeenAttention | None, device: str) -> None:
    assert callable(call)
    with torch.device(device), AttentionWatch() as watch:
        call(X.to(device))
    assert watch.seen == ({expected} if expected else set())


def test_the_results_are_the_same() -> None:
    outside = by_hand(X)
    with AttentionWatch():
        assert torch.equal(by_hand(X), outside)
