"""u-muP in its own words: every activation, weight and gradient has RMS 1 at initialization."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sweeper.classifier.classify import scaled_ops, specs_between
from sweeper.models.llama import Llama
from sweeper.models.scaled import ScaledModule
from sweeper.scaling.umup import UMuP

DEFAULTS = dict.fromkeys(UMuP.hyperparameters, 1.0)
SEQ, CLASSES = 64, 200


def rms(x: Tensor) -> float:
    return float(x.detach().float().pow(2).mean().sqrt())


def unit_llama(width: int, depth: int, values: dict[str, float]) -> Llama:
    """A u-muP Llama with weights drawn and scales filled in, for direct use."""

    def build(w: int, d: int) -> Llama:
        return Llama(width=w, depth=d, classes=CLASSES, seq_len=SEQ, base_depth=depth, unit=True)

    parameterization, model = UMuP(), build(width, depth)
    for spec in specs_between(build, base=(width, depth), target=(width, depth)):
        scale, owner = parameterization.scale(spec, values), spec.name.rpartition(".")[0]
        nn.init.normal_(model.get_parameter(spec.name), std=scale.init_std)
        model.get_buffer(f"{owner}.multiplier").fill_(scale.multiplier)
        if scale.backward_multiplier is not None:
            model.get_buffer(f"{owner}.backward_multiplier").fill_(scale.backward_multiplier)
    for op in scaled_ops(model):
        for name, value in parameterization.scale_op(op, values).items():
            model.get_buffer(f"{op.name}.{name}").fill_(value)
    return model


def watch(model: nn.Module) -> dict[str, Tensor]:
    """Outputs and their gradients of every scaled module, by name, once a pass has run."""
    seen: dict[str, Tensor] = {}

    def hook(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def note(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            seen[name] = output.detach()
            output.register_hook(lambda grad: seen.__setitem__(f"{name} gradient", grad))

        return note

    for name, module in model.named_modules():
        if isinstance(module, ScaledModule) and name != "loss":
            module.register_forward_hook(hook(name))
    return seen


CASES = [
    {},
    {"alpha_residual": 0.25},
    {"alpha_residual": 4.0, "alpha_residual_attn_ratio": 2.0},
    {"alpha_ffn_act": 4.0, "alpha_attn": 2.0},
]


def scales_at_start(width: int, depth: int, values: dict[str, float]) -> dict[str, float]:
    """RMS of every activation, weight and gradient of a fresh model."""
    torch.manual_seed(0)
    model = unit_llama(width, depth, DEFAULTS | values)
    seen = watch(model)
    tokens = torch.randint(CLASSES, (16, SEQ))
    model(tokens, torch.randint(CLASSES, (16, SEQ))).backward()
    table = {name: rms(value) for name, value in seen.items()}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        table |= {name: rms(parameter), f"{name} gradient": rms(parameter.grad)}
    return table


@pytest.mark.parametrize("width", [pytest.param(64, marks=pytest.mark.long), 256])
@pytest.mark.parametrize("values", CASES, ids=str)
def test_one_layer_has_unit_scale(width: int, values: dict[str, float]) -> None:
    """Within the reach of the paper's empirical rules, which hold for independent inputs."""
    for name, value in scales_at_start(width, 1, values).items():
        if name == "head":
            assert value == pytest.approx(width**-0.5, rel=0.1)
        elif name.endswith(".weight") or "gradient" not in name:
            assert 0.75 < value < 1.3, name
        else:
            assert 0.3 < value < 2.0, name


@pytest.mark.parametrize(
    "values",
    [*CASES[::2], *(pytest.param(case, marks=pytest.mark.long) for case in CASES[1::2])],
    ids=str,
)
def test_width_changes_no_scale(values: dict[str, float]) -> None:
    narrow, wide = scales_at_start(64, 2, values), scales_at_start(256, 2, values)
    for name in narrow.keys() - {"head"}:
        assert wide[name] == pytest.approx(narrow[name], rel=0.25), name


def test_depth_changes_no_scale() -> None:
    """Beyond what attention's model leaves out: positions grow alike from layer to layer."""
    for name, value in scales_at_start(64, 8, {"alpha_residual": 0.5}).items():
        assert name == "head" or 0.3 < value < 3, name
