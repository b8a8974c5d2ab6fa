"""muP with a mistake each: what a coordinate check must find."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sweeper.scaling.relative import MuP
from sweeper.scaling.spec import ParamScale, ParamSpec, Role, Update
from sweeper.trial import PlainHps


@dataclass(frozen=True, kw_only=True)
class FastHidden(MuP):
    """Hidden learning rates do not fall with the width."""

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        scale = super().scale(spec, hps, update)
        return replace(scale, lr=1.0) if spec.role is Role.HIDDEN else scale


@dataclass(frozen=True, kw_only=True)
class SlowHidden(MuP):
    """Hidden learning rates fall as 1 / width^2: the weights stop learning as it grows."""

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        scale = super().scale(spec, hps, update)
        slower = scale.lr * spec.base_fan_in / spec.fan_in
        return replace(scale, lr=slower) if spec.role is Role.HIDDEN else scale
