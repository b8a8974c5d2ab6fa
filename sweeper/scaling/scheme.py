"""What all schemes but u-muP share: depth rules, weight decay, epsilon, plain operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sweeper.scaling.depth import DepthRule, branch_exponent, branch_factor, check_alpha, depth_lr
from sweeper.scaling.plain import plain_op
from sweeper.scaling.spec import ParamSpec, Role, ScaledOp, Update
from sweeper.trial import PlainHps

Decay = Literal["independent", "coupled", "scaled"]
Epsilon = Literal["fixed", "scaled"]

GAMMAS = ("gamma_embedding", "gamma_hidden", "gamma_readout")
"""Constants of the layer types (Everett et al., section 4.2), tuned at the base and kept."""


def gamma(spec: ParamSpec, hps: PlainHps) -> float:
    """The constant of the parameter's layer type; a vector is an embedding, what is fixed has 1."""
    role = Role.EMBEDDING if spec.role is Role.VECTOR else spec.role
    return 1.0 if role is Role.FIXED else hps[f"gamma_{role}"]


def decay_factor(rule: Decay, eta: float, lr: float, width: float) -> float:
    """Factor on the optimizer's decay, which is the share of a weight that a step removes.

    independent: 1, whatever the learning rate. coupled: the parameter's own learning rate, as
    torch's AdamW has it. scaled: coupled, with the rate's factor of width, `width`, divided
    out (microsoft/mup; CompleteP's decay times m for hidden weights).
    """
    if rule == "independent":
        return 1.0
    return eta * lr if rule == "coupled" else eta * lr / width


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Rules beside those of width, each a field of its own; every scheme composes with them."""

    depth: DepthRule = "none"
    completep_alpha: float = 1.0
    decay: Decay = "independent"

    unit_scaled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse an alpha of no known rule."""
        check_alpha(self.completep_alpha)

    def depth_factors(self, spec: ParamSpec, update: Update) -> tuple[float, float]:
        """Of a parameter on a residual branch: its learning rate's and its gradient's."""
        alpha = branch_exponent(self.depth, self.completep_alpha) if spec.residual else None
        layers = spec.depth / spec.base_depth
        return depth_lr(layers, alpha, update), branch_factor(layers, alpha)

    def logit(self, head_size: int, hps: PlainHps) -> float | None:
        """Factor of q k^T; None for d_head^-1/2."""
        return None

    def scale_op(self, op: ScaledOp, hps: PlainHps) -> dict[str, float]:
        """Attention's scale, and the depth rule's on residual branches."""
        logit, branch = None, 1.0
        if op.kind == "attention":
            logit = self.logit(op.geometry["head_size"], hps)
        if op.kind == "residual":
            layers = op.geometry["branches"] / op.geometry["base_branches"]
            branch = branch_factor(layers, branch_exponent(self.depth, self.completep_alpha))
        return plain_op(op, logit=logit, branch=branch)
