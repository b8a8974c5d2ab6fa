"""What strategies are given and return: points, the history of results, and the conclusion."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Protocol

from sweeper.errors import ConfigError, suggest
from sweeper.records import WRITTEN_IF_SET, Bounded, Bounds
from sweeper.search.prune import PrunerKind
from sweeper.trial import Choice, Log2Hps, Point, Result, Space, hps_key

FINAL = "final"
"""The phase of the fresh seeds of a search's final configuration; see `fresh.py`."""
FRESH_SEEDS = 3
"""Runs of the final configuration that nothing was chosen by: they give the loss that is told."""
FreshSeedCount = Annotated[int, Bounds(least=0, most=100)]
Until = Literal["planned", "settled"]


class History:
    """Objectives of finished trials; +inf if one failed or was stopped: it is never chosen."""

    def __init__(self, results: Iterable[Result] = ()) -> None:
        """`results` in the order in which they were recorded."""
        self.results: list[Result] = []
        self._values: dict[tuple[object, int], float] = {}
        self._stopped: set[object] = set()
        self._failed: set[object] = set()
        for result in results:
            self.add(result)

    def add(self, result: Result) -> None:
        """Take one more result in."""
        key = hps_key(result.trial.log2_hps)
        if result.status == "pruned":
            self._stopped.add(key)
        # By the status: a result from another history has lost its NaN already.
        if result.status == "failed" or math.isnan(result.objective):
            self._failed.add(key)
        if math.isnan(result.objective) or result.status == "pruned":
            result = replace(result, objective=math.inf)
        self.results.append(result)
        self._values[key, result.trial.seed] = result.objective

    def __contains__(self, point: Point) -> bool:
        return point.id in self._values

    def value(self, hps: Log2Hps, seed: int) -> float | None:
        """Objective of one trial, or None when it has no result."""
        return self._values.get((hps_key(hps), seed))

    def stopped(self, hps: Log2Hps) -> bool:
        """Whether a trial of `hps` was stopped early, of whatever seed."""
        return hps_key(hps) in self._stopped

    def failed(self, hps: Log2Hps) -> bool:
        """Whether a trial of `hps` failed, of whatever seed: that is no divergence."""
        return hps_key(hps) in self._failed

    def unmoved(self) -> tuple[str, ...]:
        """The hyperparameters that have one value in all trials: they were not searched."""
        values: dict[str, set[float]] = {}
        for result in self.results:
            for name, value in result.trial.log2_hps.items():
                values.setdefault(name, set()).add(round(value, 9))
        return tuple(name for name, searched in values.items() if len(searched) == 1)

    def without(self, is_other: Callable[[Result], bool]) -> History:
        """A strategy's own part: without results that were asked for by what is behind it."""
        own = [result for result in self.results if not is_other(result)]
        return self if len(own) == len(self.results) else History(own)

    def mean(self, hps: Log2Hps, seeds: Sequence[int]) -> float | None:
        """Mean objective over `seeds`, or None when one of them is missing."""
        values = [self.value(hps, seed) for seed in seeds]
        objectives = [value for value in values if value is not None]
        return sum(objectives) / len(objectives) if len(objectives) == len(values) else None


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One part of a search: its name and how many trials it plans (repeats of a trial included)."""

    name: str
    trials: int


@dataclass(frozen=True, kw_only=True)
class LineResult:
    """A line search over one hyperparameter: (log2 value, mean objective), and the optimum.

    Values of which a trial was stopped early or failed are in `stopped_log2` and `failed_log2`:
    their objective is +inf too.
    A line of `choices` has their places as values.
    """

    name: str
    points_log2: tuple[tuple[float, float], ...]
    optimum_log2: float
    objective: float
    extended: int = 0
    stopped_log2: tuple[float, ...] = ()
    failed_log2: tuple[float, ...] = ()
    choices: tuple[Choice, ...] = ()

    @property
    def optimum(self) -> Choice:
        """The best value as it is used."""
        return self.choices[round(self.optimum_log2)] if self.choices else 2.0**self.optimum_log2

    def gain(self, default: float) -> float:
        """What it saves over `default` (log2), in nats, rather too much; NaN if not run."""
        at = [loss for value, loss in self.points_log2 if abs(value - default) < 1e-9]
        return at[0] - self.objective if at and math.isfinite(at[0]) else math.nan


@dataclass(frozen=True, kw_only=True)
class PairGrid:
    """A 2D sweep of the hyperparameters `names`, all others as at its middle.

    `values_log2` are both axes' values, ascending; `losses[i][j]` is the mean objective at
    `values_log2[0][i]` and `values_log2[1][j]`. `transfer_error` is in nats, NaN where it is
    not defined.
    """

    names: tuple[str, str]
    values_log2: tuple[tuple[float, ...], tuple[float, ...]]
    losses: tuple[tuple[float, ...], ...]
    transfer_error: float


@dataclass(frozen=True, kw_only=True)
class Combination:
    """The combined optimum against the best single configuration, paired over fresh seeds.

    One of the two is kept, so the means choose: who diverged alone is not taken, whether or not
    that shows for sure.

    `difference` is the mean of combined minus single in nats (negative: combining helped),
    infinite when only one of the two ever diverged and NaN when both did; `error` is its
    standard error, NaN for a single seed.
    """

    combined_log2: Log2Hps
    single_log2: Log2Hps
    combined_objectives: tuple[float, ...]
    single_objectives: tuple[float, ...]
    difference: float
    error: float

    @property
    def summary(self) -> str:
        """Whether combining helped, in words."""
        if hps_key(self.combined_log2) == hps_key(self.single_log2):
            return "the combined optimum is the best single configuration itself"
        if math.isnan(self.difference):
            return "cannot say whether combining helped: both configurations diverged on a seed"
        if math.isinf(self.difference):
            worse, better = (
                ("combined", "single") if self.difference > 0 else ("single", "combined")
            )
            verb = "hurt" if self.difference > 0 else "helped"
            return f"combining {verb}: the {worse} configuration diverged, the {better} one did not"
        if math.isnan(self.error):
            size = f"loss {self.difference:+.4f} nats"
            return f"one seed cannot say whether combining helped ({size})"
        size = f"loss {self.difference:+.4f} nats, standard error {self.error:.4f}"
        if abs(self.difference) <= 2 * self.error:
            return f"combining made no clear difference ({size})"
        if self.difference < 0:
            return f"combining helped ({size}): the optima of all lines are kept"
        return f"combining hurt ({size}): the best single configuration is kept"


@dataclass(frozen=True, kw_only=True)
class Retune:
    """A last line over eta around the configuration that was kept, the others at their optima.

    The line's best value stands against `before_log2`, the value of the first line, in `seeds`
    pairs of fresh runs that neither was chosen by. `gain` is what it saves in nats, their mean
    difference, with Student's 95 % interval from `low` to `high`: the new value is taken only
    where that excludes zero. NaN and unbounded while pairs are missing, 0 where the line's best
    is the value before. A seed with which one of the two alone diverged is a pair that it lost
    (`stats/paired.py`): an end of the interval may be infinite, or all of it.
    """

    line: LineResult
    before_log2: float
    gain: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    seeds: int = 0

    @property
    def moves(self) -> bool:
        """Whether the line's best value is taken."""
        return self.low > 0

    @property
    def summary(self) -> str:
        """What retuning did, in words."""
        best, before = self.line.optimum_log2, self.before_log2
        if best == before:
            return f"retuning eta after combining left it at 2^{before:g}"
        if math.isnan(self.gain):
            return (
                f"retuning eta after combining has 2^{best:g} in place of 2^{before:g}, which "
                "fresh seeds have not compared yet"
            )
        if math.isinf(self.gain):
            gain = f"2^{before if self.gain > 0 else best:g} diverged or failed with fresh seeds"
        # As of the combination: the change of the loss, less is better.
        elif math.isinf(self.low) or math.isinf(self.high):
            seeds = "fresh seeds with which neither diverged or failed"
            gain = f"loss {-self.gain:+.4f} nats over {seeds}"
        else:
            interval = f"95 % interval {-self.high:+.4f} to {-self.low:+.4f}"
            gain = f"loss {-self.gain:+.4f} nats over {self.seeds} fresh seeds, {interval}"
        if self.moves:
            return f"retuning eta after combining moved it from 2^{before:g} to 2^{best:g} ({gain})"
        return (
            f"retuning eta after combining kept 2^{before:g}: 2^{best:g} gains nothing for sure "
            f"({gain})"
        )


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """The result of a search, with the names that `search.json` gives its parts.

    `best_log2` is complete: it has every hyperparameter; those in `not_searched` have one value in
    all trials. `runs` counts all trials so far.

    `objective` is the mean over `seeds` runs of the best configuration, with its standard `error`
    (NaN for one seed), of the loss on `heldout` data if that is set. With `fresh_seeds` nothing was
    chosen by those runs. With none the configuration was chosen by them, as `selected_objective`
    always is: the least of many noisy losses, which is biased low.

    `phase_ends` counts the trials up to the end of each phase. `untrained` says why there is no
    answer: losses do not depend on eta.
    """

    best_log2: Log2Hps
    objective: float
    seeds: int
    runs: int
    error: float = math.nan
    fresh_seeds: int = 0
    selected_objective: float = math.nan
    lines: tuple[LineResult, ...] = ()
    combination: Combination | None = None
    notes: tuple[str, ...] = ()
    phase_ends: Mapping[str, int] = field(default_factory=dict)
    pairs: tuple[PairGrid, ...] = ()
    retune: Retune | None = None
    not_searched: tuple[str, ...] = ()
    heldout: bool = field(default=False, metadata=WRITTEN_IF_SET)
    untrained: str = field(default="", metadata=WRITTEN_IF_SET)

    @property
    def loss_name(self) -> str:
        """What the objective is, in words."""
        return "Held-out loss" if self.heldout else "Training loss"

    @property
    def basis(self) -> str:
        """Which runs the objective is the loss of, in words."""
        if self.fresh_seeds > 1:
            return f"mean of {self.fresh_seeds} fresh seeds, standard error {self.error:.4f}"
        if self.fresh_seeds:
            return "one fresh seed"
        seeds = f"mean of {self.seeds} seeds" if self.seeds > 1 else "one seed"
        return f"{seeds}, the best of {self.runs} trials: biased low"


class Strategy(Protocol):
    """Names the trials of a search. All three methods are pure: the same input, the same answer.

    `propose` returns every point that can be named from `history` and is not in it; an empty
    list means that the search is done. `conclude` works on any history that holds one result.

    A strategy may have a fourth one, `may_follow(space, history)`: the points that it may ask for
    once those that it asks for now have results, the likeliest first. What would stay idle trains
    them ahead. Of a strategy without it nothing is. Nothing that it names changes what is asked
    for, nor any conclusion. `ends` makes points of the configurations that it may end with.
    """

    def plan(self, space: Space) -> list[Phase]:
        """The phases and their trials, without what extending a grid may add."""

    def propose(self, space: Space, history: History) -> list[Point]:
        """Points to train next."""

    def conclude(self, space: Space, history: History) -> Conclusion:
        """The best configuration so far, and what it rests on."""


@dataclass(frozen=True, kw_only=True)
class StrategySettings(Bounded):
    """What every strategy can be told; see `fresh.py` and `prune.py`."""

    fresh_seeds: FreshSeedCount = FRESH_SEEDS
    until: Until = "planned"
    prune: PrunerKind = "none"


def may_follow(strategy: Strategy, space: Space, history: History) -> list[Point]:
    """What `strategy` may ask for next; nothing where it does not say."""
    points: list[Point] = getattr(strategy, "may_follow", lambda *_: [])(space, history)
    return points


def ends(configurations: Iterable[Log2Hps]) -> list[Point]:
    """Configurations that a search may end with: which fresh seeds these get, `fresh.py` says."""
    return [Point(log2_hps=hps, seed=0, phase=FINAL) for hps in configurations]


@dataclass(frozen=True, kw_only=True)
class Around:
    """A strategy with something behind it, which is stopped and batched as the strategy is."""

    strategy: Strategy

    @property
    def prune(self) -> PrunerKind:
        """What the strategy stops early; of what comes behind it too few are at a rung."""
        kind: PrunerKind = getattr(self.strategy, "prune", "none")
        return kind

    @property
    def separable(self) -> bool:
        """Whether parts of the strategy need not wait for a whole batch."""
        return bool(getattr(self.strategy, "separable", False))


def chosen_axes(space: Space, wanted: Sequence[str] | None, key: str = "axes") -> list[str]:
    """The names in `wanted` (all when None), eta first; ConfigError for one not in the space."""
    for name in wanted or ():
        if name not in space:
            raise ConfigError(key, name, f"a hyperparameter of the space; {suggest(name, space)}")
    names = [name for name in space if wanted is None or name in wanted]
    return sorted(names, key=lambda name: name != "eta")


def missing_points(
    configurations: Iterable[Log2Hps], seeds: Iterable[int], phase: str, history: History
) -> list[Point]:
    """Every configuration with every seed, each once, without those that `history` holds."""
    points = (
        Point(log2_hps=hps, seed=seed, phase=phase) for hps in configurations for seed in seeds
    )
    return list({point.id: point for point in points if point not in history}.values())


def phase_ends(history: History) -> dict[str, int]:
    """Trials spent when each phase ended, in order."""
    ends = {result.trial.phase: i + 1 for i, result in enumerate(history.results)}
    return dict(sorted(ends.items(), key=lambda end: end[1]))


def pruned_notes(history: History) -> Iterator[str]:
    """A sentence about the trials that were stopped early, if any."""
    count = sum(result.status == "pruned" for result in history.results)
    if count:
        yield (
            f"{count} of {len(history.results)} trials were stopped early (search.prune): they "
            "count as worse than any that was trained to its end, and lines show them as diverged"
        )


def best_result(history: History) -> Result:
    """The finished result with the lowest objective; the first of equals."""
    return min(history.results, key=lambda result: result.objective)


def best_of_one_phase(history: History, phase: str, notes: Iterable[str] = ()) -> Conclusion:
    """The best trial, of a strategy that has one `phase` and a trial a point."""
    best, runs = best_result(history), len(history.results)
    return Conclusion(
        best_log2=best.trial.log2_hps,
        objective=best.objective,
        seeds=1,
        runs=runs,
        notes=(*notes, *pruned_notes(history)),
        phase_ends={phase: runs},
    )
