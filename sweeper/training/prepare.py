"""From a trial's plain JSON to what its training needs: model, scales, optimizer."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import nn

from sweeper.errors import ConfigError
from sweeper.models.classifier import scaled_ops, specs_between
from sweeper.plugin import arguments, build, call, load
from sweeper.scaling.spec import Parameterization, ParamScale, ParamSpec, ScaledOp
from sweeper.training.optimizer import Optimizer
from sweeper.training.settings import SHAPE, TrainSettings

FACTORS = ("weight_decay", "eps")
"""Hyperparameters that any space may hold: factors on the optimizer's."""


def optional(optimizer: Optimizer) -> tuple[str, ...]:
    """Hyperparameters that a space may hold beside its scheme's own: factors on settings."""
    return (*FACTORS, *SHAPE, *optimizer.hyperparameters)


@dataclass(frozen=True, eq=False)
class PreparedSpec:
    """Everything of a setup that all of its trials share; one object for each, see `prepare`."""

    setup: Mapping[str, Any]
    scheme: Parameterization
    optimizer: Optimizer
    train: TrainSettings
    specs: tuple[ParamSpec, ...]
    scaled_ops: tuple[ScaledOp, ...]

    def model(self) -> nn.Module:
        """The module at the setup's size, on the default device, its weights not drawn."""
        size = self.setup["model"]
        return build_model(self.setup, self.scheme.unit_scaled, size["width"], size["depth"])

    def scales(self, values: Mapping[str, float]) -> dict[str, ParamScale]:
        """The prescription for every parameter, by name, given hyperparameters."""
        return {spec.name: self.scale(spec, values) for spec in self.specs}

    def scale(self, spec: ParamSpec, values: Mapping[str, float]) -> ParamScale:
        """The scheme's prescription for `spec`, with the factors that `values` ask for."""
        found = self.scheme.scale(spec, values, self.optimizer.kind(spec))
        asked = {name: getattr(found, name) * values[name] for name in FACTORS if name in values}
        return replace(found, **asked)

    def buffers(self, values: Mapping[str, float]) -> dict[str, float]:
        """Values of the model's scale buffers, by full name."""
        found: dict[str, float] = {}
        for name, scale in self.scales(values).items():
            owner = name.rpartition(".")[0]
            if scale.multiplier != 1.0:
                found[f"{owner}.multiplier"] = scale.multiplier
            if scale.backward is not None:
                found[f"{owner}.backward_multiplier"] = scale.backward
        for op in self.scaled_ops:
            factors = self.scheme.scale_op(op, values)
            found |= {f"{op.name}.{buffer}": value for buffer, value in factors.items()}
        return found

    def parameters(self) -> int:
        """Number of weights of one trial."""
        return sum(prod(spec.shape) for spec in self.specs)

    def tokens(self) -> int:
        """Tokens that one trial trains on; an array is as many as its model's attention sees."""
        return self.train.steps * self.train.batch_size * self._length()

    def flops(self) -> float:
        """Floating-point operations of one trial (Kaplan et al., arXiv:2001.08361).

        Per token 6 for every weight of a matrix product, and 12 x width x sequence for the
        attention of a layer.
        """
        weights = sum(prod(s.shape) for s in self.specs if s.role != "embedding")
        size = self.setup["model"]
        attention = 12 * size["width"] * self._length() * size["depth"] if self._seen() else 0
        return float(self.tokens() * (6 * weights + attention))

    def _seen(self) -> list[int]:
        """Lengths of what the model's attention sees."""
        return [s.geometry["seq_len"] for s in self.scaled_ops if s.kind == "attention"]

    def _length(self) -> int:
        """Tokens of an example."""
        arrays = "input_shape" in self.setup["data"]
        return max(self._seen(), default=1) if arrays else self.train.seq_len


def build_model(setup: Mapping[str, Any], unit: bool, width: int, depth: int) -> nn.Module:
    """The setup's model at another size; ConfigError names a `model.` key that is refused."""
    data = setup["data"]
    offered = {"classes": data["classes"], "base_depth": setup["base"]["depth"], "unit": unit}
    # Not both: a model for the other kind of data then misses an argument, before it is trained.
    if "input_shape" in data:
        offered["input_shape"] = tuple(data["input_shape"])
    else:
        offered["seq_len"] = setup["train"]["seq_len"]
    if "fp8" in setup:
        offered["fp8"] = _fp8(setup)
    try:
        model = build({**setup["model"], "width": width, "depth": depth}, offered)
    except ConfigError as error:
        kinds = {"seq_len": "sequences of tokens", "input_shape": "arrays, such as data=digits"}
        if error.key in kinds and error.value is None:
            target = setup["model"]["_target_"]
            allowed = f"a model for this kind of data: this one takes {kinds[error.key]}"
            raise ConfigError("model._target_", target, allowed) from error
        raise error.below("model") from error
    if not isinstance(model, nn.Module):
        raise ConfigError("model._target_", setup["model"]["_target_"], "an nn.Module")
    return model


def _fp8(setup: Mapping[str, Any]) -> Any:
    """The setup's FP8 scheme; ConfigError if it is refused, or its model takes none."""
    taken = arguments(load(setup["model"]["_target_"], "model._target_"))
    if "fp8" not in taken and not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        allowed = f"none: {setup['model']['_target_']} takes no argument fp8"
        raise ConfigError("fp8", setup["fp8"], allowed)
    try:
        return build(setup["fp8"])
    except ConfigError as error:
        raise error.below("fp8") from error


def prepare(setup: Mapping[str, Any]) -> PreparedSpec:
    """Build and classify what `setup` describes; ConfigError names the key that is refused."""
    return _prepare(json.dumps(setup, sort_keys=True))


@lru_cache(maxsize=64)
def _prepare(text: str) -> PreparedSpec:
    setup = json.loads(text)
    parts = {}
    for name in ("parameterization", "optimizer"):
        try:
            parts[name] = build(setup[name])
        except ConfigError as error:
            raise error.below(name) from error
    try:
        train = call(TrainSettings, setup["train"], {})
    except ConfigError as error:
        raise error.below("train") from error
    scheme: Parameterization = parts["parameterization"]
    architecture = json.dumps(_architecture(setup), sort_keys=True)
    specs, found = _classified(architecture, scheme.unit_scaled)
    _check_update(scheme, parts["optimizer"], specs)
    return PreparedSpec(setup, scheme, parts["optimizer"], train, specs, found)


def _architecture(setup: Mapping[str, Any]) -> dict[str, Any]:
    """What of `setup` the model is built from: trials that differ elsewhere share its classes."""
    data = {key: setup["data"][key] for key in ("classes", "input_shape") if key in setup["data"]}
    parts = {key: setup[key] for key in ("model", "base", "fp8") if key in setup}
    return {**parts, "data": data, "train": {"seq_len": setup["train"]["seq_len"]}}


@lru_cache(maxsize=64)
def _classified(text: str, unit: bool) -> tuple[tuple[ParamSpec, ...], tuple[ScaledOp, ...]]:
    """Parameters and scaled operations of an `_architecture`; its model runs three times."""
    setup = json.loads(text)
    target = (setup["model"]["width"], setup["model"]["depth"])
    specs = specs_between(
        lambda width, depth: build_model(setup, unit, width, depth),
        base=(setup["base"]["width"], setup["base"]["depth"]),
        target=target,
        inputs=lambda sizes: _example(setup),
    )
    with torch.device("meta"):
        model = build_model(setup, unit, *target)
    _check_trained(setup, model)
    return tuple(specs), tuple(scaled_ops(model))


def _example(setup: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """Two examples on the meta device: inputs, and targets if the model's forward takes them."""
    targets: tuple[int, ...] = (2,)
    if "input_shape" in setup["data"]:
        x = torch.empty(2, *setup["data"]["input_shape"], device="meta")
    else:
        targets = (2, setup["train"]["seq_len"])
        x = torch.empty(targets, dtype=torch.long, device="meta")
    forward = getattr(load(setup["model"]["_target_"]), "forward", None)
    takes = inspect.signature(forward).parameters.values() if forward else ()
    if sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in takes) == 2:  # self, and one input
        return (x,)
    return x, torch.empty(targets, dtype=torch.long, device="meta")


def _check_trained(setup: Mapping[str, Any], model: nn.Module) -> None:
    """ConfigError for frozen parameters: they would be drawn anew, and trained."""
    frozen = [name for name, value in model.named_parameters() if not value.requires_grad]
    if frozen:
        allowed = f"a model that trains all its parameters: make {', '.join(frozen[:3])} a buffer"
        raise ConfigError("model._target_", setup["model"]["_target_"], allowed)


def _check_update(
    scheme: Parameterization, optimizer: Optimizer, specs: Sequence[ParamSpec]
) -> None:
    """ConfigError for an optimizer that the scheme has no rule for: before training, not in it."""
    ones = dict.fromkeys(scheme.hyperparameters, 1.0)
    try:
        for spec in specs:
            scheme.scale(spec, ones, optimizer.kind(spec))
    except ConfigError as error:
        raise error.below("parameterization") from error
