"""The s-family of the effective theory of Transformers (Dinan, Yaida, Zhang, arXiv:2304.02034)."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Annotated, ClassVar

from sweeper.errors import ConfigError
from sweeper.records import Bounds
from sweeper.scaling.spec import (
    BaseParameterization,
    Epsilon,
    ParamScale,
    ParamSpec,
    Role,
    ScaledOp,
    Update,
    decay_factor,
    standard_std,
)
from sweeper.trial import PlainHps

FFN_IN = frozenset({"up", "gate", "up_gate", "fc1", "linear1", "mlp_in"})
"""Names of an FFN's first matrix, the theory's W: its shape [M n, n] may be that of q, k, v too."""


@dataclass(frozen=True, kw_only=True)
class EffectiveTheory(BaseParameterization):
    """Absolute rules in the width n; `s` names the strategy.

    s = 0 is the learning-rate strategy "neural-tangent", 1/2 the hybrid, 1 maximal-update,
    which trains as `mup` with full alignment up to constants. "Neural-tangent" is not `ntk`,
    which trains as `standard` does (erratum E17, docs/errata.md). `ffn_multiplier` is the M by
    which an FFN is wider than the stream; null leaves it out of AdamW's learning rates, as the
    authors did in their runs. Attention's logits are over sqrt(d_head) (footnote 12). The theory
    has no biases in the blocks and no trainable gains: both get an embedding's learning rate here.
    """

    s: Annotated[
        float, Bounds(least=0, most=1, allowed="from 0 (neural-tangent) to 1 (maximal-update)")
    ] = 0.5
    ffn_multiplier: Annotated[
        float | None, Bounds(above=0, allowed="a positive number, or null")
    ] = None
    epsilon: Epsilon = "scaled"

    hyperparameters: ClassVar[tuple[str, ...]] = ("eta",)

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        """Init (1.25)-(1.34); learning rates (1.99)-(1.107) for SGD, (1.108)-(1.116) for AdamW.

        Both with footnote 26's powers of n^s. The theory lets decay follow the global learning
        rate alone (1.94): that is `decay: scaled`.
        """
        depth_lr, depth_gradient = self.depth_factors(spec, update)
        lr = self.lr_factor(spec, update) * depth_lr
        # The theory has no eps. It follows the gradient's size from the base on, so that the
        # optimizer's eps means at the base what it says.
        gradient = depth_gradient * self.gradient_size(spec) / self.gradient_size(spec.at_base())
        eps = gradient if self.epsilon == "scaled" else 1.0
        decay = decay_factor(self.decay, hps["eta"], lr, lr)
        return ParamScale(init_std=self.std(spec), lr=lr, eps=eps, weight_decay=decay)

    @property
    def decay_has_gamma(self) -> bool:
        """A decay that is `scaled` follows the global learning rate alone (1.94)."""
        return self.decay == "coupled"

    def std(self, spec: ParamSpec) -> float:
        """1/fan-in in variance; n^-(1+s) for the head (footnote 8), 1 for looked-up rows."""
        std = standard_std(spec, spec.fan_in)
        return std * float(spec.fan_in ** (-self.s / 2)) if spec.role is Role.READOUT else std

    def tied_output(self, op: ScaledOp, hps: PlainHps) -> float:
        """n^-(1+s)/2 (footnote 8) over the model's own factor."""
        return float(op.geometry["fan_in"] ** (-(1 + self.s) / 2) / op.geometry["built_in"])

    def lr_factor(self, spec: ParamSpec, update: Update) -> float:
        """SGD's lambda, or AdamW's, which is lambda |g|: AdamW divides a step by |g| itself."""
        if update is Update.GRADIENT:
            return self.sgd_lambda(spec)
        if update is not Update.SIGN:
            allowed = f"AdamW or SGD under these rules; the optimizer's updates are {update}-like"
            raise ConfigError("s", self.s, allowed)
        return self.sgd_lambda(spec) * self.gradient_size(spec) * self.ffn_factor(spec)

    def sgd_lambda(self, spec: ParamSpec) -> float:
        """Lambda (1.99)-(1.107): 1/fan-in where a sum is taken, times n^s before the head."""
        summed = spec.projection or spec.role in (Role.HIDDEN, Role.READOUT)
        base = 1 / spec.fan_in if summed else 1.0
        # A step gains lr |g|^2. Before the head |g|^2 is n^-s of the usual: the head's weights, of
        # variance n^-(1+s) in place of 1/n, hand the gradient down.
        return base if in_head(spec) else base * float(spec.width**self.s)

    def gradient_size(self, spec: ParamSpec) -> float:
        """|g|, the size of a gradient's entries.

        It is n^-(1+s)/2 before the head, whose weights of that std hand the gradient down, and
        n_out^-1/2 in the head, whose n_out outputs share the loss.
        """
        return 1 / sqrt(spec.fan_out) if in_head(spec) else float(spec.width ** (-(1 + self.s) / 2))

    def ffn_factor(self, spec: ParamSpec) -> float:
        """AdamW's part of M: W carries M^-1/2 and X, whose fan-in is Mn, M^-1 ((1.114), (1.115)).

        W's gradient comes through X, whose weights have std (Mn)^-1/2: hence M^-1/2. SGD's lambda
        for X is 1/(Mn) and holds its M already; without `ffn_multiplier` M is taken out again.
        """
        if spec.role is not Role.HIDDEN:
            return 1.0
        # M is of an uncut expert: what cutting changes is no part of it.
        fan_in_ratio = spec.fan_in / spec.width / spec.inner_growth
        if self.ffn_multiplier is None:
            return fan_in_ratio
        if fan_in_ratio != 1:
            return fan_in_ratio / self.ffn_multiplier  # X: 1 / (n M) with the M asked for
        # W [M n, n] may have the shape of a fused q, k, v [3 n, n]: the name tells them apart.
        named = FFN_IN.intersection(spec.name.split("."))
        return 1 / sqrt(self.ffn_multiplier) if named else 1.0


def in_head(spec: ParamSpec) -> bool:
    """Whether `spec` is of the head: the readout, or a bias that is on no branch.

    Biases start at 0 and gains at 1, by which they are told apart.
    """
    bias = spec.role is Role.VECTOR and spec.init == "zeros" and not spec.residual
    return spec.role is Role.READOUT or bias
