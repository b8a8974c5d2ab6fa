"""Which runs of a ladder to train next, until its answer is settled, and when to stop.

A ladder begins with few points and seeds, at its ends first. Then come rounds: after each the
curves are judged, and where an answer is open, its sizes get points beyond an open end, then points
between those near the optimum, then twice the seeds. All is a function of the losses so far, so
that a ladder goes on after a kill as if nothing had been.

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

from sweeper.decide.ladder_verdict import MAX_SEED_FACTOR, Advice, SizeVerdict, Verdict, chances
from sweeper.errors import ConfigError, Keyword
from sweeper.stats.curve import NOISE_RADIUS, CurveFit
from sweeper.stats.ladder import (
    JOINT_AXIS,
    LadderPoint,
    LadderRule,
    LadderSize,
    LadderSoFar,
    SizeCurve,
)
from sweeper.stats.rounds import CONFIDENCE, HOPELESS, LOOKS
from sweeper.trial import Log2Hps, Point

AT_FIRST = 0.95
"""Of those at a first look that rests on runs that were there: they judge as any ladder does."""
COARSE = 1.0
"""Spacing of the first points, in log2, which is halved before seeds double.

No finer grid held or failed more ladders a run, of those of `scripts/bench/verdict.py` but the
later ones, which it was then tested on. A coarser one shows no shape of a curve."""
SEEDS = 2
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

    def with_etas(self, etas: Iterable[float]) -> SizeGrid:
        """Adds values of eta."""
        return SizeGrid(tuple(sorted({*self.etas, *etas})), self.seeds)

    def between(self, optimum: float, spacing: float) -> list[float]:
        """Halfway between points near the `optimum` that lie further apart than `spacing`."""
        near = [eta for eta in self.etas if abs(eta - optimum) <= NOISE_RADIUS + spacing]
        return [(a + b) / 2 for a, b in pairwise(near) if b - a > spacing + 1e-9]

    def grown(self, optimum: float, finest: float) -> SizeGrid:
        """Takes about twice the runs: points between down to a spacing, then seeds."""
        halves = self.between(optimum, finest)
        return self.with_etas(halves) if halves else SizeGrid(self.etas, 2 * self.seeds)


def grids_of(runs: Iterable[Run], rule: LadderRule) -> dict[LadderSize, SizeGrid]:
    """The curves that `runs` make: at each size the most runs with as many seeds at each point."""
    seeds = dict[LadderSize, dict[float, set[int]]]()
    for size, eta, seed in runs:
        seeds.setdefault(size, {}).setdefault(eta, set()).add(seed)
    grids = dict[LadderSize, SizeGrid]()
    for size, by_eta in seeds.items():
        # A curve's seeds are the first ones, without a gap: a later one pairs with none of others.
        whole = {
            eta: next(n for n in range(len(have) + 1) if n not in have)
            for eta, have in by_eta.items()
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
        open_target = self.verdict.target and self.verdict.target.answer == "cannot say yet"
        return self.verdict.answer == "fails" or (
            self.verdict.answer == "holds" and not open_target
        )


Judge = Callable[[Mapping[str, Sequence[SizeCurve]], float], Sequence[JudgedLadder]]
"""What judges the curves measured so far, by axis, with intervals of a level."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """A look: verdicts at level `confidence`, runs so far, and the next round's `likely` ones."""

    judged: Sequence[JudgedLadder]
    runs: int
    confidence: float
    likely: int = 0


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Why a ladder is trained no further, with its numbers.

    Of its `runs` so many were `there` before. `likely` more would settle it, of which the
    `budget` has room for some; 0 where nothing tells. `timed`: hours are what is spent. `advice`
    is what no run of this ladder gives.
    """

    ended: Ended
    runs: int
    there: int
    looks: int
    budget: int
    timed: bool = False
    likely: int = 0
    advice: Advice = field(default_factory=Advice)

    @property
    def needed(self) -> int:
        """Runs of the whole ladder that would likely settle it; 0 where nothing tells."""
        return self.runs + self.likely if self.likely > 0 else 0


def default_budget(rule: LadderRule, base: LadderSize) -> int:
    """Runs that a ladder may take where nothing else is said."""
    sizes = {size for sizes in rule.ladders(base).values() for size in sizes}
    return TIMES_BUDGET * len(sizes) * rule.points_per_line() * rule.seeds


@dataclass(frozen=True, kw_only=True)
class RoundRequest:
    """What one open ladder asks for: sizes to begin, and grids that grow.

    So many more runs are `likely` to settle it, 0 where nothing tells. `hopeless`: there is no
    room for them in the budget. `advice` is what would tell where nothing is asked for.
    """

    grids: Mapping[LadderSize, SizeGrid] = field(default_factory=dict)
    begun: Sequence[LadderSize] = ()
    likely: int = 0
    hopeless: bool = False
    advice: Advice = field(default_factory=Advice)


class Settling:
    """A ladder on its way to an answer: what it has measured, what it lacks, and why it ended.

    `ladders` are sizes by axis. `loss` knows the runs so far and never forgets one, `judge` judges
    their curves. `budget` is in runs, whoever trained them, and `affordable` how many may be
    trained by what those so far took. `place` is log2 of the hyperparameter in the middle of a
    size's line, and the part of it that a law plans. `before` are curves that were there:
    where they make a ladder they are the first look, and what is trained follows from it.
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
        place: Callable[[LadderSize], tuple[float, float]] = lambda size: (0.0, 0.0),
        before: Mapping[LadderSize, SizeGrid] | None = None,
    ) -> None:
        """Nothing is asked of `loss` yet. ConfigError for a budget that is too small to begin."""
        self.rule, self.base, self._place = rule, base, place
        self.ladders = {axis: list(sizes) for axis, sizes in ladders.items()}
        self._measured, self._judge, self._affordable = loss, judge, affordable
        # What was asked for: other known runs of the study are no part of the design.
        self.asked: set[Run] = set()
        self._timed = False
        self.budget = budget or default_budget(rule, base)
        # Ends first: a transfer that fails does so there, and the sizes between need no runs then.
        ends = [
            # By the factor, either way: the base may lie in the middle of its ladder.
            max(sizes, key=lambda size: abs(math.log(_extent(size, axis, base))))
            for axis, sizes in self.ladders.items()
        ]
        self._ends = [*dict.fromkeys([base, *ends])]
        if (least := len(self._ends) * self.begun) > self.budget:
            allowed = f"at least {least}, with which these ladders begin"
            raise ConfigError(Keyword("budget"), self.budget, allowed)
        # A budget is kept: first lines grow by as much as it leaves for them.
        on_ladder = {size for sizes in self.ladders.values() for size in sizes}
        spare = self.budget // len(on_ladder) - self.begun if on_ladder else 0
        self._extend = max(0, min(rule.extend, spare // (2 * SEEDS)))
        # Curves of sizes that no ladder has would count against the budget, and tell nothing here.
        self.grids = {size: grid for size, grid in (before or {}).items() if size in on_ladder}
        self.there = self.runs
        # A ladder is the base and another size: with these it can be looked at at once.
        self.looks_at_once = base in self.grids and all(
            any(size in self.grids for size in sizes if size != base)
            for sizes in self.ladders.values()
        )
        first = [base] if self.looks_at_once else self._ends
        self.started = [*dict.fromkeys([*first, *self.grids])]
        self.looks: list[Look] = []
        self.ending: Ending | None = None

    # What is measured.

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
                losses = (self._measured(size, eta, seed) for seed in range(grid.seeds))
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
        return sum(self._measured(*run) is not None for run in self.asked)

    @property
    def runs(self) -> int:
        """Runs of all rounds so far, the present one's included."""
        return sum(grid.runs for grid in self.grids.values())

    @property
    def likely(self) -> int:
        """Runs that the ladder has after the next round, as far as the last look could tell."""
        return self.runs if self.ending else self.looks[-1].runs + self.looks[-1].likely

    @property
    def begun(self) -> int:
        """Runs that one size begins with."""
        return first_points(self.rule) * SEEDS

    def by_axis(self) -> dict[str, list[SizeCurve]]:
        """The curves measured so far of every ladder."""
        return {
            axis: [self._curve(size) for size in sizes if size in self.grids]
            for axis, sizes in self.ladders.items()
        }

    def _loss(self, size: LadderSize, eta: float, seed: int) -> float | None:
        self.asked.add((size, eta, seed))
        return self._measured(size, eta, seed)

    def _lacking(self, size: LadderSize) -> list[Run]:
        grid = self.grids.get(size)
        if grid is None:
            name = self.rule.hyperparameter
            rule = replace(self.rule, step=spacing(self.rule), seeds=SEEDS, extend=self._extend)

            def loss(point: Point) -> float | None:
                measured = self._loss(size, point.log2_hps[name], point.seed)
                # A line goes on past a failed run as past one that diverged.
                return math.inf if measured is not None and math.isnan(measured) else measured

            state = rule.line(Log2Hps({name: self._place(size)[0]}), loss)
            grid = SizeGrid(tuple(sorted(state.missing or state.losses)), SEEDS)
            if not state.missing:
                self.grids[size] = grid
        return [run for run in grid.of(size) if self._loss(*run) is None]

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
        return SizeCurve(size=size, losses=losses, failed=failed, planned_log2=self._place(size)[1])

    # What comes next.

    def _look(self) -> None:
        # A first look at runs that were there is no look of the design: it errs as any ladder does.
        at_once = self.looks_at_once and not self.looks
        confidence = AT_FIRST if at_once else CONFIDENCE
        judged = self._judge(self.by_axis(), confidence)
        # Hours are told as runs, by what those so far took, and only ever lower the budget.
        if self._affordable is not None:
            runs = [run for size, grid in self.grids.items() for run in grid.of(size)]
            affordable = self._affordable(runs)
            self._timed = self._timed or affordable < self.budget
            self.budget = min(self.budget, affordable)
        self.looks.append(Look(judged=judged, runs=self.runs, confidence=confidence))
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
        open_ladders = [ladder for ladder in judged if not ladder.settled]
        # What failed, and a base whose own optimum is missed, no further run mends.
        mend = [
            ladder.verdict.advice
            for ladder in judged
            for size in ladder.verdict.sizes
            if size.is_base and size.answer == "cannot say yet" and not size.at_end
            if (fit := ladder.fits.get(size.size)) is None or not fit.noise_unknown
        ]
        # Before stuck: a ladder that fails at its far end fails, whatever else is wrong.
        if not open_ladders and not waiting:
            self._end("settled")
        elif mend or any(self._curve(size).failed for size in self.grids):
            self._end("stuck", advice=next(iter(mend), judged[0].verdict.advice))
        elif len(self.looks) >= LOOKS:
            self._end("budget")
        elif waiting:
            self._go_on(ends or waiting, {})
        else:
            self._grow(open_ladders)

    def _end(self, ended: Ended, likely: int = 0, advice: Advice | None = None) -> None:
        self.ending = Ending(
            ended=ended,
            runs=self.runs,
            there=self.there,
            looks=len(self.looks),
            budget=self.budget,
            timed=self._timed,
            likely=likely,
            advice=advice or Advice(),
        )

    def _grow(self, ladders: Sequence[JudgedLadder]) -> None:
        asked = [self._asked_by(ladder) for ladder in ladders]
        grids = {size: grid for more in asked for size, grid in more.grids.items()}
        begun = [size for more in asked for size in more.begun]
        for ladder, more in zip(ladders, asked, strict=True):
            self.ladders[ladder.verdict.axis] += more.begun
        likely = sum(more.likely for more in asked)
        if grids or begun:
            self._go_on(begun, grids, likely)
        else:
            hopeless = any(more.hopeless for more in asked)
            self._end("hopeless" if hopeless else "stuck", likely, asked[0].advice)

    def _go_on(
        self, begun: Sequence[LadderSize], grids: Mapping[LadderSize, SizeGrid], likely: int = 0
    ) -> None:
        grids, room = dict(grids), self._room - len(begun) * self.begun

        def more(size: LadderSize) -> int:
            return grids[size].runs - self.grids[size].runs

        while (added := sum(map(more, grids))) > max(0, room):
            most = max(grids, key=more)
            if grids[most].seeds - 1 > self.grids[most].seeds:
                grids[most] = replace(grids[most], seeds=grids[most].seeds - 1)
            else:
                del grids[most]
        if room < 0 or not (begun or grids):
            self._end("budget", likely)
            return
        self.looks[-1] = replace(self.looks[-1], likely=len(begun) * self.begun + added)
        self.started += begun
        self.grids |= grids

    # What open ladders ask for, by what was measured.

    @property
    def _finest(self) -> float:
        """The spacing down to which points are put between others, in log2."""
        return min(COARSE / 2, self.rule.step)

    @property
    def _room(self) -> int:
        return self.budget - self.runs

    def _asked_by(self, ladder: JudgedLadder) -> RoundRequest:
        """What may settle an open ladder, or its target."""
        verdict, target = ladder.verdict, ladder.verdict.target
        if target and verdict.answer == "holds":
            return self._for_target(ladder, target.advice)
        base_fit, points, doubts = ladder.fits.get(self.base), dict[LadderSize, SizeGrid](), []
        for size in verdict.sizes:
            fit = ladder.fits.get(size.size)
            if size.answer != "cannot say yet" or fit is None or base_fit is None:
                continue
            # Equal seeds are not told apart by more of them, and the base's row has no shift to
            # narrow; but an optimum at an end takes points in both cases.
            if (fit.same_seeds or size.is_base) and not fit.at_end:
                continue
            if further := self._further(size, fit):
                points[size.size] = self.grids[size.size].with_etas(further)
            elif not (fit.noise_unknown or base_fit.noise_unknown):
                doubts.append(size)
        if not doubts:
            return RoundRequest(grids=points, advice=verdict.advice)
        # One size that fails is enough: the others wait for one that likely does.
        likely = {size.size: chances(size, self.rule, 2, CONFIDENCE)[1] for size in doubts}
        first = max(doubts, key=lambda size: likely[size.size])
        doubts = [first] if likely[first.size] >= 0.5 else doubts
        # The base as well: its optimum is in every shift.
        grids = {size: self.grids[size] for size in (self.base, *(s.size for s in doubts))}
        runs = sum(grid.runs for grid in grids.values())

        def chance(times: float) -> float:
            """Probability that so many times the runs settle it: one size fails, or all hold."""
            each = [chances(size, self.rule, times, CONFIDENCE) for size in doubts]
            return max(fails for _, fails in each) + min(holds for holds, _ in each)

        # A series of factors: the chance has no inverse, and an answer to a fifth is near enough.
        times = MAX_SEED_FACTOR ** (np.arange(1, 17) / 16)
        likely_more = next((math.ceil(runs * (t - 1)) for t in times if chance(t) >= 0.5), 0)
        # Of points between that show a shape the chance tells too little.
        coarse = any(
            grid.between(fit.optimum.value, COARSE)
            for size, grid in grids.items()
            if (fit := ladder.fits[size])
        )
        if not (points or coarse) and chance(1 + self._room / runs) < HOPELESS:
            return RoundRequest(likely=likely_more, hopeless=True, advice=verdict.advice)
        largest = max(grids[size.size].runs for size in doubts)
        for grown, grid in grids.items():
            fit = ladder.fits[grown]
            # A base that is known far better than the others gains them nothing.
            if fit is not None and (grown != self.base or grid.runs <= largest):
                grids[grown] = grid.grown(fit.optimum.value, self._finest)
        return RoundRequest(grids=grids | points, likely=likely_more, advice=verdict.advice)

    def _further(self, size: SizeVerdict, fit: CurveFit) -> list[float]:
        etas, step, losses = sorted(fit.curve.losses), spacing(self.rule), fit.curve.losses
        if fit.at_end:
            low = min(etas, key=lambda eta: math.fsum(losses[eta])) == etas[0]
            points = [etas[0] - n * step if low else etas[-1] + n * step for n in (1, 2)]
            # A line that falls on and on has no end: each side grows as far as twice its first.
            reach = self.rule.span + 2 * max(1, self.rule.extend) * step
            return [e for e in points if abs(e - self._place(size.size)[0]) <= reach + 1e-9]
        # Where the base's optimum is within the curve, seeds may follow.
        past = size.past if size.code == "not_measured" else ()
        finest = self.rule.step / 2 + 1e-9
        return [end.telling for end in past if abs(end.diverged - end.last) > finest]

    def _for_target(self, ladder: JudgedLadder, advice: Advice) -> RoundRequest:
        """What `advice` asks for; nothing that would not tell, or is beyond the budget."""
        axis = ladder.verdict.axis
        largest = max(self.ladders[axis], key=lambda size: _extent(size, axis, self.base))
        grids, begun, needed = dict[LadderSize, SizeGrid](), list[LadderSize](), 0
        # The gap at the target is read off the widest curve: it alone is made longer.
        if advice.code == "longer_curves":
            grid, step = self.grids[largest], spacing(self.rule)
            grids = {largest: grid.with_etas([grid.etas[0] - step, grid.etas[-1] + step])}
            needed = grids[largest].runs - grid.runs
        elif advice.code in ("longer_ladder", "more_seeds"):
            wider = [each for each in advice.ladder if each > int(getattr(largest, axis))]
            begun = [replace(self.base, **{axis: size}) for size in wider[:1]]
            needed = len(wider) * self.begun
            if not wider:
                grids = {
                    size: self.grids[size].grown(fit.optimum.value, self._finest)
                    for size, fit in ladder.fits.items()
                    if fit is not None
                }
                # Half the errors take four times the runs.
                needed = 3 * sum(self.grids[size].runs for size in grids)
        if needed > self._room:
            return RoundRequest(likely=needed, hopeless=True, advice=advice)
        return RoundRequest(grids=grids, begun=begun, advice=advice)


def _extent(size: LadderSize, axis: str, base: LadderSize) -> float:
    if axis != JOINT_AXIS:
        return float(getattr(size, axis)) / float(getattr(base, axis))
    # In FLOPs, but for a constant: parameters go as width^2 depth, and tokens as batch times steps.
    return (size.width**2 * size.depth * size.batch_size * size.steps) / (
        base.width**2 * base.depth * base.batch_size * base.steps
    )
