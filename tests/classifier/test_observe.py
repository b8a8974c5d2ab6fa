"""Attention is seen however it is written, and nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sweeper
from sweeper.classifier.observe import AttentionWatch, SeenAttention
from sweeper.classifier.trace import WHOLE_LAYERS

X = torch.randn(2, 5, 12)


def heads(x: Tensor) -> Tensor:
    """[2, 3 heads, 5 positions, head size 4]."""
    return x.view(2, 5, 3, 4).transpose(1, 2)


def fused(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(heads(x), heads(x), heads(x))


def fused_with_a_scale(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(heads(x), heads(x), heads(x), scale=0.25)


def by_hand(x: Tensor) -> Tensor:
    att = (heads(x) @ heads(x).transpose(-2, -1)) * 0.5
    att = att.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    return F.softmax(att, dim=-1) @ heads(x)


def by_bmm(x: Tensor) -> Tensor:
    q = heads(x).flatten(0, 1)
    return torch.bmm(torch.bmm(q, q.transpose(1, 2)).softmax(-1), q)


def whole(x: Tensor) -> Tensor:
    return nn.MultiheadAttention(12, 3, batch_first=True)(x, x, x)[0]  # type: ignore[no-any-return]


def none(x: Tensor) -> Tensor:
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


def fast_arguments(layer: nn.TransformerEncoderLayer, *, gelu: bool, first: bool) -> list[object]:
    a, norms = layer.self_attn, (layer.norm1, layer.norm2)
    return [
        *(12, 3, a.in_proj_weight, a.in_proj_bias, a.out_proj.weight, a.out_proj.bias),
        *(gelu, first, layer.norm1.eps, *(p for norm in norms for p in (norm.weight, norm.bias))),
        *(p for linear in (layer.linear1, layer.linear2) for p in (linear.weight, linear.bias)),
    ]


@torch.no_grad()
def test_the_fast_paths_of_torch_s_encoder_are_attention() -> None:
    layer = nn.TransformerEncoderLayer(12, 3, 24, batch_first=True).eval()
    arguments: list[Any] = fast_arguments(layer, gelu=False, first=False)
    calls: list[Callable[[], object]] = [
        lambda: torch._transformer_encoder_layer_fwd(X, *arguments),
        lambda: torch._native_multi_head_attention(X, X, X, *arguments[:6]),
    ]
    for call in calls:
        with AttentionWatch() as watch:
            call()
        assert watch.seen == {SeenAttention(4, 0.5, 5)}


@torch.no_grad()
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_fast_path_is_traced_as_the_operations_that_it_computes(gelu: bool, first: bool) -> None:
    layer = nn.TransformerEncoderLayer(12, 3, 24, batch_first=True).eval()
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape) / 3)
    arguments: list[Any] = fast_arguments(layer, gelu=gelu, first=first)
    expected = torch._transformer_encoder_layer_fwd(X, *arguments)
    made = WHOLE_LAYERS["_transformer_encoder_layer_fwd"](X, *arguments)
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)


class FastEncoder(nn.Module):
    """It calls the fast path itself, which torch's modules leave while they are watched."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(11, width)
        self.layer = nn.TransformerEncoderLayer(width, width // 4, 2 * width, batch_first=True)
        self.head = nn.Linear(width, 11)
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        arguments: list[Any] = fast_arguments(self.layer, gelu=False, first=False)
        arguments[:2] = self.width, self.width // 4
        out: Tensor = torch._transformer_encoder_layer_fwd(self.table(x), *arguments)
        return self.head(out)  # type: ignore[no-any-return]


def test_parameters_of_a_fast_path_have_their_roles() -> None:
    tokens = torch.zeros(2, 5, dtype=torch.long)
    specs = sweeper.classify(FastEncoder, {"width": 16}, {"width": 64}, inputs=tokens)
    roles = {name: str(spec.role) for name, spec in specs.items()}
    matrices = ("self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight")
    assert {roles[f"layer.{name}"] for name in (*matrices, "linear2.weight")} == {"hidden"}
    assert roles["layer.norm1.weight"] == roles["layer.linear1.bias"] == "vector"
    assert (roles["table.weight"], roles["head.weight"]) == ("embedding", "readout")
