"""`search.until=settled`: seeds where the optimum is in doubt, before the search ends.

A strategy chooses by few seeds, often by one. So when it has ended, its best configuration and
those that nearly tie with it race: all are trained with the same new seeds, round by round, and who
is worse than the leader for sure drops out (`stats/paired.py`). It is settled with one left, or
where those that are left differ by nothing that matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import chain
from statistics import mean

import numpy as np

from sweeper.search.strategy import (
    FINAL,
    Around,
    Conclusion,
    History,
    Phase,
    ends,
    may_follow,
    missing_points,
)
from sweeper.stats.line import FLAT
from sweeper.stats.paired import by_losses, paired_difference
from sweeper.trial import Log2Hps, Point, Result, Space, hps_key

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
