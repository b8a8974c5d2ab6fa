"""The optimum as a power of the width, and what it predicts for the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np

from sweeper.laws.fit import DIRECTIONS, PUBLISHED, Direction
from sweeper.laws.law import Scale
from sweeper.records import to_json
from sweeper.verdict.curve import BIAS, CurveFit, Estimate, fit_curves
from sweeper.verdict.judge import Verdict
from sweeper.verdict.ladder import LadderRule, SizeCurve
from sweeper.verdict.noise import Array, fit_plane

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


# Exponents of eta in batch and tokens, fitted to the optima of ladders.


MIN_SIZES = 3
"""Curves that a fit in one direction needs; any two lie on a line. Each further one takes one."""


@dataclass(frozen=True, kw_only=True)
class PublishedExponent:
    """What a law prints for a direction, and whether it lies inside the measured interval."""

    law: str
    source: str
    exponent: float
    inside: bool


@dataclass(frozen=True, kw_only=True)
class Exponent:
    """eta goes as a power of what grows in a direction: measured, and printed by laws."""

    direction: str
    measured: Estimate
    published: tuple[PublishedExponent, ...]

    def __str__(self) -> str:
        """For people, in a line."""
        found = self.measured
        text = f"{self.direction}: {found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
        for words, side in (("inside: ", True), ("outside: ", False)):
            laws = [f"{p.law} {p.exponent:+.2f}" for p in self.published if p.inside is side]
            text += f"; {words}{', '.join(laws)}" if laws else ""
        return text


@dataclass(frozen=True, kw_only=True)
class FittedExponents:
    """log2 eta = a + batch log2 B + tokens log2 T through the optima of ladders.

    `draws` [3, 1 + n] holds a, batch and tokens: as fitted, then n bootstrap draws. `measured`
    [2, 2] projects onto the directions in which curves differ. `batches` and `tokens` are the
    ends of what was measured.
    """

    batches: tuple[int, int]
    tokens: tuple[int, int]
    sizes: int
    draws: Array = field(repr=False, compare=False)
    measured: Array = field(repr=False, compare=False)

    def log2_eta(self, direction: Direction) -> tuple[float, float, float] | None:
        """The change of log2 eta along a direction, with its 95 % interval; None: not measured."""
        way = np.array(direction)
        if not np.allclose(self.measured @ way, way, atol=1e-6 * float(np.abs(way).max())):
            return None
        along = way @ self.draws[1:]
        found = Estimate.from_draws(float(along[0]), along[1:])
        return found.value, found.low, found.high

    def exponents(self) -> list[Exponent]:
        """Every direction that was measured, beside what laws print for it."""
        told = []
        for name, direction in DIRECTIONS.items():
            if (along := self.log2_eta(direction)) is None:
                continue
            measured = Estimate(value=along[0], low=along[1], high=along[2])
            printed = [(one, one.along(direction)) for one in PUBLISHED]
            published = tuple(
                PublishedExponent(
                    law=one.name,
                    source=one.source,
                    exponent=value,
                    inside=measured.low <= value <= measured.high,
                )
                for one, value in printed
                if value is not None
            )
            told.append(Exponent(direction=name, measured=measured, published=published))
        return told

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: what is told, not the draws."""
        record: dict[str, Any] = to_json(
            {
                "sizes": self.sizes,
                "batches": self.batches,
                "tokens": self.tokens,
                "exponents": [asdict(one) for one in self.exponents()],
            }
        )
        return record


def fit_exponents(
    curves: Sequence[tuple[Scale, SizeCurve]], transferred: float
) -> FittedExponents | None:
    """The exponents from curves of one width and depth; None where too few tell any.

    Curves whose lowest point is at their end, or without an interval, are left out.
    """
    fits = fit_curves([curve for _, curve in curves], transferred)
    usable = [
        (scale, fit)
        for scale, curve in curves
        if (fit := fits[curve.size]) and not fit.at_end and not fit.noise_unknown
    ]
    if not usable:
        return None
    optima = np.array([fit.optimum.value for _, fit in usable])
    draws = np.array([fit.free_optimum_draws for _, fit in usable])
    seed = [number for scale, _ in usable for number in (scale.batch, scale.steps)]
    draws += np.random.default_rng(seed).normal(0.0, BIAS, draws.shape)
    return exponents_of([scale for scale, _ in usable], optima, draws)


def exponents_of(scales: Sequence[Scale], optima: Array, draws: Array) -> FittedExponents | None:
    """The exponents from `optima` [sizes] in log2 eta and their bootstrap `draws` [sizes, n].

    None where the sizes do not differ in batch or tokens, or are too few for what they differ in.
    """
    logs = np.log2(np.array([[scale.batch, scale.tokens] for scale in scales], dtype=np.float64))
    away = (logs - logs[0]).T
    rank = int(np.linalg.matrix_rank(away, tol=1e-6))
    if rank == 0 or len(scales) < MIN_SIZES + rank - 1:
        return None
    basis = np.linalg.svd(away)[0][:, :rank]
    # Along the measured directions alone: their coefficients are then all told apart.
    x = np.vstack([np.ones(len(scales)), basis.T @ away])
    fitted = fit_plane(x, optima, draws)
    batches, tokens = ([getattr(s, key) for s in scales] for key in ("batch", "tokens"))
    return FittedExponents(
        batches=(min(batches), max(batches)),
        tokens=(min(tokens), max(tokens)),
        sizes=len(scales),
        draws=np.vstack([fitted[:1], basis @ fitted[1:]]),
        measured=basis @ basis.T,
    )
