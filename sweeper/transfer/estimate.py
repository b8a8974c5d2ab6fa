"""A number and how sure it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value with a 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, draws: NDArray[np.float64]) -> Estimate:
        """`value` with the 2.5 and 97.5 percentiles of its bootstrap draws."""
        # The nearest draw, not between two: one of them may be infinite.
        low, high = np.percentile(draws, [2.5, 97.5], method="nearest")
        return cls(value=value, low=min(float(low), value), high=max(float(high), value))

    def unsure(self, least: float = -math.inf) -> Estimate:
        """The value alone, where its noise is unknown: anything from `least` on may be true."""
        return Estimate(value=self.value, low=least, high=math.inf)
