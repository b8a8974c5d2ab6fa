"""The standard parameterization: what models are trained with when nobody thinks of width."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from sweeper.scaling.spec import ParamScale, ParamSpec, Role, Site, Values


def standard_std(role: Role, fan_in: int) -> float:
    """Standard deviation of the usual initialization: 1 for lookups and vectors, else fan-in^-1/2.

    These are the standard rows (a, b) = (0, 0), (0, 1/2), (0, 1/2) of Everett et al., Table 1.
    """
    return 1.0 / sqrt(fan_in) if role in (Role.HIDDEN, Role.READOUT) else 1.0


def plain_site(site: Site, attention: float = 1.0, loss: float = 1.0) -> dict[str, float]:
    """Factors of an unscaled Llama: `attention` multiplies the logits, `loss` the final ones."""
    match site.kind:
        case "attention":
            return {"logit": attention / sqrt(site.geometry["head_size"])}
        case "gated_silu":
            return {"alpha": 1.0}
        case "residual":
            return {"branch": 1.0, "skip": 1.0}
        case "loss":
            return {"logit": loss}
    raise ValueError(f"unknown operation {site.kind!r} at {site.name}")


@dataclass(frozen=True, kw_only=True)
class Standard:
    """One global learning rate and fan-in initialization; nothing depends on a base model.

    This is the baseline whose optimum moves as the width grows (u-muP paper, Figure 1 left).
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("eta",)
    unit_scaled: ClassVar[bool] = False

    def scale(self, spec: ParamSpec, hps: Values) -> ParamScale:
        """Init std fan-in^-1/2 (1 for embeddings); every learning rate is eta."""
        return ParamScale(init_std=standard_std(spec.role, spec.fan_in))

    def site(self, site: Site, hps: Values) -> dict[str, float]:
        """Attention logits over sqrt(d_head), everything else as it is."""
        return plain_site(site)
