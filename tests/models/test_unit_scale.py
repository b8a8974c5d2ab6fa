"""u-muP in its own words: every activation, weight and gradient has RMS 1 at initialization."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sweeper.models.classify import classify, sites
from sweeper.models.llama import Llama
from sweeper.models.scaled import ScaledModule
from sweeper.scaling.umup import UMuP

DEFAULTS = dict.fromkeys(UMuP.hyperparameters, 1.0)
SEQ, CLASSES = 64, 200


def rms(x: Tensor) -> float:
    return float(x.float().pow(2).mean().sqrt())


def unit_llama(width: int, depth: int, values: dict[str, float]) -> Llama:
    """A u-muP Llama with weights drawn and scales filled in, for direct use."""

    def build(w: int, d: int) -> Llama:
        return Llama(width=w, depth=d, classes=CLASSES, seq_len=SEQ, base_depth=depth, unit=True)

    scheme, model = UMuP(), build(width, depth)
    for spec in classify(build, base=(width, depth), target=(width, depth)):
        scale, owner = scheme.scale(spec, values), spec.name.rpartition(".")[0]
        nn.init.normal_(model.get_parameter(spec.name), std=scale.init_std)
        model.get_buffer(f"{owner}.multiplier").fill_(scale.multiplier)
        if scale.backward is not None:
            model.get_buffer(f"{owner}.backward_multiplier").fill_(scale.backward)
    for site in sites(model):
        for name, value in scheme.site(site, values).items():
            model.get_buffer(f"{site.name}.{name}").fill_(value)
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


@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"alpha_residual": 0.25},
        {"alpha_residual": 4.0, "alpha_residual_attn_ratio": 2.0},
        {"alpha_ffn_act": 4.0, "alpha_attn": 2.0},
    ],
    ids=str,
)
def test_everything_has_unit_scale(width: int, depth: int, changed: dict[str, float]) -> None:
    torch.manual_seed(0)
    model = unit_llama(width, depth, DEFAULTS | changed)
    seen = watch(model)
    tokens = torch.randint(CLASSES, (16, SEQ))
    model(tokens, torch.randint(CLASSES, (16, SEQ))).backward()
    table = {name: rms(value) for name, value in seen.items()}
    table |= {f"{n} weight gradient": rms(p.grad) for n, p in model.named_parameters()}  # type: ignore[arg-type]
    for name, value in sorted(table.items()): print(name, round(value,3))
