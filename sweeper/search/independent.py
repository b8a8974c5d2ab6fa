"""`search=independent`: the u-muP paper's three phases (arXiv:2407.17465, F.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import ClassVar

from sweeper.errors import ConfigError
from sweeper.search.line import LineRule, LineState, along, line_notes, line_result, replay
from sweeper.search.prune import Kind
from sweeper.search.strategy import (
    Combination,
    Conclusion,
    History,
    LineResult,
    Phase,
    Point,
    chosen_axes,
    pruned_notes,
    running_best,
)
from sweeper.trial import Log2Hps, Space, defaults

FRESH_SEED = 1000
"""Seeds of the last phase start here: the comparison must not use runs that were selected on."""


@dataclass(frozen=True, kw_only=True)
class IndependentSearch:
    """A line over eta, then a line for every other hyperparameter, then the combination.

    `eta` is the first line, of one seed. `runs` are shared out among the lines of the second
    phase, each point with `seeds` seeds. `combine_seeds` fresh seeds compare the combined
    optimum with the best single configuration. `axes` names the hyperparameters (null: all).
    """

    eta: LineRule = field(default_factory=LineRule)
    lines: LineRule = field(default_factory=LineRule)
    runs: int = 330
    seeds: int = 3
    combine_seeds: int = 3
    axes: tuple[str, ...] | None = None
    prune: Kind = "none"

    separable: ClassVar[bool] = True
    """A line's next points follow from its own: they may be asked for before a batch is whole."""

    def __post_init__(self) -> None:
        """Refuse an empty search."""
        for key, least in (("runs", 0), ("seeds", 1), ("combine_seeds", 1)):
            if getattr(self, key) < least:
                raise ConfigError(key, getattr(self, key), f"at least {least}")

    def plan(self, space: Space) -> list[Phase]:
        """The three phases; lines share their middle point, so fewer runs may be trained."""
        names = self._names(space)
        rule = self._rule(space)
        return [
            Phase(name="eta", runs=self.eta.points),
            Phase(name="lines", runs=rule.points * self.seeds * len(names) if names else 0),
            Phase(name="combine", runs=2 * self.combine_seeds),
        ]

    def _names(self, space: Space) -> list[str]:
        names = chosen_axes(space, self.axes)
        # A range of one value, the default, leaves nothing to search.
        pinned = {n for n, axis in space.items() if axis.low == axis.high == axis.default}
        return [n for n in names if n != "eta" and n not in pinned]

    def _rule(self, space: Space) -> LineRule:
        """The lines' rule with its share of the second phase's runs."""
        names = self._names(space)
        points = self.runs // (max(1, len(names)) * self.seeds)
        if names and points < 1:
            allowed = f"at least {len(names) * self.seeds}: a point with {self.seeds} seeds a line"
            raise ConfigError("runs", self.runs, allowed)
        rule = self.lines
        return LineRule(step=rule.step, points=max(1, points), reach=rule.reach, extend=rule.extend)

    def _eta(self, space: Space, history: History) -> LineState:
        base = defaults(space)
        return replay(self.eta, space["eta"], along(history, base, "eta", [0]))

    def _line(self, space: Space, history: History, name: str, base: Log2Hps) -> LineState:
        evaluate = along(history, base, name, range(self.seeds))
        return replay(self._rule(space), space[name], evaluate)

    def propose(self, space: Space, history: History) -> list[Point]:
        """The missing points of the phase at hand; all lines' rounds run together.

        A line over eta that diverged everywhere ends the search: no other line could build on it.
        """
        base = defaults(space)
        eta = self._eta(space, history)
        if eta.missing:
            return _points([Log2Hps({**base, "eta": v}) for v in eta.missing], [0], "eta", history)
        if math.isinf(min(eta.known.values())):
            return []
        base = self._base(space, history)
        wanted: list[Log2Hps] = []
        for name in self._names(space):
            line = self._line(space, history, name, base)
            wanted += [Log2Hps({**base, name: value}) for value in line.missing]
        points = _points(wanted, range(self.seeds), "lines", history)
        if points:
            return points
        lines = self._found_lines(space, history)
        combined, single = self._combined(space, lines), self._single(space, history, lines)[0]
        return _points([combined, single], self._fresh_seeds(), "combine", history)

    def _fresh_seeds(self) -> range:
        return range(FRESH_SEED, FRESH_SEED + self.combine_seeds)

    def _eta_optimum(self, space: Space, history: History) -> float:
        line = line_result("eta", self._eta(space, history), history, defaults(space))
        return line.optimum_log2 if line else space["eta"].default

    def _base(self, space: Space, history: History) -> Log2Hps:
        """The defaults at eta's optimum."""
        return Log2Hps({**defaults(space), "eta": self._eta_optimum(space, history)})

    def _found_lines(self, space: Space, history: History) -> list[LineResult]:
        base = self._base(space, history)
        states = [("eta", self._eta(space, history))]
        states += [(n, self._line(space, history, n, base)) for n in self._names(space)]
        found = (line_result(name, state, history, base) for name, state in states)
        return [line for line in found if line]

    def _combined(self, space: Space, lines: Sequence[LineResult]) -> Log2Hps:
        """The optimum of every line at once; a line without any finite loss has none."""
        found = {line.name: line.optimum_log2 for line in lines if math.isfinite(line.objective)}
        return Log2Hps({**defaults(space), **found})

    def _single(
        self, space: Space, history: History, lines: Sequence[LineResult]
    ) -> tuple[Log2Hps, float, int]:
        """The best configuration that moves at most one hyperparameter from eta's optimum.

        With its objective and how many seeds that is the mean of. Where no line has the defaults
        on its grid, only the line over eta tried them: then its one seed is what all share.
        """
        base = self._base(space, history)
        shared = history.mean(base, range(self.seeds)) is not None
        seeds = range(self.seeds if shared else 1)
        found = [
            (hps, objective, len(seeds))
            for hps in [base, *(Log2Hps({**base, li.name: li.optimum_log2}) for li in lines)]
            if (objective := history.mean(hps, seeds)) is not None
        ]
        return min(found, key=lambda single: single[1], default=(base, math.inf, 1))

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
        lines = self._found_lines(space, history)
        best, objective, seeds = self._single(space, history, lines)
        combination = self._combination(self._combined(space, lines), best, history)
        notes = [*line_notes(lines), *pruned_notes(history)]
        if combination is not None:
            notes.append(combination.finding)
            if not math.isnan(combination.difference):
                best, objective, seeds = _winner(combination)
        return Conclusion(
            best_log2=best,
            objective=objective,
            seeds=seeds,
            runs=len(history.results),
            lines=tuple(lines),
            combination=combination,
            notes=tuple(notes),
            cost_curve=running_best(r.objective for r in history.results),
            phase_ends=_phase_ends(history),
        )


def _points(
    configurations: Sequence[Log2Hps], seeds: Sequence[int], phase: str, history: History
) -> list[Point]:
    """Every configuration with every seed, each once, without those that are known."""
    points = {
        point.id: point
        for hps in configurations
        for seed in seeds
        if (point := Point(log2_hps=hps, seed=seed, phase=phase)) not in history
    }
    return list(points.values())


def _paired(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Mean and standard error of the first minus the second; see `Combination`."""
    difference = mean(a for a, _ in pairs) - mean(b for _, b in pairs)
    if len(pairs) < 2 or not math.isfinite(difference):
        return difference, math.nan
    return difference, stdev(a - b for a, b in pairs) / math.sqrt(len(pairs))


def _winner(combination: Combination) -> tuple[Log2Hps, float, int]:
    """The better of the two by mean over the fresh seeds; the combined one if they tie."""
    combined, single = combination.combined_objectives, combination.single_objectives
    if mean(combined) <= mean(single):
        return combination.combined_log2, mean(combined), len(combined)
    return combination.single_log2, mean(single), len(single)


def _phase_ends(history: History) -> dict[str, int]:
    """Runs spent when each phase ended, in order."""
    ends: dict[str, int] = {}
    for index, result in enumerate(history.results):
        ends[result.trial.phase] = index + 1
    return ends
