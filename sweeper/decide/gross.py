"""A loss at a larger size that no noise explains, and no movement within the threshold.

Where a table has too few rates or seeds for a noise, an interval of a curve is infinite and says
nothing, also of a rate that the base trains best with and the next size comes apart at. A valley
needs no noise for that. A larger size whose optimum has moved by at most `max_shift` loses at a
rate no more than the base does `max_shift` further out: what it loses beyond that by a `GROSS`
share of the loss at the base's best rate or before it, in all runs from there on, is a failure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sweeper.stats.ladder import LadderRule, SizeCurve
from sweeper.stats.shapes import SAME_ETA

GROSS = 0.06
"""A share of the loss, beyond any noise of two runs. Chosen on ladders of all kinds of
`scripts/bench/verdict.py` with steps of 2, tried on those with steps of 0.5 and 1."""
APART = 0.3
"""A share beyond which a run came apart. Chosen on ladders with finite cliffs of 1 to 8 nats and
steps of 2; language models that came apart lost 0.7 to 1.5 of their loss."""
ROUGH = 2.0
"""How much more is lost for a curve that is no valley, times how far it is none. Chosen on valleys
of one seed with a noise of 5 % of the loss, of which a tenth failed; tested on those with 2 %."""


@dataclass(frozen=True, kw_only=True)
class GrossLoss:
    """A size loses a `share` of its least loss or more at the rate `log2`; +inf: it diverges."""

    log2: float
    share: float


def gross_loss(curve: SizeCurve, base: SizeCurve, rule: LadderRule) -> GrossLoss | None:
    """What a size grossly loses beyond what the base's own curve explains; None where nothing."""
    planned = curve.planned_log2 - base.planned_log2
    for side in (1.0, -1.0):
        ours = {side * eta: runs for eta, runs in curve.losses.items()}
        theirs = {side * (eta + planned): runs for eta, runs in base.losses.items()}
        if (place_and_share := _above_best(ours, theirs, rule.max_shift)) is not None:
            return GrossLoss(log2=side * place_and_share[0], share=place_and_share[1])
    return None


Losses = Mapping[float, tuple[float, ...]]


def _above_best(ours: Losses, theirs: Losses, shift: float) -> tuple[float, float] | None:
    """The lowest rate from the size's best to the base's that tells, and the share; else None."""
    (best, least), (base_best, base_least) = _best(ours), _best(theirs)
    if not (least > 0 and base_least > 0 and math.isfinite(least + base_least)):
        return None
    # A noise of one seed is seen where a curve is no valley.
    rough = ROUGH * max(_roughness(ours), _roughness(theirs))
    # Beyond the base's best a size may well have a cliff: nothing is trained there.
    for eta in sorted(eta for eta in ours if best < eta <= base_best + SAME_ETA):
        # Of all runs from there on: one that is off by itself is no side of a valley.
        lost = min(min(runs) for other, runs in ours.items() if other >= eta) / least - 1
        # Farther than the threshold by a step: that a cliff moved by just as much is no failure.
        beyond = [other for other in theirs if other > eta + shift + SAME_ETA]
        end = min(beyond, default=max(theirs))
        explained = max(theirs[end]) / base_least - 1
        # Where the base came apart there, too, a cliff lies between, nobody knows where. Where its
        # curve ends in its basin a run that came apart tells.
        least_told, most_explained = (explained + GROSS, APART) if beyond else (APART, GROSS)
        if explained < most_explained and lost > least_told + rough:
            return eta, lost
    return None


def _roughness(losses: Losses) -> float:
    """How far a curve falls again on its way up from its best, as a share; 0 of a valley."""
    best, least = _best(losses)
    most = 0.0
    for side in (1.0, -1.0):
        highest = least
        for eta in sorted((e for e in losses if side * (e - best) >= 0), key=lambda e: side * e):
            mean = sum(losses[eta]) / len(losses[eta])
            # Where runs come apart a curve is no valley, whatever the noise.
            if mean > least * (1 + APART):
                break
            highest = max(highest, mean)
            most = max(most, highest - mean)
    return most / least


def _best(losses: Losses) -> tuple[float, float]:
    means = {eta: sum(runs) / len(runs) for eta, runs in losses.items()}
    best = min(means, key=means.__getitem__, default=math.nan)
    return best, means.get(best, math.nan)
