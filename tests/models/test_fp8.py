"""Simulated FP8: roundings, gradients batched and compiled, scales, and what is in range."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, vmap

from sweeper.models.fp8 import (
    HISTORY,
    Format,
    Formats,
    Fp8,
    Scaling,
    round_gradient,
    round_value,
    rounded,
    scaled_rounded,
)
from sweeper.models.scaled import Linear
from sweeper.registry import build_plugin
from tests.models.gradient_modes import UNIT_MODES, run, stacked
from tests.models.own import made

CONF = Path(__file__).parents[2] / "conf" / "fp8"
NAMES: tuple[Format, ...] = ("e4m3", "e5m2")


def grid(name: Format) -> list[float]:
    """Every finite number of the format from 0 up, from its definition: even places have even
    mantissas."""
    mantissa, bias, top = {"e4m3": (3, 7, 15), "e5m2": (2, 15, 30)}[name]
    steps = 2**mantissa
    numbers = [i / steps * 2.0 ** (1 - bias) for i in range(steps)]
    for exponent in range(1, top + 1):
        numbers += [(1 + i / steps) * 2.0 ** (exponent - bias) for i in range(steps)]
    return numbers[:-1] if name == "e4m3" else numbers  # E4M3's last place is NaN


GRIDS = {name: grid(name) for name in NAMES}


def nearest(x: float, name: Format) -> float:
    """The nearest number of the grid, ties to even, and its largest beyond that."""
    numbers = GRIDS[name]
    size = min(abs(x), numbers[-1])
    place = min(range(len(numbers)), key=lambda i: (abs(numbers[i] - size), i % 2))
    return math.copysign(numbers[place], x)


EXAMPLES = [(0.0, 0.0, 0.0), (1.0625, 1.0, 1.0), (1.125, 1.125, 1.0), (1e9, 448.0, 57344.0)]
"""Ties go to even mantissas, and what is larger than all numbers to the largest."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@example(464.0)
@example(480.0)
@example(61440.0)
@example(2.0**-10)
@example(2.0**-17)
@example(1.01 * 2.0**-10)
def test_every_finite_number_goes_to_its_nearest(dtype: torch.dtype, x: float) -> None:
    value = torch.tensor([x], dtype=dtype)
    for name in NAMES if value.isfinite() else ():
        result = rounded(value, name)
        assert float(result[0]) == nearest(float(value[0]), name) and result.dtype == dtype
        assert torch.equal(rounded(result, name), result)
    for number, *expected in EXAMPLES:
        assert [nearest(number, name) for name in NAMES] == expected


@pytest.mark.parametrize("name", NAMES)
def test_values_are_rounded_going_forward_gradients_going_backward(name: Format) -> None:
    x = torch.tensor([0.3, -1e9, 1e-9, 7.0], requires_grad=True)
    upstream = torch.tensor([0.3, 1e9, 1e-9, -3.3])
    value, gradient = round_value(x, name), round_gradient(x, name)
    assert torch.equal(value, rounded(x.detach(), name)) and torch.equal(gradient, x)
    assert torch.equal(torch.autograd.grad(value, x, upstream)[0], upstream)
    assert torch.equal(torch.autograd.grad(gradient, x, upstream)[0], rounded(upstream, name))
    broken = torch.tensor([math.inf, -math.inf, math.nan])
    assert rounded(broken, name).isnan().all() and round_value(broken, name).isnan().all()
    assert round_value(x, None) is x and round_gradient(x, None) is x


def scaled(x: Tensor, name: Format, peak: float) -> Tensor:
    """`x` in the format, its entry of magnitude `peak` at the largest number, written out."""
    scale = GRIDS[name][-1] / peak if peak else 1.0
    return (x.double() * scale).apply_(lambda v: nearest(v, name)) / scale


@pytest.mark.parametrize("scaling", ["tensor", "delayed"])
@pytest.mark.parametrize("batched", [False, True])
def test_scales_of_each_tensor(scaling: Scaling, batched: bool) -> None:
    """Against Transformer Engine's recipe written out: a scale of the largest of 16 passes."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"head": Linear(3, 2)}).double()
    Fp8(head=Formats(input="e4m3", weight="e4m3", gradient="e5m2"), scaling=scaling).apply_to(model)
    weights = torch.randn(2, 2, 3).double()
    peaks, seen = torch.zeros(2, 3, HISTORY), [[[0.0], [0.0], [0.0]] for _ in range(2)]

    def loss(w: Tensor, kept: Tensor, x: Tensor, slope: Tensor) -> Tensor:
        buffers = {"peaks": kept} if scaling == "delayed" else {}
        y = functional_call(model["head"], {"weight": w, **buffers}, (x,))
        return (y * slope).sum()

    for _ in range(HISTORY + 3):
        xs = torch.randn(2, 4, 3).double() * 2.0 ** torch.randint(-20, 20, (2, 1, 1))
        slopes = torch.randn(2, 4, 2).double() * 2.0 ** torch.randint(-40, 10, (2, 1, 1))
        w = weights.clone().requires_grad_()
        if batched:
            losses = vmap(loss)(w, peaks, xs, slopes)
        else:
            losses = torch.stack([loss(w[i], peaks[i], xs[i], slopes[i]) for i in range(2)])
        (gradient,) = torch.autograd.grad(losses.sum(), [w])
        for i in range(2):
            now = [float(t.abs().max()) for t in (xs[i], weights[i], slopes[i])]
            used = now if scaling == "tensor" else [max(s[-HISTORY:]) for s in seen[i]]
            x, v = scaled(xs[i], "e4m3", used[0]), scaled(weights[i], "e4m3", used[1])
            torch.testing.assert_close(losses[i].detach(), (x @ v.T * slopes[i]).sum())
            torch.testing.assert_close(gradient[i], scaled(slopes[i], "e5m2", used[2]).T @ x)
            for history, value in zip(seen[i], now, strict=True):
                history.append(float(torch.tensor(value)))
    model.eval()
    before = peaks.clone()
    loss(weights[0], peaks[0], xs[0], slopes[0])
    assert torch.equal(peaks, before)


class Two(nn.Module):
    """Two products in FP8, and a loss whose gradient is `slope`, of many magnitudes."""

    def __init__(self, formats: Formats, *, unit: bool) -> None:
        super().__init__()
        self.first, self.last = Linear(6, 5, unit=unit), Linear(5, 4, unit=unit, readout=True)
        self.first.formats = self.last.formats = formats

    def forward(self, x: Tensor, slope: Tensor) -> Tensor:
        return (self.last(self.first(x)) * slope).sum()


ALL = Formats(input="e5m2", weight="e4m3", gradient="e4m3")


def by_hand(
    p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, slope: Tensor, unit: bool
) -> Any:
    """`Two`'s loss under ALL, and 1.5 times its gradients, written out (u-muP paper, E.2, A.4)."""

    def q(t: Tensor, name: Format) -> Tensor:
        return t.double().clone().apply_(lambda v: nearest(v, name))

    m1, m2 = b["first.multiplier"], b["last.multiplier"]
    w1, w2 = (q(p[f"{name}.weight"], "e4m3") for name in ("first", "last"))
    x1 = q(x, "e5m2")
    h = x1 @ w1.T * m1
    x2 = q(h, "e5m2")
    g2 = q(1.5 * slope, "e4m3")
    g1 = q(g2 @ w2 * (b["last.backward_multiplier"] if unit else m2), "e4m3")
    root = math.sqrt(len(x))
    d1, d2 = g1.T @ x1 * (1 / root if unit else m1), g2.T @ x2 * (1 / root if unit else m2)
    return (x2 @ w2.T * m2 * slope).sum(), {"first.weight": d1, "last.weight": d2}


@pytest.mark.parametrize(("unit", "backend", "batched"), UNIT_MODES)
def test_a_net_against_its_formulas(unit: bool, backend: str, batched: bool) -> None:
    torch.manual_seed(1)
    model = Two(ALL, unit=unit).double()
    params, buffers = stacked(model, 3)
    x = torch.randn(3, 7, 6).double()
    slope = torch.randn(3, 7, 4).double() * 2.0 ** torch.randint(-12, 3, (3, 7, 4))
    losses, gradients = run(model, params, buffers, (x, slope), backend=backend, batched=batched)
    plain = run(
        Two(Formats(), unit=unit).double(), params, buffers, (x, slope), backend="", batched=True
    )[1]
    for i in range(3):
        p, b = ({n: t[i] for n, t in group.items()} for group in (params, buffers))
        loss, expected = by_hand(p, b, x[i], slope[i], unit)
        torch.testing.assert_close(losses[i], loss)
        for name, gradient in expected.items():
            torch.testing.assert_close(gradients[name][i], gradient)
            assert not torch.allclose(gradients[name][i], plain[name][i], rtol=1e-3)


def test_under_autocast_operands_are_rounded_from_full_precision() -> None:
    """1.06 is nearer to 1.125 than to 1; bfloat16 would make it the tie, 1.0625."""
    layer = Linear(1, 1)
    layer.formats = ALL
    nn.init.constant_(layer.weight, 1.0626)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert float(layer(torch.ones(1, 1)).detach()) == 1.125


def parameterization(name: str) -> Fp8:
    built = build_plugin(yaml.safe_load((CONF / f"{name}.yaml").read_text()))
    assert isinstance(built, Fp8)
    return built


ATTENTION = {"layers.0.attention.qkv": "hidden", "layers.0.attention.out": "attention_out"}
REST = {"layers.0.ffn.down": "ffn_down", "head": "head"}
LINEARS = {
    "llama": ATTENTION | REST | {"layers.0.ffn.up_gate": "hidden"},
    "vit": ATTENTION | REST | {"layers.0.ffn.up": "hidden", "patch": "hidden"},
    "mlp": {"input": "hidden", "layers.0": "hidden", "head": "head"},
}


@pytest.mark.parametrize("kind", LINEARS)
def test_models_give_every_product_the_formats_of_its_kind(kind: str) -> None:
    fp8 = Fp8(
        hidden=Formats(input="e4m3"),
        attention_out=Formats(input="e5m2"),
        ffn_down=Formats(weight="e4m3"),
        head=Formats(gradient="e5m2"),
    )
    with torch.device("meta"):
        model = made(kind, depth=1, fp8=fp8)
    formats = {n: m.formats for n, m in model.named_modules() if isinstance(m, Linear)}
    assert formats == {name: getattr(fp8, place) for name, place in LINEARS[kind].items()}


def test_whole_names_tell_the_kinds_of_layers() -> None:
    model = nn.ModuleDict(
        {"overhead": Linear(2, 2), "head": Linear(2, 2), "other": nn.Linear(2, 2)}
    )
    fp8 = Fp8(head=Formats(input="e5m2"))
    fp8.apply_to(model)
    formats = {n: m.formats for n, m in model.items() if isinstance(m, Linear)}
    assert formats == {"overhead": None, "head": fp8.head}


def test_the_parameterizations() -> None:
    assert not parameterization("none").casts and parameterization("none") == Fp8()
    plain = Formats(input="e4m3", weight="e4m3", gradient="e4m3")
    grown = Formats(input="e5m2", weight="e4m3", gradient="e4m3")
    hybrid = Formats(input="e4m3", weight="e4m3", gradient="e5m2")
    printed, later = parameterization("printed"), parameterization("later")
    places = dict.fromkeys(("hidden", "attention_out", "ffn_down", "head"), hybrid)
    assert parameterization("scaled") == Fp8(**places, scaling="delayed")
    assert printed == Fp8(hidden=plain, attention_out=grown, ffn_down=grown, head=plain)
    assert later == Fp8(hidden=hybrid) and printed.casts and later.casts


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
@pytest.mark.parametrize("peak", [1e-40, 1e-37, 1e-30, 1.0, 1e38])
def test_a_scale_is_finite_whatever_the_peak(name: Any, peak: float) -> None:
    x = torch.tensor([peak, -peak / 2, 0.0])
    assert scaled_rounded(x, name, x.abs().amax()).tolist() == pytest.approx(x.tolist(), rel=0.13)
