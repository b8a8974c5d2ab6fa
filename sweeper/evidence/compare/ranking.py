"""Which of several configurations has the least loss, with as few seeds as decide it.

All are trained with the same seeds, round by round, and compared seed by seed: what a seed does to
all of them cancels (`stats/paired.py`, which says what runs that diverge tell). Who is worse than
another one for sure drops out. It ends with one left, or where those that are left are alike. What
is asked for follows from the losses so far alone.

`Ranking` asks at the size that is trained; `TargetRanking` at a target that no run reaches, by runs
at several sizes, as `winner.py` carries them there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from sweeper.errors import ConfigError, Keyword
from sweeper.evidence.compare.decision import TargetQuestion, Winner, decide
from sweeper.evidence.compare.reading import VariantCell, VariantRuns, log2_of_counts
from sweeper.stats.estimate import ZERO, Array, Estimate, quantile
from sweeper.stats.line import FLAT
from sweeper.stats.paired import (
    SeedPairs,
    by_losses,
    divergence_error,
    paired_difference,
    sign_error,
)
from sweeper.stats.rounds import HOPELESS, LOOKS, Foretold, Rounds, all_pairs

ROUNDS = Rounds((3, 5, 8, 12, 18, 27, 40, 60, 90), error=0.0005)
"""Seeds of each after every round; one more round takes all that the budget has left.

Ten looks of this error at equal configurations with normal losses rank them in 0.4 % of cases; the
rest of 1 % is for losses that are skewed (`scripts/bench/ranking.py`)."""
DEFAULT_SEEDS = 40
"""Seeds of each that the budget allows where nothing else is said."""
FIRST = 2
"""Seeds of each at every size with which a ranking at a target begins: one shows no noise."""
PROMISING = 5
"""Seeds from which on a ranking is given up: fewer do not show how large the noise is."""

Affordable = Callable[[Sequence[Any]], int]
Ended = Literal["decided", "alike", "budget", "hopeless", "stuck"]


@dataclass(frozen=True, kw_only=True)
class RankedPlace:
    """One configuration's mean loss (nats), over `seeds`, `diverged` of them.

    `gap` is that above the first, seed by seed, with an interval that allows for all looks and
    pairs. `out`: it is worse than another one for sure.
    """

    name: str
    loss: float
    seeds: int
    diverged: int
    gap: Estimate
    out: bool


@dataclass(frozen=True, kw_only=True)
class RankingOutcome:
    """How a ranking ended, and the numbers behind it; `needed` runs would likely have decided it.

    `left` are those that were in it until the end; `diverged` counts their runs that did, where it
    ended open, and `least` is how many seeds with which one alone diverges would decide it.
    `failed` are configurations of which a run failed, for which nothing stands.
    """

    ended: Ended
    runs: int
    looks: int
    budget: int
    left: tuple[str, ...]
    needed: int | None = None
    failed: tuple[str, ...] = ()
    diverged: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    least: int = 0


class Ranking:
    """Configurations on their way to a ranking.

    `loss` knows the runs so far by name and seed: NaN where one failed, +inf where it diverged,
    None where it is not known. `budget` is in runs of all together, `affordable` how many of the
    runs that would follow, in their order, there is time for; at least `slots` are trained at a
    time.
    """

    def __init__(
        self,
        names: Sequence[str],
        loss: Callable[[str, int], float | None],
        *,
        budget: int | None = None,
        affordable: Affordable | None = None,
        slots: int = 1,
    ) -> None:
        """Nothing is asked of `loss` yet. ConfigError for a budget that is too small to begin."""
        self.left, self._loss = list(names), loss
        self._affordable, self.slots = affordable, slots
        self.budget = budget or DEFAULT_SEEDS * len(names)
        begins = ROUNDS.seeds[0]
        if (least := begins * len(names)) > self.budget:
            raise ConfigError(
                Keyword("budget"), self.budget, f"at least {least}: {begins} seeds each"
            )
        self._error = ROUNDS.error_among(all_pairs(len(names)))
        self.looks = 0
        self.seeds = dict.fromkeys(names, 0)
        self.places: list[RankedPlace] = []
        self.outcome: RankingOutcome | None = None
        self._add(begins)

    @property
    def runs(self) -> int:
        """Runs of all rounds so far, the present one's included."""
        return sum(self.seeds.values())

    @property
    def asked(self) -> list[tuple[str, int]]:
        """Those runs, by name and seed."""
        return [(name, seed) for name, count in self.seeds.items() for seed in range(count)]

    def missing(self) -> list[tuple[str, int]]:
        """The runs that the round lacks, by name and seed; none once it has ended."""
        while self.outcome is None:
            begun = ((name, seed) for name in self.left for seed in range(self.seeds[name]))
            if lacking := [run for run in begun if self._loss(*run) is None]:
                return lacking
            self._look()
        return []

    def _add(self, seeds: int) -> None:
        """Train those that are left with so many seeds, more where runs would leave slots idle."""
        now = self.seeds[self.left[0]]
        room = (self.budget - self.runs) // len(self.left)
        filled = now + math.ceil(self.slots / len(self.left))
        for name in self.left:
            self.seeds[name] = now + min(room, max(seeds, filled) - now)

    def _losses(self, name: str) -> Array:
        losses = [self._loss(name, seed) for seed in range(self.seeds[name])]
        return np.array([math.nan if loss is None else loss for loss in losses])

    def _look(self) -> None:
        """Compare, and end or begin the next round."""
        self.looks += 1
        losses = {name: self._losses(name) for name in self.seeds}
        # A failed run is no loss and no divergence: what stands on such seeds would be a guess.
        if failed := [name for name, of_seeds in losses.items() if np.isnan(of_seeds).any()]:
            self._end("stuck", failed=tuple(failed))
            return
        order = sorted(self.left, key=lambda name: by_losses(losses[name]))
        gaps = {
            (a, b): paired_difference(losses[a], losses[b], self._error, skewed=True)
            for a, b in permutations(order, 2)
        }
        # Of all pairs, not of the leader's alone: who is worse than anybody is not the best.
        out = {a for (a, _), gap in gaps.items() if gap.low > 0}
        # Who is better for sure leads, though a run of it diverged.
        order.insert(0, order.pop(next(i for i, name in enumerate(order) if name not in out)))
        first = order[0]
        last = {place.name: place for place in self.places}
        self.places = [
            RankedPlace(
                name=name,
                loss=by_losses(losses[name])[1],
                seeds=len(losses[name]),
                diverged=int(np.isinf(losses[name]).sum()),
                gap=gaps[name, first] if name != first else ZERO,
                out=name in out,
            )
            for name in order
        ] + [last[name] for name in self.seeds if name not in self.left]
        self.left = [name for name in order if name not in out]
        self._end_or_go_on([gaps[name, first] for name in self.left if name != first], losses)

    def _end_or_go_on(self, gaps: Sequence[Estimate], losses: dict[str, Array]) -> None:
        """What follows from the gaps of those that are left above the first of them."""
        leader, now = self.places[0], self.seeds[self.left[0]]
        # The best one diverges with all seeds: none of them trains.
        if math.isinf(leader.loss):
            self._end("stuck")
            return
        if not gaps:
            self._end("decided")
            return
        # For a difference below this nobody would choose one over the other.
        flat = FLAT * abs(leader.loss)
        if all(-flat < gap.low and gap.high < flat for gap in gaps):
            self._end("alike")
            return
        if self._affordable is not None:
            following = [(name, seed) for seed in range(now, self.budget) for name in self.left]
            time_for = self._affordable(following[: max(0, self.budget - self.runs)])
            self.budget = min(self.budget, self.runs + time_for)
        # Who dropped out costs no more, so that the rest of the budget is for those that are left.
        most = now + max(0, self.budget - self.runs) // len(self.left)
        pairs = [SeedPairs.of(losses[name], losses[self.left[0]]) for name in self.left[1:]]
        if most <= now:
            self._end_open("budget", losses, self._needed(pairs, flat))
        # Not before `PROMISING` seeds: a chance by a spread of three is no ground to give up.
        elif now >= PROMISING and self._chance(pairs, flat, most) < HOPELESS:
            self._end_open("hopeless", losses, self._needed(pairs, flat))
        else:
            self._add(ROUNDS.after(now) or most)

    def _end_open(self, ended: Ended, losses: Mapping[str, Array], needed: int | None) -> None:
        """End undecided, with what would decide it."""
        counts = {name: int(np.isinf(losses[name]).sum()) for name in self.left}
        least = next(n for n in range(1, 99) if divergence_error(n, 0, n) <= self._error)
        diverged = {name: (count, len(losses[name])) for name, count in counts.items() if count}
        self._end(ended, needed=needed, diverged=diverged, least=least)

    def _end(self, ended: Ended, **more: Any) -> None:
        self.outcome = RankingOutcome(
            ended=ended,
            runs=self.runs,
            looks=self.looks,
            budget=self.budget,
            left=tuple(self.left),
            **more,
        )

    def _chance(self, pairs: Sequence[SeedPairs], flat: float, seeds: int) -> float:
        """That all pairs are decided with so many seeds, by their differences so far."""
        chance, quantile_then = 1.0, quantile(seeds - 1, 1 - self._error / 2)
        for pair in pairs:
            more = seeds - pair.count
            # The most that divergences may tell by then: the same one diverges with all the rest.
            lost, won = (n + more * bool(n) for n in (pair.lost, pair.won))
            if (lost or won) and divergence_error(lost, won, seeds) <= self._error:
                continue
            values = pair.differences
            if len(values) < 2:
                return 0.0
            then = len(values) + more
            # Not 0: what does not scatter at all is decided, and divides nothing by 0.
            spread = float(values.std(ddof=1)) + 1e-300
            half = quantile_then * spread / math.sqrt(then)
            mean = Foretold.of_mean(float(values.mean()), spread, len(values), then, half)
            # A lost pair keeps it from being better, and two from being alike, but for signs.
            ways = []
            if not pair.won or _outvoted(pair.won, seeds, self._error):
                ways.append(mean.above(0.0))
            if not pair.lost or _outvoted(pair.lost, seeds, self._error):
                ways.append(mean.below(0.0))
            if not (pair.lost or pair.won):
                ways.append(mean.within(flat))
            # Pairs share the leader's runs: all are at most as likely as the least likely.
            chance = min(chance, sum(ways))
        return chance

    def _needed(self, pairs: Sequence[SeedPairs], flat: float) -> int | None:
        """Runs in all with which the pairs are told apart, or alike, if all stays as it is."""
        z = -NormalDist().inv_cdf(self._error / 2)
        seeds = self.seeds[self.left[0]] + 1
        for pair in pairs:
            if pair.lost or pair.won:
                if (needed := pair.needed_by_divergence(self._error)) is None:
                    return None
                seeds = max(seeds, needed)
                continue
            values = pair.differences
            mean = abs(float(values.mean())) if len(values) > 1 else 0.0
            # To be told apart, or to be alike: whichever it is nearer to.
            far = max(mean, flat - mean)
            if far <= 0 or len(values) < 2:
                return None
            # Two more than by the normal's quantile, which is smaller than Student's.
            seeds = max(seeds, math.ceil((z * float(values.std(ddof=1)) / far) ** 2) + 2)
        return self.runs + (seeds - self.seeds[self.left[0]]) * len(self.left)


def _outvoted(lost: int, seeds: int, error: float) -> bool:
    """Whether so many lost pairs of so many seeds leave room for a sign test the other way."""
    return sign_error(lost, seeds - lost) <= error


class TargetRanking:
    """Variants, the baseline first, on their way to an answer at a target.

    It begins with seeds of each at the first `begun` of the `sizes`, which are counts by role, with
    `flops` of a run there. After each look the runs are added that decide most for their cost, of
    variants that are open still, at any of the sizes. It ends where each is called, where the
    budget is spent, or where no runs would likely tell. A look has its share of the error. The rest
    is as of `Ranking`.
    """

    def __init__(
        self,
        names: Sequence[str],
        sizes: Sequence[Mapping[str, float]],
        flops: Sequence[float],
        question: TargetQuestion,
        loss: Callable[[str, int, int], float | None],
        *,
        begun: int,
        budget: int | None = None,
        affordable: Affordable | None = None,
        slots: int = 1,
    ) -> None:
        """Nothing is asked of `loss` yet. ConfigError for a budget that is too small to begin."""
        self.names, self._loss, self._affordable = list(names), loss, affordable
        self._sizes, self._flops, self.slots = sizes, np.array(flops), slots
        self._log2 = np.array([log2_of_counts(each) for each in sizes], dtype=float)
        # Each look has its share of the error; sizes that no run can have are not proposed.
        self._question = replace(question, error=question.error / LOOKS, known=True)
        self.budget = budget or DEFAULT_SEEDS * len(names)
        if (least := FIRST * len(names) * begun) > self.budget:
            allowed = f"at least {least}: {FIRST} seeds each at {begun} sizes"
            raise ConfigError(Keyword("budget"), self.budget, allowed)
        self.seeds = {(name, size): FIRST for name in names for size in range(begun)}
        self.looks = 0
        self.winner: Winner | None = None
        self.outcome: RankingOutcome | None = None

    @property
    def runs(self) -> int:
        """Runs of all rounds so far, the present one's included."""
        return sum(self.seeds.values())

    @property
    def asked(self) -> list[tuple[str, int, int]]:
        """The runs of all rounds so far, by name, size and seed."""
        return [(*key, seed) for key, count in self.seeds.items() for seed in range(count)]

    def missing(self) -> list[tuple[str, int, int]]:
        """The runs that the round lacks, by name, size and seed; none once it has ended."""
        while self.outcome is None:
            if lacking := [run for run in self.asked if self._loss(*run) is None]:
                return lacking
            self._look()
        return []

    def variant_runs(self) -> VariantRuns:
        """The runs of all rounds so far."""
        losses = {
            key: np.array([self._loss(*key, seed) for seed in range(count)], dtype=float)
            for key, count in self.seeds.items()
        }
        cells = [
            VariantCell(
                variant=self.names.index(name),
                size=size,
                log2=(float(self._log2[size, 0]), float(self._log2[size, 1])),
                losses=found,
                seeds=tuple(map(str, range(len(found)))),
            )
            for (name, size), found in losses.items()
        ]
        return VariantRuns(
            names=self.names,
            cells=cells,
            log2=self._log2,
            measures=self._sizes,
            flops=self._flops,
            by="study",
            unit="nats",
            columns={"flops": "flops"} if np.isfinite(self._flops).all() else {},
            notes=(),
            paired=True,
        )

    def _look(self) -> None:
        self.looks += 1
        runs = self.variant_runs()
        failed = {runs.names[c.variant] for c in runs.cells if np.isnan(c.losses).any()}
        if failed:
            self._end("stuck", sorted(failed), failed=tuple(sorted(failed)))
            return
        self.winner = decide(runs, self._question)
        left = [each.name for each in self.winner.variants if each.answer == "cannot say"]
        if not left:
            self._end("decided", left)
        # No runs would likely tell, or the error is spent: six looks at most have a share of it.
        elif not self.winner.next_runs or self.looks >= LOOKS:
            self._end("hopeless", left)
        elif not self._add(self.winner):
            self._end("budget", left)

    def _add(self, winner: Winner) -> bool:
        """Those runs that decide most for their cost first, as far as the budget goes."""
        wanted = dict[tuple[str, int], int]()
        order = sorted(winner.next_runs, key=lambda each: -each.chance / each.flops)
        for each in order:
            size = next(i for i, counts in enumerate(self._sizes) if counts == each.place.counts)
            for name, more in ((each.variant, each.runs), (winner.baseline, each.of_baseline)):
                # Two variants may ask for the same runs of the baseline, which then serve both.
                wanted[name, size] = max(wanted.get((name, size), 0), more)
        following = [
            (*key, seed)
            for key, more in wanted.items()
            for seed in range(self.seeds.get(key, 0), self.seeds.get(key, 0) + more)
        ][: max(0, self.budget - self.runs)]
        time_for = len(following) if self._affordable is None else self._affordable(following)
        if time_for < len(following):
            # Of smaller sizes there may be time for more: they would tell less.
            self.budget, following = self.runs + time_for, following[:time_for]
        for name, size, seed in following:
            self.seeds[name, size] = seed + 1
        return bool(following)

    def _end(self, ended: Ended, left: Sequence[str], failed: tuple[str, ...] = ()) -> None:
        self.outcome = RankingOutcome(
            ended=ended,
            runs=self.runs,
            looks=self.looks,
            budget=self.budget,
            left=tuple(left),
            failed=failed,
        )
