"""The best size for a budget, by the law; and the law over compute, at the best sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sweeper.evidence.predict.forecast import LossLaw
from sweeper.stats.estimate import Array, Estimate

CURVE = 60
"""Points of the law over compute."""
WIDTH = 6.0
"""Log of the sizes that are searched, to both sides of the middle."""


@dataclass(frozen=True, kw_only=True)
class Valley:
    """What another size costs at the budget: `times` the best size, and the loss lost."""

    times: float
    gap: Estimate


@dataclass(frozen=True, kw_only=True)
class BudgetOptimum:
    """The best size and tokens for `flops`, their loss, and what other sizes cost."""

    flops: float
    params: Estimate
    tokens: Estimate
    loss: Estimate
    valley: tuple[Valley, ...]


def optimum(law: LossLaw, flops: float) -> BudgetOptimum:
    """Minimize L(N, C / (k N)) over N, k FLOPs a parameter and token, of every draw.

    ValueError where sizes and tokens were not varied apart, or the best is at no finite size or of
    less than one token.
    """
    if len(law.form.terms) < 2:
        raise ValueError(
            f"the runs varied {law.design.varied}: which size is best for a budget needs runs "
            "that vary the size and the tokens apart"
        )
    product = flops / law.runs.flops_per_product
    logs = 0.5 * math.log(product) + np.linspace(-WIDTH, WIDTH, 241)
    sizes = np.exp(logs)
    # Paths: one smooth law a draw over all sizes, since a minimum of scattered points is biased.
    best = logs[law.paths(sizes, product / sizes).argmin(1)]
    size = float(np.exp(np.median(best)))
    # The middle draw lies at an end of the search: one term has gone, and there is no valley.
    if not sizes[1] < size < sizes[-2]:
        raise ValueError("by this law no finite size is best: one of its two terms is 0")
    if min(size, product / size) < 1:
        raise ValueError("by this law its best run has less than one parameter or token")
    params = np.exp(best)
    return BudgetOptimum(
        flops=flops,
        params=Estimate.from_draws(size, params),
        tokens=Estimate.from_draws(product / size, product / params),
        # Of the size that is planned, not of each draw's own best: that is what one will get.
        loss=law.loss(size, product / size),
        valley=tuple(_valley(law, size, product, times) for times in (0.5, 2.0)),
    )


def _valley(law: LossLaw, size: float, product: float, times: float) -> Valley:
    sizes = np.array([size, times * size])
    there = law.log_losses(sizes, product / sizes)
    gaps = np.exp(there[:, 1]) - np.exp(there[:, 0])
    return Valley(times=times, gap=Estimate.from_draws(float(np.median(gaps)), gaps))


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """The law at a compute, the best split of it where size and tokens were varied apart."""

    params: float
    tokens: float
    flops: float
    loss: Estimate


def law_curve(law: LossLaw, aim: float | None) -> tuple[CurvePoint, ...]:
    """The law over compute from the smallest run to the `aim`, or to four times the largest.

    Where size and tokens were varied apart, at the best split of each budget, as far as it has one.
    """
    runs = law.runs
    first = float(runs.flops.min())
    last = max(float(runs.flops.max()) * (1 if aim else 4), aim * 1.5 if aim else 0)
    budgets = np.exp(np.linspace(math.log(first), math.log(last), CURVE))
    if len(law.form.terms) == 2:
        sizes, horizons = _frontier(law, budgets)
    else:
        middle = int(np.argmax(runs.flops))
        start = runs.params[middle], runs.tokens[middle]
        sizes, horizons = law.scaled(*start, budgets / runs.flops[middle])
    logs = law.log_losses(sizes, horizons)
    ends = np.exp(np.percentile(logs, [2.5, 50, 97.5], axis=0))
    return tuple(
        CurvePoint(
            params=float(n),
            tokens=float(d),
            flops=float(c),
            loss=Estimate(value=float(middle), low=float(low), high=float(high)),
        )
        for n, d, c, low, middle, high in zip(sizes, horizons, budgets, *ends, strict=True)
    )


def _frontier(law: LossLaw, budgets: Array) -> tuple[Array, Array]:
    sizes = []
    for budget in budgets:
        product = budget / law.runs.flops_per_product
        grid = np.exp(0.5 * math.log(product) + np.linspace(-6, 6, 121))
        sizes.append(float(grid[law.mean_loss(grid, product / grid).argmin()]))
    best_sizes = np.array(sizes)
    return best_sizes, budgets / law.runs.flops_per_product / best_sizes
