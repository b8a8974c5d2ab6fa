"""muP with base shapes, and depth-muP (u-muP paper, Table 1, first half; Tensor Programs V, VI)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sweeper.scaling.abc import EMBEDDING, HIDDEN, MUP, READOUT, Gauge
from sweeper.scaling.depth import DepthRule
from sweeper.scaling.plain import standard_std
from sweeper.scaling.relative import Relative
from sweeper.scaling.spec import ParamScale, ParamSpec, Role
from sweeper.trial import PlainHps

TENSOR_PROGRAMS: Gauge = {EMBEDDING: (0, 0), HIDDEN: (0, 0.5), READOUT: (1, 0)}
"""Tensor Programs V, Table 8, and microsoft/mup: `MUP` with its embedding and readout shifted."""


@dataclass(frozen=True, kw_only=True)
class MuP(Relative):
    """Maximal update parameterization relative to a base model.

    With m = fan-in / base-fan-in and Adam: hidden init std and learning rate shrink as m^-1/2
    and 1/m; the readout keeps its base init and is multiplied by 1/m. `convention` writes the
    same training as Everett et al. print it (erratum E1): embeddings multiplied by m^1/2,
    readout by m^-1/2. Attention logits are over d_head.
    """

    depth: DepthRule = "depth_mup"
    convention: Literal["tensor_programs", "everett"] = "tensor_programs"

    hyperparameters: ClassVar[tuple[str, ...]] = (
        "eta",
        "eta_emb",
        "sigma_init",
        "alpha_emb",
        "alpha_attn",
        "alpha_output",
    )

    def gauge(self) -> Gauge:
        """The readout's 1/m as a multiplier, or half of it in its initialization."""
        return MUP if self.convention == "everett" else TENSOR_PROGRAMS

    def at_base(self, spec: ParamSpec, hps: PlainHps) -> ParamScale:
        """Table 1 of the u-muP paper, row muP, where the base model has the standard init."""
        std = hps["sigma_init"] * standard_std(spec, spec.base_fan_in)
        match spec.role:
            case Role.EMBEDDING:
                return ParamScale(init_std=std, multiplier=hps["alpha_emb"], lr=hps["eta_emb"])
            case Role.READOUT:
                return ParamScale(init_std=std, multiplier=hps["alpha_output"])
        return ParamScale(init_std=std)

    def logit(self, head_size: int, hps: PlainHps) -> float:
        """alpha_attn / d_head."""
        return hps["alpha_attn"] / head_size
