"""Which runs a law is fitted to: all, or those that were trained as the run to come will be.

Laws bend where models are trained on few tokens a parameter, or on few tokens at all: warm-up is
no small part there, and losses lie tens of per cent off any law of the others. Left out are runs
with fewer tokens a parameter than some, and the smallest in compute, if the rungs beyond, tried
backwards, say so: their miss has to become half of what it is with all runs. What stays spans as
much compute as the run to come lies beyond it, and has runs of its tokens a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from sweeper.evidence.predict.forecast import ROLLOUTS
from sweeper.evidence.runs.loss_runs import Design, LossRuns, Rungs
from sweeper.stats.power_law import ADDITIVE, Array, LossLaws, fit, regress

RATIOS, SPANS = (0.0, 1.0, 3.0), (math.inf, 32.0, 8.0)
"""Tokens a parameter, and what the largest compute is times, below which runs may be left out."""
BETTER = 0.5
"""Of the miss with all runs: what it has to become where some are left out."""
LEAST_KEPT, LEAST_RUNGS = 20, 4
"""Runs and rungs that stay, and of every shorter ladder half as many: fewer tell of nothing."""

Kept = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Runs that a law was not fitted to: `count` of `of`.

    They have fewer than `ratio` tokens a parameter ("undertrained"), less than `flops` FLOPs
    ("small"), or are either. The farthest rungs, tried backwards, missed by `miss_all` with them
    and by `miss` without.
    """

    code: str
    count: int
    of: int
    ratio: float
    flops: float
    miss_all: float
    miss: float


def tried(ratio: float, beyond: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The `RATIOS` and `SPANS` that are tried: runs to come with the same have one law."""
    ratios = tuple(each for each in RATIOS if each <= ratio)
    return ratios, tuple(span for span in SPANS if span >= beyond)


def choose_runs(
    runs: LossRuns, ratio: float = math.inf, beyond: float = 1.0
) -> tuple[LossRuns, LeftOut | None]:
    """The runs that the law of a run to come is fitted to, and the others.

    It has `ratio` tokens a parameter, and lies `beyond` the largest run in compute.
    """
    design = Design.of(runs)
    # Of one axis, or both on a line, tokens a parameter say no more than compute.
    if len(design.form.terms) == 1:
        return runs, None
    rungs = Rungs.of(runs, design)
    choices = list(_choices(runs, rungs, *tried(ratio, beyond)))
    if len(choices) < 2 or len(rungs) < 3:
        return runs, None
    best = fit(ADDITIVE, runs.params, runs.tokens, runs.loss)
    misses = _misses(runs, rungs, np.stack([kept for *_, kept in choices]), best)
    chosen = int(misses.argmin())
    # Half, and not merely less: of nine choices the best is better by luck alone.
    if not misses[chosen] < BETTER * misses[0]:
        return runs, None
    least, flops, kept = choices[chosen]
    few, small = least > 0, flops > float(runs.flops.min())
    return runs.only(kept), LeftOut(
        code="both" if few and small else "undertrained" if few else "small",
        count=int((~kept).sum()),
        of=len(runs),
        ratio=least,
        flops=flops,
        miss_all=float(misses[0]),
        miss=float(misses[chosen]),
    )


def _choices(
    runs: LossRuns, rungs: Rungs, ratios: Sequence[float], spans: Sequence[float]
) -> Iterator[tuple[float, float, Kept]]:
    """Least tokens a parameter, least FLOPs, and the runs that have both."""
    ratio, seen = runs.tokens / runs.params, set[bytes]()
    for span, least in product(spans, ratios):
        flops = float(runs.flops.max()) / span
        # A little below the span: runs of one rung differ by some per cent.
        kept = (ratio >= least) & (runs.flops >= 0.95 * flops)
        some = kept.sum() < LEAST_KEPT or len(np.unique(rungs.index[kept])) < LEAST_RUNGS
        if (some and not kept.all()) or kept.tobytes() in seen:
            continue
        seen.add(kept.tobytes())
        yield least, flops, kept


def _misses(runs: LossRuns, rungs: Rungs, kept: NDArray[np.bool_], best: LossLaws) -> Array:
    """The miss of log L at farther rungs, by what each choice has `kept` of the nearer [choices].

    All are held against the same runs, those that no choice leaves out; a rung's is its median.
    """
    common = np.logical_and.reduce(kept)
    squares = []
    for nearer in range(max(2, len(rungs) - ROLLOUTS), len(rungs)):
        near = kept & (rungs.index < nearer)
        # One choice that has no fit there leaves the rung out for all: misses must compare.
        if near.sum(1).min() < LEAST_KEPT / 2 or any(_lacking(runs, some) for some in near):
            continue
        shorter = map(runs.only, near)
        fits = [regress(best, some.params, some.tokens, some.loss)[0] for some in shorter]
        # Every farther rung, not the next alone: the run to come lies far beyond.
        for rung in range(nearer, len(rungs)):
            far = runs.only(common & (rungs.index == rung))
            if len(far):
                losses = np.concatenate([law.loss(far.params, far.tokens) for law in fits])
                # A median, as one run that went wrong says nothing of a choice.
                squares.append(np.median(np.abs(np.log(losses / far.loss)), axis=1) ** 2)
    # Nothing could be tried: all miss alike, and all runs stay.
    return np.sqrt(np.mean(squares, axis=0)) if squares else np.zeros(len(kept))


def _lacking(runs: LossRuns, kept: Kept) -> bool:
    some = runs.only(kept)
    return len(Design.of(some).form.terms) == 1 or some.cells.max() < len(ADDITIVE.parameters)
