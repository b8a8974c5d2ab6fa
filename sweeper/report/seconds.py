"""How long runs of a command take: learned from those that finished, since nobody else knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from statistics import median

from sweeper.trial import Result, Trial

ONE_SIZE = 0.5
"""The power of its work by which another size's time goes, where one size alone has finished.

A run of small models is mostly its start, one of large ones all work: the truth lies between."""


class TrialSeconds:
    """The seconds of a run: the median of those of its size, or by a power of its work from others.

    `work` gives a trial's work in any unit; trials of one work are of one size.
    """

    def __init__(self, work: Callable[[Trial], float], results: Iterable[Result] = ()) -> None:
        """Learn from what has finished already."""
        self._work = work
        self._seen: dict[float, list[float]] = {}
        self._known: dict[float, float] = {}
        for result in results:
            self.add(result)

    def __bool__(self) -> bool:
        return bool(self._seen)

    def add(self, result: Result) -> None:
        """Learn from one more; only whole runs tell."""
        if result.status == "complete" and result.seconds > 0:
            self._seen.setdefault(self._work(result.trial), []).append(result.seconds)
            self._known.clear()

    def of(self, trial: Trial) -> float:
        """The seconds of a trial; NaN while nothing has finished."""
        work = self._work(trial)
        if work not in self._known:
            self._known[work] = self._of(work)
        return self._known[work]

    def _of(self, work: float) -> float:
        if work in self._seen:
            return median(self._seen[work])
        nearest = sorted(self._seen, key=lambda one: abs(math.log(one / work)))[:2]
        if not nearest:
            return math.nan
        known = median(self._seen[nearest[0]])
        return float(known * (work / nearest[0]) ** self._power(*nearest))

    def _power(self, first: float, second: float | None = None) -> float:
        """By which the time grows with the work, between the two nearest sizes; from 0 to 1."""
        if second is None:
            return ONE_SIZE
        ratio = median(self._seen[second]) / median(self._seen[first])
        return min(1.0, max(0.0, math.log(ratio) / math.log(second / first)))


def at_once(results: Iterable[Result]) -> float:
    """How many runs were going at the same time, on average over the time in which any was."""
    spans = sorted((one.finished_at - one.seconds, one.finished_at) for one in results)
    busy, end = 0.0, -math.inf
    for start, finish in spans:
        busy += max(0.0, finish - max(start, end))
        end = max(end, finish)
    return max(1.0, sum(finish - start for start, finish in spans) / busy) if busy else 1.0
