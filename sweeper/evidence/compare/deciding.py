"""Which runs come next, until it is known which variant wins at a target.

The same is asked after each round of runs (`decision.py`): those are added that decide most for
their cost, of variants that are open still, at any of the sizes that can be trained. It ends where
each is called, where they are alike, where the budget or the hours are spent, or where no runs
would likely tell. A look has its share of the error. What is asked for follows from the losses so
far alone, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sweeper.errors import ConfigError, Keyword
from sweeper.evidence.compare.decision import Winner, decide
from sweeper.evidence.compare.differences import VariantQuestion
from sweeper.evidence.compare.reading import VariantCell, VariantRuns, log2_of_counts
from sweeper.stats.line import FLAT
from sweeper.stats.rounds import LOOKS

DEFAULT_SEEDS = 40
"""Seeds of each that the budget allows where nothing else is said."""
FIRST, FIRST_ALONE = 2, 4
"""Seeds of each at every size with which it begins: one shows no noise. At a single size they tell
it alone."""
Run = tuple[str, int, int]
"""A variant's name, the number of a size, and a seed."""
Ended = Literal["decided", "alike", "budget", "hopeless", "stuck"]


@dataclass(frozen=True, kw_only=True)
class DecidingEnd:
    """How it ended, and the numbers behind it; what `failed` or `diverged` left it stuck."""

    ended: Ended
    runs: int
    looks: int
    budget: int
    failed: Sequence[str] = ()
    diverged: Sequence[str] = ()


class Deciding:
    """Variants on their way to an answer at a target, the first of them the baseline.

    `loss` knows the runs so far: NaN where one failed, +inf where it diverged, None where it is not
    known. `begun` are how many of the sizes it begins with. `budget` is in runs of all together,
    `affordable` how many of the runs that would follow, in their order, there is time for.
    """

    def __init__(
        self,
        names: Sequence[str],
        sizes: Sequence[Mapping[str, float]],
        flops: Sequence[float],
        question: VariantQuestion,
        loss: Callable[[str, int, int], float | None],
        *,
        begun: int,
        budget: int | None = None,
        affordable: Callable[[Sequence[Run]], int] | None = None,
        slots: int = 1,
    ) -> None:
        """Nothing is asked of `loss` yet. ConfigError for a budget that is too small to begin."""
        self.names, self._loss, self._affordable = list(names), loss, affordable
        self._sizes, self._flops, self.slots = sizes, np.array(flops), slots
        self._log2 = np.array([log2_of_counts(each) for each in sizes], dtype=float)
        # Each look has its share of the error; sizes that no run can have are not proposed.
        self._question = replace(question, error=question.error / LOOKS, trained_only=True)
        self.budget = budget or DEFAULT_SEEDS * len(names)
        least = FIRST_ALONE if len(sizes) == 1 else FIRST
        if self.budget < least * len(names) * begun:
            allowed = f"at least {least * len(names) * begun}: {least} seeds each at every size"
            raise ConfigError(Keyword("budget"), self.budget, allowed)
        # As many as there are slots: fewer would leave some idle.
        room = self.budget // (len(names) * begun)
        first = min(room, max(least, math.ceil(slots / (len(names) * begun))))
        self.seeds = {(name, size): first for name in names for size in range(begun)}
        self.looks = 0
        self.winner: Winner | None = None
        self.outcome: DecidingEnd | None = None

    @property
    def runs(self) -> int:
        """Runs of all rounds so far, the present one's included."""
        return sum(self.seeds.values())

    @property
    def asked(self) -> list[Run]:
        """The runs of all rounds so far."""
        return [(*key, seed) for key, count in self.seeds.items() for seed in range(count)]

    def missing(self) -> list[Run]:
        """The runs that the round lacks; none once it has ended."""
        while self.outcome is None:
            if lacking := [run for run in self.asked if self._loss(*run) is None]:
                return lacking
            self._look()
        return []

    def variant_runs(self) -> VariantRuns:
        """The runs of all rounds so far."""
        cells = []
        for (name, size), count in self.seeds.items():
            losses = [self._loss(name, size, seed) for seed in range(count)]
            cells.append(
                VariantCell(
                    variant=self.names.index(name),
                    size=size,
                    log2=tuple(self._log2[size].tolist()),
                    losses=np.array(losses, dtype=float),
                    seeds=tuple(map(str, range(count))),
                )
            )
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
        every = np.concatenate([cell.losses for cell in runs.cells])
        # A failed run is no loss and no divergence: what stands on such seeds would be a guess.
        failed = {runs.names[c.variant] for c in runs.cells if np.isnan(c.losses).any()}
        trained = {c.variant for c in runs.cells if np.isfinite(c.losses).any()}
        # Without the baseline, or with it alone, there is no difference.
        if failed or 0 not in trained or len(trained) < 2:
            lost = {name for i, name in enumerate(self.names) if i not in trained}
            self._end("stuck", failed=sorted(failed), diverged=sorted(lost))
            return
        self.winner = decide(runs, self._question)
        open_ = [each for each in self.winner.variants if each.answer == "cannot say"]
        # For a difference below this nobody would choose one over the other.
        flat = FLAT * float(np.abs(every[np.isfinite(every)]).min())
        if not open_:
            self._end("decided")
        elif all(-flat < v.loss_difference.low and v.loss_difference.high < flat for v in open_):
            self._end("alike")
        # No runs would likely tell, or the error is spent: so many looks have a share of it.
        elif not self.winner.next_runs or self.looks >= LOOKS:
            self._end("hopeless")
        elif not self._add(self.winner):
            self._end("budget")

    def _add(self, winner: Winner) -> bool:
        wanted = dict[tuple[str, int], int]()
        order = sorted(winner.next_runs, key=lambda each: -each.chance / each.flops)
        for each in order:
            fits = [each.place.counts.items() <= counts.items() for counts in self._sizes]
            size = fits.index(True)
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

    def _end(self, ended: Ended, **more: Sequence[str]) -> None:
        self.outcome = DecidingEnd(
            ended=ended, runs=self.runs, looks=self.looks, budget=self.budget, **more
        )
