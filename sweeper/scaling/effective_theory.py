"""The s-family of the effective theory of Transformers (Dinan, Yaida, Zhang, arXiv:2304.02034)."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from sweeper.errors import ConfigError
from sweeper.scaling.plain import standard_std
from sweeper.scaling.scheme import Epsilon, Scheme, decay_factor
from sweeper.scaling.spec import ParamScale, ParamSpec, Role, Update
from sweeper.trial import PlainHps

FFN_IN = frozenset({"up", "gate", "up_gate", "fc1", "linear1", "mlp_in"})
"""Names by which an FFN's first matrix (the theory's W) is known: its shape does not tell."""


@dataclass(frozen=True, kw_only=True)
class EffectiveTheory(Scheme):
    """Absolute rules in the width n; `s` names the strategy.

    s = 0 is the learning-rate strategy "neural-tangent", 1/2 the hybrid, 1 maximal-update,
    which trains as `mup` with full alignment up to constants. "Neural-tangent" is not `ntk`,
    the gauge of the standard parameterization (erratum E17). `ffn_multiplier` is the M by
    which an FFN is wider than the stream; null leaves it out of AdamW's rates, as the authors
    did in their runs. Attention's logits are over sqrt(d_head) (footnote 12). The theory knows
    no biases in the blocks and no trainable gains: both are given an embedding's rate here.
    """

    s: float = 0.5
    ffn_multiplier: float | None = None
    epsilon: Epsilon = "scaled"

    hyperparameters: ClassVar[tuple[str, ...]] = ("eta",)

    def __post_init__(self) -> None:
        """Refuse what lies outside the family."""
        if not 0 <= self.s <= 1:
            raise ConfigError("s", self.s, "from 0 (neural-tangent) to 1 (maximal-update)")
        if self.ffn_multiplier is not None and self.ffn_multiplier <= 0:
            raise ConfigError("ffn_multiplier", self.ffn_multiplier, "a positive number, or null")
        super().__post_init__()

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        """Init (1.25)-(1.34); learning rates (1.99)-(1.107) for SGD, (1.108)-(1.116) for AdamW.

        Both with footnote 26's powers of n^s. The theory lets decay follow the global learning
        rate alone (1.94): that is `decay: scaled`.
        """
        deep_lr, deep_gradient = self.depth_factors(spec, update)
        lr = self.rate(spec, update) * deep_lr
        size = deep_gradient * self.gradient(spec) / self.gradient(spec.at_base())
        eps = size if self.epsilon == "scaled" else 1.0
        decay = decay_factor(self.decay, hps["eta"], lr, lr)
        return ParamScale(init_std=self.std(spec), lr=lr, eps=eps, weight_decay=decay)

    def std(self, spec: ParamSpec) -> float:
        """1/fan-in in variance; n^-(1+s) for the head (footnote 8), 1 for looked-up rows."""
        std = standard_std(spec, spec.fan_in)
        return std * float(spec.fan_in ** (-self.s / 2)) if spec.role is Role.READOUT else std

    def rate(self, spec: ParamSpec, update: Update) -> float:
        """The learning-rate factor: SGD's lambda, or AdamW's, which is lambda |g|."""
        if update is Update.GRADIENT:
            return self.sgd(spec)
        if update is not Update.SIGN:
            allowed = f"AdamW or SGD under this scheme; the optimizer's updates are {update}-like"
            raise ConfigError("s", self.s, allowed)
        return self.sgd(spec) * self.gradient(spec) * self.ffn(spec)

    def sgd(self, spec: ParamSpec) -> float:
        """Lambda (1.99)-(1.107): 1/fan-in where a sum is taken, times n^s before the head."""
        summed = spec.projection or spec.role in (Role.HIDDEN, Role.READOUT)
        base = 1 / spec.fan_in if summed else 1.0
        return base if head(spec) else base * float(spec.width**self.s)

    def gradient(self, spec: ParamSpec) -> float:
        """|g|, a gradient's entries: n^-(1+s)/2 before the head, whose own go as n_out^-1/2."""
        return 1 / sqrt(spec.fan_out) if head(spec) else float(spec.width ** (-(1 + self.s) / 2))

    def ffn(self, spec: ParamSpec) -> float:
        """AdamW's part of M: W carries M^-1/2 and X, whose fan-in is Mn, M^-1 ((1.114), (1.115)).

        SGD's rule for X holds its M already; without `ffn_multiplier` it is taken out again.
        """
        if spec.role is not Role.HIDDEN:
            return 1.0
        wider = spec.fan_in / spec.width
        if self.ffn_multiplier is None:
            return wider
        if wider != 1:
            return wider / self.ffn_multiplier
        named = FFN_IN.intersection(spec.name.split("."))
        return 1 / sqrt(self.ffn_multiplier) if named else 1.0


def head(spec: ParamSpec) -> bool:
    """Whether `spec` is of the head: the readout, or a bias that is on no branch."""
    bias = spec.role is Role.VECTOR and spec.init == "zeros" and not spec.residual
    return spec.role is Role.READOUT or bias


def tied_rescale(width: int, s: float) -> float:
    """What the output of a head tied to word embeddings of std 1 is multiplied by (1.34)."""
    return float(width ** (-(1 + s) / 2))
