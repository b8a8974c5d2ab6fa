"""The best loss against the trials spent, where a configuration is trained with several seeds.

A minimum over single runs flatters: of more runs the luckiest is lower, and no configuration
keeps it. Here a configuration counts with the mean over its seeds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from statistics import mean

from sweeper.search.strategy import hps_key
from sweeper.trial import Log2Hps, Result

Curve = tuple[tuple[int, float], ...]
"""(trials, loss in nats), one a trial."""


def best_mean_curve(results: Iterable[Result], seeds: int) -> Curve:
    """(trials, least mean over `seeds`); until one configuration has all, over those it has."""
    losses: defaultdict[Hashable, list[float]] = defaultdict(list)
    complete: list[float] = []
    curve: list[tuple[int, float]] = []
    for result in results:
        one = losses[hps_key(result.trial.log2_hps)]
        one.append(result.objective)
        if len(one) >= seeds:
            complete = [min([*complete, mean(one)])]
        best = complete or map(mean, losses.values())
        curve.append((len(curve) + 1, min(best)))
    return tuple(curve)


def independent_curve(
    results: Iterable[Result], base: Log2Hps, seeds: int, finalists: Sequence[Log2Hps], fresh: int
) -> Curve:
    """(trials, loss of the configuration that the search would keep then); it may rise.

    In the phase `eta` a loss is that of one seed. In `lines` the `base` counts with the seeds it
    has so far, any other configuration with all of its `seeds`. From `combine` on only the
    `fresh` seeds count, on which nothing was selected: the curve goes to the mean of the first of
    the `finalists`, the combined optimum, and then to the better one's. So a lucky minimum is
    corrected, and the harm of combining is seen. `retune` lowers it again.
    """
    start, ends = hps_key(base), {hps_key(hps) for hps in finalists}
    losses: defaultdict[Hashable, list[float]] = defaultdict(list)
    means: dict[Hashable, float] = {}
    value = selected = best = math.inf
    curve: list[tuple[int, float]] = []
    for result in results:
        key, phase = hps_key(result.trial.log2_hps), result.trial.phase
        if phase == "eta":
            losses[key].append(result.objective)
            value = selected = min(value, result.objective)
        elif phase == "lines":
            losses[key].append(result.objective)
            if key != start and len(losses[key]) >= seeds:
                best = min(best, mean(losses[key]))
            value = selected = min([best, *map(mean, filter(None, [losses.get(start)]))])
        else:
            fresh_losses = losses["fresh", key]
            fresh_losses.append(result.objective)
            if len(fresh_losses) >= fresh:
                means[key] = mean(fresh_losses)
                lost = ends <= means.keys() and math.isinf(min(means.values()))
                # Where both finalists diverged, what the lines chose stays.
                value = selected if lost else min(means.values())
        curve.append((len(curve) + 1, value))
    return tuple(curve)
