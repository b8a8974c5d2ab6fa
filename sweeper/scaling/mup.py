"""muP with base shapes, and depth-muP (u-muP paper, Table 1, first half; Tensor Programs V, VI)."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from sweeper.scaling.plain import plain_site, standard_std
from sweeper.scaling.spec import ParamScale, ParamSpec, Role, Site, Update, Values


@dataclass(frozen=True, kw_only=True)
class MuP:
    """Maximal update parameterization relative to a base model.

    With m = fan-in / base-fan-in: hidden init std and learning rate shrink as m^-1/2 and 1/m;
    the readout keeps its base init and is multiplied by 1/m; residual branches and their
    learning rates by sqrt(base depth / depth). Attention logits are over d_head.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = (
        "eta",
        "eta_emb",
        "sigma_init",
        "alpha_emb",
        "alpha_attn",
        "alpha_output",
    )
    unit_scaled: ClassVar[bool] = False

    def scale(self, spec: ParamSpec, hps: Values, update: Update = Update.SIGN) -> ParamScale:
        """Table 1 of the u-muP paper, row muP, where the base model has the standard init."""
        std = hps["sigma_init"] * standard_std(spec.role, spec.base_fan_in)
        depth = sqrt(spec.base_depth / spec.depth) if spec.residual else 1.0
        shrink = spec.base_fan_in / spec.fan_in
        match spec.role:
            case Role.EMBEDDING:
                return ParamScale(init_std=std, multiplier=hps["alpha_emb"], lr=hps["eta_emb"])
            case Role.HIDDEN:
                return ParamScale(init_std=std * sqrt(shrink), lr=shrink * depth)
            case Role.READOUT:
                return ParamScale(init_std=std, multiplier=hps["alpha_output"] * shrink)
        return ParamScale(init_std=std, lr=depth)

    def site(self, site: Site, hps: Values) -> dict[str, float]:
        """alpha_attn / d_head on attention logits; depth-muP on residual branches."""
        if site.kind == "attention":
            return {"logit": hps["alpha_attn"] / site.geometry["head_size"]}
        if site.kind == "residual":
            geometry = site.geometry
            return {
                "branch": sqrt(geometry["base_branches"] / geometry["branches"]),
                "skip": 1.0,
            }
        return plain_site(site)
