"""The models of sweeper, small, and with weights and scales as a parameterization has them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sweeper.classifier.classify import scaled_ops
from sweeper.models.encoder_decoder import EncoderDecoder
from sweeper.models.llama import Llama
from sweeper.models.mlp import MLP
from sweeper.models.moe import MoE
from sweeper.models.scaled import ScaledModule
from sweeper.models.vit import ViT
from sweeper.scaling.umup import UMuP
from tests.specs import Build, specs_between

TOKENS: dict[str, Any] = {"width": 16, "depth": 2, "classes": 32, "seq_len": 8, "head_size": 8}
IMAGES: dict[str, Any] = {"width": 32, "depth": 2, "classes": 10, "input_shape": (8, 8)}
SPANS = {"classes": 34, "source_len": 6, "target_len": 8, "start": 33, "head_size": 8}
MODELS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any]]] = {
    "llama": (Llama, TOKENS),
    "moe": (MoE, TOKENS | {"depth": 1, "experts": 4}),
    "mlp": (MLP, IMAGES),
    "vit": (ViT, IMAGES | {"head_size": 8}),
    "encoder_decoder": (EncoderDecoder, {"width": 32, "depth": 2} | SPANS),
}


def made(kind: str, **more: Any) -> Any:
    model, sizes = MODELS[kind]
    return model(**(sizes | more))


def at(kind: str, **more: Any) -> Build:
    return lambda width, depth: made(kind, width=width, depth=depth, **more)


def drawn(kind: str, **more: Any) -> Any:
    torch.manual_seed(0)
    model = made(kind, **more)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def started(build: Build, rules: Any, width: int, depth: int, **hps: float) -> nn.Module:
    torch.manual_seed(0)
    model, values = build(width, depth), dict.fromkeys(rules.hyperparameters, 1.0) | hps
    for spec in specs_between(build, base=(width, depth), target=(width, depth)):
        scale, owner = rules.scale(spec, values), spec.name.rpartition(".")[0]
        nn.init.normal_(model.get_parameter(spec.name), std=scale.init_std)
        model.get_buffer(f"{owner}.multiplier").fill_(scale.multiplier)
        if scale.backward_multiplier is not None:
            model.get_buffer(f"{owner}.backward_multiplier").fill_(scale.backward_multiplier)
    for op in scaled_ops(model):
        for name, value in rules.scale_op(op, values).items():
            model.get_buffer(f"{op.name}.{name}").fill_(value)
    return model


def scales_at_start(
    build: Build, width: int, depth: int, inputs: tuple[Tensor, Tensor], **hps: float
) -> dict[str, float]:
    """RMS of every output, of its gradient, of every weight and of its, of a fresh u-muP model."""
    model = started(build, UMuP(), width, depth, **hps)
    seen: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def note(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            seen[name] = output
            if output.requires_grad:
                output.register_hook(lambda grad: seen.__setitem__(f"{name} gradient", grad))

        return note

    for name, module in model.named_modules():
        if isinstance(module, ScaledModule) and name != "loss":
            module.register_forward_hook(watch(name))
    model(*inputs).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        seen |= {name: parameter, f"{name} gradient": parameter.grad}
    return {name: rms(value) for name, value in seen.items()}


def rms(x: Tensor) -> float:
    return float(x.detach().float().pow(2).mean().sqrt())
