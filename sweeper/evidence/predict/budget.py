"""The best size for a budget: by the law, and by the parabolas of budgets that were trained."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sweeper.evidence.predict.forecast import LossLaw, estimate_of
from sweeper.evidence.runs.loss_runs import LossRuns, Rungs
from sweeper.stats.estimate import Estimate, quantile
from sweeper.stats.power_law import Array

NEAREST, BRACKET = 7, math.log(2.0)
"""Runs of a budget that its parabola takes at most, and how far they reach beyond the lowest."""
LEAST_RUNS, LEAST_BUDGETS = 4, 3
"""Of a parabola, and of the line through their lowest points."""
WIDTH = 6.0
"""Log of the sizes that are searched, to both sides of the middle."""


@dataclass(frozen=True, kw_only=True)
class Valley:
    """What another size costs at the budget: `times` the best size, its loss, the loss lost."""

    times: float
    params: float
    tokens: float
    loss: float
    gap: Estimate
    compute: float


@dataclass(frozen=True, kw_only=True)
class BudgetOptimum:
    """The best size and tokens for `flops`.

    `by_law` is the law's, `by_parabolas` approach 2's: their difference is in the interval.
    """

    flops: float
    params: Estimate
    tokens: Estimate
    loss: Estimate
    valley: tuple[Valley, ...]
    by_law: float
    by_parabolas: float | None = None


def best_of_budget(params: Array, loss: Array) -> float | None:
    """Log of the best size of runs of one budget, by a parabola; None where it lies at an end."""
    sizes, logs = np.log(params), np.log(loss)
    at = sizes[logs.argmin()]
    near = np.argsort(np.abs(sizes - at), kind="stable")[:NEAREST]
    # Only with sizes an octave to both sides: a parabola would find a best one anywhere.
    bracketed = at - sizes.min() >= BRACKET and sizes.max() - at >= BRACKET
    if len(near) < LEAST_RUNS or not bracketed:
        return None
    curve = np.polyfit(sizes[near] - at, logs[near], 2)
    beyond = -curve[1] / (2 * curve[0]) if curve[0] > 0 else math.inf
    # A vertex outside of the runs is an extrapolation of a form that holds near the lowest alone.
    inside = sizes[near].min() <= at + beyond <= sizes[near].max()
    return float(at + beyond) if inside else None


def by_parabolas(runs: LossRuns, rungs: Rungs, flops: float) -> tuple[float, float] | None:
    """Log of the best size for `flops`, and its standard deviation (approach 2 of Hoffmann et al.).

    A line in log compute through budgets' lowest points; None where fewer than three have one.
    """
    if rungs.kind != "budget":
        return None
    budgets = [runs.only(rungs.index == index) for index in range(len(rungs))]
    found = [
        (np.log(some.flops).mean(), best_of_budget(some.params, some.loss)) for some in budgets
    ]
    usable = np.array([pair for pair in found if pair[1] is not None], float)
    if len(usable) < LEAST_BUDGETS:
        return None
    x, y = usable[:, 0] - usable[:, 0].mean(), usable[:, 1]
    slope, level = np.polyfit(x, y, 1)
    free = len(x) - 2
    residual = math.sqrt(float(((y - level - slope * x) ** 2).sum()) / free)
    there = math.log(flops) - usable[:, 0].mean()
    # A prediction's deviation: scatter about the line, and the doubt about its level and its slope.
    deviation = residual * math.sqrt(1 + 1 / len(x) + there**2 / float(x @ x))
    return float(level + slope * there), deviation * quantile(free, 0.975) / 1.96


def optimum(law: LossLaw, flops: float, rungs: Rungs | None = None) -> BudgetOptimum:
    """Minimize L(N, C / (k N)) over N, k FLOPs a parameter and token, of every draw.

    With `rungs` beside approach 2: both are weighed by their doubts, and what they differ by is one
    more. ValueError where sizes and tokens were not varied apart, or the best is at no finite size
    or of less than one token.
    """
    if len(law.members[0].best.form.terms) < 2:
        raise ValueError(
            f"the runs varied {law.design.varied}: which size is best for a budget needs runs "
            "that vary the size and the tokens apart"
        )
    product = flops / law.runs.flops_per_product
    sizes = np.exp(0.5 * math.log(product) + np.linspace(-WIDTH, WIDTH, 241))
    # Paths: one smooth law a draw over all sizes, since a minimum of scattered points is biased.
    logs = law.paths(sizes, product / sizes)
    at = logs.argmin(1)
    # A parabola through the lowest point and its neighbours: the grid is coarser than the answer.
    inner = np.clip(at, 1, len(sizes) - 2)
    left, here, right = (logs[np.arange(len(logs)), inner + i] for i in (-1, 0, 1))
    shift = 0.5 * (left - right) / np.maximum(left - 2 * here + right, 1e-15)
    step = math.log(sizes[1] / sizes[0])
    best = np.log(sizes)[inner] + np.clip(shift, -1, 1) * step
    # At an end of the grid no neighbours make a parabola: the end itself is the draw's bound.
    best = np.where(at == inner, best, np.log(sizes)[at])
    middle = float(np.median(best))
    # The middle draw lies at an end of the search: one term has gone, and there is no valley.
    if not abs(middle - 0.5 * math.log(product)) < WIDTH - step:
        raise ValueError("by this law no finite size is best: one of its two terms is 0")
    drawn, second = best, by_parabolas(law.runs, rungs, flops) if rungs else None
    center = middle
    if second is not None:
        # Of the draws by percentiles: some lie at the ends of the search.
        own = max(float(np.subtract(*np.percentile(best, [97.5, 2.5]))) / (2 * 1.96), 1e-6)
        weight = own**-2 / (own**-2 + second[1] ** -2)
        center = weight * middle + (1 - weight) * second[0]
        # Each is right with a chance of a half, whichever calls itself surer.
        wide = math.sqrt(0.5 * own**2 + 0.5 * second[1] ** 2 + 0.25 * (middle - second[0]) ** 2)
        # The draws have the shape of the doubt; moved and stretched to both ways' together.
        drawn = center + wide / own * (best - middle)
    params, size = np.exp(drawn), math.exp(center)
    if min(size, product / size) < 1:
        raise ValueError("by this law its best run has less than one parameter or token")
    # The loss of the size that is planned, not of each draw's own best: that is what one will get.
    reached = law.loss(size, product / size)
    return BudgetOptimum(
        flops=flops,
        params=estimate_of(params, size),
        tokens=estimate_of(product / params, product / size),
        loss=reached,
        valley=tuple(_valley(law, size, product, times) for times in (0.25, 0.5, 2.0, 4.0)),
        by_law=math.exp(middle),
        by_parabolas=math.exp(second[0]) if second else None,
    )


def _valley(law: LossLaw, size: float, product: float, times: float) -> Valley:
    sizes = np.array([size, times * size])
    there = law.log_losses(sizes, product / sizes)
    gap = estimate_of(np.exp(there[:, 1]) - np.exp(there[:, 0]))
    loss = float(law.mean_loss(sizes, product / sizes)[1])
    return Valley(
        times=times,
        params=times * size,
        tokens=product / size / times,
        loss=loss,
        gap=gap,
        compute=law.compute_for(size, product / size, loss),
    )
