"""What all schemes but u-muP share: rules for depth, weight decay, epsilon and plain operations."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, Literal

from sweeper.errors import ConfigError
from sweeper.scaling.spec import ParamSpec, Role, ScaledOp, Update
from sweeper.trial import PlainHps

DepthRule = Literal["none", "depth_mup", "completep"]
"""No rule; branches over the root of the depth; CompleteP with a chosen alpha."""
Decay = Literal["independent", "coupled", "scaled"]
Epsilon = Literal["fixed", "scaled"]

GAMMAS = ("gamma_embedding", "gamma_hidden", "gamma_readout")
"""Constants of the layer types (Everett et al., section 4.2), tuned at the base and kept."""


def standard_std(spec: ParamSpec, fan_in: int) -> float:
    """Standard deviation of the usual initialization: fan-in^-1/2, and 1 where nothing is summed.

    These are the standard rows (a, b) = (0, 0), (0, 1/2), (0, 1/2) of Everett et al., Table 1.
    """
    summed = spec.projection or spec.role in (Role.HIDDEN, Role.READOUT)
    return 1.0 / sqrt(fan_in) if summed else 1.0


def base_std(spec: ParamSpec) -> float:
    """The standard one at the base; of rows that are also a head's, half of a head's.

    So are those that are added to them (positions). Logits of a full fan-in^-1/2 would raise the
    first loss by half a nat: beside ln V that is much for a small vocabulary.
    """
    if spec.head_init_fan_in:
        return 0.5 / sqrt(spec.head_init_fan_in)
    return standard_std(spec, spec.base_fan_in)


def gamma(spec: ParamSpec, hps: PlainHps) -> float:
    """The constant of the parameter's layer type; a vector is an embedding, what is fixed has 1."""
    role = Role.EMBEDDING if spec.role is Role.VECTOR else spec.role
    return 1.0 if role is Role.FIXED else hps[f"gamma_{role}"]


def decay_factor(rule: Decay, eta: float, lr: float, width: float) -> float:
    """Factor on the optimizer's decay, which is the share of a weight that a step removes.

    independent: 1, whatever the learning rate. coupled: the parameter's learning rate, as
    torch's AdamW has it. scaled: coupled, with the learning rate's factor of width, `width`,
    divided out (microsoft/mup; CompleteP's decay times m for hidden weights).
    """
    if rule == "independent":
        return 1.0
    return eta * lr if rule == "coupled" else eta * lr / width


def branch_multiplier(depth_ratio: float, alpha: float | None) -> float:
    """Multiplier of a residual branch, `depth_ratio` = depth / base depth."""
    return 1.0 if alpha is None else float(depth_ratio**-alpha)


def branch_lr(depth_ratio: float, alpha: float | None, update: Update) -> float:
    """Learning rate of weights and gains on a branch: all branches together move by O(1).

    `depth_ratio` branches, each times depth_ratio^-alpha, need updates of depth_ratio^(alpha-1).
    A gradient (SGD) brings a factor depth_ratio^-alpha itself, so that its learning rate goes as
    depth_ratio^(2 alpha - 1).
    """
    if alpha is None:
        return 1.0
    return float(depth_ratio ** (2 * alpha - 1 if update is Update.GRADIENT else alpha - 1))


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Rules beside those of width, each a field; every scheme composes with them."""

    depth: DepthRule = "none"
    completep_alpha: float = 1.0
    decay: Decay = "independent"

    unit_scaled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse an alpha outside [1/2, 1]: below it branches add up to more than the stream."""
        if not 0.5 <= self.completep_alpha <= 1:
            allowed = "from 0.5 (depth-muP) to 1"
            raise ConfigError("completep_alpha", self.completep_alpha, allowed)

    @property
    def branch_exponent(self) -> float | None:
        """alpha: a branch is multiplied by (depth / base depth)^-alpha; None for no rule at all.

        depth-muP (Tensor Programs VI) is CompleteP (Dey et al., arXiv:2505.01618) at alpha = 1/2.
        """
        return {"none": None, "depth_mup": 0.5, "completep": self.completep_alpha}[self.depth]

    def depth_factors(self, spec: ParamSpec, update: Update) -> tuple[float, float]:
        """Of a parameter on a residual branch: its learning rate's and its gradient's."""
        alpha, depth_ratio = self.branch_exponent, spec.depth / spec.base_depth
        if not spec.residual:
            return 1.0, 1.0
        return branch_lr(depth_ratio, alpha, update), branch_multiplier(depth_ratio, alpha)

    def logit_scale(self, head_size: int, hps: PlainHps) -> float:
        """Factor of q k^T: d_head^-1/2, under which random q and k have logits of order 1."""
        return 1 / sqrt(head_size)

    def tied_output(self, op: ScaledOp, hps: PlainHps) -> float:
        """Factor on the logits of a head tied to the embedding: 1 / fan-in, less the model's own.

        The rows move by O(1), as an embedding must. A sum over fan-in of them, once aligned, moves
        by as much as the fan-in.
        """
        return float(1 / (op.geometry["fan_in"] * op.geometry["own"]))

    def scale_op(self, op: ScaledOp, hps: PlainHps) -> dict[str, float]:
        """Attention's scale, and the depth rule's on residual branches; else nothing is scaled."""
        match op.kind:
            case "attention":
                return {"logit": self.logit_scale(op.geometry["head_size"], hps)}
            case "gated_silu":
                return {"alpha": 1.0}
            case "residual":
                depth_ratio = op.geometry["branches"] / op.geometry["base_branches"]
                return {"branch": branch_multiplier(depth_ratio, self.branch_exponent), "skip": 1.0}
            case "loss":
                return {"logit": 1.0}
            case "tied_readout":
                return {"output": self.tied_output(op, hps)}
        raise ValueError(f"unknown operation {op.kind!r} at {op.name}")
