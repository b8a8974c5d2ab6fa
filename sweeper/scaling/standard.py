"""The standard parameterization: what models are trained with when nobody thinks of width."""

from __future__ import annotations

from dataclasses import dataclass

from sweeper.scaling.abc import STANDARD, Alignment, Gauge
from sweeper.scaling.relative import Relative


@dataclass(frozen=True, kw_only=True)
class Standard(Relative):
    """Fan-in initialization; Everett et al., Table 1, first row.

    Without an `alignment` there is one learning rate and one epsilon for all widths: the
    baseline whose optimum moves as the width grows (u-muP paper, Figure 1 left). With `full`
    or `none` every layer's learning rate follows the width (`full`, with Adam, is the
    recommendation of Everett et al.).
    """

    alignment: Alignment | None = None

    def gauge(self) -> Gauge:
        """(0, 0), (0, 1/2), (0, 1/2)."""
        return STANDARD
