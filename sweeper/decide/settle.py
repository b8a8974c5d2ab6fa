"""Which runs of a ladder to train next, until its answer is settled, and when to stop.

A ladder begins with few points and seeds, at its ends first. Then come rounds: after each the
curves are judged, and the next one gets the runs that are expected to tell most. All is a function
of the losses so far, so that a ladder goes on after a kill as if nothing had been.

Looking several times gives chance several tries: what each look may be wrong by is in
`stats/rounds.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from sweeper.decide.transfer import Advice, Verdict, information_needed
from sweeper.decide.trend import MORE_SEEDS
from sweeper.errors import ConfigError, Keyword
from sweeper.stats.curve import NOISE_RADIUS, CurveEvidence, CurveFit
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import (
    JOINT_AXIS,
    LadderPoint,
    LadderRule,
    LadderSize,
    LadderSoFar,
    SizeCurve,
)
from sweeper.stats.rounds import CONFIDENCE, HOPELESS, LOOKS, Foretold, Z
from sweeper.trial import Log2Hps, Point

AT_FIRST = 0.95
"""Of those at a first look that rests on runs that were there: they judge as any ladder does."""
COARSE = 1.0
"""Spacing of the first points, in log2: no finer grid holds or fails more ladders a run."""
SEEDS = 2
"""Seeds a point to begin with: one shows no noise."""
GROWTH = 0.75
"""A round has at most this share of the runs before it; the last one has all that is left."""
GOAL = 0.8
"""Of the threshold's distance, squared, that a round aims for: values move, too."""
NEARLY = 4.0
"""A size that would fail with this many times the information goes before all others."""
FINEST = 0.5
"""Points are put between others down to this spacing, in log2, then come seeds."""
EDGE = 4
"""Points between a line's lowest one and neighbours that diverged: two to each side."""
TIMES_BUDGET = 3
"""The budget, in times of the runs of the fixed design."""

Ended = Literal["settled", "budget", "hopeless", "stuck"]
Run = tuple[LadderSize, float, int]
"""A size, log2 of the hyperparameter, and a seed."""
Loss = Callable[[LadderSize, float, int], float | None]
"""A run's loss: NaN where it failed, +inf where it diverged, None where it is not known."""


@dataclass(frozen=True)
class SizeGrid:
    """What is trained of one size: every one of `etas` (log2) with so many seeds."""

    etas: tuple[float, ...]
    seeds: int

    @property
    def runs(self) -> int:
        """How many."""
        return len(self.etas) * self.seeds

    def of(self, size: LadderSize) -> list[Run]:
        """The runs, as those of a `size`."""
        return [(size, eta, seed) for eta in self.etas for seed in range(self.seeds)]

    def with_etas(self, etas: Sequence[float]) -> SizeGrid:
        """With more values of eta."""
        return SizeGrid(tuple(sorted({*self.etas, *etas})), self.seeds)


def grids_of(runs: Iterable[Run], rule: LadderRule) -> dict[LadderSize, SizeGrid]:
    """The curves that `runs` make: of every size the most runs with as many seeds at each point.

    A size with fewer points or seeds than a line begins with has none.
    """
    seeds = dict[LadderSize, dict[float, set[int]]]()
    for size, eta, seed in runs:
        seeds.setdefault(size, {}).setdefault(eta, set()).add(seed)
    grids = dict[LadderSize, SizeGrid]()
    for size, found in seeds.items():
        # A curve's seeds are the first ones.
        whole = {
            # From 0 on without a gap: a later seed alone pairs with none of the others.
            eta: next(n for n in range(len(have) + 1) if n not in have)
            for eta, have in found.items()
        }
        # For each number of seeds the points that have as many: a curve is a full rectangle.
        possible = [
            SizeGrid(tuple(sorted(eta for eta, count in whole.items() if count >= least)), least)
            for least in {*whole.values()}
            if least >= SEEDS
        ]
        possible = [grid for grid in possible if len(grid.etas) >= first_points(rule)]
        if possible:
            grids[size] = max(possible, key=lambda grid: (grid.runs, len(grid.etas)))
    return grids


def spacing(rule: LadderRule) -> float:
    """The spacing of a line's first points, in log2."""
    # Twice the fixed design's, not beyond `COARSE`, nor so coarse that one point is left.
    return rule.step if rule.step >= COARSE else min(COARSE, 2 * rule.step, rule.span)


def first_points(rule: LadderRule) -> int:
    """How many points a line begins with."""
    # Rounding: a span of a whole number of steps must not lose its last one.
    return 2 * int(rule.span / spacing(rule) + 1e-9) + 1


@dataclass(frozen=True, kw_only=True)
class JudgedLadder:
    """What a look says of one ladder: its verdict, and the fits that it rests on."""

    verdict: Verdict
    fits: Mapping[LadderSize, CurveFit | None]

    @property
    def settled(self) -> bool:
        """Whether nothing is open: a ladder that fails at one size fails."""
        target = self.verdict.target
        if self.verdict.answer == "fails":
            return True
        return self.verdict.answer == "holds" and (
            target is None or target.answer != "cannot say yet"
        )


Judge = Callable[[Mapping[str, Sequence[SizeCurve]]], Sequence[JudgedLadder]]
"""What judges the curves measured so far, by axis."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """A look: its verdicts, the runs so far, and those that are likely left: the next round's.

    Most ladders end with it: what they need is foretold by values that are off, and move.
    """

    judged: Sequence[JudgedLadder]
    runs: int
    left: int = 0


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Why a ladder is trained no further, with its numbers.

    Of its `runs` so many were `there` before. `left` more would likely settle it, of which the
    `budget` has room for some; 0 where nothing tells. `timed`: hours are what is spent. `advice`
    is what no run of this ladder gives, and `narrows` that it would but narrow the answer.
    """

    ended: Ended
    runs: int
    there: int
    looks: int
    budget: int
    timed: bool = False
    left: int = 0
    advice: Advice = field(default_factory=Advice)
    narrows: bool = False

    @property
    def needed(self) -> int:
        """Runs of the whole ladder that would likely settle it; 0 where nothing tells."""
        return self.runs + self.left if self.left > 0 else 0


def default_budget(rule: LadderRule, base: LadderSize) -> int:
    """Runs that a ladder may take where nothing else is said."""
    sizes = {size for sizes in rule.ladders(base).values() for size in sizes}
    return TIMES_BUDGET * len(sizes) * rule.points_per_line() * rule.seeds


class Settling:
    """A ladder on its way to an answer: what it has measured, what it lacks, and why it ended.

    `ladders` are sizes by axis. `loss` knows the runs so far and never forgets one; `middle` is
    log2 of the hyperparameter in the middle of a size's line, `planned` the part of it that a law
    plans. `judge` judges the curves measured so far, by axis. `budget` is in runs, whoever trained
    them, and `affordable` how many may be trained by what those so far took; `slots` as many are
    trained at a time. `given` are curves that were there before: where they make a ladder they are
    the first look, judged by `judge_given`, and what is trained follows from it.
    """

    def __init__(
        self,
        rule: LadderRule,
        ladders: Mapping[str, Sequence[LadderSize]],
        base: LadderSize,
        loss: Loss,
        judge: Judge,
        *,
        budget: int | None = None,
        affordable: Callable[[Sequence[Run]], int] | None = None,
        slots: int = 1,
        middle: Callable[[LadderSize], float] = lambda size: 0.0,
        planned: Callable[[LadderSize], float] = lambda size: 0.0,
        given: Mapping[LadderSize, SizeGrid] | None = None,
        judge_given: Judge | None = None,
    ) -> None:
        """Nothing is asked of `loss` yet. ConfigError for a budget that is too small to begin."""
        self.rule, self.base = rule, base
        self.ladders = {axis: list(sizes) for axis, sizes in ladders.items()}
        self._known, self._judge, self.slots = loss, judge, slots
        # What was asked for: other known runs of the study are no part of the design.
        self.asked: set[Run] = set()
        self._timed = False
        self._middle, self._planned, self._affordable = middle, planned, affordable
        self.budget = self._first_budget = budget or default_budget(rule, base)
        self._sizes = len({size for sizes in ladders.values() for size in sizes})
        # Ends first: a transfer that fails does so there, and the sizes between need no runs then.
        self.started = [base]
        for axis, sizes in self.ladders.items():
            # By the factor, either way: the base may lie in the middle of its ladder.
            far = max(sizes, key=lambda size: abs(math.log(_extent(size, axis, base))))
            self.started += [far] if far not in self.started else []
        self._ends = tuple(self.started)
        if (least := len(self.started) * self.begun) > self.budget:
            allowed = f"at least {least}, with which these ladders begin"
            raise ConfigError(Keyword("budget"), self.budget, allowed)
        # Curves of sizes that no ladder has would count against the budget, and tell nothing here.
        on_ladder = {size for sizes in self.ladders.values() for size in sizes}
        self.given = {size: grid for size, grid in (given or {}).items() if size in on_ladder}
        self.grids: dict[LadderSize, SizeGrid] = dict(self.given)
        # A ladder is the base and another size: with these it can be looked at at once.
        self._judge_given = judge_given or judge
        self.looks_at_once = base in self.given and all(
            any(size in self.given for size in sizes if size != base)
            for sizes in self.ladders.values()
        )
        if self.looks_at_once:
            self.started = [base, *(size for size in self.given if size != base)]
        else:
            self.started += [size for size in self.given if size not in self.started]
        self.looks: list[Look] = []
        self.ending: Ending | None = None

    # What is measured.

    def _loss(self, size: LadderSize, eta: float, seed: int) -> float | None:
        """What is known of a run, which is part of the design if it is asked for."""
        self.asked.add((size, eta, seed))
        return self._known(size, eta, seed)

    def missing(self) -> list[Run]:
        """The runs that the round lacks; none where the ladder has ended."""
        # A look may end the ladder, or begin sizes whose runs are known: look on until some lack.
        while self.ending is None:
            lacking = [run for size in self.started for run in self._lacking(size)]
            if lacking:
                return lacking
            self._look()
        return []

    def so_far(self) -> LadderSoFar:
        """What is planned and measured of all sizes that have begun, and which ones have not."""
        points = []
        for size in self.started:
            # A line that is not whole is as long as was asked so far.
            line = {eta for begun, eta, _ in self.asked if begun == size}
            grid = self.grids.get(size, SizeGrid(tuple(sorted(line)), SEEDS))
            for eta in grid.etas:
                losses = (self._known(size, eta, seed) for seed in range(grid.seeds))
                finished = tuple(loss for loss in losses if loss is not None)
                points.append(LadderPoint(size=size, value=eta, runs=grid.seeds, losses=finished))
        later = {size for sizes in self.ladders.values() for size in sizes} - {*self.started}
        return LadderSoFar(
            hyperparameter=self.rule.hyperparameter,
            points=tuple(points),
            later=tuple(sorted(later)) if self.ending is None else (),
        )

    @property
    def finished(self) -> int:
        """How many of the runs asked for so far have ended."""
        return sum(self._known(*run) is not None for run in self.asked)

    @property
    def runs(self) -> int:
        """Runs of all rounds so far, the present one's included."""
        return sum(grid.runs for grid in self.grids.values())

    @property
    def likely(self) -> int:
        """Runs that the ladder has when it ends, as far as the last look could tell."""
        return self.runs if self.ending else self.looks[-1].runs + self.looks[-1].left

    @property
    def begun(self) -> int:
        """Runs that one size begins with."""
        return first_points(self.rule) * SEEDS

    @property
    def confidence(self) -> float:
        """The level of the intervals at the last look."""
        # A first look at runs that were there is no look of the design: it errs as any ladder does.
        return AT_FIRST if self.looks_at_once and len(self.looks) <= 1 else CONFIDENCE

    @property
    def there(self) -> int:
        """How many runs the curves have that were there before."""
        return sum(grid.runs for grid in self.given.values())

    def by_axis(self) -> dict[str, list[SizeCurve]]:
        """The curves measured so far of every ladder."""
        return {
            axis: [self._curve(size) for size in sizes if size in self.grids]
            for axis, sizes in self.ladders.items()
        }

    @property
    def _spare(self) -> int:
        """Points a size for which the first budget has room beyond those that it begins with."""
        return (self._first_budget // self._sizes - self.begun) // SEEDS

    def _lacking(self, size: LadderSize) -> list[Run]:
        """What one size lacks: first of its line, then of what rounds added to it."""
        if size not in self.grids:
            name = self.rule.hyperparameter
            # A budget is kept: lines grow by as much as it leaves for them, and for an edge.
            extend = max(0, min(self.rule.extend, (self._spare - EDGE) // 2))
            rule = replace(self.rule, step=spacing(self.rule), seeds=SEEDS, extend=extend)
            middle = Log2Hps({name: self._middle(size)})

            def loss(point: Point) -> float | None:
                measured = self._loss(size, point.log2_hps[name], point.seed)
                # A line goes on past a failed run as past one that diverged.
                return math.inf if measured is not None and math.isnan(measured) else measured

            state = rule.line(middle, loss)
            if state.missing:
                return self._not_there(size, SizeGrid(tuple(state.missing), SEEDS))
            etas, runs = self._beside_an_edge(size, sorted(state.losses))
            if runs:
                return runs
            self.grids[size] = SizeGrid(tuple(etas), SEEDS)
        return self._not_there(size, self.grids[size])

    def _not_there(self, size: LadderSize, grid: SizeGrid) -> list[Run]:
        return [run for run in grid.of(size) if self._loss(*run) is None]

    def _beside_an_edge(self, size: LadderSize, etas: list[float]) -> tuple[list[float], list[Run]]:
        """A line's points, with more beside the lowest one where its neighbour diverged.

        And the runs that they lack: how near to the edge the optimum lies no curve tells.
        """
        while True:
            room = len(etas) < self.begun // SEEDS + self._spare
            losses_at = {
                eta: [self._loss(size, eta, seed) for seed in range(SEEDS)] for eta in etas
            }
            means = {
                eta: sum(math.inf if loss is None or math.isnan(loss) else loss for loss in losses)
                for eta, losses in losses_at.items()
            }
            if lacking := [e for e, losses in losses_at.items() if None in losses]:
                return etas, self._not_there(size, SizeGrid(tuple(lacking), SEEDS))
            lowest = min(etas, key=means.__getitem__)
            halves = [
                (a + b) / 2
                for a, b in pairwise(etas)
                if lowest in (a, b)
                # Only where the lowest point trains, and its neighbour does not: an edge.
                and math.isfinite(means[lowest])
                and math.isinf(means[a] + means[b])
                and b - a > self.rule.step / 2 + 1e-9
            ]
            if not (halves and room):
                return etas, []
            etas = sorted([*etas, *halves])

    def _curve(self, size: LadderSize) -> SizeCurve:
        grid, failed = self.grids[size], 0
        losses = dict[float, tuple[float, ...]]()
        for eta in grid.etas:
            measured = [self._loss(size, eta, seed) for seed in range(grid.seeds)]
            finished = tuple(loss for loss in measured if loss is not None)
            failed += sum(map(math.isnan, finished))
            # A curve takes as many seeds at each point: one with a failed run is left out whole.
            if not any(map(math.isnan, finished)):
                losses[eta] = finished
        planned = self._planned(size)
        return SizeCurve(size=size, losses=losses, failed=failed, planned_log2=planned)

    # What comes next.

    def _look(self) -> None:
        """Judge, and end or plan the next round."""
        first = self.looks_at_once and not self.looks
        judged = (self._judge_given if first else self._judge)(self.by_axis())
        # Hours are told as runs, by what those so far took, and only ever lower the budget.
        if self._affordable is not None:
            runs = [run for size, grid in self.grids.items() for run in grid.of(size)]
            affordable = self._affordable(runs)
            self._timed = self._timed or affordable < self.budget
            self.budget = min(self.budget, affordable)
        self.looks.append(Look(judged=judged, runs=self.runs))
        waiting = [
            size
            for ladder in judged
            # A ladder that fails needs none of its other sizes.
            if ladder.verdict.answer != "fails"
            for size in self.ladders[ladder.verdict.axis]
            if size not in self.started
        ]
        # Of a ladder whose end is not there yet all else waits for it.
        ends = [size for size in waiting if size in self._ends]
        waiting = ends or waiting
        # What failed, and a base whose own optimum is missed, no further run mends.
        mend = [
            ladder.verdict.advice
            for ladder in judged
            for size in ladder.verdict.sizes
            if size.is_base and size.answer == "cannot say yet" and not size.at_end
            if (fit := ladder.fits.get(size.size)) is None or not fit.noise_unknown
        ]
        # Before stuck: a ladder that fails at its far end fails, whatever else is wrong.
        if all(ladder.settled for ladder in judged) and not waiting:
            self.ending = self._ended("settled")
        elif mend or any(self._curve(size).failed for size in self.grids):
            advice = next(iter(mend), judged[0].verdict.advice)
            self.ending = self._ended("stuck", advice=advice)
        elif len(self.looks) >= LOOKS or self.runs + len(waiting) * self.begun > self.budget:
            self.ending = self._ended("budget")
        else:
            self.started += waiting
            self._plan([ladder for ladder in judged if not (ladder.settled or ends)], len(waiting))

    def _ended(
        self, ended: Ended, left: int = 0, advice: Advice | None = None, *, narrows: bool = False
    ) -> Ending:
        return Ending(
            ended=ended,
            runs=self.runs,
            there=self.there,
            looks=len(self.looks),
            budget=self.budget,
            timed=self._timed,
            left=left,
            advice=advice or Advice(),
            narrows=narrows,
        )

    def _plan(self, judged: Sequence[JudgedLadder], begun: int) -> None:
        """Grids of the next round, in which `begun` sizes begin."""
        # By points that no seed replaces, by what the target asks for, then by variances.
        new, doubts, short = dict[LadderSize, SizeGrid](), list[Doubt](), 0
        advice, narrows = Advice(), False
        evidence = dict[LadderSize, tuple[CurveFit, CurveEvidence]]()
        for ladder in judged:
            verdict, base_fit = ladder.verdict, ladder.fits.get(self.base)
            advice = advice if advice.code else verdict.advice
            of_axis = list[Doubt]()
            for size in verdict.sizes:
                fit = ladder.fits.get(size.size)
                if size.answer != "cannot say yet" or fit is None or base_fit is None:
                    continue
                # Equal seeds are not told apart by more of them, and the base's row has no shift to
                # narrow; but an optimum at an end takes points in both cases.
                if (fit.same_seeds or size.is_base) and not fit.at_end:
                    continue
                further = self._further(fit, base_fit)
                if further:
                    grid = new.get(size.size, self.grids[size.size]).with_etas(further)
                    added = sum(grown.runs - self.grids[s].runs for s, grown in new.items())
                    if self.runs + added + grid.runs - self.grids[size.size].runs <= self.budget:
                        new[size.size] = grid
                elif not (fit.noise_unknown or base_fit.noise_unknown):
                    factor, beyond = information_needed(size, self.rule)
                    allowed = self.rule.allowed_gap(size.loss.value)
                    limits = (size.shift_log2, self.rule.max_shift), (size.loss_gap, allowed)
                    of_axis.append(Doubt(size.size, factor, beyond, limits))
                    # The base as well: its optimum is in every shift.
                    evidence[size.size] = (fit, fit.evidence)
                    evidence[self.base] = (base_fit, base_fit.evidence)
            # One size that fails is enough: the others may wait for whether it does.
            failing = [d for d in of_axis if d.beyond and d.factor <= NEARLY]
            of_axis = [min(failing, key=lambda d: d.factor)] if failing else of_axis
            of_target = verdict.target.advice if verdict.target else Advice()
            # An open ladder may be settled by a larger size that fails; its seeds wait for it.
            if verdict.answer == "holds" or of_target.tells:
                more = self._for_target(ladder)
                of_axis = [] if more.begun else of_axis
                # A ladder that holds has no advice of its own: the target's is told.
                advice, narrows = more.advice if more.advice.code else of_target, more.narrows
                short = max(short, more.needed)
                begun += more.begun
                new |= more.longer
                # Of a size whose runs are not back yet nothing is known that seeds would firm up.
                fits = {d.size: fit for d in more.doubts if (fit := ladder.fits.get(d.size))}
                of_axis += [doubt for doubt in more.doubts if doubt.size in fits]
                evidence |= {size: (fit, fit.evidence) for size, fit in fits.items()}
            doubts += of_axis
        planned = sum(grid.runs - self.grids[size].runs for size, grid in new.items())
        planned += begun * self.begun
        left = max(0, self.budget - self.runs - planned)
        # The last look takes all that is left: there is none to keep runs for.
        last = len(self.looks) == LOOKS - 1
        room = left if last else min(left, round(GROWTH * self.runs))
        allocation = Allocation(self.base, {**self.grids, **new}, doubts, evidence, self.rule)
        # Workers that would be idle are given seeds: it takes no longer, and tells more.
        spent = allocation.spend(room, least=self.slots - planned if doubts else 0)
        if new or begun or spent:
            grids = dict(allocation.grids)
            # Put aside. If even all of the budget would hardly settle it, it is saved.
            allocation.spend(left - spent)
            if not (new or begun) and allocation.chance() < HOPELESS:
                short = allocation.even_runs - self.runs
                self.ending = self._ended("hopeless", short, advice, narrows=narrows)
                return
            self.looks[-1] = replace(self.looks[-1], left=planned + spent)
            self.grids = {size: grid for size, grid in grids.items() if size in self.grids}
        else:
            # Why nothing was given: runs would help and there is no room, or the target asks for
            # more than the budget has, or no run of this ladder tells.
            ended: Ended = "budget" if doubts else "hopeless" if short else "stuck"
            if doubts:
                short = allocation.even_runs - self.runs
            self.ending = self._ended(ended, short, advice, narrows=narrows)

    def _further(self, fit: CurveFit, base_fit: CurveFit) -> list[float]:
        """Points that must come before seeds: beyond an end, or where the base's optimum lies."""
        size, etas = fit.curve.size, sorted(fit.curve.losses)
        lowest = min(etas, key=lambda eta: _mean(fit.curve.losses[eta]))
        step = spacing(self.rule)
        reach = self.rule.span + 2 * max(1, self.rule.extend) * step
        middle, side = self._middle(size), 0
        if fit.at_end:
            side = 1 if lowest == etas[-1] else -1
            points = [lowest + side * step * n for n in (1, 2)]
            return [eta for eta in points if abs(eta - middle) <= reach + 1e-9]
        planned = fit.curve.planned_log2 - base_fit.curve.planned_log2
        wanted = base_fit.optimum.value + planned
        # A finite gap: the curve was measured where the base's optimum lies, and seeds may follow.
        if math.isfinite(fit.loss_gap(wanted, base_fit.safe_optimum_draws + planned).high):
            return []
        if not etas[0] <= wanted <= etas[-1]:
            side = 1 if wanted > etas[-1] else -1
            end = etas[-1] if side > 0 else etas[0]
            count = math.ceil(abs(wanted - end) / step)
            return [end + side * step * (n + 1) for n in range(count)]
        # Beside a point that diverged, or nearly past an end: halfway to what is not known.
        ends = base_fit.safe_optimum_draws + planned
        beyond = [etas[0] - step] * bool(ends.min() < etas[0])
        beyond += [etas[-1] + step] * bool(ends.max() > etas[-1])
        finite = [eta for eta in etas if math.isfinite(_mean(fit.curve.losses[eta]))]
        for a, b in pairwise(etas):
            if (a in finite) != (b in finite) and b - a > self.rule.step / 2 + 1e-9:
                beyond.append((a + b) / 2)
        return [eta for eta in beyond if eta not in fit.curve.losses]

    def _for_target(self, ladder: JudgedLadder) -> ForTarget:
        """What may settle the target of a ladder that does not fail, as its verdict advises.

        Larger sizes, on which it rests most; else points further out on the largest; else all
        optima with half the errors. Nothing where that is not expected to tell.
        """
        axis, target = ladder.verdict.axis, ladder.verdict.target
        if target is None or axis == JOINT_AXIS or target.answer != "cannot say yet":
            return ForTarget()
        sizes, advice = self.ladders[axis], target.advice
        if any(size not in self.grids for size in sizes):
            return ForTarget()  # the sizes between come first
        far = max(sizes, key=lambda size: int(getattr(size, axis)))
        # The gap at the target is read off the widest curve: it alone is made longer.
        if advice.code == "longer_curves":
            grid, step = self.grids[far], spacing(self.rule)
            further = grid.with_etas([grid.etas[0] - step, grid.etas[-1] + step])
            if self.runs + (needed := further.runs - grid.runs) > self.budget:
                return ForTarget(needed=needed)
            return ForTarget(longer={far: further})
        tells = advice.tells
        # The advice looks at so many times the runs of now, and early the budget has far more.
        if advice.code == "correct" or not (tells or 2 * MORE_SEEDS * self.runs <= self.budget):
            return ForTarget(advice=advice, narrows=advice.code == "narrower")
        last, wider = int(getattr(far, axis)), list[LadderSize]()
        if advice.ladder and tells:
            while 2 * last <= max(advice.ladder):
                last *= 2
                wider.append(replace(self.base, **{axis: last}))
        seeds = advice.code == "more_seeds" or not tells
        needed = self.runs + len(wider) * self.begun
        needed *= MORE_SEEDS if seeds else 1
        if needed > self.budget:
            return ForTarget(needed=needed - self.runs, advice=advice)
        # One size a look, while there are looks enough: the answer may come before the last.
        begun = wider[: math.ceil(len(wider) / max(1, LOOKS - len(self.looks) - seeds))]
        self.ladders[axis] += begun
        self.started += begun
        # So many times the information, without limits: the target has none for one size's optimum.
        doubts = [Doubt(size, float(MORE_SEEDS), False, ()) for size in sizes]
        return ForTarget(begun=len(begun), doubts=doubts if seeds and not begun else [])


@dataclass(frozen=True, kw_only=True)
class ForTarget:
    """What an open target asks for: so many sizes `begun`, points, and optima in doubt.

    `advice` is what would tell where none of this does, or with `narrows` but narrow it; `needed`
    are the runs that it takes, where they are more than the budget has.
    """

    begun: int = 0
    longer: Mapping[LadderSize, SizeGrid] = field(default_factory=dict)
    doubts: Sequence[Doubt] = ()
    needed: int = 0
    advice: Advice = field(default_factory=Advice)
    narrows: bool = False


@dataclass(frozen=True)
class Doubt:
    """An open size: it takes `factor` times the information; `beyond`: to be told to fail.

    `limits` are its estimates and what they must keep; none where the optimum alone is in doubt.
    """

    size: LadderSize
    factor: float
    beyond: bool
    limits: Sequence[tuple[Estimate, float]]

    def chances(self, share: float) -> tuple[float, float]:
        """Of being told to hold and to fail once the variance is `share` of what it is.

        The estimate moves by a normal of the variance that goes; then its interval lies within the
        limit, or beyond.
        """
        holds, fails = float(bool(self.limits) or self.factor * share <= 1), 0.0
        for estimate, limit in self.limits:
            # Half an interval is `Z` deviations of the estimate now. Later it has `share` of the
            # variance, and the rest is what the value may move by.
            half = (estimate.high - estimate.low) / 2
            moves = half / Z * math.sqrt(max(1 - share, 0.0)) + 1e-12
            then = Foretold(abs(estimate.value), moves, half * math.sqrt(share))
            # At most as likely as the least likely of its estimates; to fail, one beyond is enough.
            holds = min(holds, then.below(limit) if then.half < limit else 0.0)
            fails = max(fails, then.above(limit))
        return holds, fails


class Allocation:
    """Runs given one move at a time to where they shrink the open shifts' variances most.

    The variance of a shift is that of its size's optimum and the base's. Each is measured now (its
    draws), and goes as that of the curve's slope at the optimum (`slope_error`). A move is one more
    seed at all points of a size, or points halfway between the lowest and its
    neighbours. What counts is by how much a variance exceeds the one that would settle, per run.
    """

    def __init__(
        self,
        base: LadderSize,
        grids: Mapping[LadderSize, SizeGrid],
        doubts: Sequence[Doubt],
        evidence: Mapping[LadderSize, tuple[CurveFit, CurveEvidence]],
        rule: LadderRule,
    ) -> None:
        """`evidence` has the base and every size in doubt."""
        self.base, self.grids, self.doubts, self.rule = base, dict(grids), doubts, rule
        self._evidence, self.spent = evidence, 0
        self._known = dict[tuple[LadderSize, SizeGrid], float]()
        # The level is that of the draws, which hold all doubt; how it shrinks, the slope error's.
        self._now = {size: self._variance(size, self._measured(size)) for size in evidence}
        self._scale = dict[LadderSize, float]()
        for size, (fit, _) in evidence.items():
            low, high = np.percentile(fit.free_optimum_draws, [2.5, 97.5])
            self._scale[size] = ((high - low) / (2 * 1.96)) ** 2 / max(self._now[size], 1e-300)
        # By what was measured: what `_further` added counts as given already.
        measured = {size: self._scale[size] * self._now[size] for size in evidence}
        self._start = {d.size: measured[d.size] + measured[base] for d in doubts}

    def _measured(self, size: LadderSize) -> SizeGrid:
        curve = self._evidence[size][0].curve
        return SizeGrid(tuple(sorted(curve.losses)), min(map(len, curve.losses.values())))

    def _variance(self, size: LadderSize, grid: SizeGrid) -> float:
        if (size, grid) not in self._known:
            fit, evidence = self._evidence[size]
            # A point that diverged measures no slope; one to come is taken to be finite.
            finite = [
                eta for eta in grid.etas if math.isfinite(_mean(fit.curve.losses.get(eta, (0.0,))))
            ]
            error = evidence.slope_error(fit.optimum.value, np.array(finite), grid.seeds)
            self._known[size, grid] = error**2
        return self._known[size, grid]

    def _sum(self, size: LadderSize, changed: Mapping[LadderSize, SizeGrid]) -> float:
        """The variance of a size's shift, with some grids changed."""
        return sum(
            self._scale[each] * self._variance(each, changed.get(each, self.grids[each]))
            for each in (size, self.base)
        )

    def _excess(self, changed: Mapping[LadderSize, SizeGrid]) -> list[float]:
        """Of every doubt its variance, in those that would settle it."""
        return [
            d.factor * self._sum(d.size, changed) / max(self._start[d.size], 1e-300)
            for d in self.doubts
        ]

    def chance(self, times: float = 1.0) -> float:
        """That so many times these grids' runs settle the doubts: one fails, or all hold."""
        shares = [
            self._sum(d.size, {}) / max(self._start[d.size], 1e-300) / times for d in self.doubts
        ]
        chances = [d.chances(share) for d, share in zip(self.doubts, shares, strict=True)]
        if not chances:
            return 1.0
        # One that fails is enough; that all hold is at most as likely as the least likely of them.
        return max(max(fails for _, fails in chances), min(holds for holds, _ in chances))

    @property
    def even_runs(self) -> int:
        """Runs of all grids that settle the doubts as likely as not; 0 where no number does."""
        runs = sum(grid.runs for grid in self.grids.values())
        # A series of factors: the chance has no inverse, and an answer to a fifth is near enough.
        times = (2 ** (n / 4) for n in range(4 * 8))
        return next((math.ceil(runs * t) for t in times if self.chance(t) >= 0.5), 0)

    @property
    def worst(self) -> float:
        """The largest of these; 0 without doubts."""
        return max(self._excess({}), default=0.0)

    def spend(self, room: int, least: int = 0) -> int:
        """Give at most `room` runs, until all doubts are expected to be settled; how many were.

        At least `least`, where they fit: workers would have nothing to do.
        """
        spent = 0
        while self.doubts and (self.worst > GOAL or spent < least):
            # What lies below the goal gains nothing more: runs go to what is open.
            now = sum(max(excess, GOAL) for excess in self._excess({}))
            best: tuple[float, int, LadderSize, SizeGrid | None] = (0.0, 0, self.base, None)
            for size in self._evidence:
                for grid in self._moves(size):
                    cost = grid.runs - self.grids[size].runs
                    if spent + cost > room:
                        continue
                    then = sum(max(excess, GOAL) for excess in self._excess({size: grid}))
                    gain = (now - then) / cost
                    if gain > best[0]:
                        best = (gain, cost, size, grid)
            _, cost, size, chosen = best
            if chosen is None:
                break
            self.grids[size] = chosen
            spent += cost
        self.spent += spent
        return spent

    def _moves(self, size: LadderSize) -> list[SizeGrid]:
        """Points between others near the optimum, and once they are dense, a seed more.

        At points between, runs say as much of a smooth curve, and more of one that is not.
        """
        grid, at = self.grids[size], self._evidence[size][0].optimum.value
        finest, moves = min(FINEST, self.rule.step), list[SizeGrid]()
        for reach in (1.0, NOISE_RADIUS):
            near = [eta for eta in grid.etas if abs(eta - at) <= reach + finest]
            halves = [(a + b) / 2 for a, b in pairwise(near) if b - a > finest + 1e-9]
            moves += [grid.with_etas(halves)] if halves else []
        return moves or [replace(grid, seeds=grid.seeds + 1)]


def _extent(size: LadderSize, axis: str, base: LadderSize) -> float:
    """How many times the base a size is on its ladder."""
    if axis != JOINT_AXIS:
        return float(getattr(size, axis)) / float(getattr(base, axis))
    # In FLOPs, but for a constant: parameters go as width^2 depth, and tokens as batch times steps.
    return (size.width**2 * size.depth * size.batch_size * size.steps) / (
        base.width**2 * base.depth * base.batch_size * base.steps
    )


def _mean(losses: Sequence[float]) -> float:
    return sum(losses) / len(losses)
