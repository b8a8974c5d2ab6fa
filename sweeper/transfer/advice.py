"""What to run next where a verdict is open: more seeds, longer or finer curves, less noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeper.transfer.ladder import LadderRule, describe_size

if TYPE_CHECKING:
    from sweeper.transfer.verdict import SizeVerdict

MAX_SEED_FACTOR = 16.0
"""No advice asks for this many times the seeds: beyond, seeds are the wrong means."""
MEDIAN_SEED_FACTOR = 9.5
"""So many times the seeds settle half of the estimates that lie at their threshold.

With n times the seeds the estimate moves by a normal of variance s^2 (1 - 1 / n), which exceeds
1.96 s n^-1/2, half of the new interval, in half of the cases at n - 1 = (1.96 / 0.674)^2."""
IN_HAND = 0.5
"""Of a seed, beyond the number with which an interval is expected to end at its threshold.

Without it some advice has next to nothing in hand, and one time in ten was too small by one."""
LONGER = 4
"""So many times the steps, where seeds are the wrong means: their losses have half the noise."""


@dataclass(frozen=True, kw_only=True)
class SeedAdvice:
    """Seeds a point that would settle a verdict: the most, by open size, and the extra runs."""

    seeds: int
    sizes: Mapping[str, int]
    runs: int


@dataclass(frozen=True)
class Advice:
    """What would settle an open verdict: in words, and as overrides of the configuration.

    Overrides of `train` take a study of their own; those after them are for a study that they
    change nothing in. `seeds` has the numbers where more seeds are what it takes.
    """

    words: str = ""
    settle: tuple[str, ...] = ()
    seeds: SeedAdvice | None = None


def advise(axis: str, sizes: Sequence[SizeVerdict], points: int, rule: LadderRule) -> Advice:
    """What to run next for the open `sizes`.

    `points` counts those of all curves of the ladder: seeds are trained at each. The order is
    that of what must come first: no number of seeds settles a curve that ends too early.
    """

    def which(chosen: Sequence[SizeVerdict]) -> str:
        return " and ".join(describe_size(size.size, axis) for size in chosen)

    if ends := [size for size in sizes if size.at_end]:
        longer = f"transfer.extend={2 * rule.extend or 4}"
        return Advice(f"extend the curves of {which(ends)}: raise transfer.extend", (longer,))
    if rule.seeds == 1:
        advice = SeedAdvice(seeds=2, sizes={which([size]): 2 for size in sizes}, runs=points)
        words = f"train at least two seeds a point, {_more(points, 'run')}: transfer.seeds=2"
        return Advice(words, ("transfer.seeds=2",), advice)
    finer = f"transfer.step={rule.step / 2:g}"
    # More seeds would not help here: the noise is read off several finite points.
    if few := [size for size in sizes if math.isinf(size.loss.high)]:
        words = f"measure more points whose runs are all finite at {which(few)}"
        return Advice(f"{words}: lower transfer.step", (finer,))
    if gaps := [size for size in sizes if math.isinf(size.loss_gap.high)]:
        words = f"measure the curves of {which(gaps)} at the base's optimum"
        return Advice(f"{words}: lower transfer.step or raise transfer.span", (finer,))
    needed = {which([size]): _seeds_needed(size, rule) for size in sizes}
    seeds = max(needed.values())
    if hopeless := [n for n, count in needed.items() if count >= MAX_SEED_FACTOR * rule.seeds]:
        steps = max((getattr(size.size, "steps", 0) for size in sizes), default=0)
        return Advice(
            f"do not count on seeds: {' and '.join(hopeless)} would take more than "
            f"{seeds - rule.seeds} more a point. Runs with less noise help: raise train.steps, "
            "train.batch_size or train.objective_window, or lower transfer.step",
            (*[f"train.steps={LONGER * steps}"] * bool(steps), finer),
        )
    more, runs = seeds - rule.seeds, (seeds - rule.seeds) * points
    each = ", ".join(f"{count - rule.seeds} at {name}" for name, count in needed.items())
    words = f"train about {_more(more, 'seed')} a point ({each}), {_more(runs, 'run')}"
    override = f"transfer.seeds={seeds}"
    advice = SeedAdvice(seeds=seeds, sizes=needed, runs=runs)
    return Advice(f"{words} on this ladder: {override}", (override,), advice)


def _more(count: int, what: str) -> str:
    return f"{count} more {what}{'s' * (count != 1)}"


def _seeds_needed(size: SizeVerdict, rule: LadderRule) -> int:
    """Seeds a point that would settle `size`.

    An interval shrinks with the root of the number of seeds. One that reaches h from its value
    towards a threshold that is d off clears it with (h / d)^2 times as many. To hold, both values
    must clear their thresholds; to fail, one beyond its threshold suffices. A value that lies near
    its threshold is seldom the true one, and more seeds move it off: `MEDIAN_SEED_FACTOR`.
    """
    allowed = rule.allowed_gap(size.loss.value)
    within, beyond = list[float](), list[float]()
    for estimate, limit in ((size.shift_log2, rule.max_shift), (size.loss_gap, allowed)):
        value = abs(estimate.value)
        room = limit - value
        least, most = max(0.0, estimate.low, -estimate.high), max(-estimate.low, estimate.high)
        reach = most - value if room > 0 else value - least
        # Compared before dividing: room may be 0.
        small = reach < MEDIAN_SEED_FACTOR**0.5 * abs(room)
        doubtful = MEDIAN_SEED_FACTOR if reach < 2 * limit else MAX_SEED_FACTOR
        factor = (reach / room) ** 2 if small else doubtful
        (within if room > 0 else beyond).append(factor)
    factor = min(beyond) if beyond else max(within)
    return max(rule.seeds + 1, math.ceil(rule.seeds * factor + IN_HAND))
