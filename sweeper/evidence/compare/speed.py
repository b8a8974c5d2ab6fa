"""How many times less compute one study's runs take than another's for the same loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sweeper.evidence.compare.studies import Ladder, losses_at
from sweeper.evidence.predict.forecast import LossLaw, fit_law, speed_up
from sweeper.evidence.runs.loss_runs import LossRuns
from sweeper.stats.estimate import Estimate

WIDTHS = 3
"""With fewer, a law of the loss over the width has more parameters than it has sizes."""
REACH = 4.0
"""So far beyond the runs that were trained a law is believed: times their compute."""


@dataclass(frozen=True, kw_only=True)
class SpeedUp:
    """Runs of `study` at `width` reach what those `against` reach with `factor` times the compute.

    `predicted`: the width lies beyond both ladders, or so much compute beyond the runs `against`.
    The law of these is believed from `least` to `most` times the compute.
    """

    study: str
    against: str
    width: int
    predicted: bool
    factor: Estimate
    least: float
    most: float

    JSON_SHOWS: ClassVar = ("said",)

    @property
    def said(self) -> str:
        """The factor with its interval; a bound, or nothing, where no run was trained near it."""
        low, value, high = self.factor.low, self.factor.value, self.factor.high
        if math.isnan(value) or (low < self.least and high > self.most):
            return UNKNOWN
        if value > self.most:
            # Beyond it the factor itself is not believed, and only that it is at least so large.
            sure = min(low, self.most)
            return f"at least {sure:.3g}" if sure > 1 else UNKNOWN
        if value < self.least:
            sure = max(high, self.least)
            return f"at most {sure:.3g}" if sure < 1 else UNKNOWN
        start = f"{low:.3g}" if low >= self.least else f"less than {self.least:.3g}"
        end = f"{high:.3g}" if high <= self.most else f"more than {self.most:.3g}"
        return f"{value:.3g} ({start} to {end})"


UNKNOWN = "cannot say"


def speed_ups(ladders: Sequence[Ladder], to_width: int | None = None) -> list[SpeedUp]:
    """Of the first ladder over each other one: at both ends of what they share, and at `to_width`.

    The law is that of the loss over a run's FLOPs, at the transferred eta of each width and the
    steps of the ladder. Ladders of fewer than three widths, or whose runs diverged, have none.
    """
    laws = {ladder.name: _law(ladder) for ladder in ladders}
    leader, factors = ladders[0], list[SpeedUp]()
    for other in ladders[1:]:
        mine, theirs = laws[leader.name], laws[other.name]
        shared = sorted(set(leader.flops) & set(other.flops))
        if mine is None or theirs is None or not shared:
            continue
        widths = dict.fromkeys((shared[0], shared[-1]))
        if to_width is not None and to_width > shared[-1]:
            widths[to_width] = None
        for width in widths:
            # Tokens are 1 in these laws: a run is told by its FLOPs alone.
            at, others = (_flops(ladder, width) for ladder in (leader, other))
            factor = speed_up(mine, theirs, (at, 1.0, at), (others, 1.0, others))
            trained = sorted(other.flops.values())
            largest, is_beyond = max(trained[-1], others), width > shared[-1]
            within = trained[0] <= factor.value * at <= trained[-1]
            factors.append(
                SpeedUp(
                    study=leader.name,
                    against=other.name,
                    width=width,
                    predicted=is_beyond or not within,
                    factor=factor,
                    least=trained[0] / REACH / at,
                    most=largest * REACH / at,
                )
            )
    return factors


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
    # Seeds of a width are runs of their own: each is resampled by itself.
    cluster = np.arange(len(flops), dtype=np.int64)
    runs = LossRuns(sizes, np.ones(len(flops)), np.array(losses), sizes, cluster, [""] * len(flops))
    try:
        return fit_law(runs, draws=400)
    except ValueError:
        return None


def _flops(ladder: Ladder, width: int) -> float:
    """Of a run; at a width without runs by the polynomial that FLOPs are in the width."""
    if width in ladder.flops:
        return ladder.flops[width]
    widths = np.array(sorted(ladder.flops), float)
    measured = np.array([ladder.flops[int(w)] for w in widths])
    value = float(np.polyval(np.polyfit(widths, measured, min(2, len(widths) - 1)), width))
    # A polynomial through few widths may fall below 0 beyond them.
    return value if value > 0 else math.nan
