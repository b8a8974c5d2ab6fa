"""`search=independent`: the u-muP paper's three phases (arXiv:2407.17465, F.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from statistics import mean, stdev
from typing import Annotated, ClassVar, Literal

import numpy as np

from sweeper.errors import ConfigError
from sweeper.records import Bounds
from sweeper.search.line_search import SearchLine, line_notes
from sweeper.search.strategy import (
    Combination,
    Conclusion,
    History,
    LineResult,
    Phase,
    Retune,
    StrategySettings,
    chosen_axes,
    ends,
    missing_points,
    phase_ends,
    pruned_notes,
)
from sweeper.stats.line import LineRule, LineState, line_optimum
from sweeper.stats.paired import paired_difference
from sweeper.trial import ONE_OR_MORE, Axis, Log2Hps, Point, Space, defaults, hps_key

FRESH_SEED = 1000
"""The first seed that compares: on trials that were selected by it, a comparison is biased."""

LINES = LineRule(points=7)
RETUNE = LineRule(step=1.0, points=5, reach=1, extend=2)


@dataclass(frozen=True, kw_only=True)
class IndependentSearch(StrategySettings):
    """A line over eta, then a line for every other hyperparameter, the combination, eta again.

    `eta` is the first line, of one seed. In the second phase each point has `seeds` seeds, and
    `runs` trials are shared out among its lines (None: each has the points of its rule).
    `combine_seeds` fresh seeds compare the combined optimum with the best single configuration. The
    better one moved other hyperparameters than eta, and the best eta with them: `retune` lays a
    short line over it there, on the same fresh seeds, begun with the value and its two neighbours;
    false leaves it out. The least of a line is chosen for its noise, too, so `retune_seeds` pairs
    of runs that nothing was chosen by compare it with the value before. `axes` names the
    hyperparameters (None: all).
    """

    eta: LineRule = field(default_factory=LineRule)
    lines: LineRule = field(default_factory=lambda: LINES)
    runs: Annotated[int | None, Bounds(least=0)] = None
    seeds: Annotated[int, ONE_OR_MORE] = 3
    combine_seeds: Annotated[int, ONE_OR_MORE] = 3
    retune: LineRule | Literal[False] | None = field(default_factory=lambda: RETUNE)
    retune_seeds: Annotated[int, Bounds(least=2, most=1000)] = 5
    axes: tuple[str, ...] | None = None

    separable: ClassVar[bool] = True
    """A line's next points depend on that line alone: it need not wait for the whole batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.retune and self.retune.points < 3:
            allowed = "at least 3: the value and its two neighbours; search.retune=false: none"
            raise ConfigError("retune.points", self.retune.points, allowed)

    def plan(self, space: Space) -> list[Phase]:
        """The phases; lines share their middle point, so fewer trials may run."""
        names = self.line_names(space)
        rule = self.line_rule(space)
        phases = [
            Phase(name="eta", trials=self.eta.points),
            Phase(name="lines", trials=sum(rule.planned(space[n]) for n in names) * self.seeds),
            Phase(name="combine", trials=2 * self.combine_seeds),
        ]
        if self.retune and names and not _is_fixed(space["eta"]):
            # Its middle is the configuration that the combination kept.
            trials = (self.retune.points - 1) * self.combine_seeds
            phases.append(Phase(name="retune", trials=trials))
            phases.append(Phase(name="compare", trials=2 * self.retune_seeds))
        return phases

    def line_names(self, space: Space) -> list[str]:
        """The hyperparameters beside eta that have a line."""
        names = chosen_axes(space, self.axes)
        # A range of the default alone leaves nothing to search; one of another value is tried.
        pinned = {n for n, axis in space.items() if axis.low == axis.high == axis.default}
        return [n for n in names if n != "eta" and n not in pinned]

    def line_rule(self, space: Space) -> LineRule:
        """The lines' rule, with an equal part of the second phase's trials where they are given."""
        if self.runs is None:
            return self.lines
        names = self.line_names(space)
        points = self.runs // (max(1, len(names)) * self.seeds)
        if names and points < 1:
            allowed = f"at least {len(names) * self.seeds}: a point with {self.seeds} seeds a line"
            raise ConfigError("runs", self.runs, allowed)
        return replace(self.lines, points=max(1, points))

    def propose(self, space: Space, history: History) -> list[Point]:
        """The missing points of the phase at hand; none after a line over eta that all diverged."""
        standing = _Standing(self, space, history)
        # What is missing first, from the first phase on, is asked for.
        if missing := standing.eta.missing:
            return missing_points(missing, [0], "eta", history)
        if math.isinf(min(standing.eta.state.losses.values())):
            return []
        missing = [hps for line in standing.others for hps in line.missing]
        if points := missing_points(missing, range(self.seeds), "lines", history):
            return points
        points = missing_points(standing.finalists, self.fresh, "combine", history)
        kept = standing.kept
        if points or kept is None:
            return points
        line = standing.retuning(kept)
        if line.missing:
            return missing_points(line.missing, self.fresh, "retune", history)
        (retuned,) = line.at([_retuned(line.state, kept["eta"])])
        if retuned["eta"] == kept["eta"]:
            return []
        return missing_points([kept, retuned], self.comparing, "compare", history)

    def may_follow(self, space: Space, history: History) -> list[Point]:
        """What the lines at hand may ask for; of two finalists, what follows either.

        Not the lines from every eta, nor all combinations of their optima: these are too many.
        """
        standing = _Standing(self, space, history)
        if standing.eta.missing:
            return missing_points(standing.eta.following(), [0], "eta", history)
        if any(line.missing for line in standing.others):
            following = _in_turn([line.following() for line in standing.others])
            return missing_points(following, range(self.seeds), "lines", history)
        finalists, kept = standing.finalists, standing.kept
        if missing_points(finalists, self.fresh, "combine", history):
            moved = [hps for hps in finalists if standing.is_retuned(hps)]
            following = _in_turn([standing.retuning(hps).following() for hps in moved])
            points = missing_points(following, self.fresh, "retune", history)
            return [*points, *ends(hps for hps in finalists if hps not in moved)]
        if kept is None:
            return []
        line = standing.retuning(kept)
        best = [kept, *line.at([_retuned(line.state, kept["eta"])])]
        if not line.missing:
            return ends(best)
        points = missing_points(line.following(), self.fresh, "retune", history)
        points += missing_points([*best, *line.missing], self.comparing, "compare", history)
        return [*points, *ends([kept])]

    def conclude(self, space: Space, history: History) -> Conclusion:
        """The better of combined and single over fresh seeds, else the best single so far."""
        standing = _Standing(self, space, history)
        best, objective, seeds = standing.single
        combination = standing.combination()
        notes = [*line_notes(standing.lines, space, self._longer(standing.lines))]
        notes += pruned_notes(history)
        if combination is not None:
            notes.append(combination.summary)
            if not math.isnan(combination.difference):
                best, objective, seeds = _winner(combination)
        retune = standing.retuned()
        if retune is not None:
            line = replace(retune.line, name="eta, retuned")
            notes += [retune.summary, *line_notes([line], {}, {line.name: "search.retune.extend"})]
            if retune.moves:
                best = Log2Hps({**best, "eta": retune.line.optimum_log2})
                retuned = history.mean(best, self.comparing)
                if retuned is not None:
                    objective, seeds = retuned, retune.seeds
        return Conclusion(
            best_log2=best,
            objective=objective,
            seeds=seeds,
            runs=len(history.results),
            lines=tuple(standing.lines),
            combination=combination,
            retune=retune,
            notes=tuple(notes),
            phase_ends=phase_ends(history),
        )

    @property
    def fresh(self) -> range:
        """Seeds that compare the finalists, and that retune the better one."""
        return range(FRESH_SEED, FRESH_SEED + self.combine_seeds)

    @property
    def comparing(self) -> range:
        """Seeds that compare the retuned eta with the one before."""
        return range(self.fresh.stop, self.fresh.stop + self.retune_seeds)

    def _longer(self, lines: Sequence[LineResult]) -> dict[str, str]:
        """The settings that let a line go on; points of all but eta's may follow from `runs`."""
        points = "search.lines.points" if self.runs is None else "search.runs"
        others = {line.name: f"{points} or search.lines.extend" for line in lines}
        return others | {"eta": "search.eta.points or search.eta.extend"}


class _Standing:
    """Where a history leaves the search; each part is worked out once, when it is asked for."""

    def __init__(self, search: IndependentSearch, space: Space, history: History) -> None:
        self.search, self.space, self.history = search, space, history

    @cached_property
    def eta(self) -> SearchLine:
        """The first line, from the defaults, with one seed."""
        base, axis = defaults(self.space), self.space["eta"]
        return SearchLine(self.search.eta, axis, self.history, base, "eta", [0])

    @cached_property
    def base(self) -> Log2Hps:
        """The defaults at eta's optimum, from which the other lines start."""
        losses = self.eta.state.losses
        best = line_optimum(losses) if losses else self.space["eta"].default
        return Log2Hps({**defaults(self.space), "eta": best})

    @cached_property
    def others(self) -> list[SearchLine]:
        """The other lines."""
        rule, seeds = self.search.line_rule(self.space), range(self.search.seeds)
        return [
            SearchLine(rule, self.space[name], self.history, self.base, name, seeds)
            for name in self.search.line_names(self.space)
        ]

    @cached_property
    def lines(self) -> list[LineResult]:
        """What the lines found."""
        results = (line.result() for line in (self.eta, *self.others))
        return [line for line in results if line]

    @cached_property
    def single(self) -> tuple[Log2Hps, float, int]:
        """The best configuration that moves at most one hyperparameter from eta's optimum.

        With its objective and the number of seeds that it is the mean of. Where no line has the
        defaults on its grid, only the line over eta tried them: then all share its one seed alone.
        """
        base = self.base
        # Means over different seeds do not compare: all over the same ones.
        shared = self.history.mean(base, range(self.search.seeds)) is not None
        seeds = range(self.search.seeds if shared else 1)
        moved = (Log2Hps({**base, line.name: line.optimum_log2}) for line in self.lines)
        measured = [
            (hps, objective, len(seeds))
            for hps in [base, *moved]
            if (objective := self.history.mean(hps, seeds)) is not None
        ]
        return min(measured, key=lambda single: single[1], default=(base, math.inf, 1))

    @cached_property
    def finalists(self) -> tuple[Log2Hps, Log2Hps]:
        """The optimum of every line at once, but of those without a loss, and the best single."""
        finite = (line for line in self.lines if math.isfinite(line.objective))
        optima = {line.name: line.optimum_log2 for line in finite}
        return Log2Hps({**defaults(self.space), **optima}), self.single[0]

    @cached_property
    def kept(self) -> Log2Hps | None:
        """The better finalist, whose eta is retuned; None where there is none, or not yet."""
        means = [self.history.mean(hps, self.search.fresh) for hps in self.finalists]
        complete = [mean for mean in means if mean is not None and not math.isnan(mean)]
        if len(complete) < len(means) or math.isinf(min(complete)):
            return None
        kept = self.finalists[means.index(min(complete))]
        return kept if self.is_retuned(kept) else None

    def is_retuned(self, kept: Log2Hps) -> bool:
        """Whether a finalist gets the last line: not the base, for which eta's own line holds."""
        is_searched = bool(self.search.retune) and not _is_fixed(self.space["eta"])
        return is_searched and hps_key(kept) != hps_key(self.base)

    def retuning(self, kept: Log2Hps) -> SearchLine:
        """The last line over eta, around a finalist."""
        rule, eta = self.search.retune, kept["eta"]
        assert rule
        # Two values and the kept one; `reach` and `extend` lead on from there.
        axis = Axis(low=eta - rule.step, high=eta + rule.step, default=eta)
        return SearchLine(rule, axis, self.history, kept, "eta", self.search.fresh)

    def _pairs(self, first: Log2Hps, second: Log2Hps, seeds: range) -> list[tuple[float, float]]:
        pairs = ((self.history.value(first, n), self.history.value(second, n)) for n in seeds)
        return [(a, b) for a, b in pairs if a is not None and b is not None]

    def combination(self) -> Combination | None:
        """The finalists over fresh seeds; None before the first pair."""
        combined, single = self.finalists
        pairs = self._pairs(combined, single, self.search.fresh)
        if not pairs:
            return None
        difference, error = _paired(pairs)
        return Combination(
            combined_log2=combined,
            single_log2=single,
            combined_objectives=tuple(a for a, _ in pairs),
            single_objectives=tuple(b for _, b in pairs),
            difference=difference,
            error=error,
        )

    def retuned(self) -> Retune | None:
        """What the last line over eta has found so far; None before its first point."""
        kept = self.kept
        if kept is None or len((last := self.retuning(kept)).state.losses) < 2:
            return None
        line = last.result()
        assert line is not None
        line = replace(line, optimum_log2=_retuned(last.state, kept["eta"]))
        retune = Retune(line=line, before_log2=kept["eta"])
        if line.optimum_log2 == kept["eta"]:
            return retune
        best = Log2Hps({**kept, "eta": line.optimum_log2})
        pairs = self._pairs(kept, best, self.search.comparing)
        if last.missing or len(pairs) < self.search.retune_seeds:
            return replace(retune, gain=math.nan)
        before, after = (np.array(losses) for losses in zip(*pairs, strict=True))
        # Student's: with five pairs the noise of their differences is itself hardly known.
        gain = paired_difference(before, after, 0.05)
        if math.isnan(gain.value):  # no pair told anything: both diverged with every seed
            return replace(retune, gain=-math.inf, low=-math.inf, seeds=len(pairs))
        return replace(retune, gain=gain.value, low=gain.low, high=gain.high, seeds=len(pairs))


def _retuned(line: LineState, before: float) -> float:
    """The value with the least loss of a line over eta; of equals the one `before`."""
    best = line_optimum(line.losses)
    # The line's own value for it may differ in the last digit.
    same = min(line.losses, key=lambda value: abs(value - before))
    return best if line.losses[best] < line.losses[same] else before


def _in_turn(lines: Sequence[Sequence[Log2Hps]]) -> list[Log2Hps]:
    """The first of every line, then the second, and so on."""
    return [hps for each in zip_longest(*lines) for hps in each if hps is not None]


def _is_fixed(axis: Axis) -> bool:
    return bool(axis.choices) or axis.low == axis.high


def _paired(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Mean and standard error of the first minus the second; see `Combination`."""
    difference = mean(a for a, _ in pairs) - mean(b for _, b in pairs)
    if len(pairs) < 2 or not math.isfinite(difference):
        return difference, math.nan
    # Of the differences, seed by seed: the data that a seed shows them is common to both losses.
    return difference, stdev(a - b for a, b in pairs) / math.sqrt(len(pairs))


def _winner(combination: Combination) -> tuple[Log2Hps, float, int]:
    """The better of the two by mean over the fresh seeds; the combined one if they tie."""
    combined, single = combination.combined_objectives, combination.single_objectives
    if mean(combined) <= mean(single):
        return combination.combined_log2, mean(combined), len(combined)
    return combination.single_log2, mean(single), len(single)
