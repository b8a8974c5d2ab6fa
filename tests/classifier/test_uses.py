"""Everything a parameter can be used for, each with its role, fans and growing dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sweeper
from sweeper.scaling.spec import ParamSpec
from tests.golden import Golden

Expected = tuple[str, int, int, tuple[int, ...]]
"""Role, fan-in and fan-out at the wider size, and the dimensions that grow."""
BASE, WIDE = {"width": 16}, {"width": 32}


class Model(nn.Module):
    """Parameters of given shapes, or modules, by name, and a function of them and the input."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            is_shape = isinstance(part, tuple)
            setattr(self, name, nn.Parameter(torch.empty(part)) if is_shape else part)
        self.function = forward

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


def classify(
    forward: Callable[..., Any],
    parts: Callable[[int], dict[str, Any]],
    inputs: Callable[[int], Any] = lambda w: torch.zeros(2, 3, w),
    **more: Any,
) -> dict[str, ParamSpec]:
    def build(width: int) -> nn.Module:
        return Model(forward, **parts(width))

    return sweeper.classify(build, BASE, WIDE, inputs=lambda s: inputs(s["width"]), **more)


def facts(specs: dict[str, ParamSpec]) -> dict[str, Expected]:
    return {
        name: (str(spec.role), spec.fan_in, spec.fan_out, spec.width_dims)
        for name, spec in specs.items()
    }


def tokens(width: int) -> Tensor:
    return torch.zeros(2, 3, dtype=torch.long)


def image(width: int) -> Tensor:
    return torch.zeros(2, 3, 8, 8)


def maps(width: int) -> Tensor:
    return torch.zeros(2, width, 8, 8)


def experts(width: int) -> Tensor:
    return torch.zeros(4, 5, width)


def grown(w: int) -> dict[str, Any]:
    """A parameter that grows beside those of interest: a model may not ignore its width."""
    return {"grown": nn.Linear(w, w, bias=False)}


GROWN: dict[str, Expected] = {"grown.weight": ("hidden", 32, 32, (0, 1))}


def gqa(m: Any, x: Tensor) -> Tensor:
    q = m.q(x).view(2, 3, -1, 8).transpose(1, 2)
    k, v = (p(x).view(2, 3, -1, 8).transpose(1, 2) for p in (m.k, m.v))
    k, v = (t.repeat_interleave(2, 1) for t in (k, v))
    return m.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def inference(m: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return m.b(m.a(x))


def qkv_split(m: Any, x: Tensor) -> Tensor:
    q, k, v = (F.linear(x, w) for w in m.w.chunk(3))
    return q * k * v


def looped(m: Any, x: Tensor) -> Tensor:
    return sum(x[i] @ m.w[i] + m.b[i] for i in range(4))  # type: ignore[return-value]


def relative(m: Any, x: Tensor) -> Tensor:
    index = torch.zeros(9, dtype=torch.long)
    return x.view(2, 3, -1, 8).permute(0, 2, 1, 3).sum(-1)[..., None] + m.w[index].view(
        3, 3, -1
    ).permute(2, 0, 1)


CASES: dict[str, tuple[Any, Any, Any, dict[str, Expected]]] = {
    "nothing grows": (
        lambda m, x: m.w(m.grown(x)[..., :5]),
        lambda w: {"w": nn.Linear(5, 7), **grown(w)},
        None,
        {"w.weight": ("fixed", 5, 7, ()), "w.bias": ("vector", 1, 7, ()), **GROWN},
    ),
    "embedding": (
        lambda m, t: m.table(t),
        lambda w: {"table": nn.Embedding(50, w)},
        tokens,
        {"table.weight": ("embedding", 50, 32, (1,))},
    ),
    "rows of a parameter": (
        lambda m, t: m.table[t],
        lambda w: {"table": (50, w)},
        tokens,
        {"table": ("embedding", 50, 32, (1,))},
    ),
    "patchify": (
        lambda m, x: m.patch(x),
        lambda w: {"patch": nn.Conv2d(3, w, 4, 4)},
        image,
        {"patch.weight": ("embedding", 48, 32, (0,)), "patch.bias": ("vector", 1, 32, (0,))},
    ),
    "convolution": (
        lambda m, x: m.conv(x),
        lambda w: {"conv": nn.Conv2d(w, 2 * w, 3, padding=1, bias=False)},
        maps,
        {"conv.weight": ("hidden", 32 * 9, 64 * 9, (0, 1))},
    ),
    "grouped convolution": (
        lambda m, x: m.conv(x),
        lambda w: {"conv": nn.Conv2d(w, 2 * w, 3, groups=4, bias=False)},
        maps,
        {"conv.weight": ("hidden", 8 * 9, 16 * 9, (0, 1))},
    ),
    "depthwise convolution": (
        lambda m, x: m.conv(x),
        lambda w: {"conv": nn.Conv2d(w, w, 3, groups=w)},
        maps,
        {"conv.weight": ("up", 9, 9, (0,)), "conv.bias": ("vector", 1, 32, (0,))},
    ),
    "transposed convolution": (
        lambda m, x: m.conv(x),
        lambda w: {"conv": nn.ConvTranspose2d(w, 3, 2, 2, bias=False)},
        maps,
        {"conv.weight": ("readout", 32, 12, (0,))},
    ),
    "transposed layout": (
        lambda m, x: torch.addmm(m.b, x.view(-1, x.size(-1)), m.w),
        lambda w: {"w": (w, 3 * w), "b": (3 * w,)},
        None,
        {"w": ("hidden", 32, 96, (0, 1)), "b": ("vector", 1, 96, (0,))},
    ),
    "fused, the weight split": (
        qkv_split,
        lambda w: {"w": (3 * w, w)},
        None,
        {"w": ("hidden", 32, 96, (0, 1))},
    ),
    "fused by cat of weights": (
        lambda m, x: F.linear(x, torch.cat([m.a, m.b])),
        lambda w: {"a": (w, w), "b": (w, w)},
        None,
        {"a": ("hidden", 32, 64, (0, 1)), "b": ("hidden", 32, 64, (0, 1))},
    ),
    "grouped queries": (
        gqa,
        lambda w: {
            "q": nn.Linear(w, w, bias=False),
            "k": nn.Linear(w, w // 2, bias=False),
            "v": nn.Linear(w, w // 2, bias=False),
            "o": nn.Linear(w, w, bias=False),
        },
        None,
        {
            "q.weight": ("hidden", 32, 32, (0, 1)),
            "k.weight": ("hidden", 32, 16, (0, 1)),
            "v.weight": ("hidden", 32, 16, (0, 1)),
            "o.weight": ("hidden", 32, 32, (0, 1)),
        },
    ),
    "stacked experts": (
        lambda m, x: torch.bmm(x, m.w) + m.b[:, None],
        lambda w: {"w": (4, w, 2 * w), "b": (4, 2 * w)},
        experts,
        {"w": ("hidden", 32, 64, (1, 2)), "b": ("vector", 1, 64, (1,))},
    ),
    "stacked experts, baddbmm": (
        lambda m, x: torch.baddbmm(m.b, x, m.w.transpose(1, 2)),
        lambda w: {"w": (4, 2 * w, w), "b": (4, 1, 2 * w)},
        experts,
        {"w": ("hidden", 32, 64, (1, 2)), "b": ("vector", 1, 64, (2,))},
    ),
    "experts in a loop": (
        looped,
        lambda w: {"w": (4, w, 2 * w), "b": (4, 2 * w)},
        experts,
        {"w": ("hidden", 32, 64, (1, 2)), "b": ("vector", 1, 64, (1,))},
    ),
    "experts picked by number": (
        lambda m, t: torch.bmm(torch.ones(6, 1, m.w.size(1)), m.w[t.flatten()]),
        lambda w: {"w": (4, w, 5)},
        tokens,
        {"w": ("readout", 32, 5, (1,))},
    ),
    "router": (
        lambda m, x: x * m.router(x).softmax(-1).sum(-1, keepdim=True),
        lambda w: {"router": nn.Linear(w, 4, bias=False)},
        None,
        {"router.weight": ("readout", 32, 4, (1,))},
    ),
    "einsum, one matrix a head": (
        lambda m, x: torch.einsum("bsi,hio->bhso", x, m.w),
        lambda w: {"w": (4, w, w // 4)},
        None,
        {"w": ("hidden", 32, 8, (1, 2))},
    ),
    "einsum, two dimensions summed": (
        lambda m, x: torch.einsum("bshd,hdo->bso", x.unflatten(-1, (-1, 4)), m.w),
        lambda w: {"w": (w // 4, 4, w)},
        None,
        {"w": ("hidden", 32, 32, (0, 2))},
    ),
    "einsum, a batched parameter": (
        lambda m, x: torch.einsum("ebi,eio->ebo", x, m.w),
        lambda w: {"w": (4, w, w)},
        experts,
        {"w": ("hidden", 32, 32, (1, 2))},
    ),
    "bmm with a parameter spread over the batch": (
        lambda m, x: torch.bmm(x, m.w.expand(2, -1, -1)),
        lambda w: {"w": (w, w)},
        None,
        {"w": ("hidden", 32, 32, (0, 1))},
    ),
    "a product summed at length": (
        lambda m, x: (x[..., None, :] * m.w).sum(-1),
        lambda w: {"w": (5, w)},
        None,
        {"w": ("readout", 32, 5, (1,))},
    ),
    "norms": (
        lambda m, x: m.rms(m.ln(x)),
        lambda w: {"ln": nn.LayerNorm(w), "rms": nn.RMSNorm(w)},
        None,
        {
            "ln.weight": ("vector", 1, 32, (0,)),
            "ln.bias": ("vector", 1, 32, (0,)),
            "rms.weight": ("vector", 1, 32, (0,)),
        },
    ),
    "norms of maps": (
        lambda m, x: m.bn(m.gn(x)),
        lambda w: {"gn": nn.GroupNorm(4, w), "bn": nn.BatchNorm2d(w)},
        maps,
        dict.fromkeys(("gn.weight", "gn.bias", "bn.weight", "bn.bias"), ("vector", 1, 32, (0,))),
    ),
    "class and position embeddings": (
        lambda m, x: torch.cat([m.cls.expand(2, -1, -1), x], 1) + m.pos,
        lambda w: {"cls": (1, 1, w), "pos": (1, 4, w)},
        None,
        {"cls": ("embedding", 1, 32, (2,)), "pos": ("embedding", 1, 32, (2,))},
    ),
    "relative positions, a bias a head": (
        relative,
        lambda w: {"w": (25, w // 8)},
        None,
        {"w": ("embedding", 25, 4, (1,))},
    ),
    "learned queries": (
        lambda m, x: m.q(m.ask.expand(2, -1, -1)) @ x.transpose(1, 2),
        lambda w: {"ask": (1, 4, w), "q": nn.Linear(w, w, bias=False)},
        None,
        {"ask": ("embedding", 1, 32, (2,)), "q.weight": ("hidden", 32, 32, (0, 1))},
    ),
    "scalars": (
        lambda m, x: m.grown(x) * m.scale.exp() + m.shift,
        lambda w: {"scale": (), "shift": (1,), **grown(w)},
        None,
        {"scale": ("fixed", 1, 1, ()), "shift": ("fixed", 1, 1, ()), **GROWN},
    ),
    "layer scale and a scalar a head": (
        lambda m, x: (x * m.gain).unflatten(-1, (-1, 8)) * m.head[:, None],
        lambda w: {"gain": (w,), "head": (w // 8,)},
        None,
        {"gain": ("vector", 1, 32, (0,)), "head": ("vector", 1, 4, (0,))},
    ),
    "weight norm": (
        lambda m, x: m.w(x),
        lambda w: {"w": nn.utils.parametrizations.weight_norm(nn.Linear(w, w, bias=False))},
        None,
        {
            "w.parametrizations.weight.original0": ("vector", 1, 32, (0,)),
            "w.parametrizations.weight.original1": ("hidden", 32, 32, (0, 1)),
        },
    ),
    "spectral norm": (
        lambda m, x: m.w(x),
        lambda w: {"w": nn.utils.parametrizations.spectral_norm(nn.Linear(w, 5, bias=False))},
        None,
        {"w.parametrizations.weight.original": ("readout", 32, 5, (1,))},
    ),
    "torch's attention": (
        lambda m, x: m.a(x, x, x, need_weights=False)[0],
        lambda w: {"a": nn.MultiheadAttention(w, w // 8, batch_first=True)},
        None,
        {
            "a.in_proj_weight": ("hidden", 32, 96, (0, 1)),
            "a.in_proj_bias": ("vector", 1, 96, (0,)),
            "a.out_proj.weight": ("hidden", 32, 32, (0, 1)),
            "a.out_proj.bias": ("vector", 1, 32, (0,)),
        },
    ),
    "torch's cross attention": (
        lambda m, x: m.a(x, *[x * 2] * 2, need_weights=False)[0],
        lambda w: {"a": nn.MultiheadAttention(w, w // 8, batch_first=True, bias=False)},
        None,
        {
            "a.in_proj_weight": ("hidden", 32, 64, (0, 1)),
            "a.out_proj.weight": ("hidden", 32, 32, (0, 1)),
        },
    ),
    "rows by index_select": (
        lambda m, t: m.w.index_select(0, t.flatten()),
        lambda w: {"w": (50, w)},
        tokens,
        {"w": ("embedding", 50, 32, (1,))},
    ),
    "a weight with its rows put in another order": (
        lambda m, x: F.linear(x, m.w[torch.arange(5)]),
        lambda w: {"w": (5, w)},
        None,
        {"w": ("readout", 32, 5, (1,))},
    ),
    "experts stacked when they are used": (
        lambda m, x: torch.bmm(x, torch.stack([m.a, m.b, m.a, m.b])),
        lambda w: {"a": (w, 2 * w), "b": (w, 2 * w)},
        experts,
        {"a": ("hidden", 32, 64, (0, 1)), "b": ("hidden", 32, 64, (0, 1))},
    ),
    "a class embedding repeated": (
        lambda m, x: torch.cat([m.cls.repeat(2, 1, 1), x], 1),
        lambda w: {"cls": (1, 1, w)},
        None,
        {"cls": ("embedding", 1, 32, (2,))},
    ),
    "a weight repeated along its rows": (
        lambda m, x: F.linear(x, m.w.repeat(3, 1)),
        lambda w: {"w": (w, w)},
        None,
        {"w": ("hidden", 32, 32, (0, 1))},
    ),
    "a slope in the activation": (
        lambda m, x: m.act(x.flatten(0, 1)),
        lambda w: {"act": nn.PReLU(w)},
        None,
        {"act.weight": ("vector", 1, 32, (0,))},
    ),
    "grouped transposed convolution": (
        lambda m, x: m.conv(x),
        lambda w: {"conv": nn.ConvTranspose2d(w, 2 * w, 4, 2, groups=4)},
        maps,
        {"conv.weight": ("hidden", 8 * 4, 16 * 16, (0, 1)), "conv.bias": ("vector", 1, 64, (0,))},
    ),
    "a weight put into a larger one in place": (
        lambda m, x: F.linear(x, torch.zeros(x.size(-1), x.size(-1)).copy_(m.w)),
        lambda w: {"w": (w, w)},
        None,
        {"w": ("hidden", 32, 32, (0, 1))},
    ),
    "a class embedding written in place": (
        lambda m, x: (lambda y: (y[:, 0].copy_(m.w), y)[1])(x.clone()),
        lambda w: {"w": (w,)},
        None,
        {"w": ("embedding", 1, 32, (0,))},
    ),
    "inference mode": (
        inference,
        lambda w: {"a": nn.Linear(w, 3 * w), "b": nn.Linear(3 * w, w, bias=False)},
        None,
        {
            "a.weight": ("hidden", 32, 96, (0, 1)),
            "a.bias": ("vector", 1, 96, (0,)),
            "b.weight": ("hidden", 96, 32, (0, 1)),
        },
    ),
    "half precision": (
        lambda m, x: F.linear(x.bfloat16(), (m.w * 0.5).to(torch.bfloat16)),
        lambda w: {"w": (5, w)},
        None,
        {"w": ("readout", 32, 5, (1,))},
    ),
    "resampled positions": (
        lambda m, x: x + F.interpolate(m.pos, size=(8, 8), mode="bilinear"),
        lambda w: {"pos": (1, w, 4, 4)},
        maps,
        {"pos": ("embedding", 1, 32, (1,))},
    ),
}
if hasattr(torch, "_grouped_mm"):  # not yet in torch 2.6
    CASES |= {
        "experts, tokens sorted by expert": (
            lambda m, x: torch._grouped_mm(x.flatten(0, 1), m.w, offs=torch.arange(4).int()),
            lambda w: {"w": (4, w, 2 * w)},
            experts,
            {"w": ("hidden", 32, 64, (1, 2))},
        )
    }


@pytest.mark.parametrize("case", CASES)
def test_use(case: str) -> None:
    forward, parts, inputs, expected = CASES[case]
    assert facts(classify(forward, parts, *([inputs] if inputs else []))) == expected


def only(forward: Callable[..., Any], parts: Callable[[int], dict[str, Any]]) -> ParamSpec:
    (spec,) = classify(forward, parts).values()
    return spec


def test_starts_follow_the_use(golden: Golden) -> None:
    def gain(w: int) -> dict[str, Any]:
        return {"g": (w,)}

    assert only(lambda m, x: x * m.g, gain).init == "ones"
    assert only(lambda m, x: x * (1 + m.g), gain).init == "zeros"
    assert only(lambda m, x: x + m.g, gain).init == "zeros"
    bent = only(lambda m, x: x * m.g.exp(), gain)
    assert (bent.role, bent.init) == ("vector", "normal")
    golden.says(bent.note)


def test_tied_weights_keep_the_embedding_s_rule(golden: Golden) -> None:
    def tie(width: int) -> dict[str, Any]:
        table, head = nn.Embedding(50, width), nn.Linear(width, 50, bias=False)
        head.weight = table.weight
        return {"table": table, "head": head}

    specs = classify(lambda m, t: m.head(m.table(t)), tie, tokens)
    assert facts(specs) == {"table.weight": ("embedding", 50, 32, (1,))}
    spec = specs["table.weight"]
    assert spec.tied == ("head.weight",) and spec.lookup
    golden.says(spec.note)


def test_a_lookup_is_told_from_a_projection() -> None:
    assert only(lambda m, x: m.w[x[0, :, 0].long()], lambda w: {"w": (9, w)}).lookup
    assert not only(lambda m, x: x[..., :5] @ m.w, lambda w: {"w": (5, w)}).lookup


def test_a_parameter_never_used_is_said_to_be_so(golden: Golden) -> None:
    specs = classify(lambda m, x: m.w(x), lambda w: {"w": nn.Linear(w, w), "mask": (w,)})
    assert (specs["mask"].role, specs["mask"].width_dims) == ("fixed", (0,))
    assert specs["mask"].init == "kept"
    golden.says(specs["mask"].note)


def attention(heads: Callable[[int], int]) -> dict[str, ParamSpec]:
    def forward(m: Any, x: Tensor) -> Tensor:
        q, k, v = m.qkv(x).unflatten(-1, (3, heads(x.size(-1)), -1)).permute(2, 0, 3, 1, 4)
        return m.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    return classify(forward, lambda w: {"qkv": nn.Linear(w, 3 * w), "out": nn.Linear(w, w)})


def test_a_head_size_that_grows_is_told(golden: Golden) -> None:
    golden.says(attention(lambda w: 2)["qkv.weight"].note)
    assert "head size" not in attention(lambda w: 2)["out.weight"].note
    assert "head size" not in attention(lambda w: w // 8)["qkv.weight"].note


def test_a_readout_whose_output_is_contracted_again_is_told(golden: Golden) -> None:
    specs = classify(
        lambda m, x: m.b(m.a(x)), lambda w: {"a": nn.Linear(w, 4), "b": nn.Linear(4, 3)}
    )
    assert specs["a.weight"].role == "readout"
    golden.says(specs["a.weight"].note)
    assert specs["b.weight"].role == "fixed" and "further" not in specs["b.weight"].note
