"""A scheme with some exponents of width changed: what an experiment on a scheme trains with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sweeper.errors import ConfigError
from sweeper.plugin import build_plugin
from sweeper.scaling.spec import (
    Parameterization,
    ParamScale,
    ParamSpec,
    Role,
    ScaledOp,
    Update,
)
from sweeper.trial import PlainHps


@dataclass(frozen=True, kw_only=True)
class Change:
    """Further powers of a role's width ratio m: init std m^-b, learning rate m^-c."""

    b: float = 0.0
    c: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Adjusted:
    """The scheme of the config `scheme`, changed above the base size; at the base it is the same.

    Multipliers stay as they are: by the abc symmetry (`scaling.abc.shift`) init std and learning
    rate can say whatever a multiplier would. Eps and weight decay stay too, to change one thing at
    a time. Attention's logits shrink by a further power, `attention`, of the ratio of the head
    size to the base's `head_size`.
    """

    scheme: Mapping[str, Any]
    embedding: Change = field(default_factory=Change)
    hidden: Change = field(default_factory=Change)
    readout: Change = field(default_factory=Change)
    vector: Change = field(default_factory=Change)
    attention: float = 0.0
    head_size: int = 1

    @cached_property
    def inner(self) -> Parameterization:
        """The scheme that is changed."""
        try:
            scheme: Parameterization = build_plugin(self.scheme)
        except ConfigError as error:
            raise error.below("scheme") from error
        return scheme

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """The scheme's."""
        return self.inner.hyperparameters

    @property
    def unit_scaled(self) -> bool:
        """As the scheme's."""
        return self.inner.unit_scaled

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        """The scheme's scales times powers of the width ratio."""
        scale = self.inner.scale(spec, hps, update)
        if spec.role is Role.FIXED:
            return scale
        change: Change = getattr(self, spec.role)
        m = spec.width_ratio
        return replace(scale, init_std=scale.init_std * m**-change.b, lr=scale.lr * m**-change.c)

    def scale_op(self, op: ScaledOp, hps: PlainHps) -> dict[str, float]:
        """The scheme's factors, attention's logits times a power of the ratio of head sizes."""
        factors = self.inner.scale_op(op, hps)
        if op.kind != "attention" or not self.attention:
            return factors
        ratio = op.geometry["head_size"] / self.head_size
        return factors | {"logit": factors["logit"] * ratio**-self.attention}
