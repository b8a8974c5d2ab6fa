"""`search=lr`: a line in log2 eta, everything else at its default."""

from __future__ import annotations

from dataclasses import dataclass, field

from sweeper.errors import ConfigError
from sweeper.search.cost import best_mean_curve
from sweeper.search.line import (
    LineRule,
    LineState,
    line_notes,
    line_objective,
    line_result,
    replay_line,
)
from sweeper.search.prune import PrunerKind
from sweeper.search.strategy import (
    Conclusion,
    History,
    Phase,
    Point,
    missing_points,
    pruned_notes,
)
from sweeper.trial import Log2Hps, Space, defaults

LONGER = {"eta": "search.line.points or search.line.extend"}
"""What lets the line go on within its range."""


@dataclass(frozen=True, kw_only=True)
class LearningRateLine:
    """A line over eta, refined around the optimum by halving the spacing; `seeds` a point."""

    line: LineRule = field(default_factory=LineRule)
    seeds: int = 1
    prune: PrunerKind = "none"

    def __post_init__(self) -> None:
        """Refuse a line without trials."""
        if self.seeds < 1:
            raise ConfigError("seeds", self.seeds, "at least 1")

    def plan(self, space: Space) -> list[Phase]:
        """One phase."""
        return [Phase(name="eta", trials=self.line.points * self.seeds)]

    def _replay(self, base: Log2Hps, space: Space, history: History) -> LineState:
        objective = line_objective(history, base, "eta", range(self.seeds))
        return replay_line(self.line, space["eta"], objective)

    def propose(self, space: Space, history: History) -> list[Point]:
        """The line's missing points."""
        base = defaults(space)
        state = self._replay(base, space, history)
        missing = [Log2Hps({**base, "eta": value}) for value in state.missing]
        return missing_points(missing, range(self.seeds), "eta", history)

    def conclude(self, space: Space, history: History) -> Conclusion:
        """The line's optimum."""
        base = defaults(space)
        state = self._replay(base, space, history)
        line = line_result("eta", state, history, base, space["eta"])
        return Conclusion(
            best_log2=Log2Hps({**base, "eta": line.optimum_log2 if line else base["eta"]}),
            objective=line.objective if line else float("inf"),
            seeds=self.seeds,
            runs=len(history.results),
            lines=(line,) if line else (),
            notes=(*line_notes([line] if line else [], space, LONGER), *pruned_notes(history)),
            best_loss_curve=best_mean_curve(history.results, self.seeds),
            phase_ends={"eta": len(history.results)},
        )
