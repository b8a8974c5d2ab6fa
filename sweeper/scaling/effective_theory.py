"""The s-family of the effective theory of Transformers (Dinan, Yaida, Zhang, arXiv:2304.02034)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import Annotated, ClassVar

from sweeper.errors import ConfigError
from sweeper.records import WRITTEN_IF_SET, Bounds
from sweeper.scaling.spec import (
    SUMMED,
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
    which trains as `standard` does (erratum E17, docs/papers.md). `ffn_multiplier` is the M by
    which an FFN is wider than the stream; null leaves it out of AdamW's learning rates, as the
    authors did in their runs. Attention's logits are over sqrt(d_head) (footnote 12). The theory
    has no biases in the blocks and no trainable gains: both get an embedding's learning rate here.

    s null is what the authors compare with: the initialization of s = 0, one learning rate for all
    and no rescaling of a tied output. `constants` are the C_G of (1.25)-(1.34), factors on the
    variance of initial values by patterns of parameters' names; the Lambda_G of (1.98) are gammas.
    """

    s: Annotated[
        float | None,
        Bounds(least=0, most=1, allowed="from 0 (neural-tangent) to 1 (maximal-update), or null"),
    ] = 0.5
    constants: Mapping[str, float] = field(default_factory=dict, metadata=WRITTEN_IF_SET)
    ffn_multiplier: Annotated[
        float | None, Bounds(above=0, allowed="a positive number, or null")
    ] = None
    epsilon: Epsilon = "scaled"

    hyperparameters: ClassVar[tuple[str, ...]] = ("eta",)

    def __post_init__(self) -> None:
        """ConfigError for a constant that is no variance; 0 is one (footnote 39)."""
        super().__post_init__()
        for pattern, constant in self.constants.items():
            if not (isinstance(constant, int | float) and 0 <= constant < inf):
                allowed = "a factor on the variance, a number of at least 0"
                raise ConfigError(f"constants.{pattern}", constant, allowed)

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        """Init (1.25)-(1.34); learning rates (1.99)-(1.107) for SGD, (1.108)-(1.116) for AdamW.

        Both with footnote 26's powers of n^s. The theory lets decay follow the global learning
        rate alone (1.94): that is `decay: scaled`.
        """
        depth_lr, depth_gradient = self.depth_factors(spec, update)
        lr = self.lr_factor(spec, update) * depth_lr
        # The theory has no eps. It follows the gradient's size from the base on, so that the
        # optimizer's eps means at the base what it says.
        growth = self.gradient_size(spec) / self.gradient_size(spec.at_base())
        gradient = depth_gradient * (1.0 if self.s is None else growth)
        eps = gradient if self.epsilon == "scaled" else 1.0
        decay = decay_factor(self.decay, hps["eta"], lr, lr)
        if spec.role is Role.VECTOR and in_head(spec):
            decay = 0.0  # the head's bias has none (II.1.D)
        return ParamScale(init_std=self.std(spec), lr=lr, eps=eps, weight_decay=decay)

    @property
    def one_rate(self) -> bool:
        """What the authors compare with: s null."""
        return self.s is None

    @property
    def decay_has_gamma(self) -> bool:
        """A decay that is `scaled` follows the global learning rate alone (1.94)."""
        return self.decay == "coupled"

    def std(self, spec: ParamSpec) -> float:
        """C_G over fan-in in variance; n^-(1+s) for the head (footnote 8), 1 for looked-up rows."""
        std = standard_std(spec, spec.fan_in) * sqrt(spec.init_constant)
        return std * float(spec.fan_in ** (-self.power / 2)) if spec.role is Role.READOUT else std

    def tied_output(self, op: ScaledOp, hps: PlainHps) -> float:
        """n^-(1+s)/2 (footnote 8), or 1 under one rate (II.2), over the model's own factor."""
        rescale = 1.0 if self.s is None else op.geometry["fan_in"] ** (-(1 + self.power) / 2)
        return float(rescale / op.geometry["built_in"])

    @property
    def power(self) -> float:
        """s, which is 0 in the initialization of a run with one rate."""
        return self.s or 0.0

    def lr_factor(self, spec: ParamSpec, update: Update) -> float:
        """SGD's lambda, or AdamW's, which is lambda |g|: AdamW divides a step by |g| itself."""
        if self.s is None:
            return 1.0
        if update is Update.GRADIENT:
            return self.sgd_lambda(spec)
        if update is not Update.SIGN:
            allowed = f"AdamW or SGD under these rules; the optimizer's updates are {update}-like"
            raise ConfigError("s", self.s, allowed)
        return self.sgd_lambda(spec) * self.gradient_size(spec) * self.ffn_factor(spec)

    def sgd_lambda(self, spec: ParamSpec) -> float:
        """Lambda (1.99)-(1.107): 1/fan-in where a sum is taken, times n^s before the head."""
        summed = spec.projection or spec.role in SUMMED
        base = 1 / spec.fan_in if summed else 1.0
        # A step gains lr |g|^2. Before the head |g|^2 is n^-s of the usual: the head's weights, of
        # variance n^-(1+s) in place of 1/n, hand the gradient down.
        return base if in_head(spec) else base * float(spec.width**self.power)

    def gradient_size(self, spec: ParamSpec) -> float:
        """|g|, the size of a gradient's entries.

        It is n^-(1+s)/2 before the head, whose weights of that std hand the gradient down, and
        n_out^-1/2 in the head, whose n_out outputs share the loss.
        """
        return (
            1 / sqrt(spec.fan_out)
            if in_head(spec)
            else float(spec.width ** (-(1 + self.power) / 2))
        )

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
    """Whether `spec` is the readout, or a bias, which starts at 0, on no branch."""
    bias = spec.role is Role.VECTOR and spec.init == "zeros" and not spec.residual
    return spec.role is Role.READOUT or bias
