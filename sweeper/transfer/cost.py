"""What trials have cost: their number, FLOPs and hours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweeper.trial import Result, TrialSpec


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Trials, their floating-point operations, and the hours they took on their devices."""

    trials: int
    flops: float
    hours: float


def cost_of(results: Sequence[Result], flops: Callable[[TrialSpec], float]) -> Cost:
    """The sum over `results`; a run that ended early counts for the share of steps it did.

    `flops` are those of a whole run. A run that kept no steps counts as whole.
    """
    spent = [
        flops(one.trial.spec) * min(1.0, (one.steps or math.inf) / one.trial.spec.train.steps)
        for one in results
    ]
    seconds = math.fsum(one.seconds for one in results)
    return Cost(trials=len(results), flops=math.fsum(spent), hours=seconds / 3600)
