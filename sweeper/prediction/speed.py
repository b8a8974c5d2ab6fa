"""How many times less compute one study's runs take than another's for the same loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweeper.prediction.forecast import LossLaw, fit_law, speed_up
from sweeper.prediction.runs import Runs
from sweeper.verdict.compare import Ladder, losses_at
from sweeper.verdict.curve import Estimate

WIDTHS = 3
"""With fewer, a law of the loss over the width has more parameters than it has sizes."""


@dataclass(frozen=True, kw_only=True)
class SpeedUp:
    """Runs of `study` at `width` reach what those `against` reach with `factor` times the compute.

    `predicted`: the width lies beyond both ladders.
    """

    study: str
    against: str
    width: int
    predicted: bool
    factor: Estimate


def speed_ups(ladders: Sequence[Ladder], to_width: int | None = None) -> list[SpeedUp]:
    """Of the first ladder over each other one: at both ends of what they share, and at `to_width`.

    The law is that of the loss over a run's FLOPs, at the transferred eta of each width and the
    steps of the ladder. Ladders of fewer than three widths, or whose runs diverged, have none.
    """
    laws = {ladder.name: _law(ladder) for ladder in ladders}
    leader, found = ladders[0], list[SpeedUp]()
    for other in ladders[1:]:
        mine, theirs = laws[leader.name], laws[other.name]
        shared = sorted(set(leader.flops) & set(other.flops))
        if mine is None or theirs is None or not shared:
            continue
        widths = dict.fromkeys((shared[0], shared[-1]))
        if to_width is not None and to_width > shared[-1]:
            widths[to_width] = None
        for width in widths:
            at, others = (_flops(ladder, width) for ladder in (leader, other))
            factor = speed_up(mine, theirs, (at, 1.0, at), (others, 1.0, others))
            found.append(
                SpeedUp(
                    study=leader.name,
                    against=other.name,
                    width=width,
                    predicted=width > shared[-1],
                    factor=factor,
                )
            )
    return found


def _law(ladder: Ladder) -> LossLaw | None:
    """The loss over FLOPs, a run a seed: FLOPs stand for the size, and the tokens are one."""
    flops, losses = list[float](), list[float]()
    for curve in ladder.curves:
        at = losses_at(curve, ladder.transferred + curve.planned_log2)
        kept = at[np.isfinite(at) & (at > 0)]
        losses += kept.tolist()
        flops += [ladder.flops[curve.size.width]] * len(kept)
    sizes = np.array(flops)
    if len(set(flops)) < WIDTHS:
        return None
    cluster = np.arange(len(flops), dtype=np.int64)
    runs = Runs(sizes, np.ones(len(flops)), np.array(losses), sizes, cluster, [""] * len(flops))
    try:
        return fit_law(runs, draws=400)
    except ValueError:
        return None


def _flops(ladder: Ladder, width: int) -> float:
    """Of a run; at a width without runs by the polynomial that FLOPs are in the width."""
    if width in ladder.flops:
        return ladder.flops[width]
    widths = np.array(sorted(ladder.flops), float)
    known = np.array([ladder.flops[int(w)] for w in widths])
    value = float(np.polyval(np.polyfit(widths, known, min(2, len(widths) - 1)), width))
    return value if value > 0 else math.nan
