"""What is asked of a table of runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sweeper.errors import ConfigError, Keyword
from sweeper.runs.grid import GridOptions


@dataclass(frozen=True, kw_only=True)
class TableQuestion:
    """What is asked of a table: how to read it, the target, the value to judge, the thresholds.

    `eta` is the transferred learning rate, None: the base's optimum. `grid_step` is the grid's, in
    octaves, of a table of optima alone. `theory`: whether the runs are of a parameterization whose
    optima converge, None: by the column of that name.
    """

    reading: GridOptions = field(default_factory=GridOptions)
    to: int | None = None
    eta: float | None = None
    grid_step: float | None = None
    max_shift: float = 1.0
    max_loss_gap: float = 0.01
    theory: bool | None = None

    def __post_init__(self) -> None:
        """ConfigError for a number that is none."""
        for name, keyword in POSITIVE.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(Keyword(keyword), value, "a positive number")
        if self.eta is not None and not (math.isfinite(self.eta) and self.eta > LEAST_LOG2):
            raise ConfigError(
                Keyword("eta"), self.eta, "a learning rate, or its log2 where it is negative"
            )


LEAST_LOG2 = -1000.0
"""A learning rate below it is 0 in numbers."""
POSITIVE = {
    "to": "to_width",
    "grid_step": "grid_step",
    "max_shift": "max_shift",
    "max_loss_gap": "max_loss_gap",
}
"""Fields that are numbers above 0, and the keywords that give them."""
