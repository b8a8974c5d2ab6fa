"""Early stopping: which trials of a pack need not train to their end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["none", "median", "halving"]


@dataclass(frozen=True, kw_only=True)
class Pruner:
    """Decides at rungs, by what is known of other trials of the same setup."""

    kind: Kind

    @property
    def rungs(self) -> tuple[int, ...]:
        """Steps at which `cut` is asked, rising."""
        return ()

    def cut(self, step: int, losses: Mapping[str, float]) -> set[str]:
        """Keys of the trials to stop, of those in `losses` (key: smoothed loss at `step`)."""
        return set()
