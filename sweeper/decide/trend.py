"""The drift of an optimum along a ladder, and the answer at a target beyond it.

The ladder's answer is about the sizes that were trained. The target's is about one that was not:
its optimum is predicted (`target.py`), and so is what the plan's value loses there, read off the
widest size's curve. It holds where both intervals lie within the ladder's own thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import numpy as np

from sweeper.decide.ladder_verdict import (
    MORE_SEEDS,
    Advice,
    Answer,
    TargetAnswer,
    TargetReason,
    Verdict,
    judge_ladder,
    worst,
)
from sweeper.decide.target import (
    Belief,
    OptimumBackTest,
    OptimumPrediction,
    Prior,
    back_test,
    predict,
    shifted,
)
from sweeper.laws.fit import DIRECTIONS, PUBLISHED, Direction
from sweeper.laws.law import Scale
from sweeper.records import NOT_WRITTEN
from sweeper.stats.curve import BIAS, CurveFit, fit_curves
from sweeper.stats.estimate import UNKNOWN, Array, Estimate
from sweeper.stats.ladder import JOINT_AXIS, LADDER_AXES, LadderRule, LadderSize, SizeCurve
from sweeper.stats.noise import fit_plane

MIN_TREND_SIZES = 3
"""Sizes that an answer beyond a ladder, a correction and an exponent need: any two optima lie on a
line. Each further direction of exponents takes one more."""
MOST = 4
"""No ladder is advised beyond the target over this: a run there costs a sixteenth of the target's,
and a curve takes some eighteen."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """What the optima of the ladder's `sizes` over `axis` say of the size `target`.

    `slope` is that of the line log2 eta = a + slope * log2 size (Everett et al.'s beta_n), a
    description: `predicted_log2`, the optimum at the target, averages over forms of drift, whose
    probabilities are `forms`; `prior` names what was believed before. `transferred_log2` is the
    plan's eta without a correction, `off_log2` how far the optimum lies from it at the target, and
    `loss_gap` what training with it loses there (nats), and `predicted_gap` what training with the
    prediction loses. `gain` is what planning with that would save. A correction is `warranted`
    where all of the gain's interval is above 0.
    A record has the `reason` and the `prior` in words, `belief` is the prior's name.
    """

    axis: str
    sizes: tuple[int, ...]
    slope: Estimate
    target: int
    transferred_log2: float
    predicted_log2: Estimate
    off_log2: Estimate
    loss_gap: Estimate
    gain: Estimate
    warranted: bool
    reason: str = ""
    prior: str = ""
    forms: Mapping[str, float]
    back_test: OptimumBackTest | None
    predicted_gap: Estimate = UNKNOWN
    belief: Belief | None = field(default=None, compare=False, metadata=NOT_WRITTEN)


@dataclass(frozen=True, eq=False)
class Optima:
    """The optima of a ladder with their standard errors [sizes], ascending, beyond a law's plan."""

    sizes: tuple[int, ...]
    values: Array
    errors: Array
    fits: Sequence[CurveFit]

    @classmethod
    def of(cls, axis: str, fitted: Mapping[LadderSize, CurveFit | None]) -> Optima | None:
        """The optima of a ladder's fits, those at an end left out; None for fewer than two."""
        fits = {
            int(getattr(size, axis)): fit
            for size, fit in fitted.items()
            # Without a noise an error is infinite, and its optimum would weigh nothing.
            if fit and not fit.at_end and not fit.noise_unknown
        }
        if len(fits) < 2:
            return None
        sizes = tuple(sorted(fits))
        ordered = [fits[size] for size in sizes]
        # Their own, without what a common shape may move all of them by: see `Forms.evenly`.
        draws = np.array([fit.free_optimum_draws for fit in ordered])
        # What a law plans at a size is taken out: the trend is of what the law leaves.
        values = [fit.optimum.value - fit.curve.planned_log2 for fit in ordered]
        # From percentiles, not from the draws' standard deviation: a few far off would dominate it.
        low, high = np.percentile(draws, [2.5, 97.5], axis=1)
        errors = np.hypot((high - low) / (2 * 1.96), BIAS)
        return cls(sizes, np.array(values), errors, ordered)


def shifts_along(
    axis: str, fits: Mapping[LadderSize, CurveFit | None], base: LadderSize, prior: Prior
) -> dict[LadderSize, Estimate]:
    """The shifts from the base's optimum over `axis`, as all optima and their drift tell them.

    Of single runs, whose own optima are known to a third of an octave: two of them alone leave
    open what the ladder tells. Sizes that have only a bound have none, nor does a bound's ladder.
    """
    noises = {size: fit.curve.noise for size, fit in fits.items() if fit}
    single = {size: fits[size] for size, noise in noises.items() if noise and noise.single}
    optima = Optima.of(axis, single)
    if optima is None or optima.sizes.count(int(getattr(base, axis))) != 1:
        return {}
    first = optima.sizes.index(int(getattr(base, axis)))
    shifts = dict[LadderSize, Estimate]()
    for place, fit in enumerate(optima.fits):
        if place == first:
            continue
        estimate = shifted(
            optima.sizes, optima.values, optima.errors, (place, first), prior
        ).estimate()
        # The value stays that of the two curves: an interval holds it.
        value = float(optima.values[place] - optima.values[first])
        shifts[fit.curve.size] = replace(estimate, value=value).and_also(
            Estimate(value=value, low=value, high=value)
        )
    return shifts


def loss_gap_at(optima: Optima, off: float, draws: Array, confidence: float = 0.95) -> Estimate:
    """Nats lost by training `off` (log2) below the optimum; `draws` [DRAWS] of it.

    At the target itself nothing was measured. The curve of the largest size stands for its curve:
    as far from its own optimum, draw by draw.
    """
    # Its level is wrong there and cancels in a gap; its shape is what curves of a ladder share.
    largest = optima.fits[-1]
    # As far from the curve's drawn optimum as the plan's value lies from the drawn prediction.
    away = largest.safe_optimum_draws - draws
    return largest.loss_gap(largest.optimum.value - off, away, confidence)


def fit_trend(
    axis: str, curves: Sequence[SizeCurve], transferred: float, target: int, prior: Prior
) -> Trend | None:
    """The trend of the optima over `axis`; None when fewer than two optima have an interval."""
    optima = Optima.of(axis, fit_curves(curves, transferred))
    return None if optima is None else trend_of(axis, optima, transferred, target, prior)


def trend_of(axis: str, optima: Optima, transferred: float, target: int, prior: Prior) -> Trend:
    """The trend of known optima."""
    predicted = predict(optima.sizes, optima.values, optima.errors, target, prior)
    count = len(optima.fits[-1].safe_optimum_draws)
    off = float(predicted.mean) - transferred
    # A fixed seed: the same optima give the same interval.
    draws = predicted.draws(count, np.random.default_rng(0)) - transferred
    predicted_gap, gain = _gaps(optima, off, draws)
    estimate = predicted.estimate()
    return Trend(
        axis=axis,
        sizes=optima.sizes,
        slope=_slope(optima),
        target=target,
        transferred_log2=transferred,
        predicted_log2=estimate,
        off_log2=estimate.moved(-transferred),
        loss_gap=loss_gap_at(optima, off, draws),
        predicted_gap=predicted_gap,
        gain=gain,
        # Any two optima lie on a line; and following a wide prediction may cost more than it saves.
        warranted=len(optima.sizes) >= MIN_TREND_SIZES and gain.low > 0,
        belief=prior.name,
        forms=predicted.forms,
        back_test=back_test(optima.sizes, optima.values, optima.errors, prior),
    )


def _slope(optima: Optima) -> Estimate:
    generator = np.random.default_rng(list(optima.sizes))
    draws = np.array([fit.free_optimum_draws for fit in optima.fits])
    # Of its own: the slope would trust that shapes are the same over the whole ladder.
    draws += generator.normal(0.0, BIAS, draws.shape)
    draws -= np.array([fit.curve.planned_log2 for fit in optima.fits])[:, None]
    x = np.vstack([np.log2(np.array(optima.sizes)), np.ones(len(optima.sizes))])
    slopes = fit_plane(x, optima.values, draws)[0]
    return Estimate.from_draws(float(slopes[0]), slopes[1:])


def _gaps(optima: Optima, off: float, draws: Array) -> tuple[Estimate, Estimate]:
    """Nats that planning with the mean prediction loses, and that it saves: medians of the draws.

    `draws` are of the optimum, `off` their mean, from the transferred value. Where the prediction
    is wide, following it may cost more than it saves. Where a curve was not measured, intervals
    hold the least that may be lost or saved and the most.
    """
    largest = optima.fits[-1]
    value, safe = largest.optimum.value, largest.safe_optimum_draws
    before = largest.gap_bounds(np.append(value - off, safe - draws))
    after = largest.gap_bounds(np.append(value, safe - (draws - off)))
    # Both losses may be infinite, where the curve was not measured: their difference is not a
    # number, and is then whatever it may be at the least and at the most.
    with np.errstate(invalid="ignore"):
        least, most = before[0] - after[1], before[1] - after[0]
    least[np.isnan(least)] = -math.inf
    most[np.isnan(most)] = math.inf
    return _median(*after), _median(least, most)


def _median(least: Array, most: Array) -> Estimate:
    """The median of the least, with an interval of both; the first of [1 + draws] is no draw."""
    # "nearest": bounds may be infinite, and between two of them nothing can be interpolated.
    median = float(np.percentile(least[1:], 50, method="nearest"))
    return Estimate(
        value=median,
        low=Estimate.from_draws(median, least[1:]).low,
        high=Estimate.from_draws(median, most[1:]).high,
    )


def judge_target(
    verdict: Verdict,
    fits: Mapping[LadderSize, CurveFit | None],
    transferred: float,
    target: int,
    rule: LadderRule,
    prior: Prior,
    *,
    is_named: bool = False,
) -> tuple[TargetAnswer, Trend | None]:
    """The answer at the size `target` of the verdict's axis, and the trend behind it.

    `fits` are those of the ladder's curves. A value that `is_named` is asked about itself: it
    fails where it lies too far from the optimum that is predicted, whatever the ladder says of the
    base's optimum.

    A target between sizes of the ladder has the answer of those from the base to the next size on.
    Beyond, it holds where the ladder does and the predicted shift and loss gap lie within the
    thresholds with their whole intervals; it fails where the ladder fails, or one of the two lies
    beyond its threshold. No answer is better than the ladder's.
    """
    axis, answered = verdict.axis, partial(TargetAnswer, axis=verdict.axis, size=target)
    sizes = sorted(int(getattr(size.size, axis)) for size in verdict.sizes)
    optima = Optima.of(axis, fits)
    trend = None if optima is None else trend_of(axis, optima, transferred, target, prior)
    # A named value need not be the base's best, so that the ladder's answer is not about it: it can
    # fail on a ladder that holds, and first of all.
    if is_named and optima and trend:
        allowed = rule.allowed_gap(optima.fits[-1].loss.value)
        off, gap = trend.off_log2, trend.loss_gap
        if gap.low > allowed or max(off.low, -off.high) > rule.max_shift:
            return answered(answer="fails", off_log2=off, loss_gap=gap, code="wrong_rate"), trend
    if sizes[0] <= target <= sizes[-1]:
        return answered(answer=_within(verdict, target), code="within"), trend
    wider = target > sizes[-1]
    times = target / sizes[-1] if wider else sizes[0] / target
    answer: Answer
    # A target cannot hold on a ladder that does not: a shift was seen at sizes nearer than it.
    if not (optima and trend) or verdict.answer != "holds":
        answer = "fails" if verdict.answer == "fails" else "cannot say yet"
        code: TargetReason = "as_on_ladder" if verdict.answer != "holds" else "too_few_optima"
        return answered(answer=answer, code=code, times=times, wider=wider), trend
    # What is judged is the plan: with a correction its eta is the predicted one.
    planned = trend.predicted_log2.value if rule.correct and trend.warranted else transferred
    prediction = predict(optima.sizes, optima.values, optima.errors, target, prior)
    sure = verdict.confidence
    answer, off, gap = _judged(optima, prediction, planned, rule, sure)
    # A trend that misses the widest size that was measured is not believed beyond it.
    reproduced = trend.back_test is None or trend.back_test.reproduced
    if answer == "holds" and not (reproduced and len(optima.sizes) >= MIN_TREND_SIZES):
        answer = "cannot say yet"
    advice = Advice()
    # Only where it would change the answer: a target that holds takes no correction.
    better = trend.warranted and not rule.correct and answer != "holds"
    # The corrected plan has to hold by itself; that it gains something is too little to advise it.
    corrected = float(prediction.mean)
    if better and _judged(optima, prediction, corrected, rule, sure)[0] == "holds":
        advice = Advice(axis=axis, code="correct", settings={"correct": "true"})
    elif answer == "cannot say yet":
        advice = _advice(axis, optima, planned, target, rule, prior, sure)
    target_answer = answered(
        answer=answer,
        off_log2=off,
        loss_gap=gap,
        settle=advice.overrides,
        code="predicted",
        times=times,
        wider=wider,
        missed=None if reproduced else trend.back_test,
        advice=advice,
    )
    return target_answer, trend


def _within(verdict: Verdict, target: int) -> Answer:
    values = {int(getattr(size.size, verdict.axis)): size for size in verdict.sizes}
    base = next(value for value, size in values.items() if size.is_base)
    # To the next size on: of two measured ones the farther is the stricter.
    if target >= base:
        covering = min(value for value in values if value >= target)
    else:
        covering = max(value for value in values if value <= target)
    low, high = sorted((base, covering))
    return worst(size.answer for value, size in values.items() if low <= value <= high)


def judge_joint_target(verdict: Verdict, target: LadderSize) -> TargetAnswer:
    """The answer of a ladder along which several sizes change: nothing is extrapolated from it."""
    covered = [
        size
        for size in verdict.sizes
        # In every size at once: one that is deeper but narrower covers nothing of it.
        if all(getattr(size.size, axis) >= getattr(target, axis) for axis in LADDER_AXES)
    ]
    answer: Answer = "cannot say yet"
    code: TargetReason = "joint_beyond"
    if verdict.answer != "holds":
        answer, code = verdict.answer, "joint_as_on_ladder"
    elif covered:
        answer, code = "holds", "joint_within"
    return TargetAnswer(axis=verdict.axis, size=target.width, answer=answer, code=code)


def _judged(
    optima: Optima,
    prediction: OptimumPrediction,
    planned: float,
    rule: LadderRule,
    confidence: float,
) -> tuple[Answer, Estimate, Estimate]:
    """The answer at the prediction's size, the shift (log2) and the loss gap (nats) there."""
    off = prediction.estimate(confidence).moved(-planned)
    allowed = rule.allowed_gap(optima.fits[-1].loss.value)
    # A fixed seed: ways to go on compare on the same draws.
    count, generator = len(optima.fits[-1].safe_optimum_draws), np.random.default_rng(0)
    draws = prediction.draws(count, generator) - planned
    gap = loss_gap_at(optima, off.value, draws, confidence)
    if gap.low > allowed or max(off.low, -off.high) > rule.max_shift:
        return "fails", off, gap
    if gap.high <= allowed and max(-off.low, off.high) <= rule.max_shift:
        return "holds", off, gap
    return "cannot say yet", off, gap


def _advice(
    axis: str,
    optima: Optima,
    planned: float,
    target: int,
    rule: LadderRule,
    prior: Prior,
    confidence: float,
) -> Advice:
    """What would tell: the shortest longer ladder, by doublings, or else more seeds at all sizes.

    Every new optimum is taken to lie where it is expected, as sure as the last. A drift grows with
    the ladder, and only the error falls with seeds.
    """
    widths, gap = _larger(optima, target), UNKNOWN
    for times in (1, MORE_SEEDS):
        longer = replace(optima, errors=optima.errors / times**0.5)
        for count in range(len(widths) + 1):
            if count:
                longer = _with_size(longer, widths[count - 1], prior)
            predicted = predict(longer.sizes, longer.values, longer.errors, target, prior)
            answer, _, gap = _judged(longer, predicted, planned, rule, confidence)
            tested = back_test(longer.sizes, longer.values, longer.errors, prior)
            missed = answer == "holds" and tested is not None and not tested.reproduced
            # At that nothing is trained.
            if (count, times) == (0, 1) or answer == "cannot say yet" or missed:
                continue
            line, sizes = rule.points_per_line() * rule.seeds, (*optima.sizes, *widths[:count])
            runs = {size: line * (times - (size <= optima.sizes[-1])) for size in sizes}
            settings = _ladder_setting(axis, sizes) if count else {}
            return Advice(
                axis=axis,
                code="more_seeds" if times > 1 else "longer_ladder",
                ladder=sizes if count else (),
                settings=settings | ({"seeds": f"{times * rule.seeds}"} if times > 1 else {}),
                runs={size: number for size, number in runs.items() if number},
            )
    # Nothing settles it within reach. The gap is infinite even so: the widest curve was not
    # measured as far as the plan lies off.
    if math.isinf(gap.high):
        return Advice(axis=axis, code="longer_curves", settings={"span": f"{2 * rule.span:g}"})
    # The ladder is as long as it may be for this target, and the answer is open for its errors.
    if not widths:
        return Advice(axis=axis, code="less_noise")
    sizes = (*optima.sizes, *widths)
    return Advice(axis=axis, code="narrower", ladder=sizes, settings=_ladder_setting(axis, sizes))


def _ladder_setting(axis: str, sizes: Sequence[int]) -> dict[str, str]:
    return {LADDER_AXES.get(axis, axis): f"[{','.join(map(str, sizes))}]"}


def _larger(optima: Optima, target: int) -> list[int]:
    sizes, last = list[int](), optima.sizes[-1]
    while last <= target / 2 / MOST:
        last *= 2
        sizes.append(last)
    return sizes


def _with_size(optima: Optima, size: int, prior: Prior) -> Optima:
    expected = predict(optima.sizes, optima.values, optima.errors, size, prior).mean
    return Optima(
        (*optima.sizes, size),
        np.append(optima.values, float(expected)),
        np.append(optima.errors, optima.errors[-1]),
        optima.fits,
    )


def judge_with_target(
    axis: str,
    curves: Sequence[SizeCurve],
    fits: Mapping[LadderSize, CurveFit | None],
    transferred: float,
    base: LadderSize,
    rule: LadderRule,
    prior: Prior,
    target: LadderSize | None,
    *,
    law: str = "",
    confidence: float = 0.95,
    fixed: Collection[str] = (),
    is_named: bool = False,
) -> tuple[Verdict, Trend | None]:
    """The verdict over an axis with its answer at the `target`, and the trend of its optima.

    Without a target the trend is that of the largest size. The rest is as in `judge_ladder`, and
    `is_named` as in `judge_target`.
    """
    joint = axis == JOINT_AXIS
    shifts = {} if joint else shifts_along(axis, fits, base, prior)
    verdict = judge_ladder(
        axis, curves, transferred, base, rule, law, confidence, fits, fixed, shifts
    )
    if joint:
        joint_answer = judge_joint_target(verdict, target) if target else None
        return replace(verdict, target=joint_answer), None
    to = max(int(getattr(size, axis)) for size in ([target] if target else fits))
    answer, trend = judge_target(verdict, fits, transferred, to, rule, prior, is_named=is_named)
    # At the base's own size nothing is carried, unless a value was named to be judged there.
    carried = target is not None and (is_named or to != getattr(base, axis))
    return replace(verdict, target=answer) if carried else verdict, trend


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
    draws: Array = field(repr=False, compare=False, metadata=NOT_WRITTEN)
    measured: Array = field(repr=False, compare=False, metadata=NOT_WRITTEN)

    JSON_SHOWS: ClassVar[tuple[str, ...]] = ("exponents",)

    def log2_eta(self, direction: Direction) -> Estimate | None:
        """The change of log2 eta along a direction, with its 95 % interval; None: not measured."""
        way = np.array(direction)
        # Off the directions in which curves differ a coefficient is 0 by the basis.
        if not np.allclose(self.measured @ way, way, atol=1e-6 * float(np.abs(way).max())):
            return None
        change = way @ self.draws[1:]
        return Estimate.from_draws(float(change[0]), change[1:])

    @property
    def exponents(self) -> list[Exponent]:
        """Every direction that was measured, beside what laws print for it."""
        exponents = []
        for name, direction in DIRECTIONS.items():
            if (measured := self.log2_eta(direction)) is None:
                continue
            printed = [(law, law.along(direction)) for law in PUBLISHED]
            published = tuple(
                PublishedExponent(
                    law=law.name,
                    source=law.source,
                    exponent=value,
                    inside=measured.low <= value <= measured.high,
                )
                for law, value in printed
                if value is not None
            )
            exponents.append(Exponent(direction=name, measured=measured, published=published))
        return exponents


def fit_exponents(
    curves: Sequence[tuple[Scale, SizeCurve]], transferred: float
) -> FittedExponents | None:
    """The exponents from curves of one width and depth, none at an end; None for too few."""
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
    # Each curve has a bias of its own here, as in `_slope`: their shapes need not agree.
    draws += np.random.default_rng(seed).normal(0.0, BIAS, draws.shape)
    return exponents_of([scale for scale, _ in usable], optima, draws)


def exponents_of(scales: Sequence[Scale], optima: Array, draws: Array) -> FittedExponents | None:
    """The exponents from `optima` [sizes] in log2 eta and their bootstrap `draws` [sizes, n].

    None where the sizes do not differ in batch or tokens, or are too few for what they differ in.
    """
    logs = np.log2(np.array([[scale.batch, scale.tokens] for scale in scales], dtype=np.float64))
    # From the first curve: what all have in common would count as a direction.
    away = (logs - logs[0]).T
    rank = int(np.linalg.matrix_rank(away, tol=1e-6))
    if rank == 0 or len(scales) < MIN_TREND_SIZES + rank - 1:
        return None
    # An orthonormal basis of what was varied: a ladder along which batch and tokens grow together
    # tells one direction, and neither exponent by itself.
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
