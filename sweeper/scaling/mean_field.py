"""The mean-field parameterization: muP written with multipliers in place of init."""

from __future__ import annotations

from dataclasses import dataclass

from sweeper.scaling.abc import MEAN_FIELD, Gauge
from sweeper.scaling.relative import Relative
from sweeper.trial import PlainHps


@dataclass(frozen=True, kw_only=True)
class MeanField(Relative):
    """Everett et al., Table 1, last row: trains exactly as `mup` with the same alignment."""

    def gauge(self) -> Gauge:
        """(0, 0), (1/2, 0), (1, 0)."""
        return MEAN_FIELD

    def logit(self, head_size: int, hps: PlainHps) -> float:
        """1 / d_head, as in muP."""
        return 1 / head_size
