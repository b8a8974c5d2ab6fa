"""muP with a mistake each: what a coordinate check must find."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sweeper.scaling.relative import MuP
from sweeper.scaling.spec import ParamScale, ParamSpec, Role, Update
from sweeper.trial import PlainHps


@dataclass(frozen=True, kw_only=True)
class LargeReadout(MuP):
    """The readout's multiplier is left out."""

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        scale = super().scale(spec, hps, update)
        return replace(scale, multiplier=1.0) if spec.role is Role.READOUT else scale


@dataclass(frozen=True, kw_only=True)
class SmallReadout(MuP):
    """The readout's multiplier is applied twice: its logits, small at first, stay so."""

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        scale = super().scale(spec, hps, update)
        return replace(scale, multiplier=scale.multiplier**2) if spec.role == "readout" else scale


@dataclass(frozen=True, kw_only=True)
class FastHidden(MuP):
    """Hidden learning rates do not fall with the width."""

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        scale = super().scale(spec, hps, update)
        return replace(scale, lr=1.0) if spec.role is Role.HIDDEN else scale


@dataclass(frozen=True, kw_only=True)
class FastDown(MuP):
    """One layer's one matrix learns too fast, all else is right."""

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        scale = super().scale(spec, hps, update)
        return replace(scale, lr=1.0) if spec.name == "layers.1.ffn.down.weight" else scale


@dataclass(frozen=True, kw_only=True)
class LargeHidden(MuP):
    """Hidden weights begin as large at any width: N(0, 1 / base fan-in)."""

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        scale = super().scale(spec, hps, update)
        std = spec.base_fan_in**-0.5
        return replace(scale, init_std=std) if spec.role is Role.HIDDEN else scale


@dataclass(frozen=True, kw_only=True)
class SlowHidden(MuP):
    """Hidden learning rates fall as 1 / width^2: the weights stop learning as it grows."""

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        scale = super().scale(spec, hps, update)
        slower = scale.lr * spec.base_fan_in / spec.fan_in
        return replace(scale, lr=slower) if spec.role is Role.HIDDEN else scale
