"""A scheme with some exponents of width changed: what an experiment on a scheme trains with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sweeper.errors import ConfigError
from sweeper.plugin import build
from sweeper.scaling.relative import growth
from sweeper.scaling.spec import Parameterization, ParamScale, ParamSpec, Role, ScaledOp, Update
from sweeper.trial import PlainHps


@dataclass(frozen=True, kw_only=True)
class Change:
    """Further powers of the growth m of a role's width: init std m^-b, learning rate m^-c."""

    b: float = 0.0
    c: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Adjusted:
    """The scheme of the config `scheme`, changed above the base size; at the base it is the same.

    Multipliers stay: by the abc symmetry (`scaling.abc.shift`) init std and learning rate can say
    whatever a multiplier would. So do eps and weight decay, to change one thing at a time.
    `attention` is a further power of the growth of the head size, whose base is `head_size`, by
    which attention's logits shrink.
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
            found: Parameterization = build(self.scheme)
        except ConfigError as error:
            raise error.below("scheme") from error
        return found

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """The scheme's own."""
        return self.inner.hyperparameters

    @property
    def unit_scaled(self) -> bool:
        """As the scheme's."""
        return self.inner.unit_scaled

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        """The scheme's prescription times powers of the growth in width."""
        found = self.inner.scale(spec, hps, update)
        if spec.role is Role.FIXED:
            return found
        change: Change = getattr(self, spec.role)
        m = growth(spec)
        return replace(found, init_std=found.init_std * m**-change.b, lr=found.lr * m**-change.c)

    def scale_op(self, op: ScaledOp, hps: PlainHps) -> dict[str, float]:
        """The scheme's factors, attention's logits by the growth of the head size."""
        found = self.inner.scale_op(op, hps)
        if op.kind != "attention" or not self.attention:
            return found
        grown = op.geometry["head_size"] / self.head_size
        return found | {"logit": found["logit"] * grown**-self.attention}
