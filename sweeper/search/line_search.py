"""A line over one hyperparameter as part of a search, and `search=lr`, which is such a line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from sweeper.records import Bounded
from sweeper.search.prune import PrunerKind
from sweeper.search.strategy import (
    FRESH_SEEDS,
    Conclusion,
    FreshSeedCount,
    History,
    LineResult,
    Phase,
    Until,
    ends,
    missing_points,
    pruned_notes,
)
from sweeper.stats.line import FLAT, LineObjective, LineRule, LineState, line_optimum, replay_line
from sweeper.trial import ONE_OR_MORE, Axis, Log2Hps, Point, Space, defaults


def line_objective(
    history: History, base: Log2Hps, name: str, seeds: Sequence[int]
) -> LineObjective:
    """The mean objective over `seeds` as a function of `name` alone, the rest as in `base`."""
    return lambda value: history.mean(Log2Hps({**base, name: value}), seeds)


def on_line(base: Log2Hps, name: str, values: Iterable[float]) -> list[Log2Hps]:
    """`base` with every one of the `values` of `name`."""
    return [Log2Hps({**base, name: value}) for value in values]


MOST_PLACES = 64
"""Places of an optimum that are looked at in a round."""


def values_to_follow(rule: LineRule, axis: Axis, objective: LineObjective) -> list[float]:
    """What a line may ask for once it has what it lacks now, wherever its optimum then lies.

    The next round's values come first, and of a round those near the middle.
    """

    def off_middle(value: float) -> float:
        return abs(value - axis.default)

    lacking, found = replay_line(rule, axis, objective).missing, dict[float, None]()
    worlds = [dict[float, float]()]  # losses that it may get, by the value
    while worlds:
        imagined = dict[frozenset[tuple[float, float]], dict[float, float]]()
        for world in worlds:

            def loss(value: float, world: dict[float, float] = world) -> float | None:
                return world[value] if value in world else objective(value)

            state = replay_line(rule, axis, loss)
            found.update(dict.fromkeys(state.missing))
            finite = [each for each in state.losses.values() if math.isfinite(each)] or [0.0]
            worse = world | dict.fromkeys(state.missing, max(finite) + 1)
            places = sorted(state.missing, key=off_middle)[:MOST_PLACES]
            best = [{place: min(finite) - 1} for place in places]
            for new in [*best, *([{}] if state.losses and places else [])]:
                imagined[frozenset((worse | new).items())] = worse | new
        worlds = sorted(imagined.values(), key=lambda w: off_middle(min(w, key=w.__getitem__)))
        worlds = worlds[:MOST_PLACES]
    return [value for value in found if value not in lacking]


def line_result(
    name: str, state: LineState, history: History, base: Log2Hps, axis: Axis
) -> LineResult | None:
    """The result of a replayed line of `name` from `base`; None while it has no loss."""
    if not state.losses:
        return None
    best = line_optimum(state.losses)

    def values_where(condition: Callable[[Log2Hps], bool]) -> tuple[float, ...]:
        return tuple(v for v in sorted(state.losses) if condition(Log2Hps({**base, name: v})))

    return LineResult(
        name=name,
        points_log2=tuple(sorted(state.losses.items())),
        optimum_log2=best,
        objective=state.losses[best],
        extended=state.extended,
        stopped_log2=values_where(history.stopped),
        failed_log2=values_where(history.failed),
        choices=axis.choices,
    )


def line_notes(
    lines: Sequence[LineResult], space: Space, longer: Mapping[str, str]
) -> Iterator[str]:
    """Sentences about lines: extended grids, optima still at an end, and lines that are flat.

    `longer` names the settings, by line, that let it go on within the range of the `space`.
    """
    for line in lines:
        if failed := len(line.failed_log2):
            yield (
                f"{line.name}: runs failed at {failed} of {len(line.points_log2)} points, which "
                "count as worse than any that did not: that is no divergence"
            )
        if line.choices:
            continue
        values = [value for value, _ in line.points_log2]
        if line.extended:
            yield (
                f"{line.name}: the optimum lay at the end of the grid, which was extended by "
                f"{line.extended} to 2^{min(values):g}..2^{max(values):g}"
            )
        at_end = line.optimum_log2 in (min(values), max(values)) and len(values) > 1
        if at_end and math.isfinite(line.objective):
            optimum = f"2^{line.optimum_log2:g}"
            advice = _advice_at_end(line, space.get(line.name), longer.get(line.name, ""))
            yield f"{line.name}: the optimum {optimum} is still at the end of the grid{advice}"
        near = [loss for value, loss in line.points_log2 if abs(value - line.optimum_log2) <= 1]
        spread = max(near) - min(near)
        if line.name == "eta" and len(near) > 2 and spread < FLAT * abs(line.objective):
            yield (
                f"eta: all losses within a factor of 2 of the optimum differ by {spread:.4f} nats "
                "at most: hardly anything was learned, or train longer to tell them apart"
            )


def _advice_at_end(line: LineResult, axis: Axis | None, longer: str) -> str:
    """What ends a line at its optimum, its points or its range, and what to change.

    A line that was laid around another optimum has no range: `axis` is None.
    """
    low = line.optimum_log2 == min(line.points_log2)[0]
    if axis is None:
        return f": raise {longer}"
    end = axis.low if low else axis.high
    room = line.optimum_log2 - end if low else end - line.optimum_log2
    if room > 1e-9:
        return f", and the range goes on to 2^{end:g}: raise {longer}"
    change = "lower" if low else "raise"
    return f": {change} parameterization.space.{line.name}.{'low' if low else 'high'}"


# `search=lr`: a line in log2 eta, everything else at its default.


LONGER = {"eta": "search.line.points or search.line.extend"}
"""What lets the line go on within its range."""


@dataclass(frozen=True, kw_only=True)
class LearningRateLine(Bounded):
    """A line over eta, refined around the optimum by halving the spacing; `seeds` a point."""

    line: LineRule = field(default_factory=lambda: LineRule(points=11))
    seeds: Annotated[int, ONE_OR_MORE] = 1
    fresh_seeds: FreshSeedCount = FRESH_SEEDS
    until: Until = "planned"
    prune: PrunerKind = "none"

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
        missing = on_line(base, "eta", state.missing)
        return missing_points(missing, range(self.seeds), "eta", history)

    def may_follow(self, space: Space, history: History) -> list[Point]:
        """What the line may ask for; in its last round, the optima that it may end with."""
        base = defaults(space)
        objective = line_objective(history, base, "eta", range(self.seeds))
        if values := values_to_follow(self.line, space["eta"], objective):
            following = on_line(base, "eta", values)
            return missing_points(following, range(self.seeds), "eta", history)
        state = self._replay(base, space, history)
        best = [line_optimum(state.losses)] if state.losses else []
        return ends(on_line(base, "eta", [*best, *state.missing]))

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
            phase_ends={"eta": len(history.results)},
        )
