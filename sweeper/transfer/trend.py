"""The optimum as a power of the width, and what it predicts for the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np

from sweeper.transfer.curve import BIAS, CurveFit, Estimate, fit_curves
from sweeper.transfer.ladder import LadderRule, SizeCurve
from sweeper.transfer.noise import Array
from sweeper.transfer.power_law import fit_plane
from sweeper.transfer.verdict import Verdict
from sweeper.trial import encode

MIN_TREND_WIDTHS = 3
"""Widths that a correction needs: any two lie on a line."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """log2 eta = a + slope * log2 width through the optima of `widths` (Everett et al.'s beta_n).

    `predicted_log2` is eta at the width `target`; `transferred_log2` is the plan's eta without a
    correction. `gain` is what the prediction would save in nats, read off the curve of the widest
    model. A correction is `warranted` when the slope's interval excludes 0 and the prediction's
    interval excludes the transferred eta; `reason` says so in words.
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
        record: dict[str, Any] = encode(asdict(self))
        return record


def fit_trend(curves: Sequence[SizeCurve], transferred: float, target: int) -> Trend | None:
    """The trend of the optima over width; None when fewer than two optima have an interval.

    Curves whose lowest point is at their end are left out: there the optimum is only a bound.
    """
    all_fits = {size.width: fit for size, fit in fit_curves(curves, transferred).items()}
    fits = {
        width: fit
        for width, fit in sorted(all_fits.items())
        if fit and not fit.at_end and not fit.noise_unknown
    }
    if len(fits) < 2:
        return None
    slopes, predictions = _fit_line(fits, target)
    slope, predicted = (Estimate.from_draws(float(d[0]), d[1:]) for d in (slopes, predictions))
    # At the target itself nothing was measured. The widest curve, moved so that its optimum is
    # the predicted one, stands for the target's.
    widest = fits[max(fits)]
    etas = widest.optimum.value - (predictions - transferred)
    warranted, reason = _warranted(len(fits), slope, predicted, transferred)
    return Trend(
        widths=tuple(fits),
        slope=slope,
        target=target,
        transferred_log2=transferred,
        predicted_log2=predicted,
        gain=widest.loss_gap(float(etas[0]), etas[1:]),
        warranted=warranted,
        reason=reason,
    )


def _fit_line(fits: dict[int, CurveFit], target: int) -> tuple[Array, Array]:
    """Slope, and log2 eta at `target`, of the weighted line: the measured one, then its draws.

    See `fit_plane`.
    """
    # What a law plans at a width is taken out: the trend is of what the law leaves.
    planned = np.array([fit.curve.planned_log2 for fit in fits.values()])
    optima = np.array([fit.optimum.value for fit in fits.values()]) - planned
    generator = np.random.default_rng(list(fits))
    # Each width has a bias of its own here: the slope would otherwise trust that the curves'
    # shapes are the same over the whole ladder.
    draws = np.array([fit.free_optimum_draws for fit in fits.values()])
    draws += generator.normal(0.0, BIAS, draws.shape) - planned[:, None]
    # With log2 width measured from the target's, the intercept is the prediction.
    x = np.vstack([np.log2(np.array(list(fits)) / target), np.ones(len(fits))])
    slopes, predictions = fit_plane(x, optima, draws)
    return slopes, predictions


def _warranted(
    count: int, slope: Estimate, predicted: Estimate, transferred: float
) -> tuple[bool, str]:
    """Whether to correct the transferred eta, and why or why not."""
    if count < MIN_TREND_WIDTHS:
        return False, f"{count} widths cannot show a trend; it takes {MIN_TREND_WIDTHS}"
    if slope.low <= 0 <= slope.high:
        return False, "the line through the optima may be level"
    if predicted.low <= transferred <= predicted.high:
        return False, "the transferred eta lies within the prediction's interval"
    return True, "the optimum moves with the width, by more than the prediction is uncertain"


def limit_by_trend(verdict: Verdict, trend: Trend | None, rule: LadderRule) -> Verdict:
    """The verdict over width, limited to its ladder where the trend says otherwise beyond it.

    So it is where a correction is warranted at a target wider than any width trained, without
    which the shift or the loss would be beyond the thresholds there.
    """
    widest = max(verdict.sizes, key=attrgetter("size.width"), default=None)
    if trend is None or not trend.warranted or verdict.answer == "fails" or widest is None:
        return verdict
    shift = abs(trend.predicted_log2.value - trend.transferred_log2)
    allowed = rule.allowed_gap(widest.loss.value)
    beyond = shift > rule.max_shift or trend.gain.value > allowed
    if trend.target <= widest.size.width or not beyond:
        return verdict
    sentence = (
        f"beyond the ladder, at width {trend.target}, the trend predicts that the transferred eta "
        f"is off by {shift:.2f} in log2 and loses {trend.gain.value:.4f} nats, which is beyond the "
        "thresholds: transfer.correct=true plans with the trend, and a ladder with larger "
        "transfer.widths tests it"
    )
    return replace(verdict, up_to=f"width {widest.size.width}").with_note(sentence)
