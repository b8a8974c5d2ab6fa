"""The standard parameterization with the embedding's learning rate times the width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sweeper.errors import ConfigError
from sweeper.scaling.scheme import GAMMAS, Scheme, base_std, decay_factor, gamma
from sweeper.scaling.spec import ParamScale, ParamSpec, Role, ScaledOp, Update
from sweeper.trial import PlainHps


@dataclass(frozen=True, kw_only=True)
class ScaledEmbedding(Scheme):
    """Kalra and Barkeshli (arXiv:2605.21486), by its abstract; for AdamW.

    All is as under `standard` with one learning rate, but the embedding's is multiplied "by a
    factor of width". The `factor` is the width itself, or its ratio m to the base's, with which
    the base model trains as `standard` does. Gains and biases have the shared rate.

    With `shared` = "kept", the rule as printed, an embedding moves by eta m, and so does what
    hidden weights and the readout sum over m times as many entries. One rate suits all layers,
    and the best one goes as 1/m. With "over_width" the shared rate is eta/m, and the best eta
    should stay: all but gains, biases and eps train as under `standard` with full alignment.
    """

    factor: Literal["width", "ratio"] = "width"
    shared: Literal["kept", "over_width"] = "kept"

    hyperparameters: ClassVar[tuple[str, ...]] = ("eta", *GAMMAS)

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        """As `standard`, but for the learning rate's factor of width.

        ConfigError for updates that do not scale as Adam's: the paper says nothing of them.
        """
        if update is not Update.SIGN:
            allowed = (
                f"its rule is AdamW's, and the optimizer's updates are {update}-like: take "
                "optimizer=adamw or lion, or parameterization=standard with an alignment"
            )
            raise ConfigError("_target_", f"{__name__}.{type(self).__name__}", allowed)
        m, growth = spec.width_ratio, self.growth(spec)
        summed = spec.role in (Role.HIDDEN, Role.READOUT)
        depth_lr, depth_gradient = self.depth_factors(spec, update)
        at_base = spec.base_fan_out * spec.base_groups if self._times_width(spec) else 1
        lr = gamma(spec, hps) * growth * at_base * depth_lr
        return ParamScale(
            init_std=base_std(spec) * m ** -(0.5 if summed else 0.0),
            lr=lr,
            eps=depth_gradient,
            weight_decay=decay_factor(self.decay, hps["eta"], lr, growth),
        )

    def growth(self, spec: ParamSpec) -> float:
        """Factor of width on the learning rate, relative to the base: m or 1, over m where shared.

        Vectors and what sums over an input have the shared rate; their m is that of their own
        dimension, as in every scheme.
        """
        if spec.role is Role.FIXED:
            return 1.0
        embedding = spec.width_ratio if spec.role is Role.EMBEDDING else 1.0
        return embedding / (spec.width_ratio if self.shared == "over_width" else 1.0)

    def _times_width(self, spec: ParamSpec) -> bool:
        """Whether the base's width is part of the factor."""
        return spec.role is Role.EMBEDDING and self.factor == "width"

    def tied_output(self, op: ScaledOp, hps: PlainHps) -> float:
        """1/m, less the model's own: a tied table moves as an embedding does."""
        m = op.geometry["fan_in"] / op.geometry["base_fan_in"]
        return float(1 / (m * op.geometry["own"]))
