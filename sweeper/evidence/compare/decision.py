"""Which of several variants wins at a target, by what smaller runs say: codes with their numbers.

`differences.py` carries the differences. Here they become answers: better, worse, or not to be
said; how much compute, and how much time, a variant takes for the baseline's loss; and which runs
would tell most for what they cost. An answer is that of its interval: better where all of it lies
below 0. What luck is left in the best of many goes with the root of their number, by trial, and the
interval is as much wider.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri

from sweeper.errors import BadInput, Keyword
from sweeper.evidence.compare.differences import (
    RUN_NOISE,
    Carried,
    ComputeLaw,
    VariantLosses,
    VariantQuestion,
    carry,
    shrinks,
)
from sweeper.evidence.compare.reading import Bound, VariantRuns, log2_of_counts
from sweeper.evidence.runs.run import Array
from sweeper.records import NOT_WRITTEN
from sweeper.stats.estimate import UNKNOWN, Estimate, normal_above
from sweeper.stats.paired import SeedPairs, sign_error

Decided = Literal["better", "worse", "cannot say"]
Why = Literal["loss", "wall_clock", "diverged", "bound", "baseline_bound"]
SEEDS_MATTER = 2.0
"""Variance of seeds over what they leave from which on runs are paired by them.

Two variants of twelve seeds each then find a gain at least as often as by either rule alone."""
TAIL = 0.0125
"""The model's own chance beyond an end of an interval of 95 %: no table is quite as it has it."""
MOST_MORE = 32
"""Runs of a variant that are tried as what to train next, by doubling."""
WORTH = 0.2
MOST_NEXT = 3


@dataclass(frozen=True, kw_only=True)
class SizePlace:
    """A size: the counts it is known by, FLOPs of a run, octaves of compute from the largest."""

    counts: Mapping[str, float]
    flops: float
    octaves: float


@dataclass(frozen=True, kw_only=True)
class VariantAtSize:
    """A variant's loss at a size less the baseline's; `carried`: by all sizes together."""

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
    """A variant at the target: by its expected loss less the baseline's, `loss_difference`.

    `difference` is what decides: that, by the clock less what time is worth. The answer is that
    of its interval, which is open to a side where a bound or a divergence leaves it open. `compute`
    and `wall_clock` are how many times less of them it takes for the baseline's loss.
    `chance` is that it is better; its place lies between `first` and `last`. `code` says by what it
    was answered, `missing` are the sizes of the baseline at which it was not run. At every size it
    has one rate, the `same rate` as the baseline's, and was perhaps not tuned.
    """

    name: str
    answer: Decided
    difference: Estimate
    loss_difference: Estimate
    compute: Estimate
    wall_clock: Estimate
    chance: float
    first: int
    last: int
    sizes: tuple[VariantAtSize, ...]
    bound: Bound = ""
    diverged: int = 0
    missing: tuple[SizePlace, ...] = ()
    same_rate: bool = False
    code: Why = field(default="loss", metadata=NOT_WRITTEN)


@dataclass(frozen=True, kw_only=True)
class DecidingRuns:
    """`runs` more of variant and baseline at a place, for `flops`, decide with a `chance`."""

    variant: str
    place: SizePlace
    runs: int
    of_baseline: int
    chance: float
    flops: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Winner:
    """All variants at the target, in the order of their places.

    Intervals have the chance `tail` beyond either end. `noise` is that of a run, known `by` its
    seeds or by the prior; differences shrink by 2^-`fading` an octave of compute, and drift by
    `drift` for the root of one. All is `scale` times as wide as the model has it, by its back-test.
    `prior_noise` is what the prior has for a run, in the unit of these losses.
    """

    baseline: str
    target: SizePlace
    variants: tuple[VariantAnswer, ...]
    next_runs: tuple[DecidingRuns, ...]
    tail: float
    noise: float
    by: Literal["seeds", "prior"]
    fading: float
    drift: float
    scale: float
    floor: float
    exponent: float
    unit: str
    flops_known: bool
    baseline_bound: Bound
    prior_noise: float = field(metadata=NOT_WRITTEN)

    @property
    def answer(self) -> Decided:
        """Better where any variant is, worse where all are."""
        answers = {variant.answer for variant in self.variants}
        if "better" in answers:
            return "better"
        return "worse" if answers == {"worse"} else "cannot say"


def decide(runs: VariantRuns, question: VariantQuestion, *, briefly: bool = False) -> Winner:
    """Carry all variants to the target, and answer; BadInput where nothing can be compared.

    `briefly`: without runs to come.
    """
    law = ComputeLaw.of(runs, question)
    losses = _losses(runs, law)
    there = losses.counts > 0
    if not (there[0] & there[1:].any(axis=0)).any():
        raise BadInput(_no_size_shared(runs))
    target = _target(runs, losses, question.counts)
    carried = carry(losses, np.concatenate([target[None], losses.sizes]))
    comparison = VariantComparison(
        runs=runs,
        law=law,
        losses=losses,
        carried=carried,
        target=target,
        question=question,
        top=float(losses.sizes[there.any(axis=0)].sum(axis=1).max()),
    )
    ranks = comparison.ranks()
    answers = [comparison.answer(v, ranks[v]) for v in range(1, len(runs.names))]
    return Winner(
        baseline=runs.names[0],
        target=comparison.place(target),
        variants=tuple(sorted(answers, key=lambda each: (each.first, each.last, -each.chance))),
        next_runs=() if briefly else deciding_runs(comparison, answers),
        tail=comparison.tail,
        noise=carried.noise,
        by="seeds" if losses.freedom else "prior",
        fading=carried.fading,
        drift=carried.drift,
        scale=carried.scale,
        floor=float(law.weights @ law.floors) if law.identified else math.nan,
        exponent=float(law.weights @ law.exponents) if law.identified else math.nan,
        unit=runs.unit,
        flops_known="flops" in runs.columns or "params" in runs.columns,
        baseline_bound=comparison.bound(0),
        prior_noise=RUN_NOISE * losses.unit,
    )


def _losses(runs: VariantRuns, law: ComputeLaw) -> VariantLosses:
    shape = len(runs.names), len(runs.log2)
    means, counts, squares, freedom = np.full(shape, math.nan), np.zeros(shape), 0.0, 0
    for size in range(shape[1]):
        trained = []
        for cell in runs.cells:
            finite = np.isfinite(cell.losses)
            if cell.size == size and finite.any():
                trained.append((cell, cell.losses[finite], np.array(cell.seeds)[finite]))
        of_size = _of_size([each for _, *each in trained], runs.paired)
        for (cell, *_), mean, count in zip(trained, *of_size[:2], strict=True):
            means[cell.variant, size] = law.moved(float(mean), cell.log2, runs.log2[size])
            counts[cell.variant, size] = count
        squares, freedom = squares + of_size[2], freedom + of_size[3]
    return VariantLosses(runs.names, runs.log2, means, counts, squares, freedom)


def _of_size(trained: Sequence[Sequence[Array]], paired: bool) -> tuple[Any, Any, float, int]:
    """Mean and number of runs of each variant at a size; squares of runs about these, and freedom.

    Where seeds are `paired`, or are the same of all variants and matter, what one does to all
    cancels: it is taken out by least squares over variants and seeds. A seed that one variant alone
    has tells no difference.
    """
    means = [losses.mean() for losses, _ in trained]
    counts = [len(losses) for losses, _ in trained]
    squares = sum(float(((losses - losses.mean()) ** 2).sum()) for losses, _ in trained)
    plain = means, counts, squares, sum(counts) - len(counts)
    alike = len({tuple(sorted(seeds)) for _, seeds in trained}) == 1
    distinct = all(len({*seeds}) == len(seeds) for _, seeds in trained)
    if len(trained) < 2 or not distinct or not (paired or alike):
        return plain
    names = np.concatenate([seeds for _, seeds in trained])
    seeds, seed, of_seed = np.unique(names, return_inverse=True, return_counts=True)
    variant = np.repeat(range(len(trained)), counts)
    shared = of_seed[seed] > 1
    if not shared.any():
        return plain
    design = np.hstack([np.eye(len(trained))[variant], np.eye(len(seeds))[seed]])[shared]
    losses = np.concatenate([each for each, _ in trained])[shared]
    effects, _, rank, _ = np.linalg.lstsq(design, losses, rcond=None)
    # Seeds that do not tie all variants to each other leave levels of their own.
    if rank < len(trained) + int((of_seed > 1).sum()) - 1:
        return plain
    rest = losses - design @ effects
    beside, freedom = float((rest**2).sum()), len(losses) - int(rank)
    # Of two runs with one seed's number that share nothing pairs halve the freedom for nothing.
    apart = (squares - beside) * freedom > SEEDS_MATTER * beside * (plain[3] - freedom)
    if not paired and not apart:
        return plain
    of_variants = effects[: len(trained)] + (losses - effects[variant[shared]]).mean()
    return of_variants, np.bincount(variant[shared], minlength=len(trained)), beside, freedom


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


def _target(runs: VariantRuns, losses: VariantLosses, asked: Mapping[str, float]) -> Array:
    if not asked:
        there = losses.counts > 0
        common = there.all(axis=0) if there.all(axis=0).any() else there.any(axis=0)
        return np.asarray(runs.log2[np.where(common, runs.log2.sum(axis=1), -np.inf).argmax()])
    roles = runs.measures[0].keys()
    for role in asked:
        if role not in roles:
            has = ", ".join(roles) or "no size"
            raise BadInput(
                *(Keyword(f"to_{role}", ...), f" needs a column of {role}: the runs have {has}; "),
                *(Keyword("columns", f"{role}=COLUMN"), " names it"),
            )
    counts: dict[str, float] = {}
    reference = next(iter(asked))
    x = np.log2([measure[reference] for measure in runs.measures])
    for role in roles:
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


@dataclass(frozen=True, eq=False, kw_only=True)
class VariantComparison:
    """The target's and the sizes' places; `top` is the log2 of the largest compute."""

    runs: VariantRuns
    law: ComputeLaw
    losses: VariantLosses
    carried: Carried
    target: Array
    question: VariantQuestion
    top: float

    @property
    def tail(self) -> float:
        """The error of an answer, and the chance beyond each end of its interval.

        The model takes most of the luck of the best of many out of it, since it learns from the
        others how little variants differ. What is left where some do differ and some do not goes
        with the root of their number, by trial.
        """
        return min(TAIL, self.question.error / math.sqrt(len(self.runs.names) - 1))

    def place(self, log2: Array, counts: Mapping[str, float] | None = None) -> SizePlace:
        """A place by the counts that the runs have."""
        runs = self.runs
        if counts is None:
            nearest = int(np.abs(runs.log2 - log2).sum(axis=1).argmin())
            dn, dd = (float(x) for x in log2 - runs.log2[nearest])
            moved = {"params": dn, "tokens": dd, "flops": dn + dd, "steps": dd, "width": dn / 2}
            near = runs.measures[nearest]
            counts = {role: value * 2.0 ** moved.get(role, 0.0) for role, value in near.items()}
        # What all runs have alike tells no size from another.
        varied = {
            role: value
            for role, value in counts.items()
            if role in self.question.counts or len({m[role] for m in runs.measures}) > 1
        }
        alone = {"width": counts["width"]} if "width" in counts else counts
        counts = varied or alone
        per_flop = float(np.median(runs.flops / np.exp2(runs.log2.sum(axis=1))))
        compute = float(log2.sum())
        return SizePlace(counts=counts, flops=per_flop * 2.0**compute, octaves=compute - self.top)

    # Answers.

    def ranks(self) -> list[tuple[int, int]]:
        """Each variant's place: how many, the baseline too, are surely better, or worse."""
        count = len(self.runs.names)
        # All pairs are looked at for a place, not those with the baseline alone.
        tail = min(TAIL, self.question.error / math.sqrt(math.comb(count, 2)))
        surely = self.carried.better() >= 1 - tail
        above, below = surely.sum(axis=0), surely.sum(axis=1)
        return [(1 + int(a), count - int(b)) for a, b in zip(above, below, strict=True)]

    def answer(self, variant: int, ranks: tuple[int, int]) -> VariantAnswer:
        """What is said of a variant, whose place lies between these `ranks`."""
        runs, law = self.runs, self.law
        bound, pairs = self.bound(variant), self._pairs(variant)
        # Of one that was never run beside another the levels of sizes take all that was measured.
        beside = (self.losses.counts > 0).sum(axis=0) > 1
        is_beside = (self.losses.counts[variant, beside] > 0).any()
        difference = self.carried.estimate(variant, 0, self.tail) if is_beside else UNKNOWN
        throughput, below = self.throughput(variant), 0.0
        code: Why = "loss"
        if math.isfinite(throughput) and law.identified:
            # A faster variant may lose a little for each step and still win by the clock.
            code, below = "wall_clock", law.break_even(self.target, throughput)
        chance = self.carried.chance(variant, below)
        decides, code = self._checked(difference.moved(-below), code, pairs, bound)
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
            answer=_answer_of(decides),
            code=code,
            difference=decides,
            loss_difference=difference,
            compute=_on_the_side(compute, difference),
            wall_clock=_on_the_side(_times(compute, throughput), difference.moved(-below)),
            chance=chance,
            first=ranks[0],
            last=ranks[1],
            sizes=sizes,
            bound=bound,
            diverged=pairs.lost + pairs.both,
            missing=tuple(self._run_place(size) for size in sorted(ours - there)),
            same_rate=bool(there & ours)
            and all(
                cell.rate == other.rate and cell.configurations == 1
                for size in there & ours
                if (cell := runs.at(variant, size)) and (other := runs.at(0, size))
            ),
        )

    def _checked(
        self, difference: Estimate, code: Why, pairs: SeedPairs, bound: Bound
    ) -> tuple[Estimate, Why]:
        """Has diverged runs and bounds speak: what was not tuned may be better."""
        answer = _answer_of(difference)
        # Divergences by themselves first: there may be no finite difference to go by.
        if end := pairs.by_divergence(self.question.error):
            lost = math.copysign(math.inf, end)
            agrees = answer == ("worse" if end > 0 else "better")
            beyond = Estimate(value=math.nan, low=lost, high=lost)
            return difference if agrees else beyond, "diverged"
        lost, won = pairs.lost, pairs.won
        # Every pair has a sign, if no size: they must outvote what diverged.
        worse = int((pairs.differences > 0).sum()) + lost
        better = int((pairs.differences < 0).sum()) + won
        unsure = sign_error(worse, better) > self.question.error
        if answer == "better" and ((lost and unsure) or self.bound(0)):
            why: Why = "diverged" if lost and unsure else "baseline_bound"
            return replace(difference, high=math.inf), why
        if answer == "worse" and ((won and unsure) or bound):
            return replace(difference, low=-math.inf), "diverged" if won and unsure else "bound"
        return difference, code

    def _pairs(self, variant: int) -> SeedPairs:
        mine, theirs = [], []
        for size in range(len(self.runs.log2)):
            mine_there, theirs_there = self.runs.at(variant, size), self.runs.at(0, size)
            if mine_there is not None and theirs_there is not None:
                # By their seeds, then by their order: signs and divergences alone are read off.
                for own, its in zip(
                    mine_there.ordered(theirs_there), theirs_there.ordered(mine_there), strict=False
                ):
                    mine.append(own)
                    theirs.append(its)
        return SeedPairs.of(np.array(mine), np.array(theirs))

    def bound(self, variant: int) -> Bound:
        """Whether it was not tuned at its largest size, or at half of its sizes."""
        cells = [cell for cell in self.runs.cells if cell.variant == variant]
        bounds = [cell.bound for cell in cells if cell.bound]
        if not bounds:
            return ""
        last = max(cells, key=lambda cell: sum(cell.log2)).bound
        return last or (bounds[0] if 2 * len(bounds) >= len(cells) else "")

    def throughput(self, variant: int, size: int | None = None) -> float:
        """The variant's over the baseline's, at the largest size at which both are known."""
        sizes = np.argsort(-self.losses.sizes.sum(axis=1)) if size is None else [size]
        for each in sizes:
            mine, theirs = self.runs.at(variant, int(each)), self.runs.at(0, int(each))
            if mine is not None and theirs is not None:
                share = mine.throughput / theirs.throughput
                if math.isfinite(share) and share > 0:
                    return share
        return math.nan

    def _run_place(self, size: int) -> SizePlace:
        return self.place(self.runs.log2[size], self.runs.measures[size])

    def _at(self, variant: int, size: int) -> VariantAtSize:
        cell, losses = self.runs.at(variant, size), self.losses
        assert cell is not None
        counts = losses.counts[[0, variant], size]
        # The model's noise and not the spread of these few runs: of one run there is none.
        noise, difference = self.carried.noise, UNKNOWN
        if (counts > 0).all():
            value = float(losses.means[variant, size] - losses.means[0, size])
            half = 1.96 * noise * math.sqrt(float((1 / counts).sum()))
            difference = Estimate(value=value, low=value - half, high=value + half)
        compute = self.law.factor(float(losses.means[0, size]), difference)
        return VariantAtSize(
            place=self._run_place(size),
            runs=len(cell.losses),
            diverged=int(np.isinf(cell.losses).sum()),
            difference=difference,
            compute=compute,
            wall_clock=_times(compute, self.throughput(variant, size)),
            carried=self.carried.estimate(variant, 1 + size, TAIL),
            bound=cell.bound,
        )


def _answer_of(difference: Estimate) -> Decided:
    if difference.high < 0:
        return "better"
    return "worse" if difference.low > 0 else "cannot say"


def _on_the_side(times: Estimate, difference: Estimate) -> Estimate:
    """The factor's interval on that side of 1 that its difference's has of 0, by any law."""
    if math.isnan(times.value):
        return times
    low = (max if difference.high < 0 else min)(times.low, 1.0)
    high = (min if difference.low > 0 else max)(times.high, 1.0)
    return Estimate(value=min(max(times.value, low), high), low=low, high=high)


def _times(compute: Estimate, throughput: float) -> Estimate:
    if not math.isfinite(throughput):
        return UNKNOWN
    low, value, high = (x * throughput for x in (compute.low, compute.value, compute.high))
    return Estimate(value=value, low=low, high=high)


def deciding_runs(
    comparison: VariantComparison, answers: Sequence[VariantAnswer]
) -> tuple[DecidingRuns, ...]:
    """The runs that decide most per FLOP, of the likeliest winners that are open."""
    open_ = [
        v
        for v in range(1, len(comparison.runs.names))
        if answers[v - 1].answer == "cannot say"
        # What a bound or a divergence leaves open no runs mend.
        and answers[v - 1].code in ("loss", "wall_clock")
    ]
    open_.sort(key=lambda v: -answers[v - 1].chance)
    proposed = [_best_next(comparison, v, answers[v - 1]) for v in open_[:MOST_NEXT]]
    return tuple(each for each in proposed if each is not None)


def _candidates(comparison: VariantComparison) -> list[Array]:
    sizes = comparison.losses.sizes
    # Near the largest size a further one tells next to nothing that this does not.
    if comparison.question.trained_only or comparison.target.sum() <= comparison.top + 2:
        return [*sizes]
    return [*sizes, comparison.target, (sizes[sizes.sum(axis=1).argmax()] + comparison.target) / 2]


def _best_next(
    comparison: VariantComparison, variant: int, answer: VariantAnswer
) -> DecidingRuns | None:
    kept, best = comparison.losses.of([0, variant]), None
    mean = float(comparison.carried.difference(variant).mean)
    if answer.code == "wall_clock":
        mean -= comparison.law.break_even(comparison.target, comparison.throughput(variant))
    far = -float(ndtri(comparison.tail))
    estimate = comparison.carried.estimate(variant, 0, comparison.tail)
    before = (estimate.high - estimate.low) / (2 * far)
    for log2, power in itertools.product(_candidates(comparison), range(MOST_MORE.bit_length())):
        place, count = comparison.place(log2), 2**power
        at = np.flatnonzero((np.abs(kept.sizes - log2) < 1e-6).all(axis=1))
        there = kept.counts[:, at[0]] if len(at) else np.zeros(2)
        # Of few looks none is spent on less than half as many runs again.
        if comparison.question.trained_only and 2 * count < there[1]:
            continue
        # With as many of the baseline, or none; those of a seed are paired, and need both.
        ways = {0, count}
        if comparison.runs.paired:
            ways = {int(max(0, there[1] + count - there[0]))}
        for of_baseline in sorted(ways):
            try:
                share = shrinks(kept, _with_runs(kept, log2, of_baseline, count), comparison.target)
            except ValueError:
                continue
            if share > 0.99:
                continue
            chance = _decides(mean, before, before * share, far)
            flops = place.flops * (count + of_baseline)
            each = DecidingRuns(
                variant=comparison.runs.names[variant],
                place=place,
                runs=count,
                of_baseline=of_baseline,
                chance=chance,
                flops=flops,
            )
            if chance >= WORTH and (best is None or chance / flops > best.chance / best.flops):
                best = each
    return best


def _with_runs(losses: VariantLosses, log2: Array, *more: int) -> VariantLosses:
    at = np.flatnonzero((np.abs(losses.sizes - log2) < 1e-6).all(axis=1))
    sizes, means, counts = losses.sizes, losses.means.copy(), losses.counts.copy()
    if not len(at):
        at, empty = np.array([len(sizes)]), np.zeros((len(means), 1))
        sizes = np.concatenate([sizes, log2[None]])
        means, counts = (np.concatenate([each, empty], axis=1) for each in (means, counts))
    counts[:, at[0]] += more
    middle = float(np.nanmedian(losses.means))
    means = np.where((counts > 0) & ~np.isfinite(means), middle, means)
    return replace(losses, sizes=sizes, means=means, counts=counts)


def _decides(mean: float, before: float, after: float, far: float) -> float:
    # What a later mean moves by has the variance that goes, as in `Foretold`.
    moved = math.sqrt(max(before**2 - after**2, 1e-30))
    return normal_above((far * after - mean) / moved) + normal_above((far * after + mean) / moved)
