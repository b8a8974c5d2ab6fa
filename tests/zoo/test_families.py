"""Architectures from papers, in torch alone: what each parameter is was said before looking.

Roles by hand, with the reason; rates by microsoft/mup's own rule; and sizes of all outputs over
widths 32 to 512, trained by the plan alone.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from mup import set_base_shapes
from mup.optim import MuAdam
from numpy.typing import NDArray
from torch import Tensor, nn

import sweeper
from sweeper.plan.plan import TransferPlan
from tests.zoo.conftest import COORDINATES, ROWS
from tests.zoo.families import FAMILIES, batch

BASE, WIDE, WIDTHS = 32, 64, (32, 64, 128, 256, 512)
ETA, STEPS, SEEDS = 2.0**-7, 4, 3
MORE_SEEDS = {"pinn": 24, "perceiver": 12, "unet": 6}
"""Where few outputs are seen: with three seeds their slopes are known to 0.1 and no better."""
INSIDE, NOISE = 0.15, 0.03

BLOCK = [(r"qkv|proj\.weight|up\.weight|down\.weight", "hidden", "width to width")]
EXPECTED: Mapping[str, list[tuple[str, str, str]]] = {
    "dit": [
        (r"patch\.weight", "embedding", "a patch has a fixed size"),
        (r"time\.0\.weight", "embedding", "a fixed number of frequencies"),
        (r"label", "embedding", "a table"),
        (r"time\.2|modulate\.weight", "hidden", "adaLN is from width to width, if it starts at 0"),
        (r"^out\.weight", "readout", "to a patch"),
        *BLOCK,
    ],
    "unet": [
        (r"inp\.weight|time\.0\.weight", "embedding", "colours and frequencies are few"),
        (r"norm\w*\.weight|^last", "vector", "gains by channel, however they are grouped"),
        (r"conv|shift|skip|shrink|grow|time\.2", "hidden", "channels to channels"),
        (r"^out\.weight", "readout", "to colours"),
        *BLOCK,
    ],
    "rwkv": [
        (r"embed", "embedding", "a table"),
        (r"mix|decay|bonus|norm", "vector", "one number a channel"),
        (r"receive|key|value|output|gate", "hidden", "width to width"),
        (r"head", "readout", "to tokens"),
        *BLOCK,
    ],
    "mamba2": [
        (r"embed", "embedding", "a table"),
        (r"dt_bias|a_log|skip|norm|gated", "vector", "one number a head or a channel"),
        (r"in_proj|out_proj", "hidden", "few of its rows, B's and C's, do not grow"),
        (r"conv\.weight", "up", "each channel has four numbers"),
        (r"head", "readout", "to tokens"),
    ],
    "mla": [
        (r"embed", "embedding", "a table"),
        (r"norm", "vector", "gains"),
        (r"q_a", "down", "to a latent of a fixed rank, within the body"),
        # Looked for as `down`: its rotary rows are a key that all heads take, as few keys are under
        # GQA, which are hidden. Both start and step alike.
        (r"kv_a", "hidden", "a key that each of more and more heads takes"),
        (r"q_b|kv_b", "up", "from the latent"),
        (r"\.o\.", "hidden", "width to width"),
        (r"head", "readout", "to tokens"),
        *BLOCK,
    ],
    "gin": [
        (r"node\.weight|edge\.weight", "embedding", "a fixed number of features"),
        (r"^eps", "fixed", "a number a layer"),
        (r"norm", "vector", "gains"),
        (r"first|second", "hidden", "width to width; sums over neighbours are of a graph's size"),
        (r"out\.weight", "readout", "to classes"),
    ],
    "perceiver": [
        (r"latents", "embedding", "learned, looked up by place"),
        (r"^kv\.weight", "embedding", "from an array of five channels"),
        (r"norm", "vector", "gains"),
        (r"^q\.weight|look_out", "hidden", "width to width"),
        (r"^out\.weight", "readout", "to classes"),
        (r"qkv|proj|up|down", "hidden", "width to width"),
    ],
    "clip": [
        (r"patch\.weight|word|place|cls", "embedding", "tables and patches"),
        (r"temperature", "fixed", "one number"),
        (r"norm", "vector", "gains"),
        (r"(image|text)_proj", "readout", "each tower ends in a space of a fixed size"),
        *BLOCK,
    ],
    "pinn": [
        (r"inp\.weight", "embedding", "a fixed number of Fourier features"),
        (r"mid\.weight|end\.weight", "hidden", "width to width"),
        (r"out\.weight", "readout", "the solution; the derivatives in the loss change no role"),
    ],
    "lora on dit": [
        (r"lora_a", "down", "to a fixed rank, within the body"),
        (r"lora_b", "up", "back from it"),
    ],
}
"""The first pattern that is found in a parameter's name; biases are vectors, or fixed."""
ENDS = r"^(out|head|image_proj|text_proj)$"
REPEATED = r"kv_a"
"""What is few within the body, beside `down`: mup's rate for it is that beside a multiplier."""


def planned(name: str, width: int, **more: Any) -> TransferPlan:
    sizes = {"base": {"width": BASE}, "target": {"width": width}}
    asked: dict[str, Any] = {"parameterization": "mup", "hps": {"eta": ETA}, **more}
    return sweeper.plan_for(FAMILIES[name], **sizes, **asked, inputs=batch(name))


def expected_role(name: str, parameter: str) -> tuple[str, ...]:
    if re.search(r"(^|[._])bias$", parameter) and parameter.rpartition(".")[2] == "bias":
        return ("vector", "fixed")
    role_of_name = next((role for p, role, _ in EXPECTED[name] if re.search(p, parameter)), None)
    assert role_of_name, f"{parameter}: no role was expected"
    return (role_of_name,)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if i % 2 else pytest.mark.long) for i, n in enumerate(FAMILIES)],
)
def test_roles_and_rates(name: str) -> None:
    plan = planned(name, WIDE)
    trained = [p for p in plan.parameters if not p.frozen]
    wrong = {p.name: p.role for p in trained if p.role not in expected_role(name, p.name)}
    base, model, delta = (FAMILIES[name](width) for width in (BASE, WIDE, WIDE))
    set_base_shapes(model, base, delta=delta, do_assert=False)
    names = {id(p): n for n, p in model.named_parameters()}
    rates = {
        names[id(p)]: group["lr"]
        for group in MuAdam(model.parameters(), lr=1.0).param_groups
        for p in group["params"]
    }
    for p in trained:
        few = p.role == "down" or re.search(REPEATED, p.name)
        rates[p.name] /= WIDE / BASE if few else 1
    off = {p.name: p.target.lr / ETA for p in trained if p.target.lr / ETA != rates[p.name]}
    count = len(trained)
    ROWS.append(
        (name, str(count), f"{count - len(wrong)}/{count}", f"{count - len(off)}/{count}", "")
    )
    assert not wrong and not off


def sizes_of(name: str, plan: TransferPlan, width: int, seed: int) -> dict[tuple[str, int], float]:
    """Mean sizes of the outputs of all modules that return a tensor, by step."""
    model = FAMILIES[name](width)
    torch.manual_seed(seed)
    plan.init_(model, seed + 1)
    optimizer = torch.optim.AdamW(plan.param_groups(model), betas=(0.9, 0.95))
    plan.check(optimizer, model)
    sizes: dict[tuple[str, int], float] = {}
    step = 0
    for module_name, module in model.named_modules():

        def note(_m: nn.Module, _i: Any, out: Any, module_name: str = module_name) -> None:
            if isinstance(out, Tensor) and module_name:
                sizes[module_name, step] = float(out.detach().abs().mean())

        module.register_forward_hook(note)
    inputs = batch(name)
    for step in range(STEPS):  # noqa: B007
        optimizer.zero_grad()
        model(*inputs).backward()
        optimizer.step()
    return sizes


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_sizes_do_not_depend_on_the_width(name: str) -> None:
    plans = {width: planned(name, width) for width in WIDTHS}
    seeds = range(MORE_SEEDS.get(name, SEEDS))
    runs = [[sizes_of(name, plan, width, seed) for seed in seeds] for width, plan in plans.items()]
    slopes, errors = {}, {}
    for key in runs[0][0]:
        sizes = np.array([[run[key] for run in of_width] for of_width in runs])
        if sizes.mean(1).min() > 0:
            slopes[key], errors[key] = slope_and_error(sizes)
    inside = {key: slope for key, slope in slopes.items() if not re.match(ENDS, key[0])}
    ends = {key: slope for key, slope in slopes.items() if re.match(ENDS, key[0])}
    cells = (f"{min(v):+.2f} to {max(v):+.2f}" for v in (inside.values(), ends.values() or [0.0]))
    COORDINATES.append((name, str(len(inside)), *cells))
    assert not {key: slope for key, slope in inside.items() if abs(slope) > INSIDE}
    # What seeds leave open is no growth: of few outputs a mean is known to some percent.
    grown = {key: (slope, errors[key]) for key, slope in ends.items() if slope > NOISE}
    assert not {key: line for key, line in grown.items() if line[0] - 2 * line[1] > NOISE}


def slope_and_error(sizes: NDArray[np.float64]) -> tuple[float, float]:
    """Of log2 of the mean size [width, seed] over log2 of the width; the error by jackknife."""

    def slope(of: NDArray[np.float64]) -> float:
        return float(np.polyfit(np.log2(WIDTHS), np.log2(of.mean(1)), 1)[0])

    count = sizes.shape[1]
    without = [slope(np.delete(sizes, seed, axis=1)) for seed in range(count)]
    return slope(sizes), float(np.sqrt((count - 1) * np.var(without)))
