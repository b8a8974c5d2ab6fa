"""From a trial's specification to what its training needs: model, scales, optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import nn

from sweeper.catalog import TARGET, plugin_target, with_targets
from sweeper.errors import ConfigError
from sweeper.models.classifier import scaled_ops, specs_between
from sweeper.plugin import arguments, build_plugin, import_target
from sweeper.scaling.prescription import Prescription, prescribe
from sweeper.scaling.spec import Parameterization, ParamScale, ParamSpec, ScaledOp
from sweeper.train_settings import SCHEDULE_HPS, TrainSettings
from sweeper.training.optimizer import Optimizer
from sweeper.trial import PlainHps, PluginSpec, TrialSpec

OPTIMIZER_FACTORS = ("weight_decay", "eps")
"""Hyperparameters that any space may hold: factors on the optimizer's settings."""


def optional_hyperparameters(optimizer: Optimizer) -> tuple[str, ...]:
    """Hyperparameters that a space may hold beside its scheme's own: factors on settings."""
    return (*OPTIMIZER_FACTORS, *SCHEDULE_HPS, *optimizer.hyperparameters)


@dataclass(frozen=True, eq=False)
class PreparedSpec:
    """What all trials of a specification share; one object for each, see `prepare`."""

    spec: TrialSpec
    scheme: Parameterization
    optimizer: Optimizer
    specs: tuple[ParamSpec, ...]
    scaled_ops: tuple[ScaledOp, ...]

    def model(self) -> nn.Module:
        """The module at its size, on the default device, its weights not drawn."""
        spec = self.spec
        return build_model(spec, self.scheme.unit_scaled, spec.width, spec.depth)

    @property
    def train(self) -> TrainSettings:
        """How its trials are trained."""
        return self.spec.train

    def prescriptions(self, hps: PlainHps) -> dict[str, Prescription]:
        """What every parameter is trained with, by name, given hyperparameters."""
        return {spec.name: self.prescription(spec, hps) for spec in self.specs}

    def prescription(self, spec: ParamSpec, hps: PlainHps) -> Prescription:
        """What `spec` is trained with: the scheme's factors times eta and the optimizer's."""
        return prescribe(
            self._scale(spec, hps),
            eta=hps["eta"],
            eps=self.optimizer.eps,
            weight_decay=self.optimizer.weight_decay,
        )

    def _scale(self, spec: ParamSpec, hps: PlainHps) -> ParamScale:
        """The scheme's factors for `spec`, with the `OPTIMIZER_FACTORS` that `hps` hold."""
        scale = self.scheme.scale(spec, hps, self.optimizer.kind(spec))
        factors = {
            name: getattr(scale, name) * hps[name] for name in OPTIMIZER_FACTORS if name in hps
        }
        return replace(scale, **factors)

    def buffers(self, hps: PlainHps) -> dict[str, float]:
        """Values of the model's scale buffers, by full name."""
        buffers: dict[str, float] = {}
        for spec in self.specs:
            scale, module = self._scale(spec, hps), spec.name.rpartition(".")[0]
            # A model without multipliers can be trained as long as none is asked of it.
            if scale.multiplier != 1.0:
                buffers[f"{module}.multiplier"] = scale.multiplier
            # Also where it equals the multiplier: the module has another buffer for the backward
            # pass, which would stay at 1.
            if scale.backward_multiplier is not None:
                buffers[f"{module}.backward_multiplier"] = scale.backward_multiplier
        for op in self.scaled_ops:
            factors = self.scheme.scale_op(op, hps)
            buffers |= {f"{op.name}.{buffer}": value for buffer, value in factors.items()}
        return buffers

    def parameters(self) -> int:
        """Number of weights of one trial."""
        return sum(prod(spec.shape) for spec in self.specs)

    def tokens(self) -> int:
        """Tokens that one trial trains on; an array is as many as its model's attention sees."""
        return self.train.steps * self.train.batch_size * self._example_length()

    def flops(self) -> float:
        """Floating-point operations of one trial (Kaplan et al., arXiv:2001.08361).

        Per token 6 for every weight of a matrix product, and 12 x width x sequence for the
        attention of a layer.
        """
        weights = sum(prod(s.shape) for s in self.specs if s.role != "embedding")
        attention = 0
        if self._attention_lengths():
            attention = 12 * self.spec.width * self._example_length() * self.spec.depth
        return float(self.tokens() * (6 * weights + attention))

    def _attention_lengths(self) -> list[int]:
        """Tokens in the sequences that the model's attentions work on."""
        return [s.geometry["seq_len"] for s in self.scaled_ops if s.kind == "attention"]

    def _example_length(self) -> int:
        """Tokens of an example."""
        if "input_shape" in self.spec.data:
            return max(self._attention_lengths(), default=1)
        return self.train.seq_len


def build_model(spec: TrialSpec, unit: bool, width: int, depth: int) -> nn.Module:
    """The model of `spec` at another size; ConfigError names a `model.` key that is refused."""
    data = spec.data
    offered = {"classes": data["classes"], "base_depth": spec.base_depth, "unit": unit}
    # Never both: a model for the other kind of data misses an argument, and is refused here.
    if "input_shape" in data:
        offered["input_shape"] = tuple(data["input_shape"])
    else:
        offered["seq_len"] = spec.train.seq_len
    config = _plugin_config("model", spec.model)
    target = config[TARGET]
    if spec.fp8 is not None:
        offered["fp8"] = _build_fp8(target, spec.fp8)
    try:
        model = build_plugin(config | {"width": width, "depth": depth}, offered)
    except ConfigError as error:
        kinds = {"seq_len": "sequences of tokens", "input_shape": "arrays, such as data=digits"}
        if error.key in kinds and error.value is None:
            allowed = f"a model for this kind of data: this one takes {kinds[error.key]}"
            raise ConfigError("model._target_", target, allowed) from error
        raise error.below("model") from error
    if not isinstance(model, nn.Module):
        raise ConfigError("model._target_", target, "an nn.Module")
    return model


def _plugin_config(group: str, plugin: PluginSpec) -> dict[str, Any]:
    """The config that builds a plugin; ConfigError for a name that is not in the registry."""
    try:
        return with_targets(group, {TARGET: plugin.name, **plugin.arguments})
    except ConfigError as error:
        raise error.below(group) from error


def _build_plugin(group: str, plugin: PluginSpec) -> Any:
    """The plugin itself; ConfigError names the key of `group` that is refused."""
    config = _plugin_config(group, plugin)
    try:
        return build_plugin(config)
    except ConfigError as error:
        raise error.below(group) from error


def _build_fp8(target: str, fp8: PluginSpec) -> Any:
    """The FP8 scheme; ConfigError if it is refused, or the model `target` takes none."""
    taken = arguments(import_target(target, "model._target_"))
    if "fp8" not in taken and not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        allowed = f"none: {target} takes no argument fp8"
        raise ConfigError("fp8", dict(fp8.arguments), allowed)
    return _build_plugin("fp8", fp8)


@lru_cache(maxsize=64)
def prepare(spec: TrialSpec) -> PreparedSpec:
    """Build and classify what `spec` describes; ConfigError names the key that is refused."""
    scheme: Parameterization = _build_plugin("parameterization", spec.parameterization)
    optimizer: Optimizer = _build_plugin("optimizer", spec.optimizer)
    specs, ops = _classify(_architecture(spec), scheme.unit_scaled)
    _check_update(scheme, optimizer, specs)
    return PreparedSpec(spec, scheme, optimizer, specs, ops)


def _architecture(spec: TrialSpec) -> TrialSpec:
    """What of `spec` the model is built from: trials that differ elsewhere share its classes."""
    anything = PluginSpec(name="")
    return replace(
        spec,
        runner={},
        parameterization=anything,
        optimizer=anything,
        data={key: spec.data[key] for key in ("classes", "input_shape") if key in spec.data},
        train=TrainSettings(steps=1, batch_size=1, seq_len=spec.train.seq_len),
    )


@lru_cache(maxsize=64)
def _classify(
    architecture: TrialSpec, unit: bool
) -> tuple[tuple[ParamSpec, ...], tuple[ScaledOp, ...]]:
    """Parameters and scaled operations of an `_architecture`; its model runs three times."""
    target = (architecture.width, architecture.depth)
    specs = specs_between(
        lambda width, depth: build_model(architecture, unit, width, depth),
        base=(architecture.base_width, architecture.base_depth),
        target=target,
        inputs=lambda sizes: _example_inputs(architecture),
    )
    with torch.device("meta"):
        model = build_model(architecture, unit, *target)
    _check_trained(architecture, model)
    return tuple(specs), tuple(scaled_ops(model))


def _example_inputs(spec: TrialSpec) -> tuple[torch.Tensor, ...]:
    """Two examples on the meta device: inputs, and targets if the model's forward takes them."""
    targets: tuple[int, ...] = (2,)
    if "input_shape" in spec.data:
        x = torch.empty(2, *spec.data["input_shape"], device="meta")
    else:
        targets = (2, spec.train.seq_len)
        x = torch.empty(targets, dtype=torch.long, device="meta")
    forward = getattr(import_target(plugin_target("model", spec.model.name)), "forward", None)
    takes = inspect.signature(forward).parameters.values() if forward else ()
    if sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in takes) == 2:  # self, and one input
        return (x,)
    return x, torch.empty(targets, dtype=torch.long, device="meta")


def _check_trained(spec: TrialSpec, model: nn.Module) -> None:
    """ConfigError for frozen parameters: they would be drawn anew, and trained."""
    frozen = [name for name, value in model.named_parameters() if not value.requires_grad]
    if frozen:
        allowed = f"a model that trains all its parameters: make {', '.join(frozen[:3])} a buffer"
        raise ConfigError("model._target_", plugin_target("model", spec.model.name), allowed)


def _check_update(
    scheme: Parameterization, optimizer: Optimizer, specs: Sequence[ParamSpec]
) -> None:
    """ConfigError for an optimizer that the scheme has no rule for: before training, not in it."""
    ones = PlainHps(dict.fromkeys(scheme.hyperparameters, 1.0))
    try:
        for spec in specs:
            scheme.scale(spec, ones, optimizer.kind(spec))
    except ConfigError as error:
        raise error.below("parameterization") from error
