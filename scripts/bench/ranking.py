"""How often `sweeper compare --settle` ranks studies wrongly, and what it takes to rank them.

Made-up losses over seeds, of two or three studies: an offset of each seed's own that all share, and
noise. Equal studies must not be ranked, unlike ones not the wrong way round. Distances are in
standard deviations of the paired difference.

    python scripts/bench/ranking.py --count 4000
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sweeper.evidence.compare.ranking import Ranking

Array = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Array]
SEEDS = 135
"""Seeds of each that the budget allows: more than the default's, and so more looks."""
MOST = 3 * SEEDS
"""Where others dropped out, the last ones have their seeds, too."""
LEVEL = 10.0
"""The loss about which all is drawn: so small that no two studies are called alike."""


def normal(generator: np.random.Generator, count: int) -> Array:
    """As sums of many small effects are."""
    return generator.normal(size=count)


def tails(generator: np.random.Generator, count: int) -> Array:
    """Student's with 3 degrees of freedom."""
    return generator.standard_t(3, size=count) / math.sqrt(3)


def skewed(generator: np.random.Generator, count: int) -> Array:
    """Skewness 1, to high losses."""
    return (generator.gamma(4, size=count) - 4) / 2


def spikes(generator: np.random.Generator, count: int) -> Array:
    """Skewness 2: exponential."""
    return generator.exponential(size=count) - 1


def none(generator: np.random.Generator, count: int) -> Array:
    """A study without noise of its own."""
    del generator
    return np.zeros(count)


KINDS: dict[str, tuple[Noise, ...]] = {
    "normal": (normal, normal),
    "t(3)": (tails, tails),
    "skewed": (skewed, skewed),
    "spikes": (spikes, spikes),
    "one noisy, one quiet": (normal, none),
    "one t(3), one quiet": (tails, none),
    "one skewed, one normal": (skewed, normal),
    "one spikes, one normal": (spikes, normal),
    "one skewed, one quiet": (skewed, none),
    "one spikes, one quiet": (spikes, none),
    "three normal": (normal, normal, normal),
    "three, one skewed": (skewed, normal, normal),
}


def rank(
    noises: Sequence[Noise], distance: float, diverge: float, generator: np.random.Generator
) -> Ranking:
    """One ranking of studies whose first one is better by `distance`; runs diverge by chance."""
    own = np.array([noise(generator, MOST) for noise in noises])
    own /= math.sqrt(sum(noise is not none for noise in noises[:2]))
    own[1:] += distance
    losses = LEVEL + own + generator.normal(size=MOST)
    losses[generator.random(losses.shape) < diverge] = math.inf
    names = "abc"[: len(noises)]
    budget = SEEDS * len(names)
    ranking = Ranking(names, lambda n, seed: float(losses[names.index(n), seed]), budget=budget)
    ranking.missing()
    return ranking


def main(arguments: Sequence[str] | None = None) -> None:
    """Rank equal studies of every kind, and unlike ones."""
    from findings import Findings

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=4000, help="rankings a row (4000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--markdown", type=Path, help="where the table goes")
    asked = parser.parse_args(arguments)
    rows = list[list[str]]()
    cases = [(name, 0.0, 0.0) for name in KINDS]
    cases += [("normal", 0.0, 0.1), ("normal", 0.0, 0.5)]
    cases += [("normal", d, 0.0) for d in (0.25, 0.5, 1.0, 2.0, 4.0)]
    cases += [("one spikes, one quiet", d, 0.0) for d in (0.5, -0.5)]
    for name, distance, diverge in cases:
        place = [asked.seed, round(100 * distance) + 1000, round(100 * diverge), *name.encode()]
        generator = np.random.default_rng(place)
        count = asked.count if distance == 0 else max(1, asked.count // 4)
        right = wrong = 0
        runs, endings = list[int](), Counter[str]()
        for _ in range(count):
            ranking = rank(KINDS[name], distance, diverge, generator)
            assert ranking.outcome is not None
            # Who dropped out of three is ranked, too.
            ranked = any(place.out for place in ranking.places)
            best = (distance > 0) == (ranking.places[0].name == "a") and distance != 0
            right, wrong = right + (ranked and best), wrong + (ranked and not best)
            runs.append(ranking.runs)
            endings[ranking.outcome.ended] += 1
        shares = [f"{100 * part / count:.2f}" for part in (wrong, right)]
        ends = [f"{100 * endings[end] / count:.0f}" for end in ("hopeless", "budget")]
        told = name + f", {100 * diverge:.0f} % diverge" * bool(diverge)
        spent = [f"{np.mean(runs):.0f}", f"{np.median(runs):.0f}"]
        rows.append([told, f"{distance:g}", *shares, *spent, *ends])
    columns = ["kind", "distance", "ranked wrongly", "rightly", "runs", "median"]
    Findings(
        title=f"Rankings of studies, per cent of {asked.count} (a quarter where they differ)",
        columns=[*columns, "hopeless", "budget"],
        rows=rows,
        notes=["Of equal studies (distance 0) every ranking is wrong."],
        record={"count": asked.count, "rows": rows},
    ).tell(asked.out, asked.markdown)


if __name__ == "__main__":
    main()
