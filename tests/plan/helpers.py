"""Plans of tiny decoders, and those decoders as a stranger's training code sees them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

from sweeper.classifier.trace import Tracer
from sweeper.engine.architecture import Architecture, read_model
from sweeper.engine.prepare import prepare
from sweeper.plan.plan import TransferPlan, make_plan
from sweeper.stats.ladder import Size
from tests.engine.tiny_trials import tree, trial
from tests.specs import spec_of

ReadModel = Callable[..., Architecture]
CHANGED = {"eta_emb": 2.0, "sigma_init": -1.0, "alpha_emb": 1.5, "alpha_attn": 1.0}
"""Hyperparameters (log2) that leave no factor of muP at 1."""


def reading_once() -> ReadModel:
    """What stands in for `read_model`: a model of each size is read once, whatever its rules."""
    read: dict[str, Architecture] = {}

    def read_once(
        tracer: Tracer, base: Any, target: Any, rules: Any, *rest: Any, **more: Any
    ) -> Architecture:
        asked = repr((base, target, rules))
        if asked not in read:
            read[asked] = read_model(tracer, base, target, rules, *rest, **more)
        return read[asked]

    return read_once


def mup_tree(**train: Any) -> dict[str, Any]:
    """muP, width 32 on base 16, with decay and an eps that matter and trainable gains."""
    made = tree("mup", **train)
    made["optimizer"] |= {"weight_decay": 0.01, "eps": 1e-3}
    made["model"]["norm_gain"] = True
    return made


def plan(
    parameterization: str = "mup", made: dict[str, Any] | None = None, **changed: float
) -> TransferPlan:
    """The plan of `made` (default: `tree(parameterization)`) at changed hyperparameters (log2)."""
    made = made or tree(parameterization)
    base, target = (Size(width=made[k]["width"], depth=made[k]["depth"]) for k in ("base", "model"))
    return make_plan(
        prepare(spec_of(made)), base, target, trial(parameterization, **changed).hps, {"by": "hand"}
    )


def plain_model(planned: TransferPlan, made: dict[str, Any]) -> nn.Module:
    """The decoder with operations scaled as the plan needs, and not a weight's multiplier."""
    model = prepare(spec_of(made)).model().double()
    for name, factors in planned.operations.items():
        for buffer, value in factors.items():
            model.get_buffer(f"{name}.{buffer}").fill_(value)
    return model


def residual_tree(parameterization: str = "mup", width: int = 16) -> dict[str, Any]:
    made = tree(parameterization)
    made["model"] = {"_target_": "tests.toy_models.Residual", "width": width, "depth": 2}
    made["base"] = {"width": 8, "depth": 2}
    made["data"]["classes"] = 11
    return made


@cache
def plain_plan(width: int = 16) -> TransferPlan:
    made = residual_tree(width=width)
    made["optimizer"]["weight_decay"] = 0.01
    return plan("mup", made, eta_emb=2.0, alpha_emb=1.0, alpha_output=2.0)


def batch(step: int, size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    drawn = torch.randint(11, (size, 7), generator=generator)
    return drawn[:, :-1], drawn[:, 1:]
