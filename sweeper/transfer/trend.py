"""The optimum as a power of the width, and what it predicts for the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeper.transfer.curve import BIAS, Fit, fit
from sweeper.transfer.estimate import Estimate
from sweeper.transfer.ladder import SizeCurve
from sweeper.trial import encode

FEWEST = 3
"""Widths that a correction needs: any two lie on a line."""

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Trend:
    """log2 eta = a + slope * log2 width through the optima of `widths` (Everett et al.'s beta_n).

    `predicted_log2` is eta at the width `target`; `transferred_log2` the one that the plan has
    without it. `gain` is what going over from one to the other would save there, in nats, on
    the curve of the widest model. It is `warranted` when the slope's interval excludes 0 and
    that of the prediction the transferred eta: it then moves further than it may be wrong.
    """

    widths: tuple[int, ...]
    slope: Estimate
    target: int
    transferred_log2: float
    predicted_log2: Estimate
    gain: Estimate
    warranted: bool
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        found: dict[str, Any] = encode(asdict(self))
        return found


def trend(curves: Sequence[SizeCurve], transferred: float, target: int) -> Trend | None:
    """The trend of the optima over width; None when fewer than two are known with an interval.

    Curves whose optimum is at their end are left out: there it is a bound.
    """
    known = {curve.size.width: fit(curve, transferred) for curve in curves}
    fits = {w: found for w, found in sorted(known.items()) if found and _usable(found)}
    if len(fits) < 2:
        return None
    slopes, places = _line(fits, target)
    slope, predicted = (Estimate.of(float(d[0]), d[1:]) for d in (slopes, places))
    widest = list(fits.values())[-1]
    off = widest.optimum.value - (places - transferred)
    warranted, reason = _warranted(len(fits), slope, predicted, transferred)
    return Trend(
        widths=tuple(fits),
        slope=slope,
        target=target,
        transferred_log2=transferred,
        predicted_log2=predicted,
        gain=widest.cost(float(off[0]), off[1:]),
        warranted=warranted,
        reason=reason,
    )


def _usable(found: Fit) -> bool:
    return not found.at_end and not found.unsure


def _line(fits: dict[int, Fit], target: int) -> tuple[Array, Array]:
    """Slope, and place at `target`, of the weighted line: the fitted one, then its draws.

    Weights are the inverse variances of the optima. Optima that scatter more than their
    intervals say widen the draws by the root of chi^2 per degree of freedom.
    """
    optima = np.array([found.optimum.value for found in fits.values()])
    generator = np.random.default_rng(list(fits))
    draws = np.array([found.place_draws for found in fits.values()])
    draws += generator.normal(0.0, BIAS, draws.shape)
    low, high = np.percentile(draws, [2.5, 97.5], axis=1)
    weights = ((high - low) / (2 * 1.96)) ** -2.0
    x = np.vstack([np.log2(np.array(list(fits)) / target), np.ones(len(fits))])
    solve = np.linalg.solve((x * weights) @ x.T, x * weights)
    slope, place = solve @ optima
    left = optima - slope * x[0] - place
    scale = max(1.0, math.sqrt((weights * left**2).sum() / max(1, len(fits) - 2)))
    moved = scale * (solve @ (draws - optima[:, None]))
    return np.append(slope, slope + moved[0]), np.append(place, place + moved[1])


def _warranted(
    count: int, slope: Estimate, predicted: Estimate, transferred: float
) -> tuple[bool, str]:
    """Whether to correct the transferred eta, and why or why not."""
    if count < FEWEST:
        return False, f"{count} widths cannot show a trend; it takes {FEWEST}"
    if slope.low <= 0 <= slope.high:
        return False, "the optimum may well not depend on the width"
    if predicted.low <= transferred <= predicted.high:
        return False, "the prediction is no surer than the transferred eta"
    return True, "the optimum moves with the width, by more than the prediction may be wrong"
