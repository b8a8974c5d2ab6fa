"""One hyperparameter at a time: is its tuned value worth carrying to the target?

A line of runs varies one hyperparameter, all others held. Its best value was chosen for its noise,
too, so that what it seems to gain over the default is too much. Three numbers allow for that:

- The **gain**'s value is what a choice gains by runs that did not make it. Runs are split by noise
  that is added (data thinning: with e ~ N(0, S), S the variance of y, y + e sqrt(f) and
  y - e / sqrt(f) are independent). The first part chooses, the second one tells, averaged over
  `THINNINGS` splits. The choice has a little more noise than the real one, so that what is told is
  rather too small.
- Its low end holds for all values of all hyperparameters at once, with 95 %, so that of twenty
  without effect any seems to gain in one table of twenty (Bonferroni, over values and lines).
- Its high end is that of the value that may gain most, each with 95 %: that *all* gain less than
  some limit is wrong only where one does not, so it needs no correction (an intersection-union
  test).

Runs of larger sizes did not choose the value that is best at the base. So that it gains there, too,
is a second piece of evidence, which is combined with the first by Fisher's rule.

The answers: *carry*, it gains, and its optimum stays; *retune*, it gains, and moves by so many
octaves a doubling; *leave*, no value gains what one run of each at the target would show; *cannot
say*, with runs that would tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np

from sweeper.evidence.each.reading import SettingLine, VariedSettings
from sweeper.stats.curve import CurveFit, fit_curves
from sweeper.stats.estimate import UNKNOWN, Array, Estimate, quantile, student_above
from sweeper.stats.ladder import KnownNoise, LadderSize, SizeCurve
from sweeper.stats.line import FLAT
from sweeper.stats.noise import left_by_cubic
from sweeper.stats.paired import paired_difference

EachCode = Literal["carry", "retune", "leave", "cannot say"]
Lacking = Literal["", "noise", "seeds", "sizes", "seeds at sizes", "fades", "runs around"]

ERROR = 0.05
"""The chance that any of a table's hyperparameters without effect seems to gain."""
SEEN = 1.645 * math.sqrt(2)
"""Deviations of a run from which on a gain shows between one run of each, with 95 %.

A large run is less noisy than small ones, and nobody leaves a gain for the noise of these: what is
above `FLAT` of the loss is seen.
"""
STAYS = 1.0
"""Octaves within which an optimum stays over the sizes that were run: `transfer.max_shift`."""
SLOW = 0.05
"""Octaves a doubling: what moves by less has moved half an octave at a thousand times the size."""
THINNINGS, SHARE = 4000, 0.5
"""Splits of the noise, and how much is added for the choice: that of two seeds of three."""
NEAR = 0.01
"""The noise is read off values whose losses are within this fraction of the default's."""
MOST_SEEDS = 64
"""No advice asks for more."""


@dataclass(frozen=True, kw_only=True)
class GainAtSize:
    """What the base's best value gains at a `size`, with 95 %, and the optimum there in log2."""

    size: float
    gain: Estimate
    optimum_log2: Estimate = UNKNOWN


@dataclass(frozen=True, kw_only=True)
class TellingRuns:
    """Runs that would tell: so many seeds of each of `values` at each of `sizes`."""

    values: tuple[float | str, ...]
    sizes: tuple[float, ...]
    seeds: int

    @property
    def count(self) -> int:
        """How many runs they are."""
        return len(self.values) * max(1, len(self.sizes)) * self.seeds


@dataclass(frozen=True, kw_only=True)
class HyperparameterGain:
    """A hyperparameter's `answer`, and what it rests on.

    `best` of `values` gains `gain` over `default` at the base, in the loss's unit; it `seemed` to
    gain so much in the runs that chose it. `error` is the chance of so much evidence of any gain
    without one, that of all hyperparameters together. Of what gains, the base's optimum is told,
    and by how many `octaves_per_doubling` of the size it moves.
    `at_end`: the best value is the first or last one, so that there may be more beyond it.
    `lacking` says what an open answer lacks, or why a gain is not carried.
    """

    name: str
    answer: EachCode
    default: float | str
    best: float | str
    gain: Estimate
    seemed: float
    error: float
    octaves_per_doubling: Estimate = UNKNOWN
    optimum_log2: Estimate = UNKNOWN
    sizes: tuple[GainAtSize, ...] = ()
    values: int = 0
    seeds: int = 0
    at_end: bool = False
    lacking: Lacking = ""
    next: tuple[TellingRuns, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EachAnswer:
    """What is said of every hyperparameter, those that are carried first.

    `noise` is the deviation of a run at the base, `seen` the gain that a run of each would show.
    """

    hyperparameters: tuple[HyperparameterGain, ...]
    axis: str = ""
    sizes: tuple[float, ...] = ()
    noise: float = math.nan
    noise_by: Literal["", "seeds", "curves", "given"] = ""
    seen: float = math.nan
    unit: str = "nats"
    runs: int = 0

    def named(self, answer: EachCode) -> list[str]:
        """The hyperparameters of an answer."""
        return [each.name for each in self.hyperparameters if each.answer == answer]


ORDER: Sequence[EachCode] = ("carry", "retune", "cannot say", "leave")


def judge_each(varied: VariedSettings, noise: float | None = None) -> EachAnswer:
    """Carry, retune, leave, or cannot say, of each setting; `noise` is a run's, where known."""
    lines = {(line.name, line.size): line for line in varied.lines}
    sizes = sorted({line.size for line in varied.lines})
    noises = {
        size: RunNoise.of([line for line in varied.lines if line.size == size], noise)
        for size in sizes
    }
    names = sorted({line.name for line in varied.lines})
    seen = math.nan
    if sizes:
        means = (_means(line) for line in varied.lines if line.size == sizes[-1])
        losses = [least for of in means if math.isfinite(least := min(of.values()))]
        flat = FLAT * abs(float(np.median(losses))) if losses else 0.0
        # What shows between two runs, or is no flat difference: whichever is less.
        seen = min(SEEN * noises[sizes[-1]].deviation, flat)
    found = [
        _judged([lines[name, size] for size in sizes if (name, size) in lines], noises, names, seen)
        for name in names
    ]

    def place(gain: HyperparameterGain) -> tuple[int, float, str]:
        value = gain.gain.value
        return ORDER.index(gain.answer), math.inf if math.isnan(value) else -value, gain.name

    found.sort(key=place)
    return EachAnswer(
        hyperparameters=tuple(found),
        axis=varied.axis,
        sizes=tuple(sizes),
        noise=noises[sizes[0]].deviation if sizes else math.nan,
        noise_by=noises[sizes[0]].by if sizes else "",
        seen=seen,
        unit=varied.unit,
        runs=varied.used,
    )


# The noise of a run, which all lines of a size share.


@dataclass(frozen=True)
class RunNoise:
    """Variances of a run at one size: `paired` beside the same seed's, and `alone`."""

    paired: KnownNoise | None
    alone: KnownNoise | None
    by: Literal["", "seeds", "curves", "given"]

    @property
    def deviation(self) -> float:
        """Of a run beside another one of its seed, or alone; NaN where nothing shows it."""
        noise = self.paired or self.alone
        return noise.deviation if noise else math.nan

    @classmethod
    def of(cls, lines: Sequence[SettingLine], given: float | None) -> RunNoise:
        """As seeds show it, else what smooth curves leave."""
        if given is not None:
            # A given noise has no doubt of its own: so many degrees of freedom are a normal's.
            known = KnownNoise(deviation=given, freedom=10**6)
            return cls(known, known, "given")
        paired, alone = _pooled([*chain(*map(_beside, lines))]), _pooled(_within(lines))
        if paired or alone:
            return cls(paired, alone, "seeds")
        # One run a cell. A line that no cubic fits would make the noise of all too large.
        rests = [rest for line in lines if (rest := _rest(line))[1]]
        if sum(freedom for _, freedom in rests) < 2:
            return cls(None, None, "")
        levels = np.array([squares / freedom for squares, freedom in rests])
        freedoms = np.array([float(freedom) for _, freedom in rests])
        # The median of chi^2 / freedom is about (1 - 2 / (9 freedom))^3.
        typical = levels / (1 - 2 / (9 * freedoms)) ** 3
        if len(rests) > 4:
            # A median tells as much as two thirds of the lines.
            level, freedom = float(np.median(typical)), round(0.64 * freedoms.sum())
        else:
            level, freedom = float(np.average(levels, weights=freedoms)), round(freedoms.sum())
        known = KnownNoise(deviation=math.sqrt(level), freedom=max(1, freedom), single=True)
        return cls(known, known, "curves") if level > 0 else cls(None, None, "")


def _pooled(rests: Sequence[tuple[Array, tuple[int, ...]]]) -> KnownNoise | None:
    """By what means over the axes of so many values leave of losses."""
    squares, fourths, of_normal, of_excess, freedom = 0.0, 0.0, 0.0, 0.0, 0
    for rest, counts in rests:
        squares, fourths = squares + float((rest**2).sum()), fourths + float((rest**4).sum())
        freedom += math.prod(count - 1 for count in counts)
        # A residual is the sum of a_j x_j. Its square has the mean sum a^2, its fourth power
        # 3 (sum a^2)^2 + excess x sum a^4, with sums that are products over the axes.
        of_normal += 3 * rest.size * math.prod((1 - 1 / n) ** 2 for n in counts)
        of_excess += rest.size * math.prod(((n - 1) ** 4 + n - 1) / n**4 for n in counts)
    if not freedom or not squares > 0:
        return None
    # Of normal noise it has the variance 24 / sum a^4: what is within a deviation is none.
    excess = (fourths * (freedom / squares) ** 2 - of_normal) / of_excess
    excess = max(0.0, excess - math.sqrt(24 / of_excess))
    return KnownNoise(deviation=math.sqrt(squares / freedom), freedom=freedom, excess=excess)


def _near(line: SettingLine) -> dict[float, Mapping[str, float]]:
    """The cells whose losses are near the default's: noise rises where training comes apart."""
    finite = {value: mean for value, mean in _means(line).items() if math.isfinite(mean)}
    if not finite:
        return {}
    # A default that diverged is no middle: then the best value is.
    middle = finite.get(line.default, min(finite.values()))
    near = [value for value, mean in finite.items() if mean - middle <= NEAR * abs(middle)]
    # Fewer than two values tell no noise: then all that trained, noisier ones as well.
    return {value: line.losses[value] for value in (near if len(near) > 1 else finite)}


def _means(line: SettingLine) -> dict[float, float]:
    return {value: float(np.mean([*cell.values()])) for value, cell in line.losses.items()}


def _beside(line: SettingLine) -> list[tuple[Array, tuple[int, ...]]]:
    """What values and seeds leave of the losses, none where they are too few."""
    # Seeds that all cells share: a seed's own effect can be taken out only where each value has it.
    cells = [cell for cell in _near(line).values() if len(cell) > 1]
    seeds = sorted(set.intersection(*(set(cell) for cell in cells))) if len(cells) > 1 else []
    if len(seeds) < 2:
        return []
    runs = np.array([[cell[seed] for seed in seeds] for cell in cells])
    rest = runs - runs.mean(axis=1, keepdims=True) - runs.mean(axis=0) + runs.mean()
    return [(rest, rest.shape)]


def _within(lines: Sequence[SettingLine]) -> list[tuple[Array, tuple[int, ...]]]:
    """Of every cell the runs about its mean; the point's own cell is on all lines."""
    # Once each, since the point's own cell lies on every line, and in their order.
    cells = dict.fromkeys(tuple(cell.items()) for line in lines for cell in _near(line).values())
    losses = [np.array([loss for _, loss in cell]) for cell in cells if len(cell) > 1]
    return [(each - each.mean(), each.shape) for each in losses]


def _rest(line: SettingLine) -> tuple[float, int]:
    """Squares that a cubic through the line's means leaves near the lowest, and their freedom."""
    cells = _near(line)
    # Choices have no order for a cubic, and of three points it leaves nothing.
    if line.choices or len(cells) < 4:
        return 0.0, 0
    x = np.array([*cells])
    rest = left_by_cubic(x - x.mean(), np.array([np.mean([*c.values()]) for c in cells.values()]))
    return float(rest.squares[0]) * rest.freedom, rest.freedom


# What a line's values gain over its default.


@dataclass(frozen=True, eq=False)
class LineGains:
    """Of a line's other values [values], ascending: gain over the default, its variance, freedom.

    The default's own runs are in all of them: `shared` is that part of each variance. Where it was
    not run, the gains are over the chord between its neighbours, and too large by `slack` at most.
    """

    values: Array
    gains: Array
    variances: Array
    shared: Array
    freedom: int
    seeds: int
    slack: float = 0.0

    @classmethod
    def of(cls, line: SettingLine, noise: RunNoise) -> LineGains | None:
        """None where the default was not run, nor values that hold it between, or diverged."""
        default, (slack, times) = cell_at(line, line.default), _below_chord(line, line.default)
        if not default or not all(map(math.isfinite, [*default.values(), slack])):
            return None
        rows, counts, freedoms = list[tuple[float, ...]](), list[int](), list[int]()
        for value, cell in sorted(line.losses.items()):
            if value == line.default or not all(map(math.isfinite, cell.values())):
                continue
            both = sorted(default.keys() & cell.keys())
            # By the same seeds where the default has them, or with all runs: whichever is surer.
            ways = []
            if both and noise.paired:
                variance = noise.paired.deviation**2 / len(both)
                gain, part = float(np.mean([default[s] - cell[s] for s in both])), times * variance
                freedom = noise.paired.freedom_of_difference((len(both), len(both)))
                ways.append((part + variance, gain, part, len(both), freedom))
            if noise.alone or not ways:
                variance = noise.alone.deviation**2 if noise.alone else math.nan
                gain = float(np.mean([*default.values()]) - np.mean([*cell.values()]))
                part = times * variance / len(default)
                counts_of = len(default), len(cell)
                freedom = noise.alone.freedom_of_difference(counts_of) if noise.alone else 1
                ways.append((part + variance / len(cell), gain, part, len(cell), freedom))
            variance, gain, part, count, freedom = min(ways)
            rows.append((value, gain, variance, part))
            counts.append(count)
            freedoms.append(freedom)
        if not rows:
            return None
        values, gains, variances, shared = np.array(rows).T
        # Beyond a thousand, Student's distribution is the normal one.
        freedom = min(1000, *freedoms)
        return cls(values, gains, variances, shared, freedom, min(counts), slack)

    @property
    def winner(self) -> int:
        """The place of the value that gains most."""
        return int(self.gains.argmax())

    def low(self, error: float) -> float:
        """What some value gains at least, for all values at once."""
        half = quantile(self.freedom, 1 - error / len(self.gains))
        return float((self.gains - half * np.sqrt(self.variances)).max()) - self.slack

    def high(self, error: float) -> float:
        """What no value gains more than."""
        half = quantile(self.freedom, 1 - error)
        return float((self.gains + half * np.sqrt(self.variances)).max())

    def error(self) -> float:
        """The chance that of values without a gain any seems to gain so much."""
        largest = float(((self.gains - self.slack) / np.sqrt(self.variances)).max())
        return min(1.0, len(self.gains) * student_above(largest, self.freedom))

    def unlucky(self) -> float:
        """The gain of a choice by runs that did not make it; see the file's head."""
        # Two gains have the default's runs in common: they share the smaller part of the two.
        covariance = np.minimum.outer(self.shared, self.shared)
        np.fill_diagonal(covariance, self.variances)
        generator = np.random.default_rng(0)
        noise = generator.standard_normal((THINNINGS, len(self.gains)))
        noise = noise @ np.linalg.cholesky(covariance).T
        # Both signs of every draw: what is added is 0 in the mean.
        noise = np.vstack([noise, -noise])
        # Chosen with e, told with -e / f: of normal noise the two are independent (data thinning).
        chosen = (self.gains + noise * math.sqrt(SHARE)).argmax(axis=1)
        told = self.gains[chosen] - noise[np.arange(len(noise)), chosen] / math.sqrt(SHARE)
        return float(told.mean()) - self.slack

    def beside(self, others: Sequence[LineGains]) -> LineGains:
        """The mean of what each value gains here and at other sizes, by the inverse variances."""
        rows = []
        for place, value in enumerate(self.values):
            of = [(self, place)]
            for other in others:
                of += [(other, int(at)) for at in np.flatnonzero(other.values == value)]
            weights = np.array([1 / one.variances[at] for one, at in of])
            weights /= weights.sum()
            parts = np.array([[o.gains[at], o.variances[at], o.shared[at]] for o, at in of])
            rows.append((weights @ parts[:, 0], *(weights**2 @ parts[:, 1:])))
        gains, variances, shared = np.array(rows).T
        freedom = min([self.freedom, *(other.freedom for other in others)])
        return LineGains(self.values, gains, variances, shared, freedom, self.seeds, self.slack)

    def estimate(self, lines: int) -> Estimate:
        """The gain of the best value, the luckiest taken out, and its ends for so many lines."""
        if not np.isfinite(self.variances).all():
            return UNKNOWN
        low, high = self.low(ERROR / lines), self.high(ERROR)
        # No noise at all: nothing is there to be thinned.
        value = self.unlucky() if self.variances.all() else float(self.gains.max()) - self.slack
        return Estimate(value=min(max(value, low), high), low=low, high=high)

    def at(self, value: float) -> Estimate:
        """The gain of one value that these runs did not choose, with 90 %: 95 % to each side."""
        nearest = int(np.abs(self.values - value).argmin())
        if self.values[nearest] != value:
            return UNKNOWN
        gain = float(self.gains[nearest])
        half = quantile(self.freedom, 1 - ERROR) * math.sqrt(self.variances[nearest])
        least = gain - self.slack
        return Estimate(value=least, low=least - half, high=gain + half)


def cell_at(line: SettingLine, value: float) -> Mapping[str, float]:
    """The losses of a value by seed, on the chord between its neighbours where it was not run."""
    if value in line.losses:
        return line.losses[value]
    below = [each for each in line.losses if each < value]
    above = [each for each in line.losses if each > value]
    if not below or not above or line.choices:
        return {}
    # A convex curve lies below its chord: a default that was not run seems a little worse.
    low, high = max(below), min(above)
    share = (value - low) / (high - low)
    cells = line.losses[low], line.losses[high]
    both = cells[0].keys() & cells[1].keys()
    return {seed: (1 - share) * cells[0][seed] + share * cells[1][seed] for seed in both}


def _below_chord(line: SettingLine, value: float) -> tuple[float, float]:
    """How far a loss that was not run may lie below its chord, and times what variance of a run.

    A curve that is convex there lies above what goes on from the two values to either side.
    """
    if value in line.losses:
        return 0.0, 1.0
    means, least, times = _means(line), -math.inf, 1.0
    for side in (-1, 1):
        beyond = sorted((side * v, mean) for v, mean in means.items() if side * (v - value) > 0)
        if len(beyond) > 1 and math.isfinite(beyond[1][1]):
            (near, low), (far, high) = beyond[:2]
            share = (near - side * value) / (far - near)
            if (there := low - share * (high - low)) > least:
                least, times = there, (1 + share) ** 2 + share**2
    chord = cell_at(line, value)
    return (max(0.0, float(np.mean([*chord.values()])) - least) if chord else math.inf), times


# The answer to one hyperparameter.


def _judged(
    lines: Sequence[SettingLine],
    noises: Mapping[float, RunNoise],
    names: Sequence[str],
    seen: float,
) -> HyperparameterGain:
    """Of one hyperparameter's lines, ascending in size; the first is the base's."""
    base, count = lines[0], len(names)
    gains = LineGains.of(base, noises[base.size])
    if gains is None:
        return _without_default(base, count)
    best, values = float(gains.values[gains.winner]), sorted(base.losses)
    found = HyperparameterGain(
        name=base.name,
        answer="cannot say",
        default=_shown(base, base.default),
        best=_shown(base, best),
        gain=gains.estimate(count),
        seemed=float(gains.gains.max()),
        error=1.0,
        values=len(values),
        seeds=gains.seeds,
        at_end=not base.choices and best in (values[0], values[-1]) and len(values) > 2,
    )
    if not math.isfinite(found.gain.low):
        near = (base.default,)
        # Without any noise three seeds of the default are the cheapest runs that show it.
        return replace(found, lacking="noise", next=(_telling(base, near, (base.size,), 3),))
    larger = [
        (line.size, other.at(best), other)
        for line in lines[1:]
        if (other := LineGains.of(_with(line, best), noises[line.size])) is not None
    ]
    larger = [each for each in larger if math.isfinite(each[1].low)]
    told = [(gain, other.freedom) for _, gain, other in larger]
    # Of all hyperparameters together (Bonferroni), and of the base and the larger sizes as one.
    error = min(1.0, count * _combined(gains.error(), told))
    # Where nothing is gained there is no optimum that could move.
    moved = movement(lines, noises) if error <= ERROR and not base.choices else None
    optima = moved.optima if moved else {}
    found = replace(
        found,
        error=error,
        octaves_per_doubling=moved.slope if moved else UNKNOWN,
        optimum_log2=optima.get(base.size, UNKNOWN),
        sizes=tuple(
            GainAtSize(size=size, gain=gain, optimum_log2=optima.get(size, UNKNOWN))
            for size, gain, _ in larger
        ),
    )
    return _answered(found, base, best, gains, larger, moved, seen)


def _answered(
    found: HyperparameterGain,
    base: SettingLine,
    best: float,
    gains: LineGains,
    larger: Sequence[tuple[float, Estimate, LineGains]],
    moved: Moved | None,
    seen: float,
) -> HyperparameterGain:
    """The answer by the gain, then by the sizes, then by where the optimum goes."""
    others = [other for _, _, other in larger]
    # A gain that shows first at larger sizes is growing: it is not left for the base's sake.
    grows = any(other.error() <= ERROR for other in others) and found.error > ERROR
    # All sizes together say that no value gains what would be seen: that settles it, moved or not.
    if gains.beside(others).high(ERROR) < seen and not grows:
        return replace(found, answer="leave", lacking="fades" if found.gain.low > 0 else "")
    if found.error > ERROR and gains.slack:
        runs = _telling(base, (base.default, best), (base.size,), found.seeds)
        return replace(found, lacking="runs around", next=(runs,))
    if found.error > ERROR:
        seeds = _seeds_for_gain(gains, found, seen)
        both = (base.default, best)
        # A gain worth having takes seeds at the two values; a small one may belong to any of them.
        told = both if found.gain.value > seen / 2 else tuple(base.losses)
        runs = _telling(base, told, (base.size,), seeds)
        return replace(found, lacking="seeds", next=(runs,))
    if not larger:
        runs = _telling(base, _around(base, best), (2 * base.size, 4 * base.size), found.seeds)
        return replace(found, lacking="sizes", next=(runs,))
    size, gain, there = larger[-1]
    moves = moved is not None and (moved.slope.low > 0 or moved.slope.high < 0)
    # The movement must be sure and large enough to matter, and a gain left there.
    if moves and moved and abs(moved.slope.value) >= SLOW and there.error() <= ERROR:
        return replace(found, answer="retune")
    if there.high(ERROR) < seen:
        return replace(found, answer="leave", lacking="fades")
    # Of a flat optimum nobody knows where it goes, and it matters little.
    stays = moved is None or moved.stays or moved.regret.value <= max(seen, gain.value / 2)
    # At an end there is a gain, and where the optimum lies is open on the far side alone.
    if gain.low > 0 and (stays or found.at_end):
        return replace(found, answer="carry")
    values = _around(base, best)
    seeds = min(MOST_SEEDS, max(2 * there.seeds, there.seeds + 1))
    return replace(found, lacking="seeds at sizes", next=(_telling(base, values, (size,), seeds),))


def _without_default(base: SettingLine, count: int) -> HyperparameterGain:
    """Of a line without its default, or with one that diverged."""
    default = base.losses.get(base.default, {})
    finite = {
        value: cell for value, cell in base.losses.items() if all(map(math.isfinite, cell.values()))
    }
    best = min(finite, key=lambda v: np.mean([*finite[v].values()]), default=base.default)
    both = sorted(default.keys() & finite.get(best, {}).keys())
    gain = UNKNOWN
    if both:
        cells = (default, finite[best])
        before, after = (np.array([cell[seed] for seed in both]) for cell in cells)
        gain = paired_difference(before, after, ERROR / (count * max(1, len(finite))))
    return HyperparameterGain(
        name=base.name,
        answer="cannot say",
        default=_shown(base, base.default),
        best=_shown(base, best),
        gain=gain,
        seemed=gain.value,
        error=1.0,
        values=len(base.losses),
        seeds=len(both),
        lacking="runs around",
        next=(_telling(base, (base.default, best), (base.size,), max(3, 2 * len(both))),),
    )


def _combined(first: float, others: Sequence[tuple[Estimate, int]]) -> float:
    """Fisher's rule over the base's error and that of the other sizes' gains together."""
    if not others:
        return first
    # Standard errors, out of intervals that reach Student's quantile of them to each side.
    errors = [(gain.high - gain.low) / 2 / quantile(freedom, 1 - ERROR) for gain, freedom in others]
    if not all(errors):
        return first if all(gain.value > 0 for gain, _ in others) else 1.0
    weights = np.array(errors) ** -2.0
    mean = float(weights @ [gain.value for gain, _ in others] / weights.sum())
    freedom = min(freedom for _, freedom in others)
    product = first * student_above(mean * math.sqrt(weights.sum()), freedom)
    # The product of two uniform errors is at most p with probability p (1 - log p).
    return product * (1 - math.log(product)) if product > 0 else 0.0


def _seeds_for_gain(gains: LineGains, found: HyperparameterGain, seen: float) -> int:
    """Seeds with which either end of the gain's interval decides, if all stays as it is."""
    value, low, high = found.gain.value, found.gain.low, found.gain.high
    # An interval shrinks as the root of the number of seeds.
    # Up to 0 from below its low end, or up to `seen` from above its high end.
    ways = [(value - low) / value] if value > 0 else []
    ways += [(high - value) / (seen - value)] if value < seen else []
    factor = min(ways, default=math.inf) ** 2
    needed = gains.seeds * factor if math.isfinite(factor) else math.inf
    return int(min(MOST_SEEDS, max(gains.seeds + 1, math.ceil(min(needed, MOST_SEEDS)))))


def _telling(
    line: SettingLine, values: Sequence[float], sizes: Sequence[float], seeds: int
) -> TellingRuns:
    shown = tuple(_shown(line, value) for value in sorted(set(values)))
    return TellingRuns(values=shown, sizes=tuple(filter(None, sizes)), seeds=max(1, seeds))


def _around(line: SettingLine, best: float) -> list[float]:
    """The default, the best value and its neighbours."""
    values = sorted(line.losses)
    at = values.index(best)
    return [line.default, *values[max(0, at - 1) : at + 2]]


def _with(line: SettingLine, value: float) -> SettingLine:
    """The line with a value on the chord between its neighbours, where it was not run."""
    if value in line.losses or not (cell := cell_at(line, value)):
        return line
    return replace(line, losses=dict(sorted({**line.losses, value: cell}.items())))


def _shown(line: SettingLine, place: float) -> float | str:
    """A value as it is used."""
    return line.choices[round(place)] if line.choices else float(f"{2.0**place:.12g}")


# Where the optimum goes.


@dataclass(frozen=True, eq=False)
class Moved:
    """Optima in log2 by size, and octaves a doubling of the size; UNKNOWN with one optimum.

    It `stays` within `STAYS` at the largest size; `regret` is lost there at the base's optimum.
    """

    optima: Mapping[float, Estimate]
    slope: Estimate
    stays: bool
    regret: Estimate


def movement(lines: Sequence[SettingLine], noises: Mapping[float, RunNoise]) -> Moved | None:
    """The movement of a hyperparameter's optimum over its lines, ascending in size."""
    fits = dict[float, CurveFit]()
    for line in lines:
        if (fit := optimum_fit(line, noises[line.size])) is not None:
            fits[line.size] = fit
    optima = {size: fit.optimum for size, fit in fits.items()}
    inner = {s: fit for s, fit in fits.items() if not fit.at_end and not fit.noise_unknown}
    # Size 0 stands for runs of one size that nobody named: it has no logarithm.
    if len(inner) < 2 or 0 in inner:
        return Moved(optima, UNKNOWN, False, UNKNOWN)
    x = np.log2([*inner])
    draws = np.stack([fit.free_optimum_draws for fit in inner.values()])
    # A twentieth of an octave, so that no size alone decides.
    weights = 1 / (draws.var(axis=1) + 0.05**2)
    away = x - np.average(x, weights=weights)
    # The slope of a weighted line as one linear map: values and draws go through the same.
    line_of = weights * away / (weights * away**2).sum()
    values = np.array([fit.optimum.value for fit in inner.values()])
    slope = Estimate.from_draws(float(line_of @ values), line_of @ draws)
    first, last = min(inner), max(inner)
    shift = Estimate.from_draws(float(values[-1] - values[0]), draws[-1] - draws[0])
    regret = inner[last].loss_gap(inner[first].optimum.value)
    return Moved(optima, slope, max(-shift.low, shift.high) <= STAYS, regret)


def optimum_fit(line: SettingLine, noise: RunNoise) -> CurveFit | None:
    """The curve of a line's means with the noise of their seeds; None where it has none."""
    if line.choices or math.isnan(noise.deviation):
        return None
    # The thinnest cell decides how noisy a mean is taken to be: never less than it is.
    seeds = min(map(len, line.losses.values()))
    known = noise.paired or noise.alone
    assert known
    curve = SizeCurve(
        # A size's width is a name here: the fit asks for a size, and draws by it.
        size=LadderSize(width=max(1, int(line.size)), depth=1, batch_size=1, steps=1),
        losses={value: (mean,) for value, mean in _means(line).items()},
        noise=replace(known, deviation=max(known.deviation / math.sqrt(seeds), 1e-12)),
    )
    return fit_curves([curve], 0.0)[curve.size]
