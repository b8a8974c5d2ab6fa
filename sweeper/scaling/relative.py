"""Schemes relative to a base model: powers of its growth in width."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from sweeper.scaling.abc import Alignment, Exponents, Gauge, exponents, shift
from sweeper.scaling.plain import standard_std
from sweeper.scaling.scheme import GAMMAS, Epsilon, Scheme, decay_factor, gamma
from sweeper.scaling.spec import ParamScale, ParamSpec, Role, Update
from sweeper.trial import PlainHps


@dataclass(frozen=True, kw_only=True)
class Relative(Scheme):
    """A scheme whose rules are powers of width / base width, and nothing at the base.

    A scheme names its `gauge`, and may change what the base model is given (`at_base`) and the
    scale of attention. With m the growth of the dimension that a parameter's exponents speak
    of, `eta_l = eta * gamma_l * m^-c_l` and `eps_l = eps * m^-g_l` (Everett et al., section 4).
    Without an `alignment` learning rates and epsilon have no rule: c = g = 0.
    """

    alignment: Alignment | None = "full"
    epsilon: Epsilon = "scaled"

    hyperparameters: ClassVar[tuple[str, ...]] = ("eta", *GAMMAS)
    relative: ClassVar[bool] = True

    def gauge(self) -> Gauge:
        """(a, b) by role."""
        raise NotImplementedError

    def at_base(self, spec: ParamSpec, hps: PlainHps) -> ParamScale:
        """Standard init, and the layer's constant."""
        std = standard_std(spec, spec.base_fan_in)
        return ParamScale(init_std=std, lr=gamma(spec, hps))

    def exponents(self, spec: ParamSpec, update: Update = Update.SIGN) -> Exponents:
        """The parameter's exponents of width, as they are applied.

        A vector is an embedding (it contracts nothing) without a multiplier: a is folded away.
        """
        vector = spec.role is Role.VECTOR
        role = Role.EMBEDDING if vector else spec.role
        found = exponents(self.gauge(), role, update, self.alignment or "full")
        found = shift(found, -found.a, update) if vector else found
        return replace(found, c=0.0, g=0.0) if self.alignment is None else found

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        """The base's prescription times powers of the growth in width and in depth."""
        base, e, m = self.at_base(spec, hps), self.exponents(spec, update), growth(spec)
        deep_lr, deep_gradient = self.depth_factors(spec, update)
        lr = base.lr * m**-e.c * deep_lr
        return replace(
            base,
            init_std=base.init_std * m**-e.b,
            multiplier=base.multiplier * m**-e.a,
            lr=lr,
            eps=m**-e.g * deep_gradient if self.epsilon == "scaled" else 1.0,
            weight_decay=decay_factor(self.decay, hps["eta"], lr, m**-e.c),
        )


def growth(spec: ParamSpec) -> float:
    """m: how much the dimension grew that the exponents speak of.

    Each side counts for itself: the fan-in for what is contracted over (an FFN's second matrix
    has a fan-in of its own), the fan-out for embeddings and vectors. 1 when nothing grows.
    """
    if spec.role in (Role.HIDDEN, Role.READOUT):
        return spec.fan_in / spec.base_fan_in
    return spec.fan_out / spec.base_fan_out
