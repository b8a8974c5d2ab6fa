"""The standard parameterization: what models are trained with when nobody thinks of width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sweeper.scaling.plain import plain_site, standard_std
from sweeper.scaling.spec import ParamScale, ParamSpec, Site, Update, Values


@dataclass(frozen=True, kw_only=True)
class Standard:
    """One global learning rate and fan-in initialization; nothing depends on a base model.

    This is the baseline whose optimum moves as the width grows (u-muP paper, Figure 1 left).
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("eta",)
    unit_scaled: ClassVar[bool] = False

    def scale(self, spec: ParamSpec, hps: Values, update: Update = Update.SIGN) -> ParamScale:
        """Init std fan-in^-1/2 (1 for embeddings); every learning rate is eta."""
        return ParamScale(init_std=standard_std(spec.role, spec.fan_in))

    def site(self, site: Site, hps: Values) -> dict[str, float]:
        """Attention logits over sqrt(d_head), everything else as it is."""
        return plain_site(site)
