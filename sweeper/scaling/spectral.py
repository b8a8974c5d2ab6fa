"""Spectral rules: learning rates from a matrix's shape, under the RMS-to-RMS operator norm.

`||A|| = sqrt(d_in / d_out) * sigma_max(A)` bounds how much A changes the RMS of what it acts on
(Yang, Simon, Bernstein, arXiv:2310.17813). The rules below are all that the sources print, right
ones and wrong: docs/papers.md says which is which, and `sweeper check` measures them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar, Literal

from sweeper.errors import ConfigError
from sweeper.scaling.spec import (
    LAYER_GAMMAS,
    SUMMED,
    BaseParameterization,
    ParamScale,
    ParamSpec,
    Role,
    Update,
    base_std,
    decay_factor,
    standard_std,
)
from sweeper.trial import PlainHps

Rule = Literal[
    "matched",
    "inverse_fan_in",
    "inverse_root_fan_in",
    "inverse_root_product",
    "root_ratio",
    "root_ratio_floored",
    "root_max",
]
# For a step D of a matrix, RMS(D x) <= ||D|| RMS(x): a rate of 1 / ||D|| moves the output by O(1).
RULES: Mapping[str, Callable[[int, int], float]] = {
    # Right for aligned sign-like updates (Adam, Lion): sigma_max of a rank-1 matrix of +-1 is
    # sqrt(d_in d_out), so that ||D|| = d_in; all d_in entries add up.
    "inverse_fan_in": lambda d_in, d_out: 1 / d_in,
    # Right without alignment alone, where d_in random signs add up to sqrt(d_in): the lecture
    # gives it without that condition (erratum E15, docs/papers.md).
    "inverse_root_fan_in": lambda d_in, d_out: 1 / sqrt(d_in),
    # The notes' rule: off by sqrt(d_in / d_out), right for square matrices alone (erratum E12).
    "inverse_root_product": lambda d_in, d_out: 1 / sqrt(d_in * d_out),
    # Right where sigma_max is 1: the norm of orthogonalised (Muon) updates is sqrt(d_in / d_out).
    # A Frobenius-normalised gradient of one example has rank 1 and the same sigma_max.
    "root_ratio": lambda d_in, d_out: sqrt(d_out / d_in),
    # Muon as published. The floor leaves narrowing layers (d_out < d_in) at 1: they move too much.
    "root_ratio_floored": lambda d_in, d_out: sqrt(max(1.0, d_out / d_in)),
    # Brings Muon's updates, of RMS max(d_in, d_out)^-1/2, to 0.2, about that of Adam's: it is made
    # for Adam's learning rates, and alone lets the move grow with the width.
    "root_max": lambda d_in, d_out: 0.2 * sqrt(max(d_in, d_out)),
}
"""Learning-rate factors of a matrix [d_out, d_in] by the name of the rule."""
HIDDEN_ONLY = ("root_ratio", "root_ratio_floored", "root_max")
"""Rules of Muon, which has another optimizer train all that is not a hidden matrix."""


def matched(spec: ParamSpec, update: Update) -> float:
    """The rule that moves the layer's output by eta in RMS under updates of this kind.

    An update that follows the weight (Adafactor, AdamH) is sign-like times the weight's d_in^-1/2.
    MuonH's has the weight's Frobenius norm, d_out^1/2, in singular values that are alike:
    sigma_max is (d_out / min(d_in, d_out))^1/2 in place of Muon's 1.
    """
    match update:
        case Update.SIGN:
            return RULES["inverse_fan_in"](spec.fan_in, spec.fan_out)
        case Update.PARAMETER | Update.HYPERBALL:
            return RULES["inverse_root_fan_in"](spec.fan_in, spec.fan_out)
        case Update.ORTHOGONAL | Update.NORMALIZED:
            return RULES["root_ratio"](spec.fan_in, spec.outputs)
        case Update.ORTHOGONAL_HYPERBALL:
            return min(1.0, RULES["root_ratio"](spec.fan_in, spec.outputs))
    allowed = f"one of {', '.join(RULES)}: no rule bounds the step of a raw gradient"
    raise ConfigError("rule", "matched", allowed)


@dataclass(frozen=True, kw_only=True)
class Spectral(BaseParameterization):
    """Absolute rules by shape; eta is the RMS by which a layer's output moves in a step.

    `rule` names one of `RULES`, or `matched`: the right one for the optimizer's updates. What is
    looked up or applied element by element moves by the step's entries: its factor is 1.
    Initialization is the standard one. A rule fits one kind of update: Adam's exponents never go
    on top of Muon's, and a rule of `HIDDEN_ONLY` leaves projections and readouts to `matched`.
    """

    rule: Rule = "matched"

    hyperparameters: ClassVar[tuple[str, ...]] = ("eta", *LAYER_GAMMAS)

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        """Eta * rule(d_in, d_out), before gammas."""
        depth_lr, _ = self.depth_factors(spec, update)
        lr = self.lr_factor(spec, update) * depth_lr
        decay = decay_factor(self.decay, hps["eta"], lr, lr)
        return ParamScale(init_std=standard_std(spec, spec.fan_in), lr=lr, weight_decay=decay)

    @property
    def decay_has_gamma(self) -> bool:
        """Under these absolute rules a decay that is `scaled` follows eta alone."""
        return self.decay == "coupled"

    def lr_factor(self, spec: ParamSpec, update: Update) -> float:
        """The rule's factor for a matrix; 1 where nothing is summed."""
        if not (spec.projection or spec.role in SUMMED):
            return 1.0
        not_muon = self.rule in HIDDEN_ONLY and spec.role is not Role.HIDDEN
        if self.rule == "matched" or not_muon:
            return matched(spec, update)
        return RULES[self.rule](spec.fan_in, spec.outputs if update.orthogonal else spec.fan_out)


@dataclass(frozen=True, kw_only=True)
class SpectralMup(Spectral):
    """`Spectral`, with a readout that starts at the base's std over m = width / base width.

    A rule of rates bounds how far the last activations move, by eta in RMS. They move along the
    readout's own rows, since the gradient comes through them: the logits then move by
    `fan_in * std * eta`. With the standard std, fan_in^-1/2, that grows as the root of the width,
    and the best eta falls (docs/parameterizations.md). With std ~ 1 / fan_in it stays: a + b = 1,
    as in muP (Everett et al., arXiv:2407.05872, Table 1). A readout tied to an embedding has that
    already: its rows of order 1 are over fan_in. At the base all is as in `Spectral`.
    """

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        """Spectral's; the readout's std is that of the base, times 1 / m."""
        scale = super().scale(spec, hps, update)
        if spec.role is not Role.READOUT:
            return scale
        std = base_std(spec) / spec.width_ratio
        # Steps that go as the weight would fall with it.
        lr = scale.lr * scale.init_std / std if update.relative else scale.lr
        return replace(scale, init_std=std, lr=lr)
