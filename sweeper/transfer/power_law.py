"""A weighted fit of a plane through the optima of curves, with draws that carry their intervals."""

from __future__ import annotations

import math

import numpy as np

from sweeper.transfer.noise import Array


def fit_plane(x: Array, optima: Array, draws: Array) -> Array:
    """Coefficients [rows, 1 + draws] of `optima` [curves] over the rows of `x` [rows, curves].

    The first column is the fit, the others are its draws, from `draws` [curves, draws] of the
    optima. The weights are the inverse variances of the optima. The rows must be independent.
    """
    # From percentiles, not from the standard deviation: a few draws far off would dominate it.
    low, high = np.percentile(draws, [2.5, 97.5], axis=1)
    weights = ((high - low) / (2 * 1.96)) ** -2.0
    solve = np.linalg.solve((x * weights) @ x.T, x * weights)
    fitted = solve @ optima
    residuals = optima - fitted @ x
    # The Birge ratio, the root of chi^2 per degree of freedom: above 1 the optima scatter about
    # the plane more than their own intervals say, and the draws widen by it. Below 1 it is left
    # out, since few curves may lie on a plane by chance.
    freedom = max(1, len(optima) - len(x))
    scale = max(1.0, math.sqrt((weights * residuals**2).sum() / freedom))
    deviations = scale * (solve @ (draws - optima[:, None]))
    return np.hstack([fitted[:, None], fitted[:, None] + deviations])
