"""What schemes without unit scaling share: the usual initialization and unscaled operations."""

from __future__ import annotations

from math import sqrt

from sweeper.scaling.spec import ParamSpec, Role, ScaledOp


def standard_std(spec: ParamSpec, fan_in: int) -> float:
    """Standard deviation of the usual initialization: fan-in^-1/2, and 1 where nothing is summed.

    These are the standard rows (a, b) = (0, 0), (0, 1/2), (0, 1/2) of Everett et al., Table 1.
    """
    summed = spec.projection or spec.role in (Role.HIDDEN, Role.READOUT)
    return 1.0 / sqrt(fan_in) if summed else 1.0


def plain_op(
    op: ScaledOp, *, logit: float | None = None, branch: float = 1.0, loss: float = 1.0
) -> dict[str, float]:
    """Factors of an unscaled model.

    `logit` multiplies q k^T (None: d_head^-1/2), `branch` a residual branch, `loss` the model's
    last logits.
    """
    match op.kind:
        case "attention":
            return {"logit": 1 / sqrt(op.geometry["head_size"]) if logit is None else logit}
        case "gated_silu":
            return {"alpha": 1.0}
        case "residual":
            return {"branch": branch, "skip": 1.0}
        case "loss":
            return {"logit": loss}
    raise ValueError(f"unknown operation {op.kind!r} at {op.name}")
