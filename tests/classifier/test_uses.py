"""Everything a parameter can be used for, each with its role, fans and growing dimensions."""

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


def maps(width: int) -> Tensor:
    return torch.zeros(2, width, 8, 8)


def experts(width: int) -> Tensor:
    return torch.zeros(4, 5, width)


def grown(w: int) -> dict[str, Any]:
    """A parameter that grows beside those of interest: a model may not ignore its width."""
    return {"grown": nn.Linear(w, w, bias=False)}


GROWN: dict[str, Expected] = {"grown.weight": ("hidden", 32, 32, (0, 1))}


def inference(m: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return m.b(m.a(x))


def fused(m: Any, x: Tensor) -> Tensor:
    q, k, v = (F.linear(x, w) for w in m.split.chunk(3))
    return F.linear(q * k * v, torch.cat([m.a, m.b]))


def squares(m: Any, x: Tensor) -> Tensor:
    larger = torch.zeros(x.size(-1), x.size(-1)).copy_(m.copied)
    x = torch.bmm(F.linear(x, larger), m.spread.expand(2, -1, -1))
    return F.linear(x, m.repeated.repeat(3, 1))


def readouts(m: Any, x: Tensor) -> Tensor:
    half = F.linear(x.bfloat16(), (m.halved * 0.5).to(torch.bfloat16))
    return F.linear(x, m.reordered[torch.arange(5)]) + (x[..., None, :] * m.summed).sum(-1) + half


def placed(m: Any, x: Tensor) -> Tensor:
    y = torch.cat([m.cls.expand(2, -1, -1), m.again.repeat(2, 1, 1), x], 1) + m.pos
    y[:, 0].copy_(m.written)
    return y


def stacked(m: Any, x: Tensor) -> Tensor:
    x = torch.bmm(x, m.w) + m.b[:, None]
    x = torch.baddbmm(m.c, x, m.v.transpose(1, 2))
    return torch.bmm(x, torch.stack([m.even, m.odd, m.even, m.odd]))


def relative(m: Any, x: Tensor) -> Tensor:
    index = torch.zeros(9, dtype=torch.long)
    return x.view(2, 3, -1, 8).permute(0, 2, 1, 3).sum(-1)[..., None] + m.w[index].view(
        3, 3, -1
    ).permute(2, 0, 1)


def vectors(*names: str) -> dict[str, Expected]:
    return dict.fromkeys(names, ("vector", 1, 32, (0,)))


CASES: dict[str, tuple[Any, Any, Any, dict[str, Expected]]] = {
    "nothing grows": (
        lambda m, x: m.w(m.grown(x)[..., :5]),
        lambda w: {"w": nn.Linear(5, 7), **grown(w)},
        None,
        {"w.weight": ("fixed", 5, 7, ()), "w.bias": ("vector", 1, 7, ()), **GROWN},
    ),
    "norms, a gain a channel and one a head": (
        lambda m, x: (m.rms(m.ln(x)) * m.gain).unflatten(-1, (-1, 8)) * m.head[:, None],
        lambda w: {"ln": nn.LayerNorm(w), "rms": nn.RMSNorm(w), "gain": (w,), "head": (w // 8,)},
        None,
        {**vectors("gain", "ln.weight", "ln.bias", "rms.weight"), "head": ("vector", 1, 4, (0,))},
    ),
    "norms and slopes of maps, positions resampled": (
        lambda m, x: m.act(m.bn(m.gn(x))) + F.interpolate(m.pos, size=(8, 8), mode="bilinear"),
        lambda w: (
            {"gn": nn.GroupNorm(4, w), "bn": nn.BatchNorm2d(w)}
            | {"act": nn.PReLU(w), "pos": (1, w, 4, 4)}
        ),
        maps,
        vectors("gn.weight", "gn.bias", "bn.weight", "bn.bias", "act.weight")
        | {"pos": ("embedding", 1, 32, (1,))},
    ),
    "fused, the weight split or put together": (
        fused,
        lambda w: {"split": (3 * w, w), "a": (w, w), "b": (w, w)},
        None,
        {"split": ("hidden", 32, 96, (0, 1))}
        | dict.fromkeys(("a", "b"), ("hidden", 32, 64, (0, 1))),
    ),
    "a weight spread over the batch, repeated along its rows, put into another": (
        squares,
        lambda w: dict.fromkeys(("spread", "repeated", "copied"), (w, w)),
        None,
        dict.fromkeys(("spread", "repeated", "copied"), ("hidden", 32, 32, (0, 1))),
    ),
    "readouts: rows in another order, a product summed at length, half precision": (
        readouts,
        lambda w: dict.fromkeys(("reordered", "summed", "halved"), (5, w)),
        None,
        dict.fromkeys(("reordered", "summed", "halved"), ("readout", 32, 5, (1,))),
    ),
    "embeddings of a class, spread, repeated or written, and of positions": (
        placed,
        lambda w: {"cls": (1, 1, w), "again": (1, 1, w), "pos": (1, 5, w), "written": (w,)},
        None,
        dict.fromkeys(("cls", "again", "pos"), ("embedding", 1, 32, (2,)))
        | {"written": ("embedding", 1, 32, (0,))},
    ),
    "stacked experts": (
        stacked,
        lambda w: (
            {"w": (4, w, 2 * w), "b": (4, 2 * w), "v": (4, w, 2 * w), "c": (4, 1, w)}
            | dict.fromkeys(("even", "odd"), (w, 2 * w))
        ),
        experts,
        {
            "w": ("hidden", 32, 64, (1, 2)),
            "b": ("vector", 1, 64, (1,)),
            "v": ("hidden", 64, 32, (1, 2)),
            "c": ("vector", 1, 32, (2,)),
            **dict.fromkeys(("even", "odd"), ("hidden", 32, 64, (0, 1))),
        },
    ),
    "inputs first, and a bias, as GPT-2's Conv1D": (
        lambda m, x: torch.addmm(m.b, x.flatten(0, 1), m.w),
        lambda w: {"w": (w, 3 * w), "b": (3 * w,)},
        None,
        {"w": ("hidden", 32, 96, (0, 1)), "b": ("vector", 1, 96, (0,))},
    ),
    "grouped convolution": (
        lambda m, x: m.conv(x),
        lambda w: {"conv": nn.Conv2d(w, 2 * w, 3, groups=4, bias=False)},
        maps,
        {"conv.weight": ("hidden", 8 * 9, 16 * 9, (0, 1))},
    ),
    "experts picked by number": (
        lambda m, t: torch.bmm(torch.ones(6, 1, m.w.size(1)), m.w[t.flatten()]),
        lambda w: {"w": (4, w, 5)},
        tokens,
        {"w": ("readout", 32, 5, (1,))},
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
    "relative positions, a bias a head": (
        relative,
        lambda w: {"w": (25, w // 8)},
        None,
        {"w": ("embedding", 25, 4, (1,))},
    ),
    "learned queries": (
        lambda m, x: m.q(m.ask.expand(2, -1, -1)) @ x.transpose(1, 2),
        lambda w: {"ask": (1, 4, w), "q": nn.Linear(w, w)},
        None,
        {
            "ask": ("embedding", 1, 32, (2,)),
            "q.weight": ("hidden", 32, 32, (0, 1)),
            "q.bias": ("vector", 1, 32, (0,)),
        },
    ),
    "scalars": (
        lambda m, x: m.grown(x) * m.scale.exp() + m.shift,
        lambda w: {"scale": (), "shift": (1,), **grown(w)},
        None,
        {"scale": ("fixed", 1, 1, ()), "shift": ("fixed", 1, 1, ()), **GROWN},
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
    "grouped transposed convolution": (
        lambda m, x: m.conv(x),
        lambda w: {"conv": nn.ConvTranspose2d(w, 2 * w, 4, 2, groups=4)},
        maps,
        {"conv.weight": ("hidden", 8 * 4, 16 * 16, (0, 1)), "conv.bias": ("vector", 1, 64, (0,))},
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
