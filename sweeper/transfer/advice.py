"""What would settle an open verdict: longer or finer curves, or so many more seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeper.transfer.ladder import LadderRule, named

if TYPE_CHECKING:
    from sweeper.transfer.verdict import SizeVerdict

MOST = 16.0
"""No more than so many times the seeds are advised: the estimate is too rough beyond."""


@dataclass(frozen=True, kw_only=True)
class More:
    """How many seeds a point would do, what every open size needs, and the runs on the ladder."""

    seeds: int
    sizes: Mapping[str, int]
    runs: int


def advise(
    axis: str, sizes: Sequence[SizeVerdict], points: int, rule: LadderRule
) -> tuple[str, More | None]:
    """What to run next for the open `sizes`, in words, and as numbers where it is seeds.

    `points` counts those of all curves of the ladder: seeds are trained on each. A size without
    an interval is asked for a second seed; with two, for finite points.
    """
    ends = [named(size.size, axis) for size in sizes if size.at_end]
    if ends:
        return f"let the curves reach further at {'; '.join(ends)}: raise transfer.extend", None
    if rule.seeds == 1:
        needed = {named(size.size, axis): 2 for size in sizes}
        more = More(seeds=2, sizes=needed, runs=points)
        return f"train at least two seeds a point, {points} more runs: transfer.seeds=2", more
    few = [named(size.size, axis) for size in sizes if math.isinf(size.loss.high)]
    if few:
        return f"measure more rates that are finite at {'; '.join(few)}: lower transfer.step", None
    gaps = [named(size.size, axis) for size in sizes if math.isinf(size.cost.high)]
    if gaps:
        return (
            f"measure the curves at the base's optimum for {'; '.join(gaps)}: "
            "lower transfer.step or raise transfer.span"
        ), None
    needed = {named(size.size, axis): _seeds(size, rule) for size in sizes}
    seeds = max(needed.values())
    more = More(seeds=seeds, sizes=needed, runs=(seeds - rule.seeds) * points)
    each = ", ".join(f"{count - rule.seeds} at {name}" for name, count in needed.items())
    words = f"train about {seeds - rule.seeds} more seeds a point ({each}), {more.runs} more runs"
    return f"{words} on this ladder: transfer.seeds={seeds}", more


def _seeds(size: SizeVerdict, rule: LadderRule) -> int:
    """Seeds a point that would settle `size`.

    An interval of half-width h around a value that is d off its threshold clears it with
    (h / d)^2 times the seeds. One estimate beyond its threshold suffices to fail.
    """
    pairs = ((size.shift_log2, rule.max_shift), (size.cost, rule.allowed(size.loss.value)))
    within, beyond = list[float](), list[float]()
    for estimate, limit in pairs:
        room = limit - abs(estimate.value)
        half = max(estimate.high - estimate.value, estimate.value - estimate.low)
        factor = (half / room) ** 2 if half < MOST**0.5 * abs(room) else MOST
        (within if room > 0 else beyond).append(factor)
    factor = min(beyond) if beyond else max(within)
    return max(rule.seeds + 1, math.ceil(rule.seeds * factor))
