"""The loss that a search reports: that of fresh seeds of the configuration that it chose.

The least of many noisy losses lies below the loss that its configuration has: it was chosen for its
noise, too. So when a strategy has ended, whichever it is, its final configuration is trained with
seeds that it never saw. Their mean is unbiased, since nothing is chosen by it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median, stdev

from sweeper.search.strategy import (
    FINAL,
    FRESH_SEEDS,
    Around,
    Conclusion,
    History,
    Phase,
    may_follow,
    missing_points,
)
from sweeper.stats.line import depends_on_nothing
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
