"""`search=independent`: the u-muP paper's three phases (arXiv:2407.17465, F.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, stdev
from typing import Annotated, ClassVar, Literal

import numpy as np

from sweeper.errors import ConfigError
from sweeper.records import Bounds, check_bounds
from sweeper.search.line_search import line_notes, line_objective, line_result
from sweeper.search.prune import PrunerKind
from sweeper.search.strategy import (
    FRESH_SEEDS,
    Combination,
    Conclusion,
    FreshSeedCount,
    History,
    LineResult,
    Phase,
    Retune,
    Until,
    chosen_axes,
    independent_curve,
    missing_points,
    phase_ends,
    pruned_notes,
)
from sweeper.stats.line import LineRule, LineState, line_optimum, replay_line
from sweeper.stats.paired import paired_difference
from sweeper.trial import ONE_OR_MORE, Axis, Log2Hps, Point, Space, defaults, hps_key

FRESH_SEED = 1000
"""The first seed that compares: on trials that were selected by it, a comparison is biased."""

LINES = LineRule(points=7)
RETUNE = LineRule(step=1.0, points=5, reach=1, extend=2)


@dataclass(frozen=True, kw_only=True)
class IndependentSearch:
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
    fresh_seeds: FreshSeedCount = FRESH_SEEDS
    until: Until = "planned"
    prune: PrunerKind = "none"

    separable: ClassVar[bool] = True
    """A line's next points depend on that line alone: it need not wait for the whole batch."""

    def __post_init__(self) -> None:
        """Refuse an empty search."""
        check_bounds(self)
        if self.retune and self.retune.points < 3:
            allowed = "at least 3: the value and its two neighbours; search.retune=false: none"
            raise ConfigError("retune.points", self.retune.points, allowed)

    def plan(self, space: Space) -> list[Phase]:
        """The phases; lines share their middle point, so fewer trials may run."""
        names = self._line_names(space)
        rule = self._line_rule(space)
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

    def _line_names(self, space: Space) -> list[str]:
        names = chosen_axes(space, self.axes)
        # A range of the default alone leaves nothing to search; one of another value is tried.
        pinned = {n for n, axis in space.items() if axis.low == axis.high == axis.default}
        return [n for n in names if n != "eta" and n not in pinned]

    def _line_rule(self, space: Space) -> LineRule:
        """The lines' rule, with an equal part of the second phase's trials where they are given."""
        if self.runs is None:
            return self.lines
        names = self._line_names(space)
        points = self.runs // (max(1, len(names)) * self.seeds)
        if names and points < 1:
            allowed = f"at least {len(names) * self.seeds}: a point with {self.seeds} seeds a line"
            raise ConfigError("runs", self.runs, allowed)
        return replace(self.lines, points=max(1, points))

    def _eta_line(self, space: Space, history: History) -> LineState:
        base = defaults(space)
        return replay_line(self.eta, space["eta"], line_objective(history, base, "eta", [0]))

    def _line(self, space: Space, history: History, name: str, base: Log2Hps) -> LineState:
        objective = line_objective(history, base, name, range(self.seeds))
        return replay_line(self._line_rule(space), space[name], objective)

    def propose(self, space: Space, history: History) -> list[Point]:
        """The missing points of the phase at hand; all lines' rounds run together.

        A line over eta that diverged everywhere ends the search: no other line could build on it.
        """
        base = defaults(space)
        # Every call goes through all phases from the first: what is missing first is asked for.
        eta = self._eta_line(space, history)
        if eta.missing:
            missing = [Log2Hps({**base, "eta": value}) for value in eta.missing]
            return missing_points(missing, [0], "eta", history)
        if math.isinf(min(eta.losses.values())):
            return []
        base = self._base(space, history)
        missing = [
            Log2Hps({**base, name: value})
            for name in self._line_names(space)
            for value in self._line(space, history, name, base).missing
        ]
        points = missing_points(missing, range(self.seeds), "lines", history)
        if points:
            return points
        finalists, seeds = self._finalists(space, history), self._fresh_seeds()
        points = missing_points(finalists, seeds, "combine", history)
        kept = self._winner_to_retune(space, history, finalists)
        if points or kept is None:
            return points
        line = self._retune_line(history, kept)
        if line.missing:
            missing = [Log2Hps({**kept, "eta": value}) for value in line.missing]
            return missing_points(missing, seeds, "retune", history)
        retuned = Log2Hps({**kept, "eta": _retuned(line, kept["eta"])})
        if retuned["eta"] == kept["eta"]:
            return []
        return missing_points([kept, retuned], self._retune_seeds(), "compare", history)

    def _finalists(self, space: Space, history: History) -> tuple[Log2Hps, Log2Hps]:
        """The combined optimum and the best single configuration."""
        lines = self._line_results(space, history)
        return self._combined(space, lines), self._best_single(space, history, lines)[0]

    def _winner_to_retune(
        self, space: Space, history: History, finalists: Sequence[Log2Hps]
    ) -> Log2Hps | None:
        """The better finalist, whose eta is retuned; None while it is not known.

        None, too, where it is the base itself: nothing but eta moved, and eta's own line holds.
        """
        if not self.retune or _is_fixed(space["eta"]):
            return None
        means = [history.mean(hps, self._fresh_seeds()) for hps in finalists]
        complete = [mean for mean in means if mean is not None and not math.isnan(mean)]
        if len(complete) < len(means) or math.isinf(min(complete)):
            return None
        kept = finalists[means.index(min(complete))]
        return None if hps_key(kept) == hps_key(self._base(space, history)) else kept

    def _retune_line(self, history: History, kept: Log2Hps) -> LineState:
        assert self.retune
        # Two values and the kept one; `reach` and `extend` lead on from there.
        eta, step = kept["eta"], self.retune.step
        axis = Axis(low=eta - step, high=eta + step, default=eta)
        return replay_line(
            self.retune, axis, line_objective(history, kept, "eta", self._fresh_seeds())
        )

    def _fresh_seeds(self) -> range:
        return range(FRESH_SEED, FRESH_SEED + self.combine_seeds)

    def _retune_seeds(self) -> range:
        first = FRESH_SEED + self.combine_seeds
        return range(first, first + self.retune_seeds)

    def _eta_optimum(self, space: Space, history: History) -> float:
        state, base = self._eta_line(space, history), defaults(space)
        line = line_result("eta", state, history, base, space["eta"])
        return line.optimum_log2 if line else space["eta"].default

    def _base(self, space: Space, history: History) -> Log2Hps:
        """The defaults at eta's optimum."""
        return Log2Hps({**defaults(space), "eta": self._eta_optimum(space, history)})

    def _line_results(self, space: Space, history: History) -> list[LineResult]:
        base = self._base(space, history)
        states = [("eta", self._eta_line(space, history))]
        states += [(n, self._line(space, history, n, base)) for n in self._line_names(space)]
        results = (line_result(n, state, history, base, space[n]) for n, state in states)
        return [line for line in results if line]

    def _combined(self, space: Space, lines: Sequence[LineResult]) -> Log2Hps:
        """The optimum of every line at once; a line without any finite loss has none."""
        optima = {line.name: line.optimum_log2 for line in lines if math.isfinite(line.objective)}
        return Log2Hps({**defaults(space), **optima})

    def _best_single(
        self, space: Space, history: History, lines: Sequence[LineResult]
    ) -> tuple[Log2Hps, float, int]:
        """The best configuration that moves at most one hyperparameter from eta's optimum.

        With its objective and the number of seeds that it is the mean of. Where no line has the
        defaults on its grid, only the line over eta tried them: then all share its one seed alone.
        """
        base = self._base(space, history)
        # Means over different seeds do not compare: all over the same ones.
        shared = history.mean(base, range(self.seeds)) is not None
        seeds = range(self.seeds if shared else 1)
        measured = [
            (hps, objective, len(seeds))
            for hps in [base, *(Log2Hps({**base, li.name: li.optimum_log2}) for li in lines)]
            if (objective := history.mean(hps, seeds)) is not None
        ]
        return min(measured, key=lambda single: single[1], default=(base, math.inf, 1))

    def _longer(self, lines: Sequence[LineResult]) -> dict[str, str]:
        """The settings that let a line go on; points of all but eta's may follow from `runs`."""
        points = "search.lines.points" if self.runs is None else "search.runs"
        others = {line.name: f"{points} or search.lines.extend" for line in lines}
        return others | {"eta": "search.eta.points or search.eta.extend"}

    def _combination(
        self, combined: Log2Hps, single: Log2Hps, history: History
    ) -> Combination | None:
        pairs = [
            (a, b)
            for seed in self._fresh_seeds()
            if (a := history.value(combined, seed)) is not None
            and (b := history.value(single, seed)) is not None
        ]
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

    def conclude(self, space: Space, history: History) -> Conclusion:
        """The better of combined and single over fresh seeds, else the best single so far."""
        lines = self._line_results(space, history)
        best, objective, seeds = self._best_single(space, history, lines)
        finalists = self._combined(space, lines), best
        combination = self._combination(*finalists, history)
        notes = [*line_notes(lines, space, self._longer(lines)), *pruned_notes(history)]
        if combination is not None:
            notes.append(combination.summary)
            if not math.isnan(combination.difference):
                best, objective, seeds = _winner(combination)
        retune = self._retune_result(space, history, finalists)
        curve = independent_curve(
            history.results, self._base(space, history), self.seeds, finalists, self.combine_seeds
        )
        if retune is not None:
            line = replace(retune.line, name="eta, retuned")
            notes += [retune.summary, *line_notes([line], {}, {line.name: "search.retune.extend"})]
            if retune.moves:
                best = Log2Hps({**best, "eta": retune.line.optimum_log2})
                retuned = history.mean(best, self._retune_seeds())
                if retuned is not None:
                    objective, seeds = retuned, retune.seeds
                    curve = (*curve[:-1], (len(curve), objective))
        return Conclusion(
            best_log2=best,
            objective=objective,
            seeds=seeds,
            runs=len(history.results),
            lines=tuple(lines),
            combination=combination,
            retune=retune,
            notes=tuple(notes),
            best_loss_curve=curve,
            phase_ends=phase_ends(history),
        )

    def _retune_result(
        self, space: Space, history: History, finalists: Sequence[Log2Hps]
    ) -> Retune | None:
        """What the last line over eta has found so far; None before its first point."""
        kept = self._winner_to_retune(space, history, finalists)
        if kept is None:
            return None
        state = self._retune_line(history, kept)
        line = line_result("eta", state, history, kept, space["eta"])
        if line is None or len(state.losses) < 2:
            return None
        line = replace(line, optimum_log2=_retuned(state, kept["eta"]))
        retune = Retune(line=line, before_log2=kept["eta"])
        if line.optimum_log2 == kept["eta"]:
            return retune
        best = Log2Hps({**kept, "eta": line.optimum_log2})
        pairs = [
            (a, b)
            for seed in self._retune_seeds()
            if (a := history.value(kept, seed)) is not None
            and (b := history.value(best, seed)) is not None
        ]
        if state.missing or len(pairs) < self.retune_seeds:
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


def _is_fixed(axis: Axis) -> bool:
    """Whether there is nothing to retune: one value, or a list of choices."""
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
