"""The plan: what every parameter of the target model is given, beside the base model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sweeper.scaling.spec import ParamScale, ParamSpec
from sweeper.training.recipe import Recipe
from sweeper.transfer.ladder import Size
from sweeper.trial import encode

PLAN_VERSION = 1
"""Raised when `plan.json` changes in a way that old readers would misread."""


@dataclass(frozen=True, kw_only=True)
class Prescription:
    """One parameter's numbers at one size: absolute learning rate, eps and decay a step.

    The forward pass uses `multiplier * W`, W drawn with `init_std`; `backward_multiplier` takes
    its place in the gradient to the layer's input.
    """

    init_std: float
    multiplier: float
    backward_multiplier: float
    lr: float
    eps: float
    weight_decay: float


@dataclass(frozen=True, kw_only=True)
class PlannedParameter:
    """A parameter of the target model: what it is, and its numbers at base and at target."""

    name: str
    role: str
    init: str
    shape: tuple[int, ...]
    base_shape: tuple[int, ...]
    fan_in: int
    fan_out: int
    target: Prescription
    base: Prescription


@dataclass(frozen=True, kw_only=True)
class TransferPlan:
    """Everything that training the target needs, keyed by parameter name.

    `operations` are the factors of attention, activation, residual and loss at the target.
    `source` says which study, configuration and runs the hyperparameters (`hps`, not
    logarithms) came from.
    """

    base: Size
    target: Size
    parameterization: str
    hps: Mapping[str, float]
    parameters: tuple[PlannedParameter, ...]
    operations: Mapping[str, Mapping[str, float]]
    source: Mapping[str, Any]
    version: int = PLAN_VERSION

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, as in `plan.json`."""
        found: dict[str, Any] = encode(asdict(self))
        return found


def make_plan(
    recipe: Recipe, base: Size, target: Size, hps: Mapping[str, float], source: Mapping[str, Any]
) -> TransferPlan:
    """The plan of `recipe`, prepared at `target`, for hyperparameters `hps` (values, not log2)."""
    scheme = recipe.scheme
    return TransferPlan(
        base=base,
        target=target,
        parameterization=recipe.setup["parameterization"]["_target_"],
        hps=dict(hps),
        parameters=tuple(_planned(recipe, spec, hps) for spec in recipe.specs),
        operations={site.name: scheme.site(site, hps) for site in recipe.sites},
        source=dict(source),
    )


def _planned(recipe: Recipe, spec: ParamSpec, hps: Mapping[str, float]) -> PlannedParameter:
    return PlannedParameter(
        name=spec.name,
        role=str(spec.role),
        init=spec.init,
        shape=spec.shape,
        base_shape=spec.base_shape,
        fan_in=spec.fan_in,
        fan_out=spec.fan_out,
        target=_prescription(recipe, recipe.scale(spec, hps), hps),
        base=_prescription(recipe, recipe.scale(spec.at_base(), hps), hps),
    )


def _prescription(recipe: Recipe, scale: ParamScale, hps: Mapping[str, float]) -> Prescription:
    optimizer = recipe.optimizer
    return Prescription(
        init_std=scale.init_std,
        multiplier=scale.multiplier,
        backward_multiplier=scale.multiplier if scale.backward is None else scale.backward,
        lr=hps["eta"] * scale.lr,
        eps=optimizer.eps * scale.eps,
        weight_decay=optimizer.weight_decay * scale.weight_decay,
    )
