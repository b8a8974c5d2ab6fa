"""Which parameterization is worth it: studies ranked at equal compute, with intervals.

Losses are compared seed by seed, since what a seed does to all of them cancels
(`stats/paired.py`). All intervals over seeds are Student's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from sweeper.evidence.compare.loss_curve import LossCurve, fit_loss_curve
from sweeper.stats.curve import CurveFit, fit_curves
from sweeper.stats.estimate import ZERO, Array, Estimate, mean_estimate
from sweeper.stats.ladder import SizeCurve
from sweeper.stats.paired import by_losses, paired_difference
from sweeper.stats.rounds import all_pairs
from sweeper.stats.shapes import FIT_RADIUS, SAME_ETA

OCTAVES = (-2.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0)
"""Distances from the optimum, in log2 eta, at which the robustness is told."""
ERROR = 0.05
"""Of a ranking: the chance that any of its pairs is told apart wrongly (Bonferroni)."""
MAX_SEED_FACTOR = 16
"""No advice asks for this many times the seeds."""


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """A study's curves over width, ascending, as a validated transfer measured them.

    `transferred` is the log2 eta that was transferred, a law's factor (`planned_log2`) not in it.
    `flops` are those of one run, by width.
    """

    name: str
    curves: Sequence[SizeCurve]
    transferred: float
    flops: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class WidthLoss:
    """Nats at one width: at the transferred eta, at the re-tuned one, and what lies between.

    `at_end` tells that the curve's lowest point is its last: the re-tuned loss may be lower.
    """

    width: int
    flops: float
    transferred: Estimate
    retuned: Estimate
    regret: Estimate
    optimum_log2: Estimate
    at_end: bool


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A study's place: between `first` and `last`, one place where the seeds tell.

    `loss` is in nats at the equal compute. `gap` is that above the study with the least mean, seed
    by seed; its interval holds for all pairs of studies together (Bonferroni).
    """

    name: str
    first: int
    last: int
    loss: Estimate
    gap: Estimate


@dataclass(frozen=True, kw_only=True)
class LossAtDistance(Estimate):
    """The loss gap, in nats, `octaves` of eta from the optimum."""

    octaves: float


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What is said of one study, beside its places; robustness: nats lost by octaves of eta.

    The robustness is that of the largest width of no more than the equal compute.
    """

    name: str
    widths: tuple[WidthLoss, ...]
    curve: LossCurve | None
    robust_width: int
    robustness: tuple[LossAtDistance, ...]


@dataclass(frozen=True, kw_only=True)
class StudyComparison:
    """Studies at `flops` of one training run: places by the transferred loss, and the re-tuned.

    `seeds` are those that all studies have. Not `flops_known`: they are merely in proportion.
    """

    flops: float
    seeds: int
    candidates: tuple[Candidate, ...]
    by_transferred: tuple[Standing, ...]
    by_retuned: tuple[Standing, ...]
    flops_known: bool = True


def compare(ladders: Sequence[Ladder]) -> StudyComparison:
    """Rank the studies at the largest compute that all of them reach.

    Between two widths of a ladder a seed's loss is interpolated over log FLOPs. ValueError where
    the ranges of compute have nothing in common, or a curve has no finite point.
    """
    measured = [_Measured.of(ladder) for ladder in ladders]
    # Pairs need both of their runs: the seeds that all studies have are the first ones of each.
    seeds = min(ladder.transferred.shape[1] for ladder in measured)
    # The largest that all reach: beyond, a ladder would be extrapolated.
    flops = min(float(ladder.flops[-1]) for ladder in measured)
    if flops < max(float(ladder.flops[0]) for ladder in measured) * (1 - 1e-9):
        raise ValueError("no width of one study costs as much as one of the others")
    return StudyComparison(
        flops=flops,
        seeds=seeds,
        candidates=tuple(ladder.candidate(flops) for ladder in measured),
        by_transferred=rank({m.name: m.at(flops, m.transferred)[:seeds] for m in measured}),
        by_retuned=rank({m.name: m.at(flops, m.retuned)[:seeds] for m in measured}),
    )


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """A ladder's fits and the losses of its seeds [widths, seeds]."""

    name: str
    widths: tuple[int, ...]
    flops: Array
    fits: Sequence[CurveFit]
    transferred: Array
    retuned: Array

    @classmethod
    def of(cls, ladder: Ladder) -> _Measured:
        fits, transferred, retuned = [], [], []
        fitted = fit_curves(ladder.curves, ladder.transferred)
        for curve in ladder.curves:
            eta = ladder.transferred + curve.planned_log2
            fit = fitted[curve.size]
            if fit is None:
                raise ValueError(
                    f"{ladder.name}: no learning rate of width {curve.size.width} trained"
                )
            fits.append(fit)
            transferred.append(losses_at(curve, eta))
            retuned.append(retuned_losses(fit))
        seeds = min(map(len, transferred))
        widths = tuple(curve.size.width for curve in ladder.curves)
        return cls(
            name=ladder.name,
            widths=widths,
            flops=np.array([ladder.flops[width] for width in widths]),
            fits=fits,
            transferred=np.array([losses[:seeds] for losses in transferred]),
            retuned=np.array([losses[:seeds] for losses in retuned]),
        )

    def at(self, flops: float, losses: Array) -> Array:
        """Every seed's loss [seeds] at `flops`, between two widths by log FLOPs."""
        # Between two widths a loss is nearly straight over log FLOPs, as a piece of a power law is.
        place = float(np.interp(math.log(flops), np.log(self.flops), np.arange(len(self.flops))))
        below, share = int(place), place - int(place)
        above = min(below + 1, len(losses) - 1) if share >= 1e-9 else below
        if above == below:
            return np.asarray(losses[below])
        return np.asarray((1 - share) * losses[below] + share * losses[above])

    def candidate(self, flops: float) -> Candidate:
        # The widest that this compute pays for: beyond it the curve is another run's.
        largest = max(i for i, cost in enumerate(self.flops) if cost <= flops * (1 + 1e-9))
        fit, optimum = self.fits[largest], self.fits[largest].optimum.value
        return Candidate(
            name=self.name,
            widths=tuple(map(self._width, range(len(self.widths)))),
            curve=fit_loss_curve(self.widths, self.retuned),
            robust_width=self.widths[largest],
            robustness=tuple(
                LossAtDistance(octaves=octaves, **vars(fit.loss_gap(optimum + octaves)))
                for octaves in OCTAVES
            ),
        )

    def _width(self, index: int) -> WidthLoss:
        fit = self.fits[index]
        transferred, retuned = self.transferred[index], self.retuned[index]
        return WidthLoss(
            width=self.widths[index],
            flops=float(self.flops[index]),
            transferred=mean_estimate(transferred),
            retuned=mean_estimate(retuned),
            regret=mean_estimate(transferred - retuned),
            optimum_log2=fit.optimum,
            at_end=fit.at_end,
        )


def losses_at(curve: SizeCurve, eta: float) -> Array:
    """Every seed's loss [seeds] at log2 `eta`, measured or on a chord; NaN beyond what was."""
    etas = np.array(sorted(curve.losses))
    runs = np.array([curve.losses[float(value)] for value in etas])
    nearest = int(np.abs(etas - eta).argmin())
    if abs(etas[nearest] - eta) <= SAME_ETA:
        measured: Array = runs[nearest]
        return measured
    if not etas[0] < eta < etas[-1]:
        return np.full(runs.shape[1], math.nan)
    after = int(np.searchsorted(etas, eta))
    share = (eta - etas[after - 1]) / (etas[after] - etas[after - 1])
    chord: Array = (1 - share) * runs[after - 1] + share * runs[after]
    return chord


def retuned_losses(fit: CurveFit) -> Array:
    """Every seed's loss [seeds] at the fitted optimum: its own parabola's value there.

    The parabola goes through the points near the curve's lowest one, as that of the optimum does.
    One place for all seeds keeps each from picking the eta that its noise favours.
    """
    etas = np.array(sorted(fit.curve.losses))
    runs = np.array([fit.curve.losses[float(eta)] for eta in etas])
    lowest = int(runs.mean(axis=1).argmin())
    measured: Array = runs[lowest]
    # At an end no parabola has a vertex that was measured: the loss there is an upper bound.
    if fit.at_end:
        return measured
    spacing = max(etas[lowest] - etas[lowest - 1], etas[lowest + 1] - etas[lowest])
    near = np.abs(etas - etas[lowest]) <= max(FIT_RADIUS, spacing) + SAME_ETA
    near &= np.isfinite(runs).all(axis=1)
    if near.sum() < 3:
        return measured
    powers = np.vander(etas[near] - etas[lowest], 3)
    place = np.vander([fit.optimum.value - etas[lowest]], 3)
    values: Array = (place @ np.linalg.pinv(powers) @ runs[near])[0]
    return values


def rank(losses: Mapping[str, Array]) -> tuple[Standing, ...]:
    """Places by the `losses` [seeds] of every study; see `Standing`.

    A study is above another when the interval of their difference lies below 0. In order, who
    diverged less comes first, then who has the lower mean.
    """
    error = ERROR / max(1, all_pairs(len(losses)))
    gaps = {
        (a, b): paired_difference(losses[a], losses[b], error) for a, b in permutations(losses, 2)
    }
    # An interval that holds 0 leaves the places of both open: those not told apart share a range.
    above = {a: sum(gaps[a, b].low > 0 for b in losses if a != b) for a in losses}
    below = {a: sum(gaps[a, b].high < 0 for b in losses if a != b) for a in losses}
    order = sorted(losses, key=lambda name: by_losses(losses[name]))
    # Who is better for sure leads, though a run of it diverged.
    order.insert(0, order.pop(next((i for i, name in enumerate(order) if not above[name]), 0)))
    return tuple(
        Standing(
            name=name,
            first=1 + above[name],
            last=len(losses) - below[name],
            loss=mean_estimate(losses[name]),
            gap=gaps.get((name, order[0]), ZERO),
        )
        for name in order
    )


def seeds_needed(standings: Sequence[Standing], seeds: int) -> int | None:
    """Seeds that would tell the first from the next: None where too many, or where they tell.

    An interval shrinks as the root of the number of seeds.
    """
    leader, *others = standings
    needed = []
    for standing in others:
        gap = standing.gap
        if gap.low > 0 or not math.isfinite(gap.value) or leader.last == 1:
            continue
        # Beside a run that diverged one end is open, and the other one is Student's.
        half = min(gap.high - gap.value, gap.value - gap.low)
        if math.isinf(half):
            needed.append(max(4, seeds + 1))
        elif half >= MAX_SEED_FACTOR**0.5 * gap.value:
            return None
        else:
            needed.append(max(seeds + 1, math.ceil(seeds * (half / gap.value) ** 2)))
    return max(needed, default=None)
