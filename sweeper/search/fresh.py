"""Fresh seeds behind a strategy: a race where its optimum is in doubt, and the loss that is told.

The least of many noisy losses lies below the loss that its configuration has: it was chosen for its
noise, too. So when a strategy has ended, whichever it is, its final configuration is trained with
seeds that it never saw (`FreshSeeds`). Their mean is unbiased, since nothing is chosen by it.

A strategy chooses by few seeds, often by one. With `search.until=settled` its best configuration
and those that nearly tie with it race first: all are trained with the same new seeds, round by
round, and who is worse than the leader for sure drops out (`stats/paired.py`). It is settled with
one left, or where those that are left differ by nothing that matters.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import mean, median, stdev

import numpy as np

from sweeper.search.strategy import (
    FINAL,
    FRESH_SEEDS,
    Around,
    Conclusion,
    History,
    Phase,
    ends,
    may_follow,
    missing_points,
)
from sweeper.stats.line import FLAT, depends_on_nothing
from sweeper.stats.paired import by_losses, paired_difference
from sweeper.trial import Log2Hps, Point, Result, Space, hps_key

FINAL_SEED = 10**6
"""Their first: a search has fewer trials than this (`MAX_TRIALS`), and counts its seeds from 0."""


@dataclass(frozen=True, kw_only=True)
class FreshSeeds(Around):
    """A strategy, and when it has ended `seeds` fresh runs of its final configuration.

    It never sees their results, so that it goes its way whatever they are. With 0 seeds, the
    objective is that of the best of its trials. The search of a command ends without an answer once
    a line over eta shows that its losses do not depend on it.
    """

    seeds: int = FRESH_SEEDS
    of_command: bool = False

    def plan(self, space: Space) -> list[Phase]:
        """The strategy's phases, and the last."""
        last = [Phase(name=FINAL, trials=self.seeds)] if self.seeds else []
        return [*self.strategy.plan(space), *last]

    def propose(self, space: Space, history: History) -> list[Point]:
        """What the strategy asks for; once that is nothing, its final configuration's seeds."""
        seen = history.without(is_final)
        if self.of_command and untrained(seen):
            return []
        points = self.strategy.propose(space, seen)
        if points or not (self.seeds and seen.results):
            return points
        conclusion = self.strategy.conclude(space, seen)
        if not math.isfinite(conclusion.objective):
            return []
        return self._final([conclusion.best_log2], history)

    def _final(self, configurations: Iterable[Log2Hps], history: History) -> list[Point]:
        seeds = range(FINAL_SEED, FINAL_SEED + self.seeds)
        return missing_points(configurations, seeds, FINAL, history)

    def may_follow(self, space: Space, history: History) -> list[Point]:
        """What the strategy may ask for, and fresh seeds of what it may end with."""
        points = may_follow(self.strategy, space, history.without(is_final))
        last = self._final((p.log2_hps for p in points if p.phase == FINAL), history)
        return [*(point for point in points if point.phase != FINAL), *last]

    def conclude(self, space: Space, history: History) -> Conclusion:
        """What the strategy concludes of its own results, with the mean of fresh seeds' losses."""
        seen = history.without(is_final)
        conclusion = self.strategy.conclude(space, seen)
        if self.of_command and (why := untrained(seen)):
            return replace(conclusion, objective=math.inf, untrained=why)
        conclusion = replace(conclusion, selected_objective=conclusion.objective)
        losses = [result.objective for result in history.results if is_final(result)]
        if not losses:
            return conclusion
        finite = [loss for loss in losses if math.isfinite(loss)]
        conclusion = replace(
            conclusion,
            runs=len(history.results),
            notes=(*conclusion.notes, *_lost(len(losses) - len(finite), len(losses))),
            phase_ends={**conclusion.phase_ends, FINAL: len(history.results)},
        )
        if not finite:
            return conclusion
        if self.of_command and len(finite) > 1 == len({*finite}):
            note = (
                f"all {len(finite)} fresh seeds have the same loss: does the script use {{seed}}?"
            )
            conclusion = replace(conclusion, notes=(*conclusion.notes, note))
        return replace(
            conclusion,
            objective=mean(finite),
            error=stdev(finite) / math.sqrt(len(finite)) if len(finite) > 1 else math.nan,
            seeds=len(finite),
            fresh_seeds=len(finite),
        )


def untrained(seen: History) -> str:
    """Why a command does not seem to train at eta, if all runs that differ in it alone say so.

    Where none do, as of random values, all must have one loss.
    """
    lines = defaultdict[Hashable, dict[float, float]](dict)
    for result in seen.results:
        hps = dict(result.trial.log2_hps)
        eta = hps.pop("eta", math.nan)
        lines[hps_key(Log2Hps(hps)), result.trial.seed][eta] = result.objective
    judged = [
        (line, flat) for line in lines.values() if (flat := depends_on_nothing(line)) is not None
    ]
    every = {eta: loss for line in lines.values() for eta, loss in line.items()}
    judged = judged or [(every, depends_on_nothing(every, noisy=False) is True)]
    if not all(flat for _, flat in judged):
        return ""
    finite = {eta: loss for eta, loss in judged[0][0].items() if math.isfinite(loss)}
    low, high, losses = min(finite), max(finite), finite.values()
    return (
        f"the script does not seem to train at eta: from 2^{low:g} to 2^{high:g} its losses are "
        f"{median(losses):.4g} and differ by {max(losses) - min(losses):.2g} alone. Does it read "
        "{eta}, and with {plan} is each rate the group's own, "
        'group["lr"] = group["initial_lr"] * factor? Or do the runs learn nothing at any eta of '
        "the range?"
    )


def final_accuracy(results: Iterable[Result]) -> tuple[float, int] | None:
    """The mean top-1 accuracy of fresh seeds, and of how many; None where none tells it."""
    accuracies = [r.accuracy for r in results if is_final(r) and r.accuracy is not None]
    return (mean(accuracies), len(accuracies)) if accuracies else None


def is_final(result: Result) -> bool:
    """Whether it is a fresh seed of a final configuration."""
    # By the seed as well: a strategy of a user's own may call a phase of its own so.
    return result.trial.phase == FINAL and result.trial.seed >= FINAL_SEED


def _lost(lost: int, seeds: int) -> Sequence[str]:
    if not lost:
        return ()
    rest = "the loss is the mean over the others" if lost < seeds else "the loss is the search's"
    return (
        f"{lost} of {seeds} fresh seeds of the best configuration diverged or failed: it stands "
        f"near an edge, and {rest}",
    )


SETTLE = "settle"
"""The phase of the race."""
SETTLE_SEED = 2 * 10**6
"""Its first seed: no strategy's, and none of the fresh ones."""
RACERS = 5
"""So many of the best configurations race."""
ROUNDS, ERROR = (3, 5, 8, 12), 0.05
"""Seeds of each that is left, after every round; how often the best one drops out, at most."""


@dataclass(frozen=True)
class Race:
    """A race as far as it is run: who is still in it, best first, and what it lacks."""

    racers: tuple[Log2Hps, ...]
    missing: tuple[Point, ...]
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Settled(Around):
    """A strategy, and the race among its best behind it."""

    def plan(self, space: Space) -> list[Phase]:
        """The strategy's phases, and the race's first round."""
        return [*self.strategy.plan(space), Phase(name=SETTLE, trials=RACERS * ROUNDS[0])]

    def propose(self, space: Space, history: History) -> list[Point]:
        """What the strategy asks for; once that is nothing, the race's next round."""
        seen = history.without(_is_raced)
        points = self.strategy.propose(space, seen)
        if points or not seen.results:
            return points
        return list(self._race(space, seen, history).missing)

    def may_follow(self, space: Space, history: History) -> list[Point]:
        """What the strategy may ask for; then what is left of the race if nobody drops out."""
        seen = history.without(_is_raced)
        if self.strategy.propose(space, seen):
            return [p for p in may_follow(self.strategy, space, seen) if p.phase != FINAL]
        race, seeds = self._race(space, seen, history), range(ROUNDS[-1])
        if not race.missing:
            return []
        rounds = (missing_points(race.racers, [SETTLE_SEED + n], SETTLE, history) for n in seeds)
        return [*chain(*rounds), *ends(race.racers)]

    def conclude(self, space: Space, history: History) -> Conclusion:
        """What the strategy concludes, with the race's winner once it has one."""
        seen = history.without(_is_raced)
        conclusion = self.strategy.conclude(space, seen)
        if self.strategy.propose(space, seen):
            return conclusion
        race = self._race(space, seen, history)
        runs = len(history.results)
        conclusion = replace(
            conclusion, runs=runs, phase_ends={**conclusion.phase_ends, SETTLE: runs}
        )
        if race.missing or not race.racers:
            return conclusion
        losses = _losses(race.racers[0], history)
        return replace(
            conclusion,
            best_log2=race.racers[0],
            objective=mean(losses),
            seeds=len(losses),
            notes=(*conclusion.notes, race.sentence),
        )

    def _race(self, space: Space, seen: History, history: History) -> Race:
        racers = _best(self.strategy.conclude(space, seen).best_log2, seen)
        if len(racers) < 2:
            return Race((), (), "")  # nothing is near the best configuration
        names = [name for name in racers[0] if len({hps[name] for hps in racers}) > 1]
        error = ERROR / len(ROUNDS) / max(1, len(racers) - 1)
        for count in ROUNDS:
            seeds = range(SETTLE_SEED, SETTLE_SEED + count)
            if missing := missing_points(racers, seeds, SETTLE, history):
                return Race(tuple(racers), tuple(missing), "")
            losses = {hps_key(hps): np.array(_losses(hps, history, count)) for hps in racers}
            racers.sort(key=lambda hps: by_losses(losses[hps_key(hps)]))
            leader = losses[hps_key(racers[0])]
            if not np.isfinite(leader).all():
                return Race((), (), "")
            gaps = [paired_difference(losses[hps_key(hps)], leader, error) for hps in racers[1:]]
            ties = [gap for gap in gaps if gap.low <= 0]
            tied = (hps for hps, gap in zip(racers[1:], gaps, strict=True) if gap in ties)
            racers = [racers[0], *tied]
            if not ties:
                best = f"the best of {RACERS} is settled with {count} seeds"
                return Race(tuple(racers), (), best)
            if max(gap.high for gap in ties) <= FLAT * abs(float(leader.mean())):
                alike = f"{len(racers)} configurations differ by less than {100 * FLAT:g} %"
                return Race(
                    tuple(racers), (), f"{alike} for sure, with {count} seeds each: settled"
                )
        raced = {name: [hps[name] for hps in racers] for name in names}
        values = ", ".join(f"{n} 2^{min(v):g} to 2^{max(v):g}" for n, v in raced.items())
        alike = f"{len(racers)} configurations are still alike after {ROUNDS[-1]} seeds each"
        return Race(tuple(racers), (), f"{alike} ({values}): the best mean of them is taken")


def _best(best: Log2Hps, seen: History) -> list[Log2Hps]:
    losses, configurations = dict[object, list[float]](), dict[object, Log2Hps]()
    for result in seen.results:
        key = hps_key(result.trial.log2_hps)
        losses.setdefault(key, []).append(result.objective)
        configurations[key] = result.trial.log2_hps
    order = sorted(
        (key for key, values in losses.items() if math.isfinite(sum(values))),
        key=lambda key: mean(losses[key]),
    )
    others = [configurations[key] for key in order if key != hps_key(best)]
    return [best, *others[: RACERS - 1]]


def _losses(hps: Log2Hps, history: History, count: int = ROUNDS[-1]) -> list[float]:
    values = [history.value(hps, SETTLE_SEED + seed) for seed in range(count)]
    return [value for value in values if value is not None]


def _is_raced(result: Result) -> bool:
    # By the seed as well: a strategy of a user's own may call a phase of its own so.
    return result.trial.phase == SETTLE and result.trial.seed >= SETTLE_SEED
