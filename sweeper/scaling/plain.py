"""What schemes without unit scaling share: the usual initialization and unscaled operations."""

from __future__ import annotations

from math import sqrt

from sweeper.scaling.spec import Role, Site


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
