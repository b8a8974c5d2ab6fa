"""`search=lr`: a line in log2 eta, everything else at its default."""

from __future__ import annotations

from dataclasses import dataclass, field

from sweeper.errors import ConfigError
from sweeper.search.line import LineRule, LineState, along, line_notes, line_result, replay
from sweeper.search.prune import Kind
from sweeper.search.strategy import (
    Conclusion,
    History,
    Phase,
    Point,
    pruned_notes,
    running_best,
)
from sweeper.trial import Log2Hps, Space, defaults


@dataclass(frozen=True, kw_only=True)
class LearningRateLine:
    """A line over eta, refined around the optimum by halving the spacing; `seeds` a point."""

    line: LineRule = field(default_factory=LineRule)
    seeds: int = 1
    prune: Kind = "none"

    def __post_init__(self) -> None:
        """Refuse a line without runs."""
        if self.seeds < 1:
            raise ConfigError("seeds", self.seeds, "at least 1")

    def plan(self, space: Space) -> list[Phase]:
        """One phase."""
        return [Phase(name="eta", runs=self.line.points * self.seeds)]

    def _replay(self, base: Log2Hps, space: Space, history: History) -> LineState:
        evaluate = along(history, base, "eta", range(self.seeds))
        return replay(self.line, space["eta"], evaluate)

    def propose(self, space: Space, history: History) -> list[Point]:
        """The line's missing points."""
        base = defaults(space)
        state = self._replay(base, space, history)
        points = (
            Point(log2_hps=Log2Hps({**base, "eta": value}), seed=seed, phase="eta")
            for value in state.missing
            for seed in range(self.seeds)
        )
        return [point for point in points if point not in history]

    def conclude(self, space: Space, history: History) -> Conclusion:
        """The line's optimum."""
        base = defaults(space)
        state = self._replay(base, space, history)
        line = line_result("eta", state, history, base)
        runs = [r.objective for r in history.results]
        return Conclusion(
            best_log2=Log2Hps({**base, "eta": line.optimum_log2 if line else base["eta"]}),
            objective=line.objective if line else float("inf"),
            seeds=self.seeds,
            runs=len(runs),
            lines=(line,) if line else (),
            notes=(*line_notes([line] if line else []), *pruned_notes(history)),
            cost_curve=running_best(runs),
            phase_ends={"eta": len(runs)},
        )
