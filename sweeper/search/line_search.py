"""A line over one hyperparameter as part of a search, and `search=lr`, which is such a line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Annotated

from sweeper.search.strategy import (
    Conclusion,
    History,
    LineResult,
    Phase,
    StrategySettings,
    ends,
    missing_points,
    pruned_notes,
)
from sweeper.stats.line import FLAT, LineObjective, LineRule, LineState, line_optimum, replay_line
from sweeper.trial import ONE_OR_MORE, Axis, Log2Hps, Point, Space, defaults

MOST_PLACES = 64
"""Places of an optimum that are looked at in a round of what may follow."""


@dataclass(frozen=True)
class SearchLine:
    """A line over `name` from `base`, of which every point has `seeds`, replayed in a history."""

    rule: LineRule
    axis: Axis
    history: History
    base: Log2Hps
    name: str
    seeds: Sequence[int]

    def at(self, values: Iterable[float]) -> list[Log2Hps]:
        """The configurations with these values of `name`."""
        return [Log2Hps({**self.base, self.name: value}) for value in values]

    @cached_property
    def _mean(self) -> LineObjective:
        return cache(lambda value: self.history.mean(self.at([value])[0], self.seeds))

    def _replay(self, imagined: Mapping[float, float]) -> LineState:
        loss = lambda value: imagined.get(value, self._mean(value))  # noqa: E731
        return replay_line(self.rule, self.axis, loss)

    @cached_property
    def state(self) -> LineState:
        """The line as far as the history allows."""
        return self._replay({})

    @property
    def missing(self) -> list[Log2Hps]:
        """What it asks for."""
        return self.at(self.state.missing)

    def following(self) -> list[Log2Hps]:
        """What it may ask for once it has what it lacks now, wherever its optimum then lies.

        Not where an end diverges that `beyond` points would have gone on from: a round more then.
        What it lacks comes first, then the next round's; of a round first what is near the middle.
        """

        def off_middle(value: float) -> float:
            return abs(value - self.axis.default)

        values, worlds = dict[float, None](), [dict[float, float]()]  # losses that it may get
        while worlds:
            imagined = list[dict[float, float]]()
            for world in worlds:
                state = self._replay(world)
                values |= dict.fromkeys(state.missing)
                finite = [each for each in state.losses.values() if math.isfinite(each)] or [0.0]
                places = sorted(state.missing, key=off_middle)[:MOST_PLACES]
                worse = world | dict.fromkeys(state.missing, max(finite) + 1)
                imagined += [worse | {place: min(finite) - 1} for place in places]
                imagined += [worse] * bool(places and state.losses)
            distinct = {frozenset(world.items()): world for world in imagined}.values()
            worlds = sorted(distinct, key=lambda w: off_middle(min(w, key=w.__getitem__)))
            worlds = worlds[:MOST_PLACES]
        return self.at(values)

    def result(self) -> LineResult | None:
        """What it has found; None while it has no loss."""
        losses = self.state.losses
        if not losses:
            return None
        best = line_optimum(losses)
        where = [(value, hps) for value in sorted(losses) for hps in self.at([value])]
        return LineResult(
            name=self.name,
            points_log2=tuple(sorted(losses.items())),
            optimum_log2=best,
            objective=losses[best],
            extended=self.state.extended,
            stopped_log2=tuple(value for value, hps in where if self.history.stopped(hps)),
            failed_log2=tuple(value for value, hps in where if self.history.failed(hps)),
            choices=self.axis.choices,
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
    """What ends a line at its optimum, and what to change; no `axis` where it has no range."""
    low = line.optimum_log2 == min(line.points_log2)[0]
    if axis is None:
        return f": raise {longer}"
    end = axis.low if low else axis.high
    room = line.optimum_log2 - end if low else end - line.optimum_log2
    if room > 1e-9:
        return f", and the range goes on to 2^{end:g}: raise {longer}"
    change = "lower" if low else "raise"
    return f": {change} parameterization.space.{line.name}.{'low' if low else 'high'}"


LONGER = {"eta": "search.line.points or search.line.extend"}
"""What lets the line go on within its range."""


@dataclass(frozen=True, kw_only=True)
class LearningRateLine(StrategySettings):
    """A line over eta, refined around the optimum by halving the spacing; `seeds` a point."""

    line: LineRule = field(default_factory=lambda: LineRule(points=11))
    seeds: Annotated[int, ONE_OR_MORE] = 1

    def plan(self, space: Space) -> list[Phase]:
        """One phase."""
        return [Phase(name="eta", trials=self.line.points * self.seeds)]

    def _line(self, space: Space, history: History) -> SearchLine:
        seeds = range(self.seeds)
        return SearchLine(self.line, space["eta"], history, defaults(space), "eta", seeds)

    def propose(self, space: Space, history: History) -> list[Point]:
        """The line's missing points."""
        line = self._line(space, history)
        return missing_points(line.missing, line.seeds, "eta", history)

    def may_follow(self, space: Space, history: History) -> list[Point]:
        """What the line may ask for; in its last round, the optima that it may end with."""
        line = self._line(space, history)
        if len(following := line.following()) > len(line.missing):
            return missing_points(following, line.seeds, "eta", history)
        best = line.result()
        return ends([*line.at([best.optimum_log2] if best else []), *line.missing])

    def conclude(self, space: Space, history: History) -> Conclusion:
        """The line's optimum."""
        base = defaults(space)
        line = self._line(space, history).result()
        return Conclusion(
            best_log2=Log2Hps({**base, "eta": line.optimum_log2 if line else base["eta"]}),
            objective=line.objective if line else float("inf"),
            seeds=self.seeds,
            runs=len(history.results),
            lines=(line,) if line else (),
            notes=(*line_notes([line] if line else [], space, LONGER), *pruned_notes(history)),
            phase_ends={"eta": len(history.results)},
        )
