"""Whether the transferred value is the optimum of the base's own curve, and what is if not."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sweeper.transfer.curve import CurveFit
from sweeper.transfer.ladder import LadderRule


@dataclass(frozen=True, kw_only=True)
class MissedOptimum:
    """At the base itself, `transferred_log2` loses `loss` nats against `optimum_log2`."""

    along: str
    transferred_log2: float
    optimum_log2: float
    loss: float

    @property
    def sentence(self) -> str:
        """What was measured, in words."""
        lost = f"loses {self.loss:.4f} nats" if math.isfinite(self.loss) else "diverges"
        return (
            f"at the base itself, {self.along}=2^{self.transferred_log2:.4g} {lost} against the "
            f"optimum 2^{self.optimum_log2:.2f}"
        )


def missed_optimum(
    fit: CurveFit | None, transferred: float, rule: LadderRule
) -> MissedOptimum | None:
    """What the base's curve says against `transferred` (log2); None where it is good enough.

    It is missed where the noise does not explain its regret, and that is larger than the loss gap
    with which a size holds. An optimum at the curve's end is none yet.
    """
    if fit is None or fit.at_end or fit.regret.low <= 0:
        return None
    if fit.regret.value <= rule.allowed_gap(fit.loss.value):
        return None
    return MissedOptimum(
        along=rule.along,
        transferred_log2=transferred,
        optimum_log2=fit.optimum.value,
        loss=fit.regret.value,
    )
