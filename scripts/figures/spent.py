"""The best loss of a search against the trials that it has spent."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from statistics import fmean

import numpy as np

from sweeper.trial import Log2Hps, Result, hps_key

Curve = tuple[tuple[int, float], ...]
"""(trials, loss in nats), one a trial."""


def expected_best(values: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """(n, expected best loss of n trials drawn without replacement): what a shorter search gets.

    With the values sorted, the i-th (from 0) of N is the best of n draws with probability
    C(N-i-1, n-1) / C(N, n): it is drawn, and the other n - 1 are among the N-i-1 worse ones.
    A diverged trial is taken at the largest finite loss.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ()
    ordered = np.sort([value if math.isfinite(value) else max(finite) for value in values])
    total = len(ordered)
    # In logarithms, because the binomials overflow a float.
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, total + 1)))])
    curve = []
    for n in range(1, total + 1):
        i = np.arange(total - n + 1)  # with fewer than n - 1 worse ones a value is never the best
        log_best = (
            log_factorial[total - i - 1] - log_factorial[n - 1] - log_factorial[total - i - n]
        )
        log_draws = log_factorial[total] - log_factorial[n] - log_factorial[total - n]
        curve.append((n, float(np.exp(log_best - log_draws) @ ordered[: total - n + 1])))
    return tuple(curve)


def independent_curve(
    results: Iterable[Result], base: Log2Hps, seeds: int, finalists: Sequence[Log2Hps], fresh: int
) -> Curve:
    """(trials, loss of the configuration that the search would keep then); it may rise.

    In the phase `eta` a loss is that of one seed. In `lines` the `base` counts with the seeds it
    has so far, any other configuration with all of its `seeds`. In `combine` only the `fresh`
    seeds count, by which neither of the `finalists` was chosen: the curve goes to the mean of the
    first of them, the combined optimum, and then to the better one's. So a lucky minimum is
    corrected, and the harm of combining is seen. There it stays: retuning decides at its end.
    """
    base_key, finalist_keys = hps_key(base), {hps_key(hps) for hps in finalists}
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
            if key != base_key and len(losses[key]) >= seeds:
                best = min(best, fmean(losses[key]))
            value = selected = min([best, *map(fmean, filter(None, [losses.get(base_key)]))])
        elif phase == "combine":
            # Under a key of their own: the same configuration may have losses of the lines' seeds.
            fresh_losses = losses["fresh", key]
            fresh_losses.append(result.objective)
            if len(fresh_losses) >= fresh:
                means[key] = fmean(fresh_losses)
                # Where both finalists diverged, what the lines chose stays.
                diverged = finalist_keys <= means.keys() and math.isinf(min(means.values()))
                value = selected if diverged else min(means.values())
        curve.append((len(curve) + 1, value))
    return tuple(curve)
