"""u-muP: unit-scaled maximal update parameterization (Blake et al., arXiv:2407.17465)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, log, sqrt
from typing import ClassVar, Literal

from sweeper.errors import ConfigError
from sweeper.records import WRITTEN_IF_SET
from sweeper.scaling.spec import ParamScale, ParamSpec, Role, ScaledOp, Update
from sweeper.trial import PlainHps


def log_interpolate(a: float, upper: float, lower: float) -> float:
    """`upper^a * lower^(1-a)` (Appendix B)."""
    return exp(a * log(upper) + (1 - a) * log(lower))


def attention_scale(seq_len: int, head_size: int, alpha: float, *, causal: bool = True) -> float:
    """Factor that brings attention's output back to unit scale (Table 4).

    The logits are `alpha / head_size * q k^T`. An empirical model interpolates the output's
    scale between 1, where attention picks one position, and that of a mean over all positions.
    """
    if seq_len == 1:
        return 1.0  # it attends to itself alone; log(1) = 0 would make the mean's scale 0
    # A mean over s positions has scale s^-1/2. Under a causal mask position i averages i of them,
    # and the mean of 1/i over all positions is about log(s)/s.
    lower = sqrt((log(seq_len) if causal else 1.0) / seq_len)
    return 1.0 / log_interpolate(1 / (1 + 4 * head_size / alpha**2), 1.0, lower)


def gated_silu_scale(alpha: float) -> float:
    """Factor for `x_in * x_gate * sigmoid(alpha * x_gate)` (Table 4)."""
    # As alpha goes to 0 the sigmoid is 1/2 and so is the scale; as it grows the sigmoid becomes a
    # step, which lets half of the products through: 1/sqrt(2).
    return 1.0 / log_interpolate(1 / (1 + 1 / alpha**2), 1 / sqrt(2), 0.5)


def residual_tau(
    branch: int,
    branches: int,
    residual: float,
    ratio: float,
    attentions: int = 1,
    *,
    of_all: bool = False,
) -> float:
    """tau: variance of `branch` (1 .. `branches`) over that of its skip.

    A layer has so many `attentions`, one in the paper, then an FFN. More of them share the variance
    that one has.

    Eqs. 19-24 with errata E4 and E5 (docs/papers.md): the alphas are squared, 1/sqrt(L) belongs
    inside, and alpha_residual^2 is the average of attention's and FFN's variance over the
    embedding's; `of_all` branches' together, as D.1 prints it, with its L for our L / 2.
    """
    # Variances of all FFN and of all attention branches together, the embedding's being 1.
    ffn = residual**2 * (1 if of_all else 2) / (ratio**2 + 1)
    attention = ratio**2 * ffn
    layers = branches / (attentions + 1)
    layers_before, place = divmod(branch - 1, attentions + 1)
    # A layer has 1 / layers of its kinds' variances. The skip holds the embedding and all
    # branches before this one, whose variances add up. Both are written times the layers.
    if place < attentions:
        share = attention / attentions
        return share / (layers + layers_before * (attention + ffn) + place * share)
    return ffn / (layers + (layers_before + 1) * attention + layers_before * ffn)


@dataclass(frozen=True, kw_only=True)
class UMuP:
    """Unit variance of every activation, weight and gradient at initialization, and muP in width.

    Absolute rules: no base model enters. `scaled_embedding_lr` switches the paper's rule for
    the embedding's learning rate (A.3) off, to show what it does. `readout_backward` is the
    fan under the root in the readout's backward multiplier: the paper prints the other one (erratum
    E9). `residual_share` is what alpha_residual squared is of the branches' variances (E5): total,
    as printed, is root 2 of the average. `groups` are as in `BaseParameterization`.
    """

    scaled_embedding_lr: bool = True
    readout_backward: Literal["fan_out", "fan_in"] = field(
        default="fan_out", metadata=WRITTEN_IF_SET
    )
    residual_share: Literal["average", "total"] = field(default="average", metadata=WRITTEN_IF_SET)
    groups: Mapping[str, str] = field(default_factory=dict, metadata=WRITTEN_IF_SET)

    hyperparameters: ClassVar[tuple[str, ...]] = (
        "eta",
        "alpha_attn",
        "alpha_ffn_act",
        "alpha_residual",
        "alpha_residual_attn_ratio",
        "alpha_loss_softmax",
    )
    unit_scaled: ClassVar[bool] = True

    @property
    def intended(self) -> dict[Role, float]:
        """Exponents of width by which the change of a role's output shrinks on purpose."""
        return {Role.EMBEDDING: -0.5} if self.scaled_embedding_lr else {}

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        """Table 1, row u-muP; the readout's backward multiplier is fan-out^-1/2 (erratum E9).

        The rules are Adam's. They hold for Adafactor and AdamH as well: their updates are Adam's
        times the RMS of the weights, which is 1.
        """
        if update is not Update.SIGN and (not update.relative or update.orthogonal):
            allowed = (
                f"its learning rates are Adam's, and the optimizer's updates are {update}-like: "
                "take optimizer=adamw, lion, adafactor or adamh, or another parameterization"
            )
            raise ConfigError("_target_", f"{__name__}.{type(self).__name__}", allowed)
        # depth-muP divides a branch and its learning rate by the root of the depth. Here tau, which
        # goes as 1 / depth, does the first.
        depth = 1 / sqrt(spec.depth) if spec.residual else 1.0
        match spec.role:
            case Role.EMBEDDING:
                # muP's rule is 1; the paper measured that this one transfers better (A.3).
                lr = 1 / sqrt(spec.fan_out) if self.scaled_embedding_lr else 1.0
                return ParamScale(init_std=1.0, lr=lr)
            case Role.HIDDEN | Role.DOWN | Role.UP | Role.FIXED:
                summed = spec.role is not Role.FIXED or (spec.projection and spec.init == "normal")
                root = 1 / sqrt(spec.fan_in) if summed else 1.0
                return ParamScale(init_std=1.0, multiplier=root, lr=root * depth)
            case Role.READOUT:
                # muP wants 1/fan-in forward. Backward it would leave every gradient of the model
                # too small; a scale of the whole backward pass is one that Adam does not see.
                fan = spec.fan_in if self.readout_backward == "fan_in" else spec.fan_out
                return ParamScale(
                    init_std=1.0, multiplier=1 / spec.fan_in, backward_multiplier=1 / sqrt(fan)
                )
        return ParamScale(init_std=1.0, lr=depth)

    def scale_op(self, op: ScaledOp, hps: PlainHps) -> dict[str, float]:
        """Table 4 and Appendix D.1.2."""
        geometry = op.geometry
        match op.kind:
            case "attention":
                alpha, head_size = hps["alpha_attn"], geometry["head_size"]
                scale = attention_scale(
                    geometry["seq_len"], head_size, alpha, causal=geometry["causal"]
                )
                return {"logit": alpha / head_size, "output": scale}
            case "gated_silu":
                alpha = hps["alpha_ffn_act"]
                return {"alpha": alpha, "output": gated_silu_scale(alpha)}
            case "residual":
                tau = residual_tau(
                    geometry["branch"],
                    geometry["branches"],
                    hps["alpha_residual"],
                    hps["alpha_residual_attn_ratio"],
                    geometry.get("attentions", 1),
                    of_all=self.residual_share == "total",
                )
                # R_l = a f(R_l-1) + b R_l-1 with a^2 + b^2 = 1: the stream stays at unit variance,
                # of which the branch has tau for every 1 of the skip (Appendix D.1.2).
                return {"branch": sqrt(tau / (1 + tau)), "skip": 1 / sqrt(1 + tau)}
            case "loss":
                return {"logit": hps["alpha_loss_softmax"]}
            case "tied_readout":
                # The readout's multiplier; the rows themselves are N(0, 1) for both of their uses.
                return {"output": 1 / (geometry["fan_in"] * geometry["built_in"])}
        raise ValueError(f"unknown operation {op.kind!r} at {op.name}")
