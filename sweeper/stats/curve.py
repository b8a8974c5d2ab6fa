"""The optimum and the basin of a measured learning-rate curve, with intervals from its noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from sweeper.stats.estimate import UNKNOWN, Array, Estimate
from sweeper.stats.ladder import Cliff, KnownNoise, LadderSize, SizeCurve
from sweeper.stats.noise import Noise, left_by_cubic, model_weights
from sweeper.stats.shapes import MIN_POINTS, SAME_ETA, Forms, Mask, Parabolas, Points, dense, radius

DRAWS = 2000

BIAS = 0.02
"""Standard error, in log2, by which the drawn curves misplace the optimum of a real one.

No noise shows it, so the intervals of optimum and basin add it. A shift between two sizes does not:
their curves have nearly the same shape, and the bias cancels."""

NOISE_RADIUS = 2.0
"""The noise is measured at the points within this distance, in log2, of the lowest one."""

PAST_END = 1.0
"""Octaves past an end of a curve, as far as the ladder's shape carries it on."""

BASIN_TOLERANCE = 0.01
"""A learning rate is in the basin when its loss exceeds the least by at most this fraction."""


@dataclass(frozen=True, kw_only=True)
class Basin:
    """The ends of the basin as far as it was measured, and its width, all in log2 eta.

    Where the curve ends within the basin, the width is a lower bound and its interval reaches
    +inf. Beside a point that diverged, the interval reaches that point.
    """

    low_log2: float
    high_log2: float
    width_log2: Estimate


UNKNOWN_BASIN = Basin(low_log2=math.nan, high_log2=math.nan, width_log2=UNKNOWN)


@dataclass(frozen=True, kw_only=True)
class CurveFit:
    """What one curve says: its optimum (log2 eta), least loss and basin, and bootstrap draws.

    `loss` is that of the mean over the seeds; its interval is for the mean over all possible
    seeds. `regret` is the loss in nats from training at the transferred eta instead of the
    optimum. `at_end` tells that the lowest point is the first or last of the curve, so that the
    optimum is only a bound. `noise` is the standard deviation of a run in nats; it is NaN where
    too few seeds or finite points show it, and all intervals but the basin's are then infinite.
    `safe_optimum_draws` keep off a point that diverged, as a plan must; `free_optimum_draws` may
    reach that point, as the true optimum may. Neither has the `BIAS`. `own_shifts` are the parts of
    both by which a single run's curve as a whole lies off. With `at_end`, `past_end` has the curves
    and the optima as they go on past the end, infinite where they find none. Where a jump may be a
    steep side, `steep` is the fit that takes it for one, and every second draw is of that. `shapes`
    draws the curve on past its ends, where its points show a shape.
    """

    curve: SizeCurve
    optimum: Estimate
    loss: Estimate
    regret: Estimate
    basin: Basin
    at_end: bool
    noise: float
    safe_optimum_draws: Array
    free_optimum_draws: Array
    own_shifts: Array
    parabolas: Parabolas
    measured: Measured = field(repr=False, compare=False)
    shapes: LikelyShapes | None = field(default=None, repr=False, compare=False)
    past_end: CurveFit | None = field(default=None, repr=False, compare=False)
    steep: CurveFit | None = field(default=None, repr=False, compare=False)

    def loss_gap(
        self, eta: float, draws: Array | None = None, confidence: float = 0.95
    ) -> Estimate:
        """Loss in nats of training at `eta` (log2), on the grid or between, above the least.

        `draws` [DRAWS] of eta carry the uncertainty of eta into the interval: those past an end of
        the curve by likely curves, up to `PAST_END`. Where eta itself was not measured, the value
        is a lower bound and the interval reaches +inf.
        """
        drawn_etas = np.full(len(self.safe_optimum_draws), eta) if draws is None else draws
        bounds = self.gap_bounds(np.append(eta, drawn_etas))
        low, high = (
            Estimate.from_draws(float(bound[0]), bound[1:], confidence) for bound in bounds
        )
        gap = Estimate(value=low.value, low=low.low, high=high.high)
        return gap.without_interval(0.0) if self.noise_unknown and math.isfinite(gap.value) else gap

    def gap_bounds(self, at: Array) -> tuple[Array, Array]:
        """Bounds, lower and upper, on the likeliest curve's loss gap and every draw's, each at its.

        A seed's own optimum moves its whole curve, and leads nowhere that was not measured.
        """
        if self.steep is not None:
            of_jump = replace(self, steep=None).gap_bounds(at)
            pairs = zip(of_jump, self.steep.gap_bounds(at), strict=True)
            least, most = (
                np.append(jump[0], _in_turns(jump[1:], side[1:])) for jump, side in pairs
            )
            return least, most
        if self.own_shifts.any():
            etas = self.parabolas.etas[np.isfinite(self.parabolas.losses[0])]
            ends = np.minimum(at, etas[0]), np.maximum(at, etas[-1])
            at = np.clip(at - np.append(0.0, self.own_shifts), *ends)
        least, most = self.parabolas.loss_gaps(at)
        (low, _), (high, _) = self.ends
        inside = np.clip(at, low, high)
        past = np.flatnonzero(np.isinf(most) & np.isfinite(least) & (at != inside))
        # A doubt that leads past an end is carried on; what was never tried is not known.
        if len(past) and past[0]:
            most[past] = np.maximum(least, self._carried_gaps(at))[past]
        # A curve that falls as far as it was followed has no least loss.
        most[1:][np.isinf(self.free_optimum_draws)] = math.inf
        return least, most

    @cached_property
    def ends(self) -> tuple[tuple[float, float], ...]:
        """Below the lowest point and above: the last value that trained, the next that did not."""
        etas, finite = self.measured.etas, np.isfinite(self.measured.runs.sum(axis=1))
        best, lost = etas[self.measured.lowest], [-math.inf, *etas[~finite], math.inf]
        low, high = max(eta for eta in lost if eta < best), min(eta for eta in lost if eta > best)
        trained = etas[(etas > low) & (etas < high)]
        return (float(trained[0]), low), (float(trained[-1]), high)

    def _carried_gaps(self, at: Array) -> Array:
        if self.shapes is None:
            return np.full(len(at), math.inf)
        x, rows = self.shapes.rows(2, PAST_END, PAST_END)
        x = x + self.measured.etas[self.measured.lowest]
        share = 1 - np.random.default_rng(3).random(len(at))
        low, high = (last + share * (diverged - last) for last, diverged in self.ends)
        trains = (x >= low[:, None]) & (x <= high[:, None])
        least = np.where(trains, rows, math.inf).min(axis=1)
        before = np.clip(np.searchsorted(x, at) - 1, 0, len(x) - 2)
        row, progress = np.arange(len(at)), (at - x[before]) / (x[before + 1] - x[before])
        losses = (1 - progress) * rows[row, before] + progress * rows[row, before + 1]
        inside = (at >= np.maximum(low, x[0])) & (at <= np.minimum(high, x[-1]))
        return np.where(inside, np.maximum(0.0, losses - least), math.inf)

    def or_steep(self, other: CurveFit | None) -> CurveFit:
        """Holds the other reading of jumps, too: in every second draw, and all intervals."""
        if other is None or self.noise_unknown or other.noise_unknown:
            return self
        width = self.basin.width_log2.and_also(other.basin.width_log2)
        past = self.past_end and self.past_end.or_steep(other.past_end)
        return replace(
            self,
            optimum=self.optimum.and_also(other.optimum),
            loss=self.loss.and_also(other.loss),
            regret=self.regret.and_also(other.regret),
            basin=replace(self.basin, width_log2=width),
            safe_optimum_draws=_in_turns(self.safe_optimum_draws, other.safe_optimum_draws),
            free_optimum_draws=_in_turns(self.free_optimum_draws, other.free_optimum_draws),
            past_end=past,
            steep=other,
        )

    @property
    def side(self) -> int:
        """The end that the lowest point is, -1 or 1; 0 within the curve, and where it is all."""
        measured = self.measured
        if not self.at_end or len(measured.etas) == 1:
            return 0
        return 1 if measured.lowest else -1

    @property
    def same_seeds(self) -> bool:
        """Whether the seed changes nothing in any run, so that no noise was measured."""
        return same_seeds(np.array(list(self.curve.losses.values())))

    @property
    def noise_unknown(self) -> bool:
        """Whether there are no intervals, for want of seeds or finite points."""
        return math.isnan(self.noise)


@dataclass(frozen=True, eq=False)
class LikelyShapes:
    """The curves that the points of a size leave likely, by their `noises` and a ladder's forms."""

    size: LadderSize
    points: Points
    noises: Array
    forms: Forms

    def rows(self, seed: int, below: float, above: float) -> tuple[Array, Array]:
        """Curves [1 + draw, x], and their x, in log2 from the lowest, so far past either end."""
        generator, points = np.random.default_rng([seed, *astuple(self.size)]), self.points.x
        x, at = dense(np.unique([points[0] - below, *points, points[-1] + above]))
        at = at[(below > 0) : len(at) - (above > 0)]
        rows = self.forms.rows(self.points, self.size, generator, self.noises, x, at)
        return x, rows


@dataclass(frozen=True, eq=False)
class Measured:
    """The runs [eta, seed] of a curve at ascending `etas`, and what they tell of their noise.

    `near` lie within `NOISE_RADIUS` of the lowest one; `noise`: None where too few runs show any.
    """

    curve: SizeCurve
    etas: Array
    runs: Array
    lowest: int
    near: Mask
    noise: Noise | None

    @classmethod
    def of(cls, curve: SizeCurve) -> Measured | None:
        """None where no point of the curve is finite."""
        etas = np.array(sorted(curve.losses))
        runs = np.array([curve.losses[float(eta)] for eta in etas])
        # One seed that diverged closes its point: the rule of `stats/paired.py`.
        finite = np.isfinite(runs).all(axis=1) if len(etas) else np.zeros(0, dtype=bool)
        if not finite.any():
            return None
        lowest = int(np.argmin(runs.mean(axis=1)))
        near = finite & (np.abs(etas - etas[lowest]) <= radius(etas, lowest, NOISE_RADIUS))
        noise = None
        if near.sum() > 1 and curve.noise is not None:
            noise_known = curve.noise
            level, freedom, single = noise_known.deviation, noise_known.freedom, noise_known.single
            # Of single runs it was read off points near the lowest, and tells of no others.
            used = near if single else finite
            x, means = etas[used] - etas[lowest], runs[used].mean(axis=1)
            noise = Noise.of_level(level, freedom, x, means, runs.shape[1], single=single)
        # Seeds that change nothing measure no noise; one of 0 would make points of all intervals.
        elif near.sum() > 1 and runs.shape[1] > 1 and not same_seeds(runs[near]):
            noise = Noise.measure(etas[near] - etas[lowest], runs[near])
        return cls(curve, etas, runs, lowest, near, noise)

    def pooled(self, noises: Sequence[Noise]) -> Measured:
        """Pools the level of the noise over all curves of a ladder."""
        # A level that is given is known, or the other curves have moderated it (`with_noise_left`).
        if self.noise is None or self.curve.noise is not None:
            return self
        return replace(self, noise=self.noise.pooled(noises))

    def points(self, weights: Array) -> Points:
        """The means near the lowest point, above it; `weights` are the probabilities of `MODELS`.

        The smoother leaves any constant as it is, but for rounding: of losses of 9 nats whose
        curve rises by 0.01 that is 0.001 in log2 eta.
        """
        assert self.noise is not None
        x, means = (self.etas - self.etas[self.lowest])[self.near], self.runs.mean(axis=1)
        spread = self.noise.covariance(x, weights) / self.runs.shape[1]
        return Points(x, means[self.near] - means[self.lowest], spread)


def fit_curves(
    curves: Sequence[SizeCurve], transferred: float
) -> dict[LadderSize, CurveFit | None]:
    """Fit the curves of a ladder, which share the noise's rise and correlation, and their shape.

    `transferred` is the log2 eta of the base; a law's factor is added at every other size. What
    lies beyond a cliff is taken for diverged.
    """
    cut = without_cliffs(curves, doubtful=True)
    fits = _fit_each(cut, transferred)
    if any(curve.cliff and not curve.cliff.sure for curve in cut):
        steep = _fit_each(without_cliffs(curves), transferred)
        fits = {size: fit and fit.or_steep(steep[size]) for size, fit in fits.items()}
    return fits


def _in_turns(first: Array, second: Array) -> Array:
    """Every second draw is from `second`: the same ones at all sizes of a ladder."""
    return np.where(np.arange(len(first)) % 2, second, first)


def _fit_each(curves: Sequence[SizeCurve], transferred: float) -> dict[LadderSize, CurveFit | None]:
    measured = [run for curve in curves if (run := Measured.of(curve)) is not None]
    # A known noise says less of the rise than seeds, and nothing of other curves' level.
    noises = [run.noise for run in measured if run.noise and run.curve.noise is None]
    from_others = [run.noise for run in measured if run.noise and run.curve.noise is not None]
    weights = np.zeros(0)
    if noises or from_others:
        # Of single runs the same losses tell level and rise: there a higher rise may gain too.
        levels_known = not noises and not any(
            run.curve.noise and run.curve.noise.single for run in measured
        )
        weights = model_weights(noises or from_others, levels_known=levels_known)
    measured = [run.pooled(noises) for run in measured]
    points = {run.curve.size: run.points(weights) for run in measured if run.noise is not None}
    forms = Forms.of(points)
    fits: dict[LadderSize, CurveFit | None] = {curve.size: None for curve in curves}
    for run in measured:
        size, eta = run.curve.size, transferred + run.curve.planned_log2
        fits[size] = _fit(run, eta, points.get(size), weights, forms)
    return fits


# A rate that is too high need not end at infinity: a language model that came apart ends at a loss
# of 5 to 7, and a valley through that point would have its floor below all that was measured. To
# the right of the lowest point a loss rises by at most `CLIFF` times what the curve has risen by
# before, within as many octaves on both sides, on a grid without steps; `CLIFF_PER_OCTAVE` is what
# a step adds. Exponentials with a kink of 3 reach two thirds of it, and two curves in a thousand of
# `scripts/bench/verdict.py`, which have no cliff, exceed it by their noise. Where two points tell
# how steep the right side is, a step rises by at most `STEEPER` times the steepest one so far, and
# `STEEPER_PER_OCTAVE`: there a thousandth of the curves without a cliff exceed 4.6 times on a grid
# of 0.5, and 5.9 times on one of 2.
CLIFF, CLIFF_PER_OCTAVE = 2.25, 8.0
STEEPER, STEEPER_PER_OCTAVE = 4.0, 1.4

# Below that a jump may look like a steep side: both readings enter the interval. A side goes on to
# rise, as a jump does not: it leads to a shelf where the next step, of any seed, rises by less than
# `SHELF` of it, which one curve in a thousand without a cliff does, and eight in a hundred where
# noise is half of the rise. Where nothing lies beyond the only point past the lowest one, no shelf
# can be seen, and what rises by more than `CLIFF` is in doubt.
SHELF = 0.5


def without_cliffs(curves: Sequence[SizeCurve], *, doubtful: bool = False) -> list[SizeCurve]:
    """Curves with +inf from a jump out of the basin on; if `doubtful`, from one that may be."""
    finite = {curve.size: _means(curve) for curve in curves}
    # Of a curve with few points before its cliff the others tell what its steps are: by second
    # differences up to its lowest point.
    falls = [means[: np.argmin(means) + 1] for _, means in finite.values() if len(means)]
    bends = [bend for fall in falls for bend in np.abs(np.diff(fall, 2))]
    bend = float(np.median(bends)) if bends else 0.0
    return [_without_cliff(curve, *finite[curve.size], bend, doubtful) for curve in curves]


def _means(curve: SizeCurve) -> tuple[Array, Array]:
    etas = np.array(sorted(curve.losses))
    means = np.array([np.mean(curve.losses[float(eta)]) for eta in etas])
    if not np.isfinite(means).any():
        return etas[:0], means[:0]
    kept = np.isfinite(means)
    kept[np.argmin(means) :] = np.logical_and.accumulate(kept[np.argmin(means) :])
    return etas[kept], means[kept]


def _without_cliff(
    curve: SizeCurve, etas: Array, means: Array, bend: float, doubtful: bool
) -> SizeCurve:
    lowest = int(np.argmin(means)) if len(means) else 0
    for at in range(lowest + 1, len(etas)):
        jump = _jump(curve, etas, means, bend, at)
        if jump == "sure" or (jump and doubtful):
            gone = {
                eta: losses if eta < etas[at] else (math.inf,) * len(losses)
                for eta, losses in curve.losses.items()
            }
            cliff = Cliff(
                log2=float(etas[at]),
                below=float(means[at - 1]),
                above=float(means[at]),
                sure=jump == "sure",
            )
            return replace(curve, losses=gone, cliff=cliff)
    return curve


def _jump(
    curve: SizeCurve, etas: Array, means: Array, bend: float, at: int
) -> Literal["", "sure", "doubtful"]:
    lowest = int(np.argmin(means))
    rises, step = means - means[lowest], etas[at] - etas[at - 1]
    near = np.abs(etas[:at] - etas[lowest]) <= etas[at] - etas[lowest] + step + SAME_ETA
    usual = max(float(rises[:at][near].max()), bend)
    # Of every seed, and to the curve's end: a single run that is off is no cliff.
    base = np.array(curve.losses[float(etas[lowest])])
    beyond = [np.array(losses) - base for eta, losses in curve.losses.items() if eta >= etas[at]]
    least = min(float(rise.min()) for rise in beyond)
    # What lies in the basin has not left it, and a curve that
    # is flat so far has no scale by which a rise is a jump.
    basin = BASIN_TOLERANCE * abs(means[lowest])
    if usual <= 0 or least <= basin:
        return ""
    tolerated, doubted = CLIFF * CLIFF_PER_OCTAVE**step * usual, math.inf
    alone = at - lowest == 1
    if at + 1 < len(etas):
        low, high = min(curve.losses[float(etas[at])]), max(curve.losses[float(etas[at + 1])])
        slope = (high - low) / (etas[at + 1] - etas[at])
        if slope < SHELF * (least - rises[at - 1]) / step:
            doubted = usual
    elif alone:
        doubted = CLIFF * usual
    # A curve that begins at its lowest point may turn between it and the next.
    if at - lowest > (1 if lowest else 2):
        slopes = np.abs(np.diff(means[:at][near]) / np.diff(etas[:at][near]))
        steepest = max(float(slopes.max()) * step, bend)
        # They never call a rise a jump that stays within twice the basin's limit.
        steeper = float(rises[at - 1]) + STEEPER * STEEPER_PER_OCTAVE**step * steepest
        tolerated = min(tolerated, max(steeper, 2 * basin))
        if math.isfinite(doubted):
            doubted = min(doubted, max(float(rises[at - 1]) + steepest, 2 * basin))
    # Of two points that lie on both sides of an optimum neither tells how steep the curve is.
    if least > tolerated and (at >= 3 or bend):
        return "sure"
    return "doubtful" if least > doubted and lowest else ""


# One run a point: what a smooth curve leaves is noise, and misfit, so that it is none too small.
# Levels differ from size to size (a short horizon is ten times as noisy as a long one), and a
# curve's nine points leave five degrees of freedom: each level is moderated by the others, which
# count for as much as they are alike (Smyth's empirical Bayes, 2004).

OWN_OPTIMUM, SHARED_OPTIMUM = 0.1, 0.09
"""Standard deviations, in log2, of a seed's own optimum, which no single run shows.

The first is a size's own, the second that of all sizes of a seed: it moves no shift. They are what
the optima of StepLaw's curves, of one seed, are off the surfaces through their neighbours beyond
their noise, within ladders and between (`scripts/bench/tables_judge.py --choose`)."""
UNLIKE, ALIKE = 1.0, 12.0
"""Degrees of freedom that a ladder's common level counts as: at least, and at most."""
EXACT = 1e-7
"""Of the loss: what a cubic leaves of numbers that were computed, not trained."""


def with_noise_left(curves: Sequence[SizeCurve]) -> list[SizeCurve]:
    """Every curve with the noise of its single runs, by what a cubic near its best leaves.

    As they are where there is one curve, or all together have fewer than two points to spare.
    """
    rests = {curve.size: rest_near_best(curve) for curve in without_cliffs(curves, doubtful=True)}
    levels = {size: (level, count) for size, (level, count) in rests.items() if level > 0}
    total = sum(count for _, count in levels.values())
    if total < 2 or len(curves) < 2:
        return list(curves)
    counts = np.array([float(count) for _, count in levels.values()])
    # The mean of log(chi^2 / freedom) is about -1 / freedom - 1 / (3 freedom^2): the log of a mean
    # square lies too low, the more so the fewer residuals it has.
    logs = np.log([level for level, _ in levels.values()]) - (-1 / counts - 1 / (3 * counts**2))
    common, freedom = math.exp(float(np.average(logs, weights=counts))), ALIKE
    if len(levels) > 1:
        # The variance of log s^2 beyond what so few residuals have is that of the levels.
        beyond = float(logs.var(ddof=1)) - float(np.average(2 / counts, weights=counts))
        # A mean square of f degrees of freedom scatters by 2 / f in its log: where
        # levels scatter by as much, the ladder counts as f.
        freedom = max(UNLIKE, 2 / beyond) if beyond > 2 / ALIKE else ALIKE
    noises = {}
    for size in rests:
        level, mine = levels.get(size, (0.0, 0))
        variance = (mine * level + freedom * common) / (mine + freedom)
        # Others never count as more residuals than there are.
        residuals = max(1, round(mine + min(freedom, total)))
        noises[size] = KnownNoise(deviation=math.sqrt(variance), freedom=residuals, single=True)
    return [replace(curve, noise=noises[curve.size]) for curve in curves]


def rest_near_best(curve: SizeCurve) -> tuple[float, int]:
    """The mean square that a cubic leaves near the lowest point, and its degrees of freedom."""
    etas, means = _means(curve)
    if not len(etas):
        return 0.0, 0
    lowest = int(np.argmin(means))
    near = np.abs(etas - etas[lowest]) <= radius(etas, lowest, NOISE_RADIUS)
    rest = left_by_cubic(etas[near] - etas[lowest], means[near])
    level = float(rest.squares[0])
    return (level, rest.freedom) if level > (EXACT * means[lowest]) ** 2 else (0.0, 0)


def _fit(
    measured: Measured, transferred: float, points: Points | None, weights: Array, forms: Forms
) -> CurveFit:
    """The optimum of the likeliest curve through the losses, and of many others as intervals.

    The intervals are a parametric bootstrap: curves are drawn that the losses leave likely, by the
    noise, drawn afresh, and by what they do not tell of the curve's shape, at the measured points
    and between them. The seeds themselves are not resampled, since two of them have but three
    outcomes.
    """
    curve, etas, runs, lowest = measured.curve, measured.etas, measured.runs, measured.lowest
    noise = math.nan if measured.noise is None else measured.noise.deviation
    # By the size: a fit repeats exactly, and shared draws of two sizes would cancel in their shift.
    generator = np.random.default_rng(list(astuple(curve.size)))
    rows, grid = np.tile(runs.mean(axis=1), (DRAWS + 1, 1)), etas
    if points is not None and measured.noise is not None:
        noises = measured.noise.draws(generator, etas - etas[lowest], weights, DRAWS)
        # Rows are means over seeds. Far from the lowest point they have this noise and no shape.
        noises /= math.sqrt(runs.shape[1])
        rows[1:] += noises
        if len(points.x) >= MIN_POINTS:
            near, (x, at) = measured.near, dense(points.x)
            drawn = forms.rows(points, curve.size, generator, noises[:, near], x, at)
            drawn += rows[0, lowest]
            # Beside a point that diverged nothing is drawn.
            before = np.searchsorted(etas, x + etas[lowest] + SAME_ETA) - 1
            right = np.searchsorted(etas, x + etas[lowest] - SAME_ETA)
            kept = near[before] & near[right]
            grid = np.append(x[kept] + etas[lowest], etas[~near])
            order = np.argsort(grid)
            grid, rows = grid[order], np.hstack([drawn[:, kept], rows[:, ~near]])[:, order]
    # Row 0 is the likeliest curve and gives the values; the other rows give the intervals.
    parabolas = Parabolas.through(grid, rows)
    safe, losses, free = parabolas.minima
    free = _shuffled(generator, free, parabolas.vertices)
    # A single run's curve alone needs this: of several seeds a tilt shows it.
    own, shared = np.zeros(DRAWS), 0.0
    if curve.noise is not None and curve.noise.single:
        own, shared = generator.normal(0.0, OWN_OPTIMUM, DRAWS), SHARED_OPTIMUM
        ends = etas[np.isfinite(runs).all(axis=1)][[0, -1]]
        # A plan must not leave what was trained, wherever the seed's own optimum may be.
        safe[1:] = np.clip(safe[1:] + own, *ends)
        free[1:] += own
    loss_draws = losses[1:] + _offset_draws(generator, runs[measured.near], noise)
    # Rare shapes count for more than in the value (`evenly`), and so does the bias.
    optimum_draws = free[1:][forms.evenly(generator, DRAWS)]
    optimum_draws += generator.normal(0.0, math.hypot(BIAS, shared), DRAWS)
    fit = CurveFit(
        curve=curve,
        optimum=Estimate.from_draws(float(safe[0]), optimum_draws),
        loss=Estimate.from_draws(float(losses[0]), loss_draws),
        regret=Estimate(value=0.0, low=0.0, high=0.0),
        basin=_basin(parabolas, generator.normal(0.0, 0.0 if math.isnan(noise) else BIAS, DRAWS)),
        at_end=lowest in (0, len(etas) - 1),
        noise=noise,
        safe_optimum_draws=safe[1:],
        free_optimum_draws=free[1:],
        own_shifts=own,
        parabolas=parabolas,
        measured=measured,
    )
    if fit.noise_unknown:
        optimum, loss = fit.optimum.without_interval(), fit.loss.without_interval()
        fit = replace(fit, optimum=optimum, loss=loss)
    elif points is not None and len(points.x) >= MIN_POINTS:
        shapes = LikelyShapes(curve.size, points, noises[:, measured.near], forms)
        fit = replace(fit, shapes=shapes, past_end=_past_end(fit, shapes) if fit.side else None)
    return replace(fit, regret=fit.loss_gap(transferred))


def _past_end(fit: CurveFit, shapes: LikelyShapes) -> CurveFit:
    x, rows = shapes.rows(1, *(PAST_END if side == fit.side else 0.0 for side in (-1, 1)))
    far = len(x) - 1 if fit.side > 0 else 0
    lowest = fit.measured.lowest
    parabolas = Parabolas.through(x + fit.measured.etas[lowest], rows)
    free = parabolas.minima[2][1:] + fit.own_shifts
    # A curve that still falls there has an optimum that may be anywhere beyond.
    free[parabolas.lowest[1:] == far] = fit.side * math.inf
    return replace(fit, parabolas=parabolas, free_optimum_draws=free)


def same_seeds(runs: Array) -> bool:
    """Whether all seeds of the runs [eta, seed] lost the same to the last digit, where finite."""
    finite = runs[np.isfinite(runs).all(axis=1)]
    return bool(min(finite.shape) > 1 and (finite == finite[:, :1]).all())


def _shuffled(generator: np.random.Generator, optima: Array, vertices: Array) -> Array:
    """Draws of rows without a parabola, in a curve's own order: one order cancels in a shift."""
    rows, shuffled = np.flatnonzero(np.logical_not(np.isfinite(vertices[1:]))) + 1, optima.copy()
    shuffled[rows] = optima[generator.permutation(rows)]
    return shuffled


def _offset_draws(generator: np.random.Generator, runs: Array, noise: float) -> Array:
    seeds = runs.shape[1]
    if math.isnan(noise):
        return np.zeros(DRAWS)
    if seeds == 1:
        # A single seed's offset cannot be told apart from its noise, and is taken to be as large.
        return generator.normal(0.0, noise, DRAWS)
    error = float(runs.mean(0).std(ddof=1)) / math.sqrt(seeds)
    return error * generator.standard_t(seeds - 1, DRAWS)


def _basin(parabolas: Parabolas, bias: Array) -> Basin:
    etas, losses, (optima, least, _) = parabolas.etas, parabolas.losses, parabolas.minima
    limits = BASIN_TOLERANCE * np.abs(least)
    right, far_right = _basin_end(etas, losses, optima, least, limits)
    # The left end is the right end of the mirrored curve.
    lower, far_left = _basin_end(-etas[::-1], losses[:, ::-1], -optima, least, limits)
    narrow, wide = right + lower, far_right + far_left
    narrow, wide = (np.maximum(0.0, ends + np.append(0.0, bias)) for ends in (narrow, wide))
    width = Estimate(
        value=float(narrow[0]),
        low=Estimate.from_draws(float(narrow[0]), narrow[1:]).low,
        high=Estimate.from_draws(float(wide[0]), wide[1:]).high,
    )
    return Basin(low_log2=-float(lower[0]), high_log2=float(right[0]), width_log2=width)


def _basin_end(
    etas: Array, losses: Array, optima: Array, least: Array, limits: Array
) -> tuple[Array, Array]:
    """Where each row rises by its limit to the right of its optimum: at least, and at most.

    Walks from point to point. Between two of them the square root of the rise is interpolated
    linearly, which is exact for a parabola with its minimum at the optimum.
    """
    last_eta, last_root = optima.copy(), np.zeros_like(optima)
    nearest, farthest = optima.copy(), np.full_like(optima, math.inf)
    inside, target = np.ones(len(losses), dtype=bool), np.sqrt(limits)
    for eta, column in zip(etas, np.ascontiguousarray(losses.T), strict=True):
        root = np.sqrt(np.maximum(column - least, 0.0))
        reached = inside & (eta > optima + SAME_ETA)
        leaves = reached & (root > target)
        with np.errstate(invalid="ignore", divide="ignore"):
            progress = np.where(np.isfinite(root), (target - last_root) / (root - last_root), 0.0)
            # Before a diverged point the end is the last finite one at least.
            crossing = last_eta + progress * (eta - last_eta)
        nearest[leaves] = crossing[leaves]
        farthest[leaves] = np.where(np.isfinite(root), nearest, eta)[leaves]
        inside &= ~leaves
        stays = reached & ~leaves
        last_eta[stays], last_root[stays] = eta, root[stays]
    nearest[inside] = last_eta[inside]
    return nearest, farthest
