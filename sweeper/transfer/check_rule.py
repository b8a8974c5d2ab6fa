"""What a check trains, and what its coordinate check accepts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sweeper.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class CheckRule:
    """The runs of `sweeper check`, and the threshold of its coordinate check.

    - `seeds` runs are trained at every size, from seed `seed` on. Each takes `steps` steps on one
      batch of `batch` sequences, at the fraction `share` of eta: real runs begin with a warm-up
      too, and at all of eta the first steps are noise.
    - `eta` (log2) replaces the study's, or the space's default.
    - A slope passes when its interval lies within `threshold` of theory's. Theory's slopes are
      multiples of 1/2, and the default is half of that.
    - The scale report (`--scales`) is one run of `scale_steps` steps with seed `seed`, at all of
      eta.
    """

    steps: int = 4
    seeds: int = 8
    seed: int = 0
    batch: int = 4
    share: float = 0.25
    eta: float | None = None
    threshold: float = 0.25
    scale_steps: int = 50

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        for key in ("steps", "seeds", "batch", "scale_steps"):
            if getattr(self, key) < 1:
                raise ConfigError(key, getattr(self, key), "at least 1")
        if self.seed < 0:
            raise ConfigError("seed", self.seed, "0 or more")
        if not 0 < self.share <= 1:
            raise ConfigError("share", self.share, "above 0, at most 1")
        if not 0 < self.threshold < math.inf:
            raise ConfigError("threshold", self.threshold, "a positive number")
        if self.eta is not None and not abs(self.eta) <= 60:
            raise ConfigError("eta", self.eta, "a base-2 logarithm between -60 and 60, or null")
