"""Whether a search's best stands beside trials that left no result: it may not be the best then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sweeper.trial import Axis, Log2Hps, Result, split


def without_result(
    results: Sequence[Result], best: Log2Hps, space: Mapping[str, Axis]
) -> list[tuple[str, Result]]:
    """Failed trials beside the best, by the one hyperparameter in which they differ from it.

    No trial with a result lies between. Of choices, which have no order, those of the best count.
    """
    numbers, chosen = split(space, best)
    alike = [result for result in results if result.trial.choices == chosen]
    places = [(_moved(result.trial.log2_hps, numbers), result) for result in alike]
    done = [moved for moved, result in places if result.status != "failed"]
    found: dict[tuple[str, float], Result] = {}
    for moved, result in places:
        if result.status != "failed" or len(moved) != 1:
            continue
        [(name, distance)] = moved.items()
        # On the same side of the best, and as near to it: another seed of this very place, too.
        nearer = any(
            other.keys() == moved.keys() and 0 < other[name] / distance <= 1 for other in done
        )
        if not nearer:
            found[name, distance] = result
    nearest = {
        (name, distance > 0): min(
            (d for n, d in found if n == name and (d > 0) == (distance > 0)), key=abs
        )
        for name, distance in found
    }
    return [(name, found[name, distance]) for (name, _), distance in nearest.items()]


def _moved(hps: Log2Hps, best: Log2Hps) -> dict[str, float]:
    """The hyperparameters in which a trial differs from the best, and by how much."""
    return {name: hps[name] - best[name] for name in best if hps[name] != best[name]}
