"""No scheme of sweeper's: a command scales by itself, and takes its hyperparameters as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sweeper.scaling.spec import ParamScale, ParamSpec, ScaledOp, Update
from sweeper.trial import PlainHps


@dataclass(frozen=True, kw_only=True)
class Own:
    """The hyperparameters of the user's own command, whatever they are called."""

    hyperparameters: ClassVar[tuple[str, ...]] = ()
    unit_scaled: ClassVar[bool] = False

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        """Nobody may ask."""
        raise NotImplementedError("the command scales its parameters by itself")

    def scale_op(self, op: ScaledOp, hps: PlainHps) -> dict[str, float]:
        """Likewise."""
        raise NotImplementedError("the command scales its operations by itself")
