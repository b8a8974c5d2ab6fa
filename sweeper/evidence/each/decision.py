"""One hyperparameter at a time: is its tuned value worth carrying to the target?

A line of runs varies one hyperparameter, all others held. A value's gain is the default's loss
less its own, seed by seed, with the variance of a run that all lines of a size share: a paired
t-test with a pooled noise. Over several sizes the gains of a value are averaged by their inverse
variances. A table tests many values, of which the luckiest seems to gain:

- Whether any gains is told for all values of all hyperparameters at once, by **Holm's** rule: of
  twenty without effect any seems to gain in one table of twenty. The low end of the best value's
  gain is Bonferroni's, and not below 0 where Holm's rule has it gain.
- The gain's value is what a choice gains by runs that did not make it: with e ~ N(0, S), S the
  variance of y, y + e and y - e are independent (data thinning). One chooses, the other one tells.
- Its high end is that of the value that may gain most, each with 95 %: that all gain less than some
  limit is wrong only where one does not, so it needs no correction (an intersection-union test).

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
from scipy.special import gammaincinv, ndtri, stdtr, stdtrit

from sweeper.evidence.each.reading import SettingLine, VariedSettings
from sweeper.evidence.runs.cells import MOST_SEEDS
from sweeper.stats.curve import BASIN_TOLERANCE, DRAWS, CurveFit, fit_curves
from sweeper.stats.estimate import UNKNOWN, Array, Estimate
from sweeper.stats.ladder import KnownNoise, LadderRule, LadderSize, SizeCurve
from sweeper.stats.line import FLAT
from sweeper.stats.noise import fit_plane, left_by_cubic

EachCode = Literal["carry", "retune", "leave", "cannot say"]
Lacking = Literal["", "noise", "seeds", "sizes", "seeds at sizes", "fades", "runs around"]
ORDER: Sequence[EachCode] = ("carry", "retune", "cannot say", "leave")
ERROR = 0.05
"""The chance that any of a table's hyperparameters without effect seems to gain."""


@dataclass(frozen=True, kw_only=True)
class TellingRuns:
    """Runs that would tell: so many seeds of each of `values` at each of `sizes`."""

    values: tuple[float | str, ...]
    sizes: tuple[float, ...]
    seeds: int


@dataclass(frozen=True, kw_only=True)
class HyperparameterGain:
    """A hyperparameter's `answer`, and what it rests on.

    `best` gains `gain` over `default` at the base, in the loss's unit. The optimum of what gains
    moves by so many `octaves_per_doubling` of the size.
    `at_end`: the best value is the first or last one, so that there may be more beyond it.
    `lacking` says what an open answer lacks, or why a gain is not carried.
    """

    name: str
    answer: EachCode
    default: float | str
    best: float | str
    gain: Estimate
    octaves_per_doubling: Estimate = UNKNOWN
    at_end: bool = False
    lacking: Lacking = ""
    next: tuple[TellingRuns, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EachAnswer:
    """Answers to all, carried ones first; `noise` of a base's run, `seen`: the gain it shows."""

    hyperparameters: tuple[HyperparameterGain, ...]
    axis: str = ""
    sizes: tuple[float, ...] = ()
    noise: float = math.nan
    seen: float = math.nan
    unit: str = "nats"
    runs: int = 0

    def named(self, answer: EachCode) -> list[str]:
        """The hyperparameters of an answer."""
        return [each.name for each in self.hyperparameters if each.answer == answer]


def judge_each(varied: VariedSettings, noise: float | None = None) -> EachAnswer:
    """Carry, retune, leave, or cannot say, of each setting; `noise` is a run's, where known."""
    sizes = sorted({line.size for line in varied.lines})
    at_size = {size: [line for line in varied.lines if line.size == size] for size in sizes}
    noises = {size: RunNoise.of(lines, noise) for size, lines in at_size.items()}
    # What shows between a run of each at the largest size, or is no flat difference: the lesser.
    losses = [min(_finite_means(line).values(), default=math.inf) for line in at_size[sizes[-1]]]
    flat = FLAT * abs(float(np.median([loss for loss in losses if math.isfinite(loss)] or [0.0])))
    seen = min(float(-ndtri(ERROR)) * math.sqrt(2) * noises[sizes[-1]].deviation, flat)
    tried = [
        TriedSetting.of([line for line in varied.lines if line.name == name], noises)
        for name in sorted({line.name for line in varied.lines})
    ]
    errors = iter(_holm([p for settings in tried for p in settings.errors]))
    tests = sum(len(settings.errors) for settings in tried)
    gains = [
        _answered(settings, min([next(errors) for _ in settings.errors], default=1.0), tests, seen)
        for settings in tried
    ]

    def place(gain: HyperparameterGain) -> tuple[int, float, str]:
        value = gain.gain.value
        return ORDER.index(gain.answer), math.inf if math.isnan(value) else -value, gain.name

    return EachAnswer(
        hyperparameters=tuple(sorted(gains, key=place)),
        axis=varied.axis,
        sizes=tuple(sizes),
        noise=noises[sizes[0]].deviation,
        seen=seen,
        unit=varied.unit,
        runs=varied.used,
    )


def _holm(errors: Sequence[float]) -> list[float]:
    order, adjusted, largest = np.argsort(errors, kind="stable"), [1.0] * len(errors), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(errors) - rank) * errors[place]))
        adjusted[place] = largest
    return adjusted


@dataclass(frozen=True)
class RunNoise:
    """The noise of a run at a size, `paired` beside another of its seed; None if not known."""

    spread: KnownNoise | None
    paired: bool

    @property
    def deviation(self) -> float:
        """NaN where nothing shows it."""
        return self.spread.deviation if self.spread else math.nan

    @classmethod
    def of(cls, lines: Sequence[SettingLine], noise: float | None) -> RunNoise:
        """The noise that seeds show, else what smooth curves leave."""
        if noise is not None:
            return cls(KnownNoise(deviation=noise, freedom=10**6), True)
        if spread := _pooled([*chain.from_iterable(map(_beside, lines))]):
            return cls(spread, True)
        if spread := _pooled(_within(lines)):
            return cls(spread, False)
        # One run a cell: what a cubic leaves. A line that no cubic fits would make it all too
        # large, so it is the median, which tells as much as 2 / pi of the lines.
        rests = np.array([rest for line in lines if (rest := _rest(line))[1]]).reshape(-1, 2)
        squares, freedoms = rests.T
        if freedoms.sum() < 2 or not squares.sum() > 0:
            return cls(None, True)
        level = float(np.median(squares / (2 * gammaincinv(freedoms / 2, 0.5))))
        freedom = max(1, round(2 / math.pi * freedoms.sum()))
        return cls(KnownNoise(deviation=math.sqrt(level), freedom=freedom), True)


def _pooled(rests: Sequence[tuple[Array, tuple[int, ...]]]) -> KnownNoise | None:
    """The noise of residuals, each with the lengths of the axes whose means were taken out."""
    freedom = sum(math.prod(count - 1 for count in counts) for _, counts in rests)
    squares = sum(float((rest**2).sum()) for rest, _ in rests)
    if not freedom or not squares > 0:
        return None
    # A residual is the sum of a_j x_j. Its square has the mean sum a^2, its fourth power
    # 3 (sum a^2)^2 + excess x sum a^4, with sums that are products over the axes.
    sums = [
        (rest.size, math.prod(1 - 1 / n for n in counts), [(n - 1) / n**4 for n in counts], counts)
        for rest, counts in rests
    ]
    normal = sum(3 * size * mean**2 for size, mean, _, _ in sums)
    fourth = sum(
        size * math.prod(p * ((n - 1) ** 3 + 1) for p, n in zip(parts, counts, strict=True))
        for size, _, parts, counts in sums
    )
    seen = sum(float((rest**4).sum()) for rest, _ in rests) * (freedom / squares) ** 2
    # Of normal noise it has the variance 24 / sum a^4: what is within a deviation is none.
    excess = max(0.0, (seen - normal) / fourth - math.sqrt(24 / fourth))
    return KnownNoise(deviation=math.sqrt(squares / freedom), freedom=freedom, excess=excess)


def _finite_means(line: SettingLine) -> dict[float, float]:
    means = {value: float(np.mean([*cell.values()])) for value, cell in line.losses.items()}
    return {value: mean for value, mean in means.items() if math.isfinite(mean)}


def _near(line: SettingLine) -> dict[float, Mapping[str, float]]:
    """The cells whose losses are near the default's: noise rises where training comes apart."""
    finite = _finite_means(line)
    # A default that diverged is no middle: then the best value is.
    middle = finite.get(line.default, min(finite.values(), default=0.0))
    near = [v for v, mean in finite.items() if mean - middle <= BASIN_TOLERANCE * abs(middle)]
    # Fewer than two values tell no noise: then all that trained, noisier ones as well.
    return {value: line.losses[value] for value in (near if len(near) > 1 else finite)}


def _beside(line: SettingLine) -> list[tuple[Array, tuple[int, ...]]]:
    # Seeds that all cells share: a seed's own effect can be taken out only where each value has it.
    cells = [cell for cell in _near(line).values() if len(cell) > 1]
    seeds = sorted(set.intersection(*(set(cell) for cell in cells))) if len(cells) > 1 else []
    if len(seeds) < 2:
        return []
    runs = np.array([[cell[seed] for seed in seeds] for cell in cells])
    rest = runs - runs.mean(axis=1, keepdims=True) - runs.mean(axis=0) + runs.mean()
    return [(rest, rest.shape)]


def _within(lines: Sequence[SettingLine]) -> list[tuple[Array, tuple[int, ...]]]:
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


@dataclass(frozen=True, eq=False)
class LineGains:
    """Gains [values] over the default, and variances, of which `shared` is the default's part."""

    values: Array
    gains: Array
    variances: Array
    shared: Array
    freedom: float
    seeds: int

    @classmethod
    def of(cls, line: SettingLine, noise: RunNoise) -> LineGains | None:
        """None where the default was not run, nor values around it, or diverged."""
        default, rows = cell_at(line, line.default), list[tuple[float, ...]]()
        if not default or not all(map(math.isfinite, default.values())):
            return None
        for value, cell in sorted(line.losses.items()):
            if value == line.default or not all(map(math.isfinite, cell.values())):
                continue
            both = sorted(default.keys() & cell.keys()) if noise.paired else []
            # Without a seed in common means are compared, and what seeds do is in their noise.
            ours, theirs = (both, both) if both else (sorted(default), sorted(cell))
            gain = np.mean([default[s] for s in ours]) - np.mean([cell[s] for s in theirs])
            shared = noise.deviation**2 / len(ours)
            variance = shared + noise.deviation**2 / len(theirs)
            counts = len(ours), len(theirs)
            freedom = noise.spread.freedom_of_difference(counts) if noise.spread else 1
            rows.append((value, float(gain), variance, shared, freedom, len(theirs)))
        if not rows:
            return None
        values, gains, variances, shares, freedoms, seeds = np.array(rows).T
        return cls(values, gains, variances, shares, float(freedoms.min()), int(seeds.min()))

    @property
    def best(self) -> float:
        """The value that gains most."""
        return float(self.values[self.gains.argmax()])

    def quantile(self, error: float) -> float:
        """Student's, above which the error lies."""
        return float(-stdtrit(self.freedom, error))

    def high(self) -> float:
        """The highest gain that any value may have."""
        return float((self.gains + self.quantile(ERROR) * np.sqrt(self.variances)).max())

    def errors(self) -> list[float]:
        """The chance of each gain without one."""
        errors = stdtr(self.freedom, -self.gains / np.sqrt(self.variances))
        return [float(error) for error in errors]

    def unlucky(self) -> float:
        """The gain of a choice by runs that did not make it; see the file's head."""
        # Two gains have the default's runs in common: they share the smaller part of the two.
        covariance = np.minimum.outer(self.shared, self.shared)
        np.fill_diagonal(covariance, self.variances)
        noise = np.random.default_rng(0).standard_normal((DRAWS, len(self.gains)))
        noise = noise @ np.linalg.cholesky(covariance).T
        # Both signs of every draw: what is added is 0 in the mean.
        noise = np.vstack([noise, -noise])
        chosen = (self.gains + noise).argmax(axis=1)
        return float((self.gains[chosen] - noise[np.arange(len(noise)), chosen]).mean())

    def beside(self, others: Sequence[LineGains]) -> LineGains:
        """The mean of what each value gains here and at other sizes, by the inverse variances."""
        rows = []
        for value in self.values:
            parts = np.array(
                [
                    (line.gains[at], line.variances[at], line.shared[at], line.freedom)
                    for line in (self, *others)
                    for at in np.flatnonzero(line.values == value)
                ]
            )
            weights = 1 / parts[:, 1] / (1 / parts[:, 1]).sum()
            of_mean = weights**2 @ parts[:, 1:3]
            # Of a sum of variances that are told apart, by Welch and Satterthwaite.
            freedom = of_mean[0] ** 2 / ((weights**2 * parts[:, 1]) ** 2 @ (1 / parts[:, 3]))
            rows.append((weights @ parts[:, 0], *of_mean, freedom))
        gains, variances, shared, freedoms = np.array(rows).T
        return LineGains(self.values, gains, variances, shared, freedoms.min(), self.seeds)

    def estimate(self, tests: int) -> Estimate:
        """The gain of the best value, the luckiest taken out, and its ends for so many tests."""
        if not np.isfinite(self.variances).all():
            return UNKNOWN
        low = float((self.gains - self.quantile(ERROR / tests) * np.sqrt(self.variances)).max())
        value = min(max(self.unlucky(), low), self.high())
        return Estimate(value=value, low=low, high=self.high())

    def at(self, value: float) -> Estimate:
        """The gain of one value that these runs did not choose, with 90 %: 95 % to each side."""
        if not (place := np.flatnonzero(self.values == value)).size:
            return UNKNOWN
        gain = float(self.gains[place[0]])
        half = self.quantile(ERROR) * math.sqrt(self.variances[place[0]])
        return Estimate(value=gain, low=gain - half, high=gain + half)


def cell_at(line: SettingLine, value: float) -> Mapping[str, float]:
    """The losses of a value by seed, on the chord between its neighbours where it was not run."""
    below, above = [v for v in line.losses if v <= value], [v for v in line.losses if v >= value]
    if value in line.losses or not below or not above or line.choices:
        return line.losses.get(value, {})
    low, high = max(below), min(above)
    share, cells = (value - low) / (high - low), (line.losses[low], line.losses[high])
    both = cells[0].keys() & cells[1].keys()
    return {seed: (1 - share) * cells[0][seed] + share * cells[1][seed] for seed in both}


@dataclass(frozen=True, eq=False)
class TriedSetting:
    """One hyperparameter's lines, ascending in size, the first is the base's, with their gains.

    `gains` are None where the base's default was not run or diverged; `larger` are those of other
    sizes that tell something.
    """

    lines: Sequence[SettingLine]
    noises: Mapping[float, RunNoise]
    gains: LineGains | None
    larger: Mapping[float, LineGains]

    @classmethod
    def of(cls, lines: Sequence[SettingLine], noises: Mapping[float, RunNoise]) -> TriedSetting:
        """The lines with the base's best value on each, and what their values gain."""
        base, *others = sorted(lines, key=lambda line: line.size)
        # Of a chord a default seems worse than it is: at the base it must have been run.
        gains, larger = None, dict[float, LineGains]()
        if base.default in base.losses:
            gains = LineGains.of(base, noises[base.size])
        for line in others:
            if gains is None:
                break
            gains_there = LineGains.of(_with(line, gains.best), noises[line.size])
            if (
                gains_there
                and np.isfinite(gains_there.variances).all()
                and gains.best in gains_there.values
            ):
                larger[line.size] = gains_there
        return cls([base, *others], noises, gains, larger)

    @property
    def everywhere(self) -> LineGains | None:
        """The gains of the base's values over all sizes."""
        if self.gains is None or not np.isfinite(self.gains.variances).all():
            return None
        return self.gains.beside([*self.larger.values()])

    @property
    def errors(self) -> list[float]:
        """The chance of each value's gain over all sizes without one."""
        return self.everywhere.errors() if self.everywhere else []


def _with(line: SettingLine, value: float) -> SettingLine:
    if value in line.losses or not (cell := cell_at(line, value)):
        return line
    return replace(line, losses=dict(sorted({**line.losses, value: cell}.items())))


def _answered(tried: TriedSetting, error: float, tests: int, seen: float) -> HyperparameterGain:
    base, gains, everywhere = tried.lines[0], tried.gains, tried.everywhere
    values = sorted(base.losses)
    best = (
        gains.best
        if gains
        else min(finite := _finite_means(base), key=finite.__getitem__, default=base.default)
    )
    result = HyperparameterGain(
        name=base.name,
        answer="cannot say",
        default=_shown(base, base.default),
        best=_shown(base, best),
        gain=gains.estimate(max(1, tests)) if gains else UNKNOWN,
        at_end=not base.choices and best in (values[0], values[-1]) and len(values) > 2,
    )

    def lacks(
        what: Lacking, at: Sequence[float], sizes: Sequence[float], seeds: int
    ) -> HyperparameterGain:
        values_at = tuple(_shown(base, value) for value in sorted(set(at)))
        runs = TellingRuns(values=values_at, sizes=tuple(filter(None, sizes)), seeds=seeds)
        return replace(result, lacking=what, next=(runs,))

    around, place = [base.default, best], values.index(best)
    around += values[max(0, place - 1) : place + 2]
    if gains is None:
        seeds = min(map(len, base.losses.values()))
        return lacks("runs around", (base.default, best), (base.size,), max(3, 2 * seeds))
    if everywhere is None:
        # Without any noise three seeds of the default are the cheapest runs that show it.
        return lacks("noise", (base.default,), (base.size,), 3)
    gain = result.gain
    if error <= ERROR and not base.choices:
        moved = movement(tried.lines, tried.noises)
    else:  # where nothing is gained there is no optimum that could move
        moved = Moved(UNKNOWN, UNKNOWN, UNKNOWN)
    result = replace(
        result,
        gain=replace(gain, low=max(0.0, gain.low), value=max(0.0, gain.value))
        if error <= ERROR
        else gain,
        octaves_per_doubling=moved.slope,
    )
    # All sizes together say that no value gains what would be seen: that settles it, moved or not.
    if everywhere.high() < seen:
        return replace(result, answer="leave", lacking="fades" if gain.low > 0 else "")
    if error > ERROR:
        # A gain worth having takes seeds at the two values; a small one may belong to any of them.
        at = (base.default, best) if gain.value > seen / 2 else values
        # With so many times the runs the low end reaches 0, or the high one what is seen.
        ways = [(gain.value - gain.low) / gain.value] if gain.value > 0 else []
        ways += [(gain.high - gain.value) / (seen - gain.value)] if gain.value < seen else []
        times = max(1.5, min(ways, default=math.inf)) ** 2
        return lacks("seeds", at, (base.size,), int(min(MOST_SEEDS, gains.seeds * times)))
    if not tried.larger:
        return lacks("sizes", around, (2 * base.size, 4 * base.size), gains.seeds)
    size, largest = [*tried.larger.items()][-1]
    there = largest.at(best)
    # It moves for sure, by what is seen at the largest size, and something is to be gained there.
    moves = moved.slope.low > 0 or moved.slope.high < 0
    if moves and moved.regret.value > seen and min(_holm(largest.errors())) <= ERROR:
        return replace(result, answer="retune")
    if there.high < seen:
        return replace(result, answer="leave", lacking="fades")
    # Of a flat optimum nobody knows where it goes, and it matters little. At an end there is a
    # gain, and where the optimum lies is open on the far side alone.
    stays = bool(base.choices) or max(-moved.shift.low, moved.shift.high) <= LadderRule.max_shift
    stays = stays or result.at_end or moved.regret.value <= max(seen, there.value / 2)
    if there.low > 0 and stays:
        return replace(result, answer="carry")
    return lacks("seeds at sizes", around, (size,), 2 * largest.seeds)


def _shown(line: SettingLine, place: float) -> float | str:
    return line.choices[round(place)] if line.choices else float(f"{2.0**place:.12g}")


@dataclass(frozen=True, eq=False)
class Moved:
    """Octaves a doubling and to the largest size, and the `regret` there; UNKNOWN: one optimum."""

    slope: Estimate
    shift: Estimate
    regret: Estimate


def movement(lines: Sequence[SettingLine], noises: Mapping[float, RunNoise]) -> Moved:
    """The movement of a hyperparameter's optimum over its lines, ascending in size."""
    fits = {line.size: optimum_fit(line, noises[line.size]) for line in lines}
    inner = {s: f for s, f in fits.items() if f and not f.at_end and not f.noise_unknown}
    # Size 0 stands for runs of one size that nobody named: it has no logarithm.
    if len(inner) < 2 or 0 in inner:
        return Moved(UNKNOWN, UNKNOWN, UNKNOWN)
    x = np.log2([*inner])
    values = np.array([fit.optimum.value for fit in inner.values()])
    draws = np.stack([fit.free_optimum_draws for fit in inner.values()])
    slope = fit_plane(np.stack([np.ones(len(x)), x - x.mean()]), values, draws)[1]
    first, last = min(inner), max(inner)
    return Moved(
        Estimate.from_draws(float(slope[0]), slope[1:]),
        Estimate.from_draws(float(values[-1] - values[0]), draws[-1] - draws[0]),
        inner[last].loss_gap(inner[first].optimum.value),
    )


def optimum_fit(line: SettingLine, noise: RunNoise) -> CurveFit | None:
    """The curve of a line's means with the noise of their seeds; None where it has none."""
    if line.choices or noise.spread is None:
        return None
    # The thinnest cell decides how noisy a mean is taken to be: never less than it is.
    deviation = noise.deviation / math.sqrt(min(map(len, line.losses.values())))
    means = {value: (float(np.mean([*c.values()])),) for value, c in line.losses.items()}
    curve = SizeCurve(
        # A size's width is a name here: the fit asks for a size, and draws by it.
        size=LadderSize(width=max(1, int(line.size)), depth=1, batch_size=1, steps=1),
        losses=means,
        noise=replace(noise.spread, deviation=max(deviation, 1e-12)),
    )
    return fit_curves([curve], 0.0)[curve.size]
