"""What trials cost: their number, FLOPs and seconds. Spent, and planned."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from sweeper.table import Cell, Column, Table, duration
from sweeper.trial import Result, Trial, TrialSpec


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Trials, their floating-point operations, and the seconds that they take on their devices.

    FLOPs and seconds are NaN where they are not known.
    """

    trials: int
    flops: float
    seconds: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            trials=self.trials + other.trials,
            flops=self.flops + other.flops,
            seconds=self.seconds + other.seconds,
        )

    def to_json(self) -> dict[str, float | None]:
        """Plain JSON; null: not known."""
        numbers = {"flops": self.flops, "seconds": self.seconds}
        counts = {name: None if math.isnan(value) else value for name, value in numbers.items()}
        return {"trials": self.trials, **counts}


NOTHING = Cost(trials=0, flops=0.0, seconds=0.0)


def trained(result: Result) -> float:
    """The share of its steps that a run did; one that kept no steps counts as whole."""
    return min(1.0, (result.steps or math.inf) / result.trial.spec.train.steps)


def spent(results: Sequence[Result], flops: Callable[[TrialSpec], float]) -> Cost:
    """The sum over `results`, each by the share of its steps; `flops` are those of a whole run."""
    return Cost(
        trials=len(results),
        flops=math.fsum(flops(result.trial.spec) * trained(result) for result in results),
        seconds=math.fsum(result.seconds for result in results),
    )


NOT_KNOWN = "not known"


def cost_table(
    title: str,
    names: Sequence[str],
    rows: Sequence[tuple[Sequence[str], Cost]],
    *,
    runs: str = "trials",
    total: bool = False,
) -> Table:
    """A row a cost under its `names`."""
    columns = [Column(name, left=True) for name in names]
    table = Table(title, [*columns, Column(runs), Column("FLOPs", form=".2e"), Column("time")])

    def add(labels: Sequence[str], cost: Cost) -> None:
        flops = Cell(cost.flops, NOT_KNOWN) if math.isnan(cost.flops) else cost.flops
        time = duration(cost.seconds) if math.isfinite(cost.seconds) else NOT_KNOWN
        table.add(*labels, Cell(cost.trials, f"{cost.trials:,}"), flops, Cell(cost.seconds, time))

    for labels, cost in rows:
        add(labels, cost)
    if total:
        table.end_section()
        blank = [""] * (len(names) - 1)
        add(["all", *blank], sum((cost for _, cost in rows), NOTHING))
    return table


ONE_SIZE = 0.5
"""The power of its work by which another size's time goes, where one size alone has finished.

A run of small models is mostly its start, one of large ones all work: the truth lies between."""
RECENT = 15
"""So many runs of a size count, the last ones: a machine is now this busy, now that."""


class TrialSeconds:
    """The seconds of a run: the median of those of its size, or by its work from other sizes.

    `work` gives a trial's work in any unit; trials of one work are of one size. With a `rate`, the
    work that the device does a second at its best with such models, a run's time is that of its
    steps, each a constant and its work at that rate; without it is a power of the work.
    """

    def __init__(
        self,
        work: Callable[[Trial], float],
        results: Iterable[Result] = (),
        rate: float | None = None,
    ) -> None:
        self._work, self._rate = work, rate
        self._seen: dict[float, deque[float]] = {}
        self._guessed: dict[float, float] = {}
        self._known: dict[float, float] = {}
        for result in results:
            self.add(result)

    def _units(self, trial: Trial) -> tuple[float, int]:
        units = 1 if self._rate is None else trial.spec.train.steps
        return self._work(trial) / units, units

    def add(self, result: Result) -> None:
        """Learn from one more; only whole runs show how long a run takes."""
        if result.status == "complete" and result.seconds > 0:
            work, units = self._units(result.trial)
            self._seen.setdefault(work, deque(maxlen=RECENT)).append(result.seconds / units)
            self._known.clear()

    def guess(self, trials: Sequence[Trial], seconds: float) -> None:
        """Learn from a job of `trials` under way that all of them take so many seconds together."""
        total = sum(self._units(trial)[1] for trial in trials)
        for work in {self._units(trial)[0] for trial in trials}:
            self._guessed[work] = seconds / total
        self._known.clear()

    def has(self, trial: Trial) -> bool:
        """Whether a run of this very size has finished."""
        return self._units(trial)[0] in self._seen

    def of(self, trial: Trial) -> float:
        """The seconds of a trial; NaN while nothing has finished, or has come far enough."""
        work, units = self._units(trial)
        if work not in self._known:
            self._known[work] = self._unit_seconds(work)
        return units * self._known[work]

    def _unit_seconds(self, work: float) -> float:
        times = self._guessed | {size: median(seen) for size, seen in self._seen.items()}
        if not times or work in times:
            return times.get(work, math.nan)
        first, *others = sorted(times, key=lambda size: abs(math.log(size / work)))
        if self._rate is not None:
            # t = overhead + work / rate, the overhead at least 0: what was slower all the same
            # went as its work. The rate is that between finished sizes, where it is known.
            rate, seen = self._rate, [size for size in (first, *others) if size in self._seen]
            if len(seen) > 1 and (rise := times[max(seen[:2])] - times[min(seen[:2])]) > 0:
                rate = abs(seen[1] - seen[0]) / rise
            overhead = max(0.0, times[first] - first / rate)
            return overhead + (times[first] - overhead) * work / first
        power = ONE_SIZE
        if others:
            # A power law through the two nearest sizes: t = t1 (work / work1)^power.
            ratio = times[others[0]] / times[first]
            power = min(1.0, max(0.0, math.log(ratio) / math.log(others[0] / first)))
        return float(times[first] * (work / first) ** power)


def fitting(seconds: Iterable[float], limit: float) -> int:
    """How many runs that take so long, one after the other, fit into `limit`.

    A run whose time is not known (NaN) takes none.
    """
    total, count = 0.0, 0
    for each in seconds:
        total += 0.0 if math.isnan(each) else each
        if total > limit:
            break
        count += 1
    return count


def at_once(results: Iterable[Result]) -> float:
    """How many runs were going at the same time, on average over the time in which any was."""
    spans = sorted((run.finished_at - run.seconds, run.finished_at) for run in results)
    # `busy` is the length of the union of all spans: pauses between sweeps do not count.
    busy, end = 0.0, -math.inf
    for start, finish in spans:
        busy += max(0.0, finish - max(start, end))
        end = max(end, finish)
    return max(1.0, sum(finish - start for start, finish in spans) / busy) if busy else 1.0
