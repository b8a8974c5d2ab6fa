"""Does the transfer hold along a ladder? Stated thresholds against measured intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from sweeper.transfer.advice import Advice, SeedAdvice, advise
from sweeper.transfer.base import MissedOptimum, missed_optimum
from sweeper.transfer.curve import (
    BIAS,
    UNKNOWN,
    UNKNOWN_BASIN,
    Basin,
    CurveFit,
    Estimate,
    fit_curves,
)
from sweeper.transfer.ladder import LadderRule, Size, SizeCurve, describe_size, size_record
from sweeper.trial import encode

Answer = Literal["holds", "fails", "cannot say yet"]

SAME_SEEDS = (
    "all seeds lost the same to the last digit: the seed changes nothing, and no noise shows"
)


@dataclass(frozen=True, kw_only=True)
class SizeVerdict:
    """One size: its optimum in log2 eta, the shift from the base's, its least loss (nats).

    `regret` is the loss in nats from training at the transferred eta, `loss_gap` that from
    training at the optimum of the base's curve. The answer rests on `shift_log2` and `loss_gap`,
    at the base on whether eta is right there: one that is wrong at the base already is a fault of
    the search, not of the transfer, which nothing shows until it is mended. `basin`
    is the range of learning rates within 1 % of the least loss. `planned_log2` is log2 of the
    factor that a law plans with: shift, regret and loss gap are what it leaves.
    """

    size: Size
    optimum_log2: Estimate
    shift_log2: Estimate
    loss: Estimate
    regret: Estimate
    loss_gap: Estimate
    at_end: bool
    answer: Answer
    reason: str
    basin: Basin = UNKNOWN_BASIN
    is_base: bool = False
    planned_log2: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer for one axis, from that of its sizes.

    `todo` says what would settle an open answer, `seed_advice` in numbers where that is more
    seeds, and `settle` as overrides (`Advice`). `note` warns of what the answer does not say:
    larger models that are worse, for example. `limits` are the thresholds in words. `law` says by
    which law eta was planned. `up_to` is the largest size, in words, where the trend speaks
    against the transfer beyond it.
    """

    axis: str
    answer: Answer
    sizes: tuple[SizeVerdict, ...]
    todo: str = ""
    note: str = ""
    limits: str = ""
    seed_advice: SeedAdvice | None = None
    law: str = ""
    up_to: str = ""
    settle: tuple[str, ...] = ()

    def with_note(self, sentence: str) -> Verdict:
        """The verdict with one more note."""
        return replace(self, note=". Also, ".join(filter(None, (sentence, self.note))))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; without a law it says nothing of one."""
        record: dict[str, Any] = encode(asdict(self))
        for judged in record["sizes"]:
            judged["size"] = size_record(judged["size"])
        if not self.law:
            del record["law"]
            for judged in record["sizes"]:
                del judged["planned_log2"]
        return record


def judge_ladder(
    axis: str,
    curves: Sequence[SizeCurve],
    transferred: float,
    base: Size,
    rule: LadderRule,
    law: str = "",
) -> Verdict:
    """Fit every curve and judge it against the thresholds of `rule`.

    `transferred` is the log2 eta that the plan uses at the base; at another size a law's factor,
    `SizeCurve.planned_log2`, is added. `law` says which law that is.

    A size holds when both its intervals lie within the thresholds. It fails when one interval lies
    beyond its threshold, or when training at the base's optimum diverges. Otherwise it is open;
    with one seed there is no interval, so every size is. The axis fails if any size fails, and
    holds if all hold. Over a base where the transferred eta misses the optimum nothing holds.
    """
    fits = fit_curves(curves, transferred)
    base_fit, base_curve = fits[base], next(curve for curve in curves if curve.size == base)
    sizes = [
        replace(
            _judge_size(curve.size, fits[curve.size], base_fit, rule, is_base=curve.size == base),
            planned_log2=curve.planned_log2,
            **_failed(curve, base_curve),
        )
        for curve in curves
    ]
    missed = missed_optimum(base_fit, transferred, rule)
    if missed is not None:
        sizes = [_missing(size, missed) if size.is_base else size for size in sizes]
    answers = {size.answer for size in sizes}
    order: tuple[Answer, ...] = ("fails", "cannot say yet", "holds")
    answer = next(one for one in order if one in answers)
    advice = Advice()
    if answer == "cannot say yet":
        points = sum(len(curve.losses) for curve in curves)
        advice = _mending(curves, fits.values(), missed) or advise(
            axis, [s for s in sizes if s.answer == answer], points, rule
        )
    return Verdict(
        axis=axis,
        answer=answer,
        sizes=tuple(sizes),
        todo=advice.words,
        note=_worse_note(axis, sizes),
        limits=(
            f"a shift of at most {rule.max_shift:g} in log2 and a loss gap of at most "
            f"{100 * rule.max_loss_gap:g} % of the least loss"
        ),
        seed_advice=advice.seeds,
        law=law,
        settle=advice.settle,
    )


def _missing(base: SizeVerdict, missed: MissedOptimum) -> SizeVerdict:
    """The base where the transferred eta misses its optimum: the plan would miss every minimum."""
    if base.answer != "holds":
        return base
    return replace(base, answer="cannot say yet", reason=missed.sentence)


def _mending(
    curves: Sequence[SizeCurve], fits: Iterable[CurveFit | None], missed: MissedOptimum | None
) -> Advice | None:
    """What to mend before anything can be measured, if there is something."""
    if any(curve.failed for curve in curves):
        return Advice("mend what made runs fail, and run this again: it trains them anew")
    if any(fit is not None and fit.same_seeds for fit in fits):
        return Advice("let a run's seed change its initial weights or its batches")
    if missed is None:
        return None
    better = f"{missed.optimum_log2:.2f}"
    if missed.along == "eta":
        override = f"transfer.eta={better}"
        return Advice(f"plan with the base's optimum: {override}", (override,))
    return Advice(f"tune {missed.along} again, with more runs: its optimum is at 2^{better}")


def _failed(curve: SizeCurve, base: SizeCurve) -> dict[str, Any]:
    """The answer where runs failed: what was not measured neither holds nor fails."""
    count, whose = (curve.failed, "") if curve.failed else (base.failed, "of the base ")
    if not count:
        return {}
    reason = f"{count} {'run' if count == 1 else 'runs'} {whose}failed: that is no divergence"
    return {"answer": "cannot say yet", "reason": reason}


def _judge_size(
    size: Size, fit: CurveFit | None, base_fit: CurveFit | None, rule: LadderRule, *, is_base: bool
) -> SizeVerdict:
    """The verdict on one size; a fit is None where every run diverged."""
    if fit is None or base_fit is None:
        return SizeVerdict(
            size=size,
            optimum_log2=UNKNOWN,
            shift_log2=UNKNOWN,
            loss=UNKNOWN,
            regret=UNKNOWN,
            loss_gap=UNKNOWN,
            at_end=False,
            answer="fails" if fit is None else "cannot say yet",
            reason="every run diverged" if fit is None else "every run of the base diverged",
            is_base=is_base,
        )
    shift = gap = Estimate(value=0.0, low=0.0, high=0.0)
    if not is_base:
        shift, gap = _compare_with_base(fit, base_fit)
    answer, reason = _answer(fit, base_fit, shift, gap, rule)
    return SizeVerdict(
        size=size,
        optimum_log2=fit.optimum,
        shift_log2=shift,
        loss=fit.loss,
        regret=fit.regret,
        loss_gap=gap,
        at_end=fit.at_end,
        answer=answer,
        reason=reason,
        basin=fit.basin,
        is_base=is_base,
    )


def _compare_with_base(fit: CurveFit, base_fit: CurveFit) -> tuple[Estimate, Estimate]:
    """The shift of the optimum from the base's, and the loss gap of training at the base's.

    The base's optimum goes to the size by the law's factor, if there is a law. The draws of two
    sizes are independent, so their differences are draws of the shift.
    """
    planned = fit.curve.planned_log2 - base_fit.curve.planned_log2
    draws = fit.free_optimum_draws - base_fit.free_optimum_draws - planned
    shift = Estimate.from_draws(fit.optimum.value - base_fit.optimum.value - planned, draws)
    # Where the base's optimum lies matters here as well. Most of its bias this curve shares.
    bias = np.random.default_rng(len(draws)).normal(0.0, BIAS / 2, len(draws))
    sure = base_fit.safe_optimum_draws + planned
    # The bias alone leads nowhere that was not measured.
    ends = [eta for eta, losses in fit.curve.losses.items() if np.isfinite(losses).all()]
    at = np.clip(sure + bias, np.minimum(sure, min(ends)), np.maximum(sure, max(ends)))
    gap = fit.loss_gap(base_fit.optimum.value + planned, at)
    if fit.noise_unknown or base_fit.noise_unknown:
        shift = shift.without_interval()
        gap = gap if math.isinf(gap.low) else gap.without_interval(0.0)
    return shift, gap


def _answer(
    fit: CurveFit, base_fit: CurveFit, shift: Estimate, gap: Estimate, rule: LadderRule
) -> tuple[Answer, str]:
    """The answer for one size, and the reason for it.

    What fails is said first: one interval beyond its threshold settles that, whatever is open
    about the other.
    """
    allowed = rule.allowed_gap(fit.loss.value)
    least_shift = max(0.0, shift.low, -shift.high)
    if math.isinf(gap.low):
        return "fails", "training at the base's optimum diverges"
    if fit.same_seeds or base_fit.same_seeds:
        return "cannot say yet", SAME_SEEDS
    if fit.noise_unknown or base_fit.noise_unknown:
        return "cannot say yet", "too few seeds or finite runs to estimate the noise"
    if gap.low > allowed:
        return "fails", f"training at the base's optimum loses at least {gap.low:.4f} nats"
    if least_shift > rule.max_shift:
        return "fails", f"the optimum shifts by at least {least_shift:.2f} in log2"
    if fit.at_end:
        return "cannot say yet", "the optimum is at the end of the curve or beyond"
    if math.isinf(gap.high):
        return "cannot say yet", "the curve was not measured at the base's optimum"
    if gap.high > allowed:
        return "cannot say yet", f"training at the base's optimum may lose {gap.high:.4f} nats"
    if max(abs(shift.low), abs(shift.high)) > rule.max_shift:
        return "cannot say yet", f"the shift may be {shift.low:+.2f} to {shift.high:+.2f} in log2"
    return "holds", "shift and loss gap are within the thresholds"


def _worse_note(axis: str, sizes: Sequence[SizeVerdict]) -> str:
    """What to say when a larger model has the higher loss.

    Its eta may transfer although its scheme is wrong: under muP wider is better throughout
    training (Tensor Programs V, section 8).
    """
    if axis not in ("width", "depth"):
        return ""
    base = next(size for size in sizes if size.is_base)
    extent = attrgetter(f"size.{axis}")
    worse = [s for s in sizes if s.loss.low > base.loss.high and extent(s) > extent(base)]
    if not worse:
        return ""
    first = worse[0]
    return (
        f"{describe_size(first.size, axis)} is worse than the base by "
        f"{first.loss.value - base.loss.value:.4f} nats, each at its optimum. A larger model "
        "should be better: `sweeper check` shows whether a module grows or vanishes with the size"
    )
