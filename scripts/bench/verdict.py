"""How often the verdict on a transfer is wrong, and how often its intervals hold the truth.

Run `python scripts/bench/verdict.py --out verdict.json`, three hours of a core; `--count 100` takes
20 minutes, and `--only "two minima|parabolas"` some kinds.
Ladders of four widths are made up with known optima, laid and extended as `sweeper transfer` does,
and judged with its defaults. A ladder is a true transfer when every width's shift and loss gap are
within the thresholds, however narrowly, and a true failure otherwise.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.decide.ladder_verdict import SizeVerdict, Verdict, judge_ladder
from sweeper.decide.settle import JudgedLadder, Settling, grids_of
from sweeper.decide.target import THEORY
from sweeper.decide.trend import Trend, fit_trend
from sweeper.stats.curve import BASIN_TOLERANCE, fit_curves, with_noise_left
from sweeper.stats.estimate import Array, Estimate
from sweeper.stats.ladder import LadderRule, LadderSize, SizeCurve
from sweeper.trial import Point

if TYPE_CHECKING:
    from findings import Findings

WIDTHS = (32, 64, 128, 256)
TARGET = 1024
"""The width that the trend is extrapolated to."""
Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What ladders are drawn from: each number of a ladder is uniform in its range.

    `slope` moves the optimum by log2 eta a doubling; `scatter` is the standard deviation around
    that. With u the distance to the optimum in log2 and k the `skew`, the loss is the floor and
    curvature * 2 (e^(k u) - 1 - k u) / k^2, a parabola as k goes to 0, times `steep` to the right
    of the optimum, and infinite from `cliff`
    on, a run's own cliff within 0.1 of it; with a `height` it is there so much above the floor,
    log-uniform and a tenth of it a run's own. A run's noise (nats) doubles with every `rise` to the
    right of the optimum; an offset of each seed, four times as large, is common to all widths'
    points of that seed. Along log2 eta the noise of a seed is independent, or correlated as
    exp(-d / `rough`) or exp(-(d / `smooth`)^2 / 2) at a distance d. `seed_shift` is the standard
    deviation (log2) of a seed's own optimum around the true one, at every width anew. With `own`
    every width has a skew of its own, from 0.05 to 0.8, and a curvature and a noise of its own, up
    to 2^0.6 and 2 times as large or small. A bottom is flat within about `flat` of the optimum: the
    rise r becomes r u^2 / (u^2 + flat^2). To the left of the optimum it levels off at `plateau`
    squares of an octave. A second minimum lies `second` to the right, 0.2 to 0.6 of the rise there
    deep, the first one unmoved. `tails` are the degrees of freedom of Student's t that noise is
    drawn from, of the same standard deviation; 0: normal. The curves have a grid of `step` (log2).
    """

    name: str
    slope: Range = (-1.0, 1.0)
    scatter: float = 0.0
    centre: Range = (-0.75, 0.75)
    curvature: Range = (0.02, 0.12)
    skew: Range = (0.0, 0.0)
    steep: Range = (1.0, 1.0)
    quartic: float = 0.0
    cliff: Range = (math.inf, math.inf)
    height: Range = (math.inf, math.inf)
    noise: Range = (0.002, 0.012)
    rise: float = math.inf
    rough: float = 0.0
    smooth: float = 0.0
    seed_shift: float = 0.0
    seeds: int = 2
    own: bool = False
    flat: Range = (0.0, 0.0)
    plateau: Range = (math.inf, math.inf)
    second: Range = (math.inf, math.inf)
    tails: int = 0
    step: float = 0.5


SKEWED: dict[str, Any] = {"skew": (0.2, 0.6), "rise": 1.0}
ROUGH = -0.5 / math.log(0.3)
"""The noise half an octave apart is correlated by 0.3: so were a small Llama's residuals."""
QUIET: Range = (0.0005, 0.004)
"""Noise in nats, so little that a form's own error shows."""
SCENARIOS = (
    Scenario(name="parabolas"),
    Scenario(name="skewed, noise rising", **SKEWED),
    Scenario(name="the same, 4 seeds", **SKEWED, seeds=4),
    Scenario(name="a cliff 0.3 to 1.5 past the optimum", **SKEWED, cliff=(0.3, 1.5)),
    Scenario(name="optima near the first grid's ends", **SKEWED, centre=(1.5, 2.5)),
    Scenario(
        name="the same to the left, with a cliff", **SKEWED, centre=(-2.5, -1.5), cliff=(1, 2)
    ),
    Scenario(name="flat basins", **SKEWED, curvature=(0.004, 0.02)),
    Scenario(name="noisy", **SKEWED, noise=(0.012, 0.04)),
    Scenario(name="optima scatter by 0.15", **SKEWED, scatter=0.15),
    Scenario(name="skewed, noise alike", skew=(0.2, 0.6)),
    Scenario(name="skewed, noise rising and rough", **SKEWED, rough=ROUGH),
    Scenario(name="skewed, noise rising and smooth", **SKEWED, smooth=1.0),
    Scenario(name="the right side steeper", steep=(1.5, 3.0), rise=1.0),
    Scenario(name="seeds with optima of their own", seed_shift=0.15),
    Scenario(name="widths unlike each other", **SKEWED, own=True),
    Scenario(name="widths unlike each other, noisy", **SKEWED, own=True, noise=(0.012, 0.04)),
    Scenario(name="widths unlike each other, 4 seeds", **SKEWED, own=True, seeds=4),
    Scenario(name="the left side steeper", steep=(0.33, 0.67), rise=1.0),
    Scenario(name="the right side steeper, noise alike", steep=(1.5, 3.0)),
    Scenario(name="the right side steeper and skewed", **SKEWED, steep=(1.5, 3.0)),
    Scenario(name="a quartic part", quartic=0.3, rise=1.0),
    Scenario(name="steps of 0.25", **SKEWED, step=0.25),
    Scenario(name="steps of 1", **SKEWED, step=1.0),
    Scenario(name="steps of 2", **SKEWED, step=2.0),
    Scenario(name="parabolas, steps of 2", step=2.0),
    Scenario(name="the right side steeper, steps of 1", steep=(1.5, 3.0), rise=1.0, step=1.0),
    Scenario(name="the right side steeper, steps of 2", steep=(1.5, 3.0), rise=1.0, step=2.0),
    Scenario(name="the right side 1.6 times steeper, t(3)", steep=(1.6, 1.6), tails=3),
    Scenario(name="the same, steps of 0.25", steep=(1.6, 1.6), tails=3, step=0.25),
    Scenario(name="the same, steps of 1", steep=(1.6, 1.6), tails=3, step=1.0),
    Scenario(name="the same, quiet", steep=(1.6, 1.6), tails=3, noise=QUIET),
    Scenario(name="the left side 1.6 times steeper, t(3)", steep=(0.625, 0.625), tails=3),
    Scenario(name="skewed, t(3)", skew=(0.2, 0.6), tails=3),
    Scenario(name="a flat bottom", **SKEWED, flat=(0.3, 1.0)),
    Scenario(name="a flat bottom, quiet", **SKEWED, flat=(0.3, 1.0), noise=QUIET),
    Scenario(name="a plateau to the left", skew=(0.0, 0.4), rise=1.0, plateau=(0.7, 3.0)),
    Scenario(
        name="a plateau to the left, quiet",
        skew=(0.0, 0.4),
        rise=1.0,
        plateau=(0.7, 3.0),
        noise=QUIET,
    ),
    Scenario(name="two minima", **SKEWED, second=(1.2, 2.0)),
    Scenario(name="4 seeds with optima of their own", seed_shift=0.15, seeds=4),
    Scenario(name="the same, further apart", seed_shift=0.3, seeds=4, noise=QUIET),
)
AFTERWARDS = (
    Scenario(name="afterwards: near the thresholds", **SKEWED, slope=(0.2, 0.45)),
    Scenario(name="afterwards: steep", **SKEWED, curvature=(0.15, 0.4)),
    Scenario(name="afterwards: very noisy", **SKEWED, noise=(0.04, 0.1)),
    Scenario(name="afterwards: a cliff 0.1 to 0.4 past the optimum", **SKEWED, cliff=(0.1, 0.4)),
    Scenario(name="afterwards: the left side skewed", skew=(-0.6, -0.2)),
    Scenario(name="afterwards: optima scatter by 0.3", **SKEWED, scatter=0.3),
    Scenario(
        name="afterwards: a flat bottom and a cliff", **SKEWED, flat=(0.3, 1.0), cliff=(0.8, 2.0)
    ),
    Scenario(name="afterwards: rough, seeds with optima of their own", rough=ROUGH, seed_shift=0.2),
    Scenario(name="afterwards: a plateau and two minima", plateau=(0.7, 3.0), second=(1.2, 2.0)),
    Scenario(name="afterwards: widths unlike each other, smooth", **SKEWED, own=True, smooth=0.7),
)
"""Invented when ladders that are settled had been made; nothing was changed for them."""
CLIFFS = (
    Scenario(name="finite cliffs of 1 to 8 nats, near", **SKEWED, cliff=(0.1, 1.0), height=(1, 8)),
    Scenario(name="finite cliffs of 1 to 8 nats, far", **SKEWED, cliff=(1.0, 3.0), height=(1, 8)),
    Scenario(name="finite cliffs of 0.1 to 1, near", **SKEWED, cliff=(0.1, 1.0), height=(0.1, 1)),
    Scenario(name="finite cliffs of 0.1 to 1, far", **SKEWED, cliff=(1.0, 3.0), height=(0.1, 1)),
    Scenario(name="finite cliffs, parabolas", cliff=(0.1, 3.0), height=(0.05, 8)),
    Scenario(
        name="finite cliffs, quiet", skew=(0.2, 0.6), noise=QUIET, cliff=(0.1, 3), height=(0.05, 8)
    ),
    Scenario(
        name="finite cliffs, noisy", **SKEWED, noise=(0.012, 0.04), cliff=(0.1, 3), height=(0.05, 8)
    ),
    Scenario(
        name="finite cliffs, flat basins",
        **SKEWED,
        curvature=(0.004, 0.02),
        cliff=(0.1, 3.0),
        height=(0.05, 8),
    ),
    Scenario(
        name="finite cliffs, steps of 0.25", **SKEWED, cliff=(0.1, 3), height=(1, 8), step=0.25
    ),
    Scenario(name="finite cliffs, steps of 1", **SKEWED, cliff=(0.1, 3), height=(1, 8), step=1.0),
    Scenario(name="finite cliffs, steps of 2", **SKEWED, cliff=(0.1, 3), height=(1, 8), step=2.0),
)
"""Runs that came apart end at a finite loss: cliffs of every height, at every distance."""
SINGLE = (
    Scenario(name="one seed, parabolas", seeds=1),
    Scenario(name="one seed, skewed, noise rising", **SKEWED, seeds=1),
    Scenario(name="one seed, quiet, t(3)", skew=(0.2, 0.6), tails=3, noise=QUIET, seeds=1),
    Scenario(name="one seed, optima of its own", seed_shift=0.15, seeds=1),
    Scenario(name="one seed, widths unlike each other", **SKEWED, own=True, seeds=1),
    Scenario(name="one seed, flat basins", **SKEWED, curvature=(0.004, 0.02), seeds=1),
    Scenario(name="one seed, finite cliffs", **SKEWED, cliff=(0.1, 3.0), height=(1, 8), seeds=1),
)
"""As tables are: the noise is what smooth curves leave."""
COARSE = (
    Scenario(name="coarse, one seed: skewed", **SKEWED, step=2.0, seeds=1),
    Scenario(name="coarse, one seed: parabolas", step=2.0, seeds=1),
    Scenario(
        name="coarse, one seed: the right side steeper",
        steep=(1.5, 3.0),
        rise=1.0,
        step=2.0,
        seeds=1,
    ),
    Scenario(
        name="coarse, one seed: finite cliffs",
        **SKEWED,
        cliff=(0.1, 3),
        height=(1, 8),
        step=2.0,
        seeds=1,
    ),
    Scenario(
        name="coarse, three seeds: beside a finite cliff",
        **SKEWED,
        cliff=(0.1, 1.5),
        height=(1, 8),
        step=2.0,
        seeds=3,
    ),
    Scenario(
        name="coarse, three seeds: beside a cliff", **SKEWED, cliff=(0.3, 1.5), step=2.0, seeds=3
    ),
)
"""Steps of two octaves: they tell no noise, or a cliff leaves two points. A gross loss fails."""


@dataclass(frozen=True, kw_only=True)
class Valley:
    """One width's true curve: its optimum, losses around it, and noise as a multiple of others'."""

    size: LadderSize
    optimum: float
    floor: float
    curvature: float
    skew: float
    cliff: float
    height: float = math.inf
    steep: float = 1.0
    quartic: float = 0.0
    louder: float = 1.0
    flat: float = 0.0
    plateau: float = math.inf
    second: float = math.inf
    depth: float = 0.0

    def loss(self, eta: float) -> float:
        """Expected loss at log2 `eta`."""
        u = eta - self.optimum
        rise = self._rise(u)
        if abs(u - self.second) < SECOND_REACH:
            dip = math.cos(math.pi / 2 * (u - self.second) / SECOND_REACH) ** 2
            rise -= self.depth * self._rise(self.second) * dip
        loss = self.floor + self.curvature * rise
        return loss if u < self.cliff else max(loss, self.floor + self.height)

    def _rise(self, u: float) -> float:
        """In curvatures, but for the second minimum."""
        k = self.skew
        rise = 2 * (math.exp(k * u) - 1 - k * u) / k**2 if k else u * u
        rise += self.quartic * u**4
        rise *= self.steep if u > 0 else 1.0
        if self.flat:
            rise *= u * u / (u * u + self.flat**2)
        if u < 0 and math.isfinite(self.plateau):
            rise = self.plateau * -math.expm1(-rise / self.plateau)
        return rise

    def within(self) -> float:
        """Width of the basin in log2: its two ends, walked to and then bisected."""

        def lies(off: float) -> bool:
            return self.loss(self.optimum + off) <= (1 + BASIN_TOLERANCE) * self.floor

        width = 0.0
        for side in (-1, 1):
            outside = next((n / 10 for n in range(1, 120) if not lies(side * n / 10)), 12.0)
            inside = outside - 0.1
            while outside - inside > 1e-6:
                middle = (inside + outside) / 2
                inside, outside = (middle, outside) if lies(side * middle) else (inside, middle)
            width += inside
        return width


@dataclass(frozen=True, kw_only=True)
class Truth:
    """A ladder as it is: its valleys, and the optimum at the target's width."""

    valleys: tuple[Valley, ...]
    slope: float
    target: float

    def transfers(self, rule: LadderRule) -> bool:
        """Whether every width is within the thresholds."""
        best = self.valleys[0].optimum
        return all(
            abs(v.optimum - best) <= rule.max_shift
            and v.loss(best) - v.floor <= rule.max_loss_gap * v.floor
            for v in self.valleys
        )


def draw(scenario: Scenario, generator: np.random.Generator) -> Truth:
    """A ladder of the scenario."""

    def uniform(bounds: Range) -> float:
        return bounds[0] if bounds[0] == bounds[1] else float(generator.uniform(*bounds))

    slope, centre, curvature = map(uniform, (scenario.slope, scenario.centre, scenario.curvature))
    skew, cliff, steep = map(uniform, (scenario.skew, scenario.cliff, scenario.steep))
    flat, plateau, second = map(uniform, (scenario.flat, scenario.plateau, scenario.second))
    depth = uniform((0.2, 0.6)) if math.isfinite(second) else 0.0
    low, high = scenario.height
    height = low if low == high else low * (high / low) ** float(generator.uniform())
    valleys = tuple(
        Valley(
            size=LadderSize(width=width, depth=2, batch_size=16, steps=1000),
            optimum=centre + slope * step + float(generator.normal(0, scenario.scatter)),
            floor=3.0 * 0.93**step,
            curvature=curvature,
            skew=skew,
            cliff=cliff,
            height=height,
            steep=steep,
            quartic=scenario.quartic,
            flat=flat,
            plateau=plateau,
            second=second,
            depth=depth,
        )
        for step, width in enumerate(WIDTHS)
    )
    if scenario.own:
        valleys = tuple(
            replace(
                valley,
                curvature=curvature * 2 ** uniform((-0.6, 0.6)),
                skew=uniform((0.05, 0.8)),
                louder=2 ** uniform((-1, 1)),
            )
            for valley in valleys
        )
    return Truth(
        valleys=valleys, slope=slope, target=centre + slope * math.log2(TARGET / WIDTHS[0])
    )


SECOND_REACH = 0.8
"""Half the width of a second minimum, in log2."""


class Runs:
    """The runs of one width, each drawn when it is asked for.

    `offsets` [seed] are common to all widths. Correlated noise has a grid of `step` (log2), `count`
    points to each side of 0.
    """

    def __init__(
        self,
        scenario: Scenario,
        valley: Valley,
        noise: float,
        offsets: Array,
        grid: tuple[float, int],
        generator: np.random.Generator,
    ) -> None:
        self.scenario, self.valley, self.noise, self.offsets = scenario, valley, noise, offsets
        self.generator, self.drawn = generator, dict[tuple[float, int], float]()
        self.unit = _along_eta(scenario, grid, len(offsets), generator)
        shift = scenario.seed_shift
        self.own = generator.normal(0, shift, len(offsets)) if shift else None

    def loss(self, eta: float, seed: int) -> float:
        """Of a run at log2 eta; the same for the same run."""
        if (eta, seed) not in self.drawn:
            self.drawn[eta, seed] = self._draw(eta, seed)
        return self.drawn[eta, seed]

    def _draw(self, eta: float, seed: int) -> float:
        scenario, valley, generator = self.scenario, self.valley, self.generator
        right = max(0.0, eta - valley.optimum)
        spread = valley.louder * self.noise * 2 ** min(4.0, right / scenario.rise)
        jitter = float(generator.uniform(-0.1, 0.1))
        loss = valley.loss(eta)
        if math.isfinite(valley.cliff):
            gone = eta + jitter >= valley.optimum + valley.cliff
            loss = replace(valley, cliff=-math.inf if gone else math.inf).loss(eta)
            if gone and math.isfinite(loss):
                loss += 0.1 * valley.height * float(generator.normal())
        if self.own is not None:
            # Without what the seeds' optima add to the mean of a parabola.
            loss = valley.loss(eta - self.own[seed])
            loss -= valley.curvature * scenario.seed_shift**2
        if self.unit is not None:
            unit = self.unit[eta][seed]
        elif scenario.tails:
            tails = scenario.tails
            unit = generator.standard_t(tails) / math.sqrt(tails / (tails - 2))
        else:
            unit = generator.normal()
        return loss + float(self.offsets[seed]) + spread * float(unit)


def _along_eta(
    scenario: Scenario, grid: tuple[float, int], seeds: int, generator: np.random.Generator
) -> dict[float, Array] | None:
    """Correlated noise of variance 1 by log2 eta, one a seed; None where it is independent."""
    if not scenario.rough and not scenario.smooth:
        return None
    step, count = grid
    etas = step * np.arange(-count, count + 1)
    distances = np.abs(etas[:, None] - etas)
    rough = np.exp(-distances / scenario.rough) if scenario.rough else 0.0
    smooth = np.exp(-((distances / scenario.smooth) ** 2) / 2) if scenario.smooth else 0.0
    root = np.linalg.cholesky(rough + smooth + 1e-9 * np.eye(len(etas)))
    noise = root @ generator.normal(size=(len(etas), seeds))
    return dict(zip(etas.tolist(), noise, strict=True))


def runs_of(
    scenario: Scenario,
    truth: Truth,
    seeds: int,
    grid: tuple[float, int],
    generator: np.random.Generator,
) -> Iterator[Runs]:
    """A ladder's runs, width by width."""
    noise = float(generator.uniform(*scenario.noise))
    offsets = generator.normal(0, 4 * noise, seeds)
    for valley in truth.valleys:
        yield Runs(scenario, valley, noise, offsets, grid, generator)


def measure(
    scenario: Scenario, truth: Truth, rule: LadderRule, generator: np.random.Generator
) -> list[SizeCurve]:
    """The ladder's curves around log2 eta 0, extended where they want to be."""
    grid, curves = (rule.step, round(rule.span / rule.step) + rule.extend), []
    for runs in runs_of(scenario, truth, rule.seeds, grid, generator):

        def value(point: Point, runs: Runs = runs) -> float:
            return runs.loss(point.log2_hps["eta"], point.seed)

        etas = rule.line({"eta": 0.0}, value).losses
        losses = {e: tuple(map(value, rule.runs_at({"eta": 0.0}, e))) for e in etas}
        curves.append(SizeCurve(size=runs.valley.size, losses=losses))
    return curves


MOST_SEEDS = 200
"""Seeds that a settled ladder may draw; its budget ends before."""


def settle(
    scenario: Scenario,
    truth: Truth,
    rule: LadderRule,
    generator: np.random.Generator,
    *,
    after: bool = False,
) -> Settling:
    """A ladder that is trained until it is settled, as with `--settle`.

    `after` the design of `rule`, whose runs are there: it is the first look.
    """
    fine = (rule.step / 4, 4 * round((2 * rule.span + 2 * rule.extend) / rule.step))
    runs = {one.valley.size: one for one in runs_of(scenario, truth, MOST_SEEDS, fine, generator)}
    sizes = list(runs)

    def judge(ladders: Mapping[str, Sequence[SizeCurve]], confidence: float) -> list[JudgedLadder]:
        curves = ladders["width"]
        fits = fit_curves(curves, 0.0)
        base = fits[sizes[0]]
        planned = base.optimum.value if base else 0.0
        if base:  # as `sweeper transfer` does, the plan takes the optimum of the base's own curve
            fits[sizes[0]] = replace(base, regret=base.loss_gap(planned))
        verdict = judge_ladder(
            "width", curves, planned, sizes[0], rule, confidence=confidence, fits=fits
        )
        return [JudgedLadder(verdict=verdict, fits=fits)]

    there = []
    for size, one in runs.items() if after else ():

        def value(point: Point, one: Runs = one) -> float:
            return one.loss(point.log2_hps["eta"], point.seed)

        for eta in rule.line({"eta": 0.0}, value).losses:
            there += [(size, eta, seed) for seed in range(rule.seeds)]
    settling = Settling(
        rule,
        {"width": sizes},
        sizes[0],
        lambda size, eta, seed: runs[size].loss(eta, seed),
        judge,
        given=grids_of(there, rule),
    )
    settling.missing()
    return settling


@dataclass(kw_only=True)
class Tally:
    """What came of a scenario's ladders."""

    scenario: str
    answers: dict[str, dict[str, int]] = field(default_factory=dict)
    held: dict[str, list[int]] = field(default_factory=dict)
    reaches: list[float] = field(default_factory=list)
    runs: int = 0
    trends: dict[str, int] = field(default_factory=lambda: {"fitted": 0, "warranted": 0, "hurt": 0})

    def judged(self, transfers: bool, verdict: Verdict) -> None:
        """Count an answer."""
        counts = self.answers.setdefault("transfers" if transfers else "failures", {})
        counts[verdict.answer] = counts.get(verdict.answer, 0) + 1

    def covered(self, what: str, estimate: Estimate, truth: float) -> None:
        """Count an interval, and whether it holds the truth; rounding is no miss."""
        counts = self.held.setdefault(what, [0, 0])
        counts[0] += estimate.low - 1e-3 <= truth <= estimate.high + 1e-3
        counts[1] += 1

    def sized(self, size: SizeVerdict, valley: Valley, base: Valley) -> None:
        """Count the intervals of one size; where the optimum is at an end there are none."""
        if size.at_end or math.isnan(size.optimum_log2.value) or size.reason.startswith("too few"):
            return
        self.covered("optimum", size.optimum_log2, valley.optimum)
        self.reaches.append((size.optimum_log2.high - size.optimum_log2.low) / 2)
        self.covered("loss", size.loss, valley.floor)
        self.covered("basin", size.basin.width_log2, valley.within())
        if not size.is_base:
            self.covered("shift", size.shift_log2, valley.optimum - base.optimum)
            self.covered("loss gap", size.loss_gap, valley.loss(base.optimum) - valley.floor)

    def extrapolated(self, found: Trend | None, truth: Truth) -> None:
        """Count a trend; a correction hurts when it ends further off than the transferred eta."""
        if found is None:
            return
        self.trends["fitted"] += 1
        self.covered("slope", found.slope, truth.slope)
        self.covered("target", found.predicted_log2, truth.target)
        off, left = abs(found.predicted_log2.value - truth.target), abs(truth.target)
        self.trends["warranted"] += found.warranted
        self.trends["hurt"] += found.warranted and off > left

    def rate(self, truth: str, answer: str) -> float:
        """The share of ladders of this truth that got the answer; NaN when there are none."""
        counts = self.answers.get(truth, {})
        return counts.get(answer, 0) / sum(counts.values()) if counts else math.nan

    def coverage(self, what: str) -> float:
        """The share of intervals that hold the truth."""
        held, of = self.held.get(what, (0, 0))
        return held / of if of else math.nan


def drawn(
    scenario: Scenario, count: int, rule: LadderRule, generator: np.random.Generator
) -> Iterator[tuple[Truth, bool, dict[bool, int]]]:
    """`count` true transfers and as many true failures: each, whether it transfers, what is left.

    The caller's measurements take their numbers between two draws from the same `generator`.
    """
    need = {True: count, False: count}
    while any(need.values()):
        truth = draw(scenario, generator)
        transfers = truth.transfers(rule)
        if need[transfers]:
            need[transfers] -= 1
            yield truth, transfers, need


def run(scenario: Scenario, count: int, seed: int = 0) -> Tally:
    """Judge ladders until there are `count` true transfers and `count` true failures."""
    generator = np.random.default_rng([seed, *scenario.name.encode()])
    rule = LadderRule(widths=WIDTHS, seeds=scenario.seeds, step=scenario.step)
    tally = Tally(scenario=scenario.name)
    for truth, transfers, need in drawn(scenario, count, rule, generator):
        curves = measure(scenario, truth, rule, generator)
        tally.runs += sum(len(one) for curve in curves for one in curve.losses.values())
        if scenario.seeds == 1:
            curves = with_noise_left(curves)
        # As `sweeper transfer` does, the plan takes the optimum of the base's own curve.
        base = fit_curves(curves[:1], 0.0)[curves[0].size]
        planned = base.optimum.value if base else 0.0
        verdict = judge_ladder("width", curves, planned, curves[0].size, rule)
        tally.judged(transfers, verdict)
        for size, valley in zip(verdict.sizes, truth.valleys, strict=True):
            tally.sized(size, valley, truth.valleys[0])
        if sum(need.values()) % 4 == 0:  # every fourth, to save time
            tally.extrapolated(fit_trend("width", curves, 0.0, TARGET, THEORY), truth)
    return tally


COVERED = ("optimum", "shift", "loss gap", "loss", "basin", "slope", "target")


@dataclass(kw_only=True)
class Settled(Tally):
    """What came of ladders that were trained until they were settled.

    `endings` by reason; `spent` are runs by truth, `histories` of every ladder whether it transfers
    and its looks' runs and answers.
    """

    endings: dict[str, int] = field(default_factory=dict)
    looks: int = 0
    spent: dict[str, list[int]] = field(default_factory=dict)
    histories: list[tuple[bool, list[tuple[int, str]]]] = field(default_factory=list)


def run_settled(scenario: Scenario, count: int, seed: int = 0, *, after: bool = False) -> Settled:
    """Settle ladders until there are `count` true transfers and `count` true failures."""
    generator = np.random.default_rng([seed, *scenario.name.encode()])
    rule = LadderRule(widths=WIDTHS, seeds=scenario.seeds, step=scenario.step)
    tally = Settled(scenario=scenario.name)
    for truth, transfers, need in drawn(scenario, count, rule, generator):
        # Of its own numbers: how many runs one ladder takes changes no other.
        own = np.random.default_rng([seed, need[transfers], transfers, *scenario.name.encode()])
        settling = settle(scenario, truth, rule, own, after=after)
        assert settling.ending is not None
        name = "transfers" if transfers else "failures"
        ended = settling.ending.ended
        tally.endings[ended] = tally.endings.get(ended, 0) + 1
        tally.looks += len(settling.looks)
        tally.runs += settling.runs
        tally.spent.setdefault(name, []).append(settling.runs)
        tally.judged(transfers, settling.looks[-1].judged[0].verdict)
        looks = [(look.runs, look.judged[0].verdict.answer) for look in settling.looks]
        tally.histories.append((transfers, looks))
    return tally


def row(tally: Tally) -> list[str]:
    """A scenario's rates in per cent, and the mean number of runs of a ladder."""
    wrong = [("transfers", "fails"), ("failures", "holds")]
    right = [("transfers", "holds"), ("failures", "fails")]
    rates = [tally.rate(*pair) for pair in (*wrong, *right)]
    rates += [tally.coverage(what) for what in COVERED]
    fitted = max(1, tally.trends["fitted"])
    rates += [tally.trends["warranted"] / fitted, tally.trends["hurt"] / fitted]
    judged = sum(sum(counts.values()) for counts in tally.answers.values())
    reach = f"{np.median(tally.reaches):.2f}"
    found = [f"{100 * rate:.1f}" for rate in rates]
    return [tally.scenario, *found, reach, f"{tally.runs / judged:.1f}"]


def settled_findings(tallies: Sequence[Tally], count: int) -> Findings:
    """The table of ladders that were trained until they were settled."""
    from findings import Findings

    rows = []
    for tally in tallies:
        assert isinstance(tally, Settled)
        wrong = [("transfers", "fails"), ("failures", "holds")]
        right = [("transfers", "holds"), ("failures", "fails")]
        rates = [f"{100 * tally.rate(*pair):.1f}" for pair in (*wrong, *right)]
        runs = [f"{np.mean(tally.spent[name]):.0f}" for name in ("transfers", "failures")]
        most = [f"{np.percentile(tally.spent[n], 90):.0f}" for n in ("transfers", "failures")]
        ends = [str(tally.endings.get(end, 0)) for end in ("budget", "hopeless", "stuck")]
        rows.append([tally.scenario, *rates, *runs, *most, *ends, f"{tally.looks / 2 / count:.1f}"])
    columns = ["scenario", "transfers failed", "failures held", "transfers held", "failures failed"]
    columns += ["runs, transfers", "runs, failures", "90 %, transfers", "90 %, failures"]
    return Findings(
        title=f"Settled verdicts on {count} true transfers and {count} failures each, per cent",
        columns=[*columns, "budget", "hopeless", "stuck", "looks"],
        rows=rows,
        notes=["budget, hopeless and stuck: ladders that ended so, of all."],
        record={"count": count, "scenarios": [asdict(tally) for tally in tallies]},
    )


def main(words: Sequence[str] | None = None) -> None:
    """Run the scenarios and tell what was found."""
    from findings import Findings

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="ladders of each truth (1000)")
    parser.add_argument(
        "--only", default="", help="scenarios whose name contains one of these, by |"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--markdown", type=Path, help="where the table goes")
    parser.add_argument("--settle", action="store_true", help="with as few runs as settle it")
    parser.add_argument("--after", action="store_true", help="settle what the fixed design left")
    given = parser.parse_args(words)
    chosen = [
        scenario
        for scenario in (*SCENARIOS, *AFTERWARDS, *CLIFFS, *SINGLE, *COARSE)
        if any(part in scenario.name for part in given.only.split("|"))
    ]
    play: Callable[..., Tally] = run
    if given.settle or given.after:
        play = partial(run_settled, after=given.after)
    with ProcessPoolExecutor(given.workers) as pool:
        jobs = [pool.submit(play, scenario, given.count, given.seed) for scenario in chosen]
        tallies = [job.result() for job in jobs]
    if given.settle or given.after:
        settled_findings(tallies, given.count).tell(given.out, given.markdown)
        return
    columns = ["scenario", "transfers failed", "failures held", "transfers held", "failures failed"]
    findings = Findings(
        title=f"Verdicts on {given.count} true transfers and {given.count} failures each, per cent",
        columns=[*columns, *COVERED, "corrected", "hurt", "reach", "runs"],
        rows=[row(tally) for tally in tallies],
        notes=[
            "The first two are wrong answers; what is missing to 100 is 'cannot say yet'.",
            "optimum to target: how often the 95 % interval holds the truth; target is the optimum "
            f"at width {TARGET}, extrapolated from at most {WIDTHS[-1]}.",
            "reach: half of the optimum's interval in log2, the median.",
            "corrected: trends that warrant a correction; hurt: those that make eta worse.",
        ],
        record={"count": given.count, "scenarios": [asdict(tally) for tally in tallies]},
    )
    findings.tell(given.out, given.markdown)


if __name__ == "__main__":
    main()
