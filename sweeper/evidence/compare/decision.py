"""Which of several variants wins at a target, by what smaller runs say: codes with their numbers.

`differences.py` carries the differences. Here they become answers: better, worse, or not to be
said; how much compute, and how much time, a variant takes for the baseline's loss; and which runs
would tell most for what they cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist
from typing import Literal

import numpy as np

from sweeper.errors import BadInput, Keyword
from sweeper.evidence.compare.differences import (
    OUTSIDE_Z,
    RUN_NOISE,
    Carried,
    VariantLosses,
    Whole,
    carry,
    deviation_with,
    usual_unit,
)
from sweeper.evidence.compare.reading import Bound, VariantCell, VariantRuns, log2_of_counts
from sweeper.evidence.runs.run import Array
from sweeper.records import NOT_WRITTEN
from sweeper.stats.estimate import UNKNOWN, Estimate, normal_above
from sweeper.stats.paired import SeedPairs, sign_error

Decided = Literal["better", "worse", "cannot say"]
Why = Literal["loss", "wall_clock", "diverged", "bound", "baseline_bound", "apart"]
SPAN = 0.2
"""Octaves of compute without which nothing tells what compute is worth."""
FLOORS = np.linspace(0.0, 0.92, 24)
"""Floors of the loss that are tried, as shares of the lowest one."""
EXPONENT, EXPONENT_SPREAD = math.log(0.1), 0.5
"""Mean and spread of the log of the exponent of (loss - floor) over compute, before the runs."""
TILT = 0.03
"""The spread of how much more a parameter gains than a token, as an exponent."""
SEEDS_MATTER = 2.0
"""Variance of seeds over what they leave from which on runs are paired by them.

Two variants of twelve seeds each then find a gain at least as often as by either rule alone."""
PATH = 16
"""Places between the smallest size and the target at which differences are drawn."""
MORE = (1, 2, 4, 8, 16)
"""Runs that are tried as what to train next."""
WORTH = 0.2
"""The least chance to decide for which a run is proposed."""
MOST_NEXT = 3
MOST_DRAWN = 9
"""Variants that have a curve, those of the first places."""


@dataclass(frozen=True, kw_only=True)
class TargetQuestion:
    """The counts of the run that is asked about, by role; and what is known of the loss already.

    `floor` and `exponent` are those of the loss over compute, where a lab has its own. `error` is
    the chance that any variant without effect is called better. Runs are proposed at sizes `known`
    alone where no others can be trained.
    """

    counts: Mapping[str, float] = field(default_factory=dict)
    floor: float | None = None
    exponent: float | None = None
    error: float = 0.05
    known: bool = False


@dataclass(frozen=True, kw_only=True)
class SizePlace:
    """A size: the counts it is known by, FLOPs of a run, octaves of compute from the largest."""

    counts: Mapping[str, float]
    flops: float
    octaves: float


@dataclass(frozen=True, kw_only=True)
class AtSize:
    """What was measured of a variant at a size: its loss less the baseline's, and what it is worth.

    Of its `runs` so many `diverged`; `carried` is what all sizes together say of this one.
    """

    place: SizePlace
    runs: int
    diverged: int
    difference: Estimate
    compute: Estimate
    wall_clock: Estimate
    carried: Estimate
    bound: Bound = ""


@dataclass(frozen=True, kw_only=True)
class VariantAnswer:
    """A variant at the target: its loss less the baseline's, as a run of each would show it.

    `compute` and `wall_clock` are how many times less of them it takes for the baseline's loss.
    `chance` is that it is better; its place lies between `first` and `last`. `code` says by what it
    was answered, `missing` are the sizes of the baseline at which it was not run. It shares no size
    with the baseline, but with others, where it is known `by_way`. At every size it has one rate,
    the `same rate` as the baseline's, and was perhaps not tuned.
    """

    name: str
    answer: Decided
    difference: Estimate
    compute: Estimate
    wall_clock: Estimate
    chance: float
    first: int
    last: int
    sizes: tuple[AtSize, ...]
    bound: Bound = ""
    diverged: int = 0
    missing: tuple[SizePlace, ...] = ()
    by_way: bool = False
    same_rate: bool = False
    code: Why = field(default="loss", metadata=NOT_WRITTEN)


@dataclass(frozen=True, kw_only=True)
class DecidingRuns:
    """Runs that would likely tell: `runs` more of the variant at a place, and of the baseline.

    `chance` is that they decide it, `flops` is what they all cost.
    """

    variant: str
    place: SizePlace
    runs: int
    of_baseline: int
    chance: float
    flops: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Winner:
    """All variants at the target, in the order of their places; the curve is drawn.

    `noise` is that of a run, known `by` its seeds or by the prior; differences shrink by
    2^-`fading` an octave of compute, and drift by `drift` for the root of one.
    """

    baseline: str
    target: SizePlace
    variants: tuple[VariantAnswer, ...]
    next_runs: tuple[DecidingRuns, ...]
    noise: float
    by: Literal["seeds", "prior"]
    fading: float
    drift: float
    floor: float
    exponent: float
    unit: str
    flops_known: bool
    baseline_bound: Bound
    path: Sequence[float] = field(default=(), metadata=NOT_WRITTEN)
    curves: Mapping[str, Sequence[Estimate]] = field(default_factory=dict, metadata=NOT_WRITTEN)

    @property
    def answer(self) -> Decided:
        """Better where any variant is, worse where all are."""
        answers = {variant.answer for variant in self.variants}
        if "better" in answers:
            return "better"
        return "worse" if answers == {"worse"} else "cannot say"


def decide(runs: VariantRuns, question: TargetQuestion, *, briefly: bool = False) -> Winner:
    """Carry all variants to the target, and answer; BadInput where nothing can be compared.

    `briefly`: without what is drawn, and without runs to come.
    """
    law = ComputeLaw.of(runs, question)
    losses = _losses(runs, law)
    target = _target(runs, question.counts)
    together = np.flatnonzero(_together(losses))
    if len(together) < 2:
        raise BadInput(_no_size_shared(runs))
    # Only variants that sizes tie to the baseline: the levels of other sizes would be free of it.
    kept = replace_variants(losses, together)
    there = (losses.counts > 0).any(axis=0)
    largest = int(np.where(there, losses.sizes.sum(axis=1), -np.inf).argmax())
    path = np.empty((0, 2)) if briefly else _path(losses.sizes, target)
    places = np.concatenate([target[None], losses.sizes, path])
    carried = carry(kept, places)
    measured = np.flatnonzero((np.abs(losses.sizes - target) < 0.05).all(axis=1))
    asked = _Asked(
        runs=runs,
        law=law,
        losses=losses,
        carried=carried,
        target=target,
        # A run to come has its noise; what was run at the target already is asked for itself.
        runs_there=0.0 if len(measured) else 1.0,
        error=question.error,
        known=question.known,
        index={int(variant): i for i, variant in enumerate(together)},
        largest=largest,
        path=path,
    )
    return asked.winner()


@dataclass(frozen=True, eq=False)
class ComputeLaw:
    """log2(loss - floor) = level - exponent u - tilt w: u octaves of compute, w of N over D.

    An entry a `floors`, with `weights` that sum to 1; `levels` are the baseline's. Not `known`:
    one budget alone was run, and no exponent is given.
    """

    floors: Array
    weights: Array
    exponents: Array
    tilts: Array
    levels: Array
    known: bool

    @classmethod
    def of(cls, runs: VariantRuns, question: TargetQuestion) -> ComputeLaw:
        """By all variants' losses, each with a level of its own; BadInput for no loss above it."""
        rows = [
            (cell.variant, *cell.log2, float(np.mean(finite)))
            for cell in runs.cells
            if len(finite := cell.losses[np.isfinite(cell.losses)])
        ]
        if not rows:
            raise BadInput("no run of any variant has a finite loss: none trained")
        table = np.array(rows)
        variant, loss = table[:, 0].astype(int), table[:, 3]
        u, w = table[:, 1] + table[:, 2], table[:, 1] - table[:, 2]
        lowest = float(loss.min())
        if question.floor is not None and question.floor >= lowest:
            raise BadInput(
                Keyword("floor", question.floor), f" lies above the lowest loss, {lowest:g}"
            )
        # Losses below 0 (differences, log scores) have no floor that a share of them names.
        usual = FLOORS * lowest if lowest > 0 else np.array([lowest - 1.0])
        floors = usual if question.floor is None else np.array([question.floor])
        noise = RUN_NOISE * usual_unit(loss)
        alone = np.eye(variant.max() + 1)[variant]
        found = []
        for floor in floors:
            above = np.log2(loss - floor)
            # As noise of its log2 above the floor: d log2(L - E) = dL / ((L - E) ln 2).
            weight = (loss - floor) * math.log(2) / noise
            # A Gaussian prior is a row more of least squares, by its inverse deviation.
            columns = np.column_stack([alone, -u, -w])
            prior = np.zeros(len(columns.T))
            centre = np.zeros(len(columns.T))
            prior[-1] = 1 / TILT
            centre[-2] = math.exp(EXPONENT)
            prior[-2] = 1 / (EXPONENT_SPREAD * math.exp(EXPONENT))
            # Levels are next to free, but for a variant whose few runs tell none.
            prior[:-2] = 1e-4
            # A lab's own law is of compute alone: pinned, and no tilt beside it.
            if question.exponent is not None:
                centre[-2], prior[-2] = question.exponent, 1e6
                prior[-1] = 1e6
            system = np.concatenate([columns * weight[:, None], np.diag(prior)])
            wanted = np.concatenate([above * weight, centre * prior])
            values, *_ = np.linalg.lstsq(system, wanted, rcond=None)
            misfit = float(((system @ values - wanted) ** 2).sum())
            found.append((*values[[-2, -1, 0]], misfit))
        exponents, tilts, levels, misfits = np.array(found).T
        # By the likelihood of its best fit; a floor at which compute gains nothing is out.
        weights = np.exp(-(misfits - misfits.min()) / 2) * (exponents > 1e-4)
        known = np.ptp(u) > SPAN or question.exponent is not None
        known = known and bool(weights.sum() > 0)
        # Of one budget nothing tells a floor: all are alike, and no factor of compute is told.
        weights = weights if known else np.ones(len(floors))
        return cls(floors, weights / weights.sum(), exponents, tilts, levels, known)

    def loss(self, place: Array) -> Array:
        """The baseline's loss at `place`, by every floor."""
        u, w = place[0] + place[1], place[0] - place[1]
        above: Array = np.exp2(self.levels - self.exponents * u - self.tilts * w)
        return self.floors + above

    def moved(self, loss: float, start: tuple[float, float], end: Array) -> float:
        """A loss at `start` as it would be at `end`, a little aside."""
        du = float(end.sum() - sum(start))
        dw = float(end[0] - end[1] - start[0] + start[1])
        # A little aside along a law that nobody knows: the loss as it is, rather than a guess.
        if abs(du) + abs(dw) < 1e-3 or not self.known:
            return loss
        above = (loss - self.floors) * np.exp2(-self.exponents * du - self.tilts * dw)
        return float(self.weights @ (self.floors + above))

    def factor(self, loss: Array | float, difference: Estimate) -> Estimate:
        """How many times less compute takes the baseline's `loss`, by a `difference` in loss."""
        if not self.known or not math.isfinite(difference.value):
            return UNKNOWN

        if not (loss - self.floors > 1e-12).all():
            return UNKNOWN  # at the floor no compute gains any more

        def times(by: float) -> Array:
            left = (loss - self.floors) / np.maximum(loss + by - self.floors, 1e-12)
            return np.log(left) / np.maximum(self.exponents, 1e-6)

        of_value = times(difference.value)
        value = _weighted(of_value, self.weights, 0.5)
        ends = []
        # A loss that is higher takes more compute, so that the ends change places.
        for end, level in ((difference.high, 0.025), (difference.low, 0.975)):
            # Of the floor and of the difference, independent: as root of squares.
            of_floor = _weighted(of_value, self.weights, level) - value
            of_loss = _weighted(times(end), self.weights, 0.5) - value if math.isfinite(end) else 0
            side = 1.0 if level > 0.5 else -1.0
            ends.append(
                value + side * (math.hypot(of_floor, of_loss) if math.isfinite(end) else math.inf)
            )
        low, value, high = (math.exp(min(x, 700.0)) for x in (ends[0], value, ends[1]))
        return Estimate(value=value, low=low, high=high)

    def break_even(self, place: Array, throughput: float) -> float:
        """The difference in loss that a throughput, times the baseline's, makes up for."""
        gap = (self.loss(place) - self.floors) * (throughput**self.exponents - 1)
        return float(self.weights @ gap)


def _weighted(values: Array, weights: Array, level: float) -> float:
    order = np.argsort(values)
    at = int(np.searchsorted(np.cumsum(weights[order]), level))
    return float(values[order][min(at, len(values) - 1)])


def _losses(runs: VariantRuns, law: ComputeLaw) -> VariantLosses:
    """Mean losses, each moved to the size's own counts; seeds that variants share are paired."""
    shape = len(runs.names), len(runs.log2)
    means, counts, squares, freedom = np.full(shape, math.nan), np.zeros(shape), 0.0, 0
    for size in range(shape[1]):
        there = [cell for cell in runs.cells if cell.size == size]
        trained = []
        for cell in there:
            finite = np.isfinite(cell.losses)
            if not finite.any():
                continue
            trained.append((cell, cell.losses[finite], np.array(cell.seeds)[finite]))
            mean = float(trained[-1][1].mean())
            means[cell.variant, size] = law.moved(mean, cell.log2, runs.log2[size])
            counts[cell.variant, size] = finite.sum()
        if runs.paired and (beside := _beside(trained)) is not None:
            for (cell, *_), mean, count in zip(trained, *beside[:2], strict=True):
                means[cell.variant, size], counts[cell.variant, size] = mean, count
            more = beside[2:]
        else:
            more = _spread(trained)
        squares, freedom = squares + more[0], freedom + more[1]
    return VariantLosses(runs.names, runs.log2, means, counts, squares, freedom)


def _beside(
    trained: Sequence[tuple[VariantCell, Array, Array]],
) -> tuple[Array, Array, float, int] | None:
    """Mean and number of runs of each variant, without what a seed does to all; squares, freedom.

    By least squares over variants and seeds. A seed that one variant alone has tells no difference.
    None where seeds do not tie all variants to each other.
    """
    if not trained:
        return None
    names = np.concatenate([seeds for *_, seeds in trained])
    seeds, seed, of_seed = np.unique(names, return_inverse=True, return_counts=True)
    variant = np.repeat(range(len(trained)), [len(losses) for _, losses, _ in trained])
    told = of_seed[seed] > 1
    if not told.any():
        return None
    design = np.hstack([np.eye(len(trained))[variant], np.eye(len(seeds))[seed]])[told]
    losses = np.concatenate([each for _, each, _ in trained])[told]
    effects, _, rank, _ = np.linalg.lstsq(design, losses, rcond=None)
    if rank < len(trained) + int((of_seed > 1).sum()) - 1:
        return None
    rest = losses - design @ effects
    means = effects[: len(trained)] + (losses - effects[variant[told]]).mean()
    counts = np.bincount(variant[told], minlength=len(trained)).astype(float)
    return means, counts, float((rest**2).sum()), len(losses) - int(rank)


def _spread(trained: Sequence[tuple[object, Array, Array]]) -> tuple[float, int]:
    """Sum of squares and degrees of freedom of the runs of a size about what they have in common.

    Where all variants were run with the same seeds, and seeds matter, what one does to all cancels.
    """
    squares = sum(float(((losses - losses.mean()) ** 2).sum()) for _, losses, _ in trained)
    freedom = sum(len(losses) - 1 for _, losses, _ in trained)
    seeds = [tuple(sorted(names)) for _, _, names in trained]
    distinct = bool(seeds) and len(set(seeds[0])) == len(seeds[0]) > 1
    # Seeds with names that all variants share: two-way residuals, of (variants - 1) (seeds - 1)
    # freedom. Else a seed of one says nothing of that of another.
    if len(seeds) > 1 and len(set(seeds)) == 1 and distinct:
        table = np.array([losses[np.argsort(names)] for _, losses, names in trained])
        rest = table - table.mean(axis=1, keepdims=True)
        rest -= rest.mean(axis=0)
        beside, left = float((rest**2).sum()), (len(table) - 1) * (table.shape[1] - 1)
        # Of two runs with one seed's number that share nothing pairs halve the freedom for nothing.
        if (squares - beside) * left > SEEDS_MATTER * beside * (freedom - left):
            return beside, left
    return squares, freedom


def replace_variants(losses: VariantLosses, kept: Whole) -> VariantLosses:
    """The losses of some of the variants, the first of them the baseline."""
    return replace(
        losses,
        names=[losses.names[int(i)] for i in kept],
        means=losses.means[kept],
        counts=losses.counts[kept],
    )


def _together(losses: VariantLosses) -> Array:
    """Whether sizes that variants share lead from each to the baseline."""
    there = losses.counts > 0
    reached = np.zeros(len(there), bool)
    reached[0] = True
    for _ in range(len(there)):
        reached = there[:, there[reached].any(axis=0)].any(axis=1) | reached
    return reached


def _no_size_shared(runs: VariantRuns) -> str:
    trained = [c for c in runs.cells if np.isfinite(c.losses).any()]
    if not any(cell.variant == 0 for cell in trained):
        return f"no run of {runs.names[0]}, the baseline, trained: a difference needs its loss"

    def sizes(variant: int) -> str:
        places = [runs.measures[c.size] for c in trained if c.variant == variant]
        return "; ".join(", ".join(f"{v:.4g} {r}" for r, v in p.items()) for p in places[:4])

    return (
        f"no variant was run at a size of {runs.names[0]} ({sizes(0)}); "
        f"{runs.names[1]} has {sizes(1) or 'none that trained'}: differences need runs of both "
        "at one size"
    )


def _target(runs: VariantRuns, asked: Mapping[str, float]) -> Array:
    """Log2 of the target's counts; what is not said follows the ladder, or is the largest size."""
    of_baseline = sorted({cell.size for cell in runs.cells})
    largest = max(of_baseline, key=lambda size: float(runs.log2[size].sum()))
    if not asked:
        found: Array = runs.log2[largest]
        return found
    known = runs.measures[0].keys()
    for role in asked:
        if role not in known:
            has = ", ".join(known) or "no size"
            raise BadInput(
                *(Keyword(f"to_{role}", ...), f" needs a column of {role}: the runs have {has}; "),
                *(Keyword("columns", f"{role}=COLUMN"), " names it"),
            )
    counts: dict[str, float] = {}
    reference = next(iter(asked))
    x = np.log2([measure[reference] for measure in runs.measures])
    for role in known:
        if role in asked:
            counts[role] = asked[role]
            continue
        # Both counts make the FLOPs: a line through those of the ladder could contradict them.
        if {"params", "tokens"} <= {*asked} and role == "flops":
            continue
        y = np.log2([measure[role] for measure in runs.measures])
        # Where the asked role was hardly varied a slope is noise, and the other stays as it is.
        slope, level = np.polyfit(x, y, 1) if np.ptp(x) > 0.05 else (0.0, float(y.mean()))
        # Half an octave off the ladder's line: sizes and tokens were varied apart, and nothing says
        # which tokens go with the size that is asked about.
        if np.ptp(x) > 0.05 and np.abs(y - level - slope * x).max() > 0.5:
            raise BadInput(
                f"the runs vary {role} by itself, so that the target's is not known: give ",
                Keyword(f"to_{role}", ...),
            )
        counts[role] = 2.0 ** float(level + slope * math.log2(asked[reference]))
    return np.array([float(value) for value in log2_of_counts(counts)])


def _path(sizes: Array, target: Array) -> Array:
    """Places from the smallest size over the others to the target, even in compute."""
    order = np.argsort(sizes.sum(axis=1))
    points = np.concatenate([sizes[order], target[None]])
    # Sizes of one compute have one place on the path: interpolation needs them ascending.
    u, first = np.unique(points.sum(axis=1), return_index=True)
    at = np.linspace(u[0], target.sum(), PATH)
    return np.stack([np.interp(at, u, points[first, axis]) for axis in (0, 1)], axis=1)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Asked:
    """What the answers are made of; `index` has the place of a variant in what was carried."""

    runs: VariantRuns
    law: ComputeLaw
    losses: VariantLosses
    carried: Carried
    target: Array
    runs_there: float
    error: float
    known: bool
    index: Mapping[int, int]
    largest: int
    path: Array

    def winner(self) -> Winner:
        runs, carried = self.runs, self.carried
        places = self._places()
        answers = [self._answer(v, places.get(v)) for v in range(1, len(runs.names))]
        order = sorted(answers, key=lambda each: (each.first, each.last, -each.chance))
        law, weights = self.law, carried.weights
        per_flop = float(np.median(runs.flops / np.exp2(runs.log2.sum(axis=1))))
        start = 1 + len(self.losses.sizes)
        drawn = range(start, start + len(self.path))
        carried_as = {runs.names[v]: i for v, i in self.index.items()}
        shown = [each.name for each in order if each.name in carried_as][:MOST_DRAWN]
        curves = {
            name: [each for (each,) in carried.only(carried_as[name]).differences(drawn)]
            for name in shown
        }
        return Winner(
            baseline=runs.names[0],
            target=self.place(self.target),
            variants=tuple(order),
            next_runs=self._next(answers) if len(self.path) or self.known else (),
            noise=float(weights @ carried.noise),
            by="seeds" if self.losses.freedom else "prior",
            fading=float(weights @ carried.draws[:, 3:].mean(axis=1)),
            # Each of two variants drifts by itself: their difference by the root of two.
            drift=math.sqrt(2) * carried.unit * float(weights @ np.exp(carried.draws[:, 1])),
            floor=float(law.weights @ law.floors) if law.known else math.nan,
            exponent=float(law.weights @ law.exponents) if law.known else math.nan,
            unit=runs.unit,
            flops_known="flops" in runs.columns or "params" in runs.columns,
            baseline_bound=self._bound(0),
            path=[float(per_flop * 2.0**u) for u in self.path.sum(axis=1)],
            curves=curves,
        )

    def place(self, log2: Array, counts: Mapping[str, float] | None = None) -> SizePlace:
        """A place by the counts that the runs have."""
        runs = self.runs
        per_flop = float(np.median(runs.flops / np.exp2(runs.log2.sum(axis=1))))
        nearest = int(np.abs(runs.log2 - log2).sum(axis=1).argmin())
        if counts is None:
            counts = self._counts(log2, nearest)
        top = self.losses.sizes[self.largest].sum()
        octaves = float(log2.sum() - top)
        return SizePlace(counts=counts, flops=per_flop * 2.0 ** float(log2.sum()), octaves=octaves)

    def _counts(self, log2: Array, nearest: int) -> Mapping[str, float]:
        near = self.runs.measures[nearest]
        dn, dd = (float(x) for x in log2 - self.runs.log2[nearest])
        moved = {"params": dn, "tokens": dd, "flops": dn + dd, "steps": dd, "width": dn / 2}
        return {role: value * 2.0 ** moved.get(role, 0.0) for role, value in near.items()}

    # Answers.

    def _chance(self, variant: int) -> float:
        """That it is better: by the time it takes, where that is known, else by the loss."""
        throughput, below = self._throughput(variant), 0.0
        if math.isfinite(throughput) and self.law.known:
            # A faster variant may lose a little for each step and still win by the clock.
            below = self.law.break_even(self.target, throughput)
        return self.carried.chance(self.index[variant], below)

    def _level(self, count: int) -> float:
        """How unlikely an error must be for one of `count` answers at once.

        The model takes most of the luck of the best of many out of it, since it learns from the
        others how little variants differ. What is left where some do differ and some do not goes
        with the root of their number, by trial.
        """
        return self.error / math.sqrt(max(1, count))

    def _decided(self, chance: float) -> Decided:
        # "better" is one of many: the error is that any without an effect is called so.
        if chance >= 1 - self._level(len(self.index) - 1):
            return "better"
        return "worse" if chance <= self.error else "cannot say"

    def _places(self) -> dict[int, tuple[int, int]]:
        """Of each variant its place: how many, the baseline too, are surely better, or worse."""
        count = len(self.index)
        # All pairs are looked at for a place, not those with the baseline alone.
        surely = self.carried.better() >= 1 - self._level(count * (count - 1) // 2)
        above, below = surely.sum(axis=0), surely.sum(axis=1)
        return {v: (1 + int(above[i]), count - int(below[i])) for v, i in self.index.items()}

    @cached_property
    def _differences(self) -> list[list[Estimate]]:
        """At the target, as runs of each show it, and at every size; of every variant."""
        at_sizes = range(1, 1 + len(self.losses.sizes))
        carried = self.carried
        return carried.differences([0], self.runs_there) + carried.differences(at_sizes)

    def _answer(self, variant: int, ranks: tuple[int, int] | None) -> VariantAnswer:
        runs, law = self.runs, self.law
        bound, pairs = self._bound(variant), self._pairs(variant)
        code: Why = "loss"
        answer: Decided = "cannot say"
        difference, chance = UNKNOWN, 0.5
        if ranks is None:
            code, ranks = "apart", (1, len(runs.names))
        else:
            difference = self._differences[0][self.index[variant]]
            if math.isfinite(self._throughput(variant)) and law.known:
                code = "wall_clock"
            chance = self._chance(variant)
            answer = self._decided(chance)
        answer, code = self._checked(answer, code, pairs, bound)
        compute = law.factor(law.loss(self.target), difference)
        sizes = tuple(
            self._at(variant, size)
            for size in range(len(runs.log2))
            if runs.at(variant, size) is not None
        )
        there = {cell.size for cell in runs.cells if cell.variant == variant}
        ours = {cell.size for cell in runs.cells if cell.variant == 0}
        return VariantAnswer(
            name=runs.names[variant],
            answer=answer,
            code=code,
            difference=difference,
            compute=compute,
            wall_clock=_times(compute, self._throughput(variant)),
            chance=chance,
            first=ranks[0],
            last=ranks[1],
            sizes=sizes,
            bound=bound,
            diverged=pairs.lost + pairs.both,
            missing=tuple(self._run_place(size) for size in sorted(ours - there)),
            by_way=not there & ours,
            same_rate=bool(there & ours)
            and all(
                cell.rate == other.rate and cell.configurations == 1
                for size in there & ours
                if (cell := runs.at(variant, size)) and (other := runs.at(0, size))
            ),
        )

    def _checked(
        self, answer: Decided, code: Why, pairs: SeedPairs, bound: Bound
    ) -> tuple[Decided, Why]:
        """With what runs that diverged say, by the rule of `stats/paired.py`, and bounds.

        A variant that was not tuned may be better than it looks, the baseline as well.
        """
        # Divergences by themselves first: there may be no finite difference to go by.
        if end := pairs.by_divergence(self.error):
            return ("worse" if end > 0 else "better"), "diverged"
        lost, won = pairs.lost, pairs.won
        # Every pair has a sign, if no size: they must outvote what diverged.
        worse = int((pairs.differences > 0).sum()) + lost
        better = int((pairs.differences < 0).sum()) + won
        unsure = sign_error(worse, better) > self.error
        if (answer == "better" and lost and unsure) or (answer == "worse" and won and unsure):
            return "cannot say", "diverged"
        if answer == "worse" and bound:
            return "cannot say", "bound"
        if answer == "better" and self._bound(0):
            return "cannot say", "baseline_bound"
        return answer, code

    def _pairs(self, variant: int) -> SeedPairs:
        """Runs of the variant and of the baseline at the sizes of both, one by one."""
        mine, theirs = [], []
        for size in range(len(self.runs.log2)):
            one, other = self.runs.at(variant, size), self.runs.at(0, size)
            if one is not None and other is not None:
                # By their seeds, then by their order: signs and divergences alone are read off.
                for own, its in zip(one.ordered(other), other.ordered(one), strict=False):
                    mine.append(own)
                    theirs.append(its)
        return SeedPairs.of(np.array(mine), np.array(theirs))

    def _bound(self, variant: int) -> Bound:
        """Whether it was not tuned at its largest size, or at half of its sizes."""
        cells = [cell for cell in self.runs.cells if cell.variant == variant]
        bounds = [cell.bound for cell in cells if cell.bound]
        if not bounds:
            return ""
        last = max(cells, key=lambda cell: sum(cell.log2)).bound
        return last or (bounds[0] if 2 * len(bounds) >= len(cells) else "")

    def _throughput(self, variant: int, size: int | None = None) -> float:
        """The variant's over the baseline's, at the largest size at which both are known."""
        sizes = np.argsort(-self.losses.sizes.sum(axis=1)) if size is None else [size]
        for each in sizes:
            one, other = self.runs.at(variant, int(each)), self.runs.at(0, int(each))
            if one is not None and other is not None:
                share = one.throughput / other.throughput
                if math.isfinite(share) and share > 0:
                    return share
        return math.nan

    def _run_place(self, size: int) -> SizePlace:
        return self.place(self.runs.log2[size], self.runs.measures[size])

    def _at(self, variant: int, size: int) -> AtSize:
        cell, losses = self.runs.at(variant, size), self.losses
        assert cell is not None
        counts = losses.counts[[0, variant], size]
        # The model's noise and not the spread of these few runs: of one run there is none.
        noise = float(self.carried.weights @ self.carried.noise)
        difference = UNKNOWN
        if (counts > 0).all():
            value = float(losses.means[variant, size] - losses.means[0, size])
            half = 1.96 * noise * math.sqrt(float((1 / counts).sum()))
            difference = Estimate(value=value, low=value - half, high=value + half)
        compute = self.law.factor(float(losses.means[0, size]), difference)
        known = variant in self.index
        return AtSize(
            place=self._run_place(size),
            runs=len(cell.losses),
            diverged=int(np.isinf(cell.losses).sum()),
            difference=difference,
            compute=compute,
            wall_clock=_times(compute, self._throughput(variant, size)),
            carried=self._differences[1 + size][self.index[variant]] if known else UNKNOWN,
            bound=cell.bound,
        )

    # What to run next.

    def _next(self, answers: Sequence[VariantAnswer]) -> tuple[DecidingRuns, ...]:
        """Of the likeliest winners that are open, the runs that decide most per FLOP."""
        open_ = [
            v
            for v in self.index
            if v
            and answers[v - 1].answer == "cannot say"
            # What a bound, a divergence or want of a way leaves open no runs mend.
            and answers[v - 1].code in ("loss", "wall_clock")
        ]
        open_.sort(key=lambda v: -answers[v - 1].chance)
        found = [self._best_next(v, answers[v - 1]) for v in open_[:MOST_NEXT]]
        return tuple(each for each in found if each is not None)

    def _candidates(self) -> list[Array]:
        """Sizes that were run, the target, and one between."""
        top = self.losses.sizes[self.largest]
        # Near the largest size a further one tells next to nothing that this does not.
        beyond = self.target.sum() > top.sum() + 2 and not self.known
        more = [self.target, (top + self.target) / 2] if beyond else []
        return [*self.losses.sizes, *more]

    def _best_next(self, variant: int, answer: VariantAnswer) -> DecidingRuns | None:
        i, best = self.index[variant], None
        kept = replace_variants(self.losses, np.array([*self.index]))
        draw = int(self.carried.weights.argmax())
        mean = float(self.carried.weights @ self.carried.means[:, 0, i])
        throughput = self._throughput(variant)
        if answer.code == "wall_clock":
            mean -= self.law.break_even(self.target, throughput)
        of_draw = float(self.carried.deviations[draw, 0, i])
        # As wide as all draws together are: one draw knows its fading and its noise for sure.
        spread = answer.difference if not self.runs_there else self.carried.difference(i)
        before = (spread.high - spread.low) / (2 * OUTSIDE_Z)
        level = self._level(len(self.index) - 1)
        for log2 in self._candidates():
            place = self.place(log2)
            for count in MORE:
                # With as many of the baseline, or none: every variant uses its own runs.
                ways = {0, count}
                if self.runs.paired:
                    at = int(np.abs(kept.sizes - log2).sum(axis=1).argmin())
                    lacking = kept.counts[i, at] + count - kept.counts[0, at]
                    ways = {int(max(0, lacking))}
                for of_baseline in sorted(ways):
                    more = _with_runs(kept, log2, {i: count, 0: of_baseline})
                    try:
                        after = deviation_with(more, self.target, i, self.carried)
                    except ValueError:
                        continue
                    if after > 0.99 * of_draw:
                        continue
                    # The likeliest draw says how runs shrink the doubt, all how large it is.
                    chance = _decides(mean, before, before * after / of_draw, level)
                    flops = place.flops * (count + of_baseline)
                    each = DecidingRuns(
                        variant=self.runs.names[variant],
                        place=place,
                        runs=count,
                        of_baseline=of_baseline,
                        chance=chance,
                        flops=flops,
                    )
                    if chance >= WORTH and (
                        best is None or chance / flops > best.chance / best.flops
                    ):
                        best = each
        return best


def _times(compute: Estimate, throughput: float) -> Estimate:
    if not math.isfinite(throughput):
        return UNKNOWN
    low, value, high = (x * throughput for x in (compute.low, compute.value, compute.high))
    return Estimate(value=value, low=low, high=high)


def _with_runs(losses: VariantLosses, log2: Array, more: Mapping[int, int]) -> VariantLosses:
    """With runs of variants more at a size; the losses of new ones do not matter."""
    at = np.flatnonzero((np.abs(losses.sizes - log2) < 1e-6).all(axis=1))
    sizes, means, counts = losses.sizes, losses.means.copy(), losses.counts.copy()
    if len(at):
        place = int(at[0])
    else:
        place, empty = len(sizes), np.zeros((len(means), 1))
        sizes = np.concatenate([sizes, log2[None]])
        means, counts = (np.concatenate([each, empty], axis=1) for each in (means, counts))
    for variant, count in more.items():
        counts[variant, place] += count
    middle = float(np.nanmedian(losses.means))
    means = np.where((counts > 0) & ~np.isfinite(means), middle, means)
    return replace(losses, sizes=sizes, means=means, counts=counts)


def _decides(mean: float, before: float, after: float, level: float) -> float:
    """The chance that the mean lies far enough from 0, of what is left, after more runs."""
    # What a later mean moves by has the variance that goes, as in `Foretold`.
    moved = math.sqrt(max(before**2 - after**2, 1e-30))
    far = -NormalDist().inv_cdf(level) * after
    return normal_above((far - mean) / moved) + normal_above((far + mean) / moved)
