"""Does a transfer hold along a ladder? Thresholds against measured intervals, and what to run next.

First comes the base: a value that misses the optimum of the base's own curve is a fault of the
search, and nothing can be said of the transfer before it is mended.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from sweeper.records import WRITTEN_IF_SET
from sweeper.stats.curve import BIAS, UNKNOWN_BASIN, Basin, CurveFit, fit_curves
from sweeper.stats.estimate import UNKNOWN, Estimate
from sweeper.stats.ladder import LadderRule, LadderSize, SizeCurve, describe_size


@dataclass(frozen=True, kw_only=True)
class MissedOptimum:
    """At the base itself, `transferred_log2` loses `loss` nats against `optimum_log2`."""

    hyperparameter: str
    transferred_log2: float
    optimum_log2: float
    loss: float

    @property
    def sentence(self) -> str:
        """What was measured, in words."""
        lost = f"loses {self.loss:.4f} nats" if math.isfinite(self.loss) else "diverges"
        return (
            f"at the base itself, {self.hyperparameter}=2^{self.transferred_log2:.4g} {lost} "
            f"against the optimum 2^{self.optimum_log2:.2f}"
        )


def missed_optimum(
    fit: CurveFit | None, transferred: float, rule: LadderRule
) -> MissedOptimum | None:
    """What the base's curve says against `transferred` (log2); None where it is good enough.

    It is missed where the noise does not explain its regret, and that is larger than the loss gap
    with which a size holds. An optimum at the curve's end is none yet.
    """
    if fit is None or fit.at_end or fit.regret.low <= 0:
        return None
    if fit.regret.value <= rule.allowed_gap(fit.loss.value):
        return None
    return MissedOptimum(
        hyperparameter=rule.hyperparameter,
        transferred_log2=transferred,
        optimum_log2=fit.optimum.value,
        loss=fit.regret.value,
    )


Answer = Literal["holds", "fails", "cannot say yet"]
SizeAnswer = Literal["holds", "fails", "cannot say yet", "base"]
"""Of a size. "base": nothing speaks against the base, which cannot hold against itself."""
WORST_FIRST: tuple[Answer, ...] = ("fails", "cannot say yet", "holds")

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
    factor that a law plans with: shift, regret and loss gap are what it leaves. With `at_end`
    the optimum is a bound, at or below (`side` -1) or at or above (1) its value.
    """

    size: LadderSize
    optimum_log2: Estimate
    shift_log2: Estimate
    loss: Estimate
    regret: Estimate
    loss_gap: Estimate
    at_end: bool
    answer: SizeAnswer
    reason: str
    basin: Basin = UNKNOWN_BASIN
    is_base: bool = False
    planned_log2: float = 0.0
    side: int = field(default=0, metadata=WRITTEN_IF_SET)


@dataclass(frozen=True, kw_only=True)
class TargetAnswer:
    """The answer at the target's `size` of an axis; `sentence` says it with its numbers.

    `off_log2` is how far the optimum lies from the plan's value there, `loss_gap` what that costs
    (nats); UNKNOWN where the ladder reaches the target, or nothing was predicted. `todo` says what
    would likely settle an open answer, `settle` as overrides.
    """

    axis: str
    size: int
    answer: Answer
    sentence: str
    off_log2: Estimate = UNKNOWN
    loss_gap: Estimate = UNKNOWN
    todo: str = ""
    settle: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer for one axis, from that of its sizes.

    `todo` says what would settle an open answer, `seed_advice` in numbers where that is more
    seeds, and `settle` as overrides (`Advice`). `note` warns of what the answer does not say:
    larger models that are worse, for example. `limits` are the thresholds in words. `law` says by
    which law eta was planned. `target` is the answer at the target, which no ladder alone gives;
    None where it has the base's size.
    """

    axis: str
    answer: Answer
    sizes: tuple[SizeVerdict, ...]
    todo: str = ""
    note: str = ""
    limits: str = ""
    seed_advice: SeedAdvice | None = None
    law: str = field(default="", metadata=WRITTEN_IF_SET)
    settle: tuple[str, ...] = ()
    target: TargetAnswer | None = None
    confidence: float = field(default=0.95, metadata=WRITTEN_IF_SET)

    def with_note(self, sentence: str) -> Verdict:
        """The verdict with one more note."""
        return replace(self, note=". Also, ".join(filter(None, (sentence, self.note))))


def judge_ladder(
    axis: str,
    curves: Sequence[SizeCurve],
    transferred: float,
    base: LadderSize,
    rule: LadderRule,
    law: str = "",
    confidence: float = 0.95,
    fits: Mapping[LadderSize, CurveFit | None] | None = None,
    fixed: Collection[str] = (),
) -> Verdict:
    """Fit every curve and judge it against the thresholds of `rule`.

    `transferred` is the log2 eta that the plan uses at the base; at another size a law's factor,
    `SizeCurve.planned_log2`, is added. `law` says which law that is. `fits` are those of the
    curves and of `transferred`, where they are known. The intervals that answers rest on have the
    level `confidence`. `fixed` are sizes of training that the runs do not take, which no advice
    may name: a command without {batch_size}.

    A size holds when both its intervals lie within the thresholds. It fails when one interval lies
    beyond its threshold, or when training at the base's optimum diverges. Otherwise it is open;
    with one seed there is no interval, so every size is. The axis fails if any size fails, and
    holds if all hold. Over a base where the transferred eta misses the optimum nothing holds.
    """
    fits = fits or fit_curves(curves, transferred)
    base_fit, base_curve = fits[base], next(curve for curve in curves if curve.size == base)
    sizes = [
        replace(
            _judge_size(
                curve.size,
                fits[curve.size],
                base_fit,
                rule,
                confidence,
                is_base=curve.size == base,
            ),
            planned_log2=curve.planned_log2,
            **_failed(curve, base_curve),
        )
        for curve in curves
    ]
    missed = missed_optimum(base_fit, transferred, rule)
    if missed is not None:
        sizes = [_missing(size, missed) if size.is_base else size for size in sizes]
    answer = worst(size.answer for size in sizes)
    advice = Advice()
    if answer == "cannot say yet":
        points = sum(len(curve.losses) for curve in curves)
        advice = _mending(curves, fits.values(), missed) or advise(
            axis, [s for s in sizes if s.answer == answer], points, rule, fixed
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
        confidence=confidence,
    )


def worst(answers: Iterable[SizeAnswer]) -> Answer:
    """The worst of some sizes' answers; they hold where nothing speaks against one."""
    found = set(answers)
    return next((answer for answer in WORST_FIRST if answer in found), "holds")


def _missing(base: SizeVerdict, missed: MissedOptimum) -> SizeVerdict:
    """The base where the transferred eta misses its optimum: the plan would miss every minimum."""
    if base.answer != "base":
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
    if missed.hyperparameter == "eta":
        override = f"transfer.eta={better}"
        return Advice(f"plan with the base's optimum: {override}", (override,))
    return Advice(
        f"tune {missed.hyperparameter} again, with more runs: its optimum is at 2^{better}"
    )


def _failed(curve: SizeCurve, base: SizeCurve) -> dict[str, Any]:
    """The answer where runs failed: what was not measured neither holds nor fails."""
    count, whose = (curve.failed, "") if curve.failed else (base.failed, "of the base ")
    if not count:
        return {}
    reason = f"{count} {'run' if count == 1 else 'runs'} {whose}failed: that is no divergence"
    return {"answer": "cannot say yet", "reason": reason}


def _judge_size(
    size: LadderSize,
    fit: CurveFit | None,
    base_fit: CurveFit | None,
    rule: LadderRule,
    confidence: float,
    *,
    is_base: bool,
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
        shift, gap = _compare_with_base(fit, base_fit, confidence)
    answer: SizeAnswer
    answer, reason = _answer(fit, base_fit, shift, gap, rule)
    if is_base and answer == "holds":
        answer, reason = "base", ""
    return SizeVerdict(
        size=size,
        optimum_log2=fit.optimum,
        shift_log2=shift,
        loss=fit.loss,
        regret=fit.regret,
        loss_gap=gap,
        at_end=fit.at_end,
        side=fit.side,
        answer=answer,
        reason=reason,
        basin=fit.basin,
        is_base=is_base,
    )


def _compare_with_base(
    fit: CurveFit, base_fit: CurveFit, confidence: float
) -> tuple[Estimate, Estimate]:
    """The shift of the optimum from the base's, and the loss gap of training at the base's.

    The base's optimum goes to the size by the law's factor, if there is a law. The draws of two
    sizes are independent, so their differences are draws of the shift.
    """
    planned = fit.curve.planned_log2 - base_fit.curve.planned_log2
    draws = fit.free_optimum_draws - base_fit.free_optimum_draws - planned
    moved = fit.optimum.value - base_fit.optimum.value - planned
    shift = Estimate.from_draws(moved, draws, confidence)
    # The fitted form misplaces both optima by a `BIAS` that is nearly the same at two sizes and
    # cancels in the shift. The gap is taken from this curve at a place that the base's fit found:
    # there the part that the two do not share remains, half by the measured coverage (without it
    # 92 % on two kinds of ladders). Seeded by nothing of the sizes: a verdict repeats exactly, and
    # all sizes are asked about the same misplaced base.
    bias = np.random.default_rng(len(draws)).normal(0.0, BIAS / 2, len(draws))
    sure = base_fit.safe_optimum_draws + planned
    # The bias alone leads nowhere that was not measured.
    ends = [eta for eta, losses in fit.curve.losses.items() if np.isfinite(losses).all()]
    at = np.clip(sure + bias, np.minimum(sure, min(ends)), np.maximum(sure, max(ends)))
    gap = fit.loss_gap(base_fit.optimum.value + planned, at, confidence)
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

    Its eta may transfer although its parameterization is wrong: under muP wider is better
    throughout training (Tensor Programs V, section 8).
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


# What to run next where a verdict is open: more seeds, longer or finer curves, less noise.


MAX_SEED_FACTOR = 16.0
"""No advice asks for this many times the seeds: beyond, seeds are the wrong means."""
MEDIAN_SEED_FACTOR = 9.5
"""So many times the seeds settle half of the estimates that lie at their threshold.

With n times the seeds the estimate moves by a normal of variance s^2 (1 - 1 / n), which exceeds
1.96 s n^-1/2, half of the new interval, in half of the cases at n - 1 = (1.96 / 0.674)^2."""
IN_HAND = 0.5
"""Of a seed, beyond the number with which an interval is expected to end at its threshold.

Without it some advice has next to nothing in hand, and one time in ten was too small by one."""
NO_SEEDS = "do not count on seeds"
"""How the advice begins where seeds are the wrong means."""
LONGER = 4
"""So many times the steps, where seeds are the wrong means: their losses have half the noise."""


@dataclass(frozen=True, kw_only=True)
class SeedAdvice:
    """Seeds a point that would settle a verdict: the most, by open size, and the extra runs."""

    seeds: int
    sizes: Mapping[str, int]
    runs: int


@dataclass(frozen=True)
class Advice:
    """What would settle an open verdict: in words, and as overrides of the configuration.

    Overrides of `train` take a study of their own; those after them are for a study that they
    change nothing in. `seeds` has the numbers where more seeds are what it takes.
    """

    words: str = ""
    settle: tuple[str, ...] = ()
    seeds: SeedAdvice | None = None


def advise(
    axis: str,
    sizes: Sequence[SizeVerdict],
    points: int,
    rule: LadderRule,
    fixed: Collection[str] = (),
) -> Advice:
    """What to run next for the open `sizes`; `fixed` as in `judge_ladder`.

    `points` counts those of all curves of the ladder: seeds are trained at each. The order is
    that of what must come first: no number of seeds settles a curve that ends too early.
    """

    def which(chosen: Sequence[SizeVerdict]) -> str:
        return " and ".join(describe_size(size.size, axis) for size in chosen)

    if ends := [size for size in sizes if size.at_end]:
        longer = f"transfer.extend={2 * rule.extend or 4}"
        return Advice(f"extend the curves of {which(ends)}: raise transfer.extend", (longer,))
    if rule.seeds == 1 and any(math.isinf(size.loss.high) for size in sizes):
        advice = SeedAdvice(seeds=2, sizes={which([size]): 2 for size in sizes}, runs=points)
        words = f"train at least two seeds a point, {_more(points, 'run')}: transfer.seeds=2"
        return Advice(words, ("transfer.seeds=2",), advice)
    finer = f"transfer.step={rule.step / 2:g}"
    # More seeds would not help here: the noise is read off several finite points.
    if few := [size for size in sizes if math.isinf(size.loss.high)]:
        words = f"measure more points whose runs are all finite at {which(few)}"
        return Advice(f"{words}: lower transfer.step", (finer,))
    if gaps := [size for size in sizes if math.isinf(size.loss_gap.high)]:
        words = f"measure the curves of {which(gaps)} at the base's optimum"
        return Advice(f"{words}: lower transfer.step or raise transfer.span", (finer,))
    needed = {which([size]): _seeds_needed(size, rule) for size in sizes}
    seeds = max(needed.values())
    if hopeless := [n for n, count in needed.items() if count >= MAX_SEED_FACTOR * rule.seeds]:
        steps = max((size.size.steps for size in sizes), default=0)
        *first, last = (
            *(f"train.{size}" for size in ("steps", "batch_size") if size not in fixed),
            "train.objective_window",
        )
        raised = f"{', '.join(first)} or {last}" if first else last
        changes = () if "steps" in fixed else (f"train.steps={LONGER * steps}",)
        return Advice(
            f"{NO_SEEDS}: {' and '.join(hopeless)} would take more than "
            f"{seeds - rule.seeds} more a point. Runs with less noise help: raise {raised}, "
            "or lower transfer.step",
            (*changes, finer),
        )
    more, runs = seeds - rule.seeds, (seeds - rule.seeds) * points
    each = ", ".join(f"{count - rule.seeds} at {name}" for name, count in needed.items())
    words = f"train about {_more(more, 'seed')} a point ({each}), {_more(runs, 'run')}"
    override = f"transfer.seeds={seeds}"
    advice = SeedAdvice(seeds=seeds, sizes=needed, runs=runs)
    return Advice(f"{words} on this ladder: {override}", (override,), advice)


def _more(count: int, what: str) -> str:
    return f"{count} more {what}{'s' * (count != 1)}"


def _seeds_needed(size: SizeVerdict, rule: LadderRule) -> int:
    """Seeds a point that would settle `size`."""
    factor, _ = information_needed(size, rule)
    return max(rule.seeds + 1, math.ceil(rule.seeds * factor + IN_HAND))


def information_needed(size: SizeVerdict, rule: LadderRule) -> tuple[float, bool]:
    """How many times the runs would settle `size`, and whether they would as one that fails.

    An interval shrinks with the root of the number of seeds. One that reaches h from its value
    towards a threshold that is d off clears it with (h / d)^2 times as many. To hold, both values
    must clear their thresholds; to fail, one beyond its threshold suffices. A value that lies near
    its threshold is seldom the true one, and more seeds move it off: `MEDIAN_SEED_FACTOR`.
    """
    allowed = rule.allowed_gap(size.loss.value)
    within, beyond = list[float](), list[float]()
    for estimate, limit in ((size.shift_log2, rule.max_shift), (size.loss_gap, allowed)):
        value = abs(estimate.value)
        room = limit - value
        least, most = max(0.0, estimate.low, -estimate.high), max(-estimate.low, estimate.high)
        reach = most - value if room > 0 else value - least
        # Compared before dividing: room may be 0.
        small = reach < MEDIAN_SEED_FACTOR**0.5 * abs(room)
        doubtful = MEDIAN_SEED_FACTOR if reach < 2 * limit else MAX_SEED_FACTOR
        factor = (reach / room) ** 2 if small else doubtful
        (within if room > 0 else beyond).append(factor)
    return (min(beyond), True) if beyond else (max(within), False)
