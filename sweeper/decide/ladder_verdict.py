"""Does a transfer hold along a ladder? Thresholds against measured intervals, and what to run next.

First comes the base: a value that misses the optimum of the base's own curve is a fault of the
search, and nothing can be said of the transfer before it is mended.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from sweeper.decide.gross import GrossLoss, gross_loss
from sweeper.decide.target import OptimumBackTest
from sweeper.records import NOT_WRITTEN, WRITTEN_IF_SET
from sweeper.stats.curve import BIAS, UNKNOWN_BASIN, Basin, CurveFit, fit_curves
from sweeper.stats.estimate import UNKNOWN, ZERO, Array, Estimate
from sweeper.stats.ladder import Cliff, LadderRule, LadderSize, SizeCurve, describe_size
from sweeper.stats.rounds import Foretold
from sweeper.stats.shapes import SAME_ETA


@dataclass(frozen=True, kw_only=True)
class MissedOptimum:
    """The base itself loses `loss` nats at `transferred_log2` against its `optimum_log2`."""

    hyperparameter: str
    transferred_log2: float
    optimum_log2: float
    loss: float


def missed_optimum(
    fit: CurveFit | None, transferred: float, rule: LadderRule
) -> MissedOptimum | None:
    """What the base's curve says against `transferred` (log2); None where it is good enough.

    It is missed where the noise does not explain its regret, and that is larger than the loss gap
    with which a size holds. An optimum at the curve's end is none yet.
    """
    if fit is None or fit.at_end or fit.regret.low <= 0:
        return None
    # The same tolerance as for a size: a base within it is no worse than a transfer that holds.
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

SizeReason = (
    Literal["", "within", "same_seeds", "noise_unknown", "failed", "base_failed", "missed_optimum"]
    | Literal["diverged", "base_diverged", "diverges_at_base_optimum", "loses", "shifts", "gross"]
    | Literal["edge", "not_measured", "may_lose", "may_shift"]
)


@dataclass(frozen=True, kw_only=True)
class PastEnd:
    """An optimum may lie at `reach`, past the `last` value (log2); the next `diverged`, or inf."""

    size: LadderSize
    last: float
    diverged: float
    reach: float

    @property
    def telling(self) -> float:
        """The value whose run would tell: at the `reach`, at most halfway to the divergence."""
        side = math.copysign(1.0, self.diverged - self.last)
        halfway = side * (self.last + self.diverged) / 2
        return side * min(math.ceil(4 * side * self.reach) / 4, halfway)


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

    `code` says why, `failed` how many runs did, `cliff` from where on losses count as diverged,
    `missed` what the base misses, `gross` what is lost beyond any noise, `past` the ends past which
    the base's optimum may lie, or that leave its shift open; a record has the `reason` in words
    instead, which `report/sentences.py` makes of them.
    """

    size: LadderSize
    optimum_log2: Estimate
    shift_log2: Estimate
    loss: Estimate
    regret: Estimate
    loss_gap: Estimate
    at_end: bool
    answer: SizeAnswer
    reason: str = ""
    basin: Basin = UNKNOWN_BASIN
    is_base: bool = False
    planned_log2: float = 0.0
    side: int = field(default=0, metadata=WRITTEN_IF_SET)
    code: SizeReason = field(default="", compare=False, metadata=NOT_WRITTEN)
    failed: int = field(default=0, compare=False, metadata=NOT_WRITTEN)
    cliff: Cliff | None = field(default=None, compare=False, metadata=NOT_WRITTEN)
    missed: MissedOptimum | None = field(default=None, compare=False, metadata=NOT_WRITTEN)
    gross: GrossLoss | None = field(default=None, compare=False, metadata=NOT_WRITTEN)
    past: tuple[PastEnd, ...] = field(default=(), compare=False, metadata=NOT_WRITTEN)


@dataclass(frozen=True, kw_only=True)
class SeedAdvice:
    """Seeds a point that would settle a verdict: the most, by open size, and the extra runs."""

    seeds: int
    sizes: Mapping[str, int]
    runs: int


AdviceCode = (
    Literal["", "failed", "same_seeds", "missed_optimum", "edge", "one_seed", "few_finite"]
    | Literal["not_measured", "noisy", "seeds"]
    | Literal["correct", "longer_ladder", "more_seeds", "longer_curves", "narrower", "less_noise"]
)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What would settle an open answer over `axis`, with its numbers.

    `sizes` are those that are open. `settings` are of `transfer`, but those whose keys begin with
    `train.`, which take a study of their own. `seeds` has the numbers where more seeds are what it
    takes, `needed` seeds by size, `seeds_now` those that there are. `etas` (log2) by size are where
    a curve is to go on. `ladder` are the sizes of a longer one, `fixed` sizes of training that the
    runs do not take. At a target, so many more `runs` by size likely settle it.
    """

    axis: str = ""
    code: AdviceCode = ""
    sizes: tuple[LadderSize, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    seeds: SeedAdvice | None = None
    needed: Mapping[LadderSize, int] = field(default_factory=dict)
    seeds_now: int = 0
    etas: Mapping[LadderSize, Sequence[float]] = field(default_factory=dict)
    ladder: tuple[int, ...] = ()
    missed: MissedOptimum | None = None
    fixed: tuple[str, ...] = ()
    runs: Mapping[int, int] = field(default_factory=dict)

    @property
    def overrides(self) -> tuple[str, ...]:
        """The settings as a configuration takes them."""
        return tuple(
            f"{key if '.' in key else f'transfer.{key}'}={value}"
            for key, value in self.settings.items()
        )


TargetReason = (
    Literal["", "within", "as_on_ladder", "too_few_optima", "predicted", "wrong_rate"]
    | Literal["joint_within", "joint_beyond", "joint_as_on_ladder"]
)


@dataclass(frozen=True, kw_only=True)
class TargetAnswer:
    """The answer at the target's `size` of an axis.

    `off_log2` is how far the optimum lies from the plan's value there, `loss_gap` what that costs
    (nats); UNKNOWN where the ladder reaches the target, or nothing was predicted. `advice` is what
    would likely settle an open answer, `settle` as settings. `code` says what the answer rests on,
    `times` how many times the target lies beyond the ladder; `missed` is a back-test that failed.
    A record has `sentence` and `todo` in words instead.
    """

    axis: str
    size: int
    answer: Answer
    sentence: str = ""
    off_log2: Estimate = UNKNOWN
    loss_gap: Estimate = UNKNOWN
    todo: str = ""
    settle: tuple[str, ...] = ()
    code: TargetReason = field(default="", compare=False, metadata=NOT_WRITTEN)
    times: float = field(default=1.0, compare=False, metadata=NOT_WRITTEN)
    wider: bool = field(default=True, compare=False, metadata=NOT_WRITTEN)
    missed: OptimumBackTest | None = field(default=None, compare=False, metadata=NOT_WRITTEN)
    advice: Advice = field(default_factory=Advice, compare=False, metadata=NOT_WRITTEN)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer for one axis, from that of its sizes.

    `advice` is what would settle an open answer, `seed_advice` its numbers where that is more
    seeds, and `settle` its settings. `worse` is the first larger model that is worse than the
    base, and by how many nats; `rule` has the thresholds. A record has `todo`, `note` and
    `limits` in words instead. `law` says by which law eta was planned. `target` is the answer at
    the target, which no ladder alone gives; None where it has the base's size.
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
    advice: Advice = field(default_factory=Advice, compare=False, metadata=NOT_WRITTEN)
    worse: tuple[LadderSize, float] | None = field(
        default=None, compare=False, metadata=NOT_WRITTEN
    )
    rule: LadderRule | None = field(default=None, compare=False, metadata=NOT_WRITTEN)

    def with_note(self, sentence: str) -> Verdict:
        """The verdict with one more note."""
        return replace(self, note=". Also, ".join(filter(None, (sentence, self.note))))


@dataclass(frozen=True, kw_only=True)
class NoiseLeft:
    """Noise of single runs beside smooth curves, in the loss's unit: least and most of sizes."""

    low: float
    high: float


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
    shifts: Mapping[LadderSize, Estimate] = MappingProxyType({}),
) -> Verdict:
    """Fit every curve and judge it against the thresholds of `rule`.

    `transferred` is the log2 eta that the plan uses at the base; at another size a law's factor,
    `SizeCurve.planned_log2`, is added. `law` says which law that is. `fits` are those of the
    curves and of `transferred`, where they are known. The intervals that answers rest on have the
    level `confidence`. `fixed` are sizes of training that the runs do not take, which no advice
    may name: a command without {batch_size}. `shifts` are those that more than two curves tell.

    A size holds when both its intervals lie within the thresholds. It fails when one interval lies
    beyond its threshold, or when training at the base's optimum diverges. Otherwise it is open, as
    all are where no noise is known. The axis fails if any size fails, and holds if all hold. Over a
    base where the transferred eta misses the optimum nothing holds.
    """
    fits = fits or fit_curves(curves, transferred)
    base_fit, base_curve = fits[base], next(curve for curve in curves if curve.size == base)
    sizes = list[SizeVerdict]()
    for curve in curves:
        size, along = curve.size, shifts.get(curve.size)
        judged = _judge_size(
            size, fits[size], base_fit, rule, confidence, is_base=size == base, along=along
        )
        judged = replace(judged, planned_log2=curve.planned_log2)
        is_open = not judged.is_base and judged.answer == "cannot say yet"
        # What was not measured neither holds nor fails; of the rest a loss may be beyond any noise.
        if count := curve.failed or base_curve.failed:
            why: SizeReason = "failed" if curve.failed else "base_failed"
            judged = replace(judged, answer="cannot say yet", code=why, failed=count)
        elif is_open and (gross := gross_loss(curve, base_curve, rule)):
            gap, unknown = judged.loss_gap, judged.code in ("same_seeds", "noise_unknown")
            least = min(gap.value, gross.share * judged.loss.value)
            # With a noise the base's optimum itself must lie where the size loses so much.
            if unknown or least > rule.allowed_gap(judged.loss.value):
                gap = replace(gap, low=max(gap.low, least))
                judged = replace(judged, answer="fails", code="gross", gross=gross, loss_gap=gap)
        sizes.append(judged)
    # Judged after the sizes, since it is the search's fault: the base's row alone tells it, and is
    # "cannot say yet" and not "fails", as nothing has shown the transfer to be wrong.
    if (missed := missed_optimum(base_fit, transferred, rule)) is not None:
        # The plan would miss every minimum; a base that is open already stays as it is.
        open_base: dict[str, Any] = {"answer": "cannot say yet", "code": "missed_optimum"}
        open_base["missed"] = missed
        sizes = [replace(s, **open_base) if s.answer == "base" else s for s in sizes]
    answer = worst(size.answer for size in sizes)
    advice = Advice()
    if answer == "cannot say yet":
        points = sum(len(curve.losses) for curve in curves)
        advice = _mending(axis, curves, fits.values(), missed) or advise(
            axis, [s for s in sizes if s.answer == answer], points, rule, fixed
        )
    return Verdict(
        axis=axis,
        answer=answer,
        sizes=tuple(sizes),
        seed_advice=advice.seeds,
        law=law,
        settle=advice.overrides,
        confidence=confidence,
        advice=advice,
        worse=_worse(axis, sizes),
        rule=rule,
    )


def worst(answers: Iterable[SizeAnswer]) -> Answer:
    """The worst of some sizes' answers; they hold where nothing speaks against one."""
    given_answers = set(answers)
    return next((answer for answer in WORST_FIRST if answer in given_answers), "holds")


def _mending(
    axis: str,
    curves: Sequence[SizeCurve],
    fits: Iterable[CurveFit | None],
    missed: MissedOptimum | None,
) -> Advice | None:
    # Until it is repeated, a curve lacks points for no reason of its training.
    if any(curve.failed for curve in curves):
        return Advice(axis=axis, code="failed")
    if any(fit is not None and fit.same_seeds for fit in fits):
        return Advice(axis=axis, code="same_seeds")
    if missed is None:
        return None
    # Only eta can be replaced in the plan by a setting; another hyperparameter takes a search.
    settings = {"eta": f"{missed.optimum_log2:.2f}"} if missed.hyperparameter == "eta" else {}
    return Advice(axis=axis, code="missed_optimum", missed=missed, settings=settings)


def _judge_size(
    size: LadderSize,
    fit: CurveFit | None,
    base_fit: CurveFit | None,
    rule: LadderRule,
    confidence: float,
    *,
    is_base: bool,
    along: Estimate | None,
) -> SizeVerdict:
    # No fit at this size: all its runs diverged, where the base trains. No fit at the base: there
    # is nothing to transfer, whatever the other sizes do.
    if fit is None or base_fit is None:
        names = ("optimum_log2", "shift_log2", "loss", "regret", "loss_gap")
        unknown: dict[str, Any] = dict.fromkeys(names, UNKNOWN)
        return SizeVerdict(
            **unknown,
            size=size,
            at_end=False,
            answer="fails" if fit is None else "cannot say yet",
            code="diverged" if fit is None else "base_diverged",
            is_base=is_base,
        )
    shift = gap = ZERO
    # The base is compared with nothing: its shift and gap are 0, and only what is wrong with its
    # own curve (equal seeds, no noise, an end) makes it open.
    if not is_base:
        shift, gap = _compare_with_base(fit, base_fit, confidence)
        shift = along or shift
        if fit.past_end is not None:
            # The optimum lies at the end or past it: what holds must hold of both.
            past_shift, past_gap = _compare_with_base(fit.past_end, base_fit, confidence)
            shift, gap = shift.and_also(past_shift), gap.and_also(past_gap)
    answer: SizeAnswer
    answer, code = _answer(fit, base_fit, shift, gap, rule)
    past = _past_ends(fit, base_fit, base_fit.safe_optimum_draws, confidence)
    if code == "may_shift":
        # The true optimum may lie up to what diverged beside it, whatever the seeds.
        own = [
            _past_ends(each, each, each.free_optimum_draws, confidence) for each in (fit, base_fit)
        ]
        past = own[0] + own[1]
    elif code == "may_lose" and past:
        code = "not_measured"
    if is_base and answer == "holds":
        answer, code = "base", ""
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
        code=code,
        basin=fit.basin,
        is_base=is_base,
        cliff=fit.curve.cliff,
        past=past,
    )


def _past_ends(fit: CurveFit, of: CurveFit, draws: Array, confidence: float) -> tuple[PastEnd, ...]:
    """The ends of a curve past which the optimum `of` one may lie, `draws` of it, moved there."""
    planned = fit.curve.planned_log2 - of.curve.planned_log2
    # Half the tail to either side: both together may leave a gap open.
    asked = Estimate.from_draws(of.optimum.value, draws, (1 + confidence) / 2).moved(planned)
    ends = zip(fit.ends, (asked.low, asked.high), strict=True)
    size = fit.curve.size
    past = [PastEnd(size=size, last=last, diverged=lost, reach=to) for (last, lost), to in ends]
    return tuple(
        e for e in past if (e.reach - e.last) * math.copysign(1, e.diverged - e.last) > SAME_ETA
    )


def _compare_with_base(
    fit: CurveFit, base_fit: CurveFit, confidence: float
) -> tuple[Estimate, Estimate]:
    """The shift of the optimum from the base's, and the loss gap of training at the base's.

    The base's optimum goes to the size by the law's factor, if there is a law. The draws of two
    sizes are independent, so their differences are draws of the shift.
    """
    # What a law plans between the two sizes is no drift: only what it leaves over is a shift.
    planned = fit.curve.planned_log2 - base_fit.curve.planned_log2
    draws = fit.free_optimum_draws - base_fit.free_optimum_draws - planned
    moved = fit.optimum.value - base_fit.optimum.value - planned
    # Free draws: the true optimum may lie next to a point that diverged, even if no plan would.
    shift = Estimate.from_draws(moved, draws, confidence)
    # The fitted form misplaces both optima by a `BIAS` that is nearly the same at two sizes and
    # cancels in the shift. The gap is taken from this curve at a place that the base's fit found:
    # there the part that the two do not share remains, half by the measured coverage (without it
    # 92 % on two kinds of ladders). Seeded by nothing of the sizes: a verdict repeats exactly, and
    # all sizes are asked about the same misplaced base.
    bias = np.random.default_rng(len(draws)).normal(0.0, BIAS / 2, len(draws))
    # Safe draws: what is trained there is the plan's value, which keeps off such points.
    safe, free = base_fit.safe_optimum_draws + planned, base_fit.free_optimum_draws + planned
    # The bias alone leads nowhere that was not measured.
    ends = [eta for eta, losses in fit.curve.losses.items() if np.isfinite(losses).all()]
    gap, of_optimum = (
        fit.loss_gap(
            base_fit.optimum.value + planned,
            np.clip(sure + bias, np.minimum(sure, min(ends)), np.maximum(sure, max(ends))),
            confidence,
        )
        for sure in (safe, free)
    )
    # A plan that misses the base's optimum for a point that diverged beside it is the search's
    # fault, too: what the transfer loses at least, it loses from the optimum as well.
    gap = replace(gap, low=min(gap.low, of_optimum.low))
    if fit.noise_unknown or base_fit.noise_unknown:
        # A divergence is seen without any noise: a gap that is infinite for sure stays so.
        shift = shift.without_interval()
        gap = gap if math.isinf(gap.low) else gap.without_interval(0.0)
    return shift, gap


def _answer(
    fit: CurveFit, base_fit: CurveFit, shift: Estimate, gap: Estimate, rule: LadderRule
) -> tuple[Answer, SizeReason]:
    """The answer for one size and its reason; one interval beyond its threshold settles it."""
    allowed = rule.allowed_gap(fit.loss.value)
    # The least that |shift| is within its interval: 0 where that holds 0.
    least_shift = max(0.0, shift.low, -shift.high)
    # Before all else: training that comes apart at the base's optimum fails, with one seed as well.
    if math.isinf(gap.low):
        return "fails", "diverges_at_base_optimum"
    # Seeds that agree to the last digit change nothing: a noise of 0 would make all certain.
    if fit.same_seeds or base_fit.same_seeds:
        return "cannot say yet", "same_seeds"
    if fit.noise_unknown or base_fit.noise_unknown:
        return "cannot say yet", "noise_unknown"
    if gap.low > allowed:
        return "fails", "loses"
    # An optimum at an end is a bound. It fails only where it bounds the shift from below: one that
    # may lie on the base's side of what was measured may not have moved at all.
    way = 1 if shift.value > 0 else -1
    if least_shift > rule.max_shift and fit.side != -way and base_fit.side != way:
        return "fails", "shifts"
    # Whole intervals must lie within the thresholds: by its value alone, noise would decide.
    farthest = max(abs(shift.low), abs(shift.high))
    within = gap.high <= allowed and farthest <= rule.max_shift
    # Past an end the optimum may lie anywhere, unless the curve's shape bounds it there.
    if fit.at_end and (fit is base_fit or not within or fit.past_end is None):
        return "cannot say yet", "edge"
    if within:
        return "holds", "within"
    return "cannot say yet", "may_lose" if gap.high > allowed else "may_shift"


def _worse(axis: str, sizes: Sequence[SizeVerdict]) -> tuple[LadderSize, float] | None:
    """The first larger model with a higher loss for sure, each at its optimum, and by how much.

    Its eta may transfer although its parameterization is wrong: under muP wider is better
    throughout training (Tensor Programs V, section 8).
    """
    # Only a wider or deeper model is owed a lower loss; a larger batch may well lose.
    if axis not in ("width", "depth"):
        return None
    base = next(size for size in sizes if size.is_base)
    extent = attrgetter(f"size.{axis}")
    worse = [s for s in sizes if s.loss.low > base.loss.high and extent(s) > extent(base)]
    return (worse[0].size, worse[0].loss.value - base.loss.value) if worse else None


MAX_SEED_FACTOR = 16
"""No advice asks for this many times the seeds: beyond, seeds are the wrong means."""
MORE_SEEDS = 4
"""So many times the seeds halve an error; so many times the steps, where seeds are the wrong means,
halve the noise of their losses."""


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

    def advice(code: AdviceCode, which: Sequence[SizeVerdict] = sizes, **more: Any) -> Advice:
        open_sizes = tuple(size.size for size in which)
        return Advice(axis=axis, code=code, sizes=open_sizes, seeds_now=rule.seeds, **more)

    def seeded(needed: Mapping[LadderSize, int], runs: int) -> dict[str, Any]:
        sizes = {describe_size(size, axis): count for size, count in needed.items()}
        seeds = SeedAdvice(seeds=max(needed.values()), sizes=sizes, runs=runs)
        return {"settings": {"seeds": f"{seeds.seeds}"}, "seeds": seeds, "needed": needed}

    # An end first: seeds at an optimum that is only a bound buy nothing.
    if ends := [size for size in sizes if size.at_end]:
        return advice("edge", ends, settings={"extend": f"{2 * rule.extend or 4}"})
    # One seed shows no noise, and an infinite interval does not tell how many would do.
    if rule.seeds == 1 and any(math.isinf(size.loss.high) for size in sizes):
        return advice("one_seed", **seeded({size.size: 2 for size in sizes}, points))
    finer = {"step": f"{rule.step / 2:g}"}
    # More seeds would not help here: the noise is read off several finite points.
    if few := [size for size in sizes if math.isinf(size.loss.high)]:
        return advice("few_finite", few, settings=finer)
    # Points where the base's optimum may lie come before seeds: these tell nothing past an end.
    open_ends = [s for s in sizes if s.past and s.code in ("not_measured", "may_shift")]
    if past_ends := [past for size in open_ends for past in size.past]:
        etas = {
            past.size: sorted({p.telling for p in past_ends if p.size == past.size})
            for past in past_ends
        }
        wider = [abs(p.reach - p.last) for p in past_ends if math.isinf(p.diverged)]
        settings = finer if len(wider) < len(past_ends) else {}
        if wider:
            span = rule.span + rule.step * math.ceil(max(wider) / rule.step - 1e-9)
            settings = {**settings, "span": f"{span:g}"}
        return advice("not_measured", open_ends, settings=settings, etas=etas)
    most_seeds = MAX_SEED_FACTOR * rule.seeds
    needed = {
        # With as many the answer is settled as likely as not.
        size.size: next(
            (
                count
                for count in range(rule.seeds + 1, most_seeds)
                if sum(chances(size, rule, count / rule.seeds)) >= 0.5
            ),
            most_seeds,
        )
        for size in sizes
    }
    # For so many seeds the noise itself has to fall: longer runs, or more points to fit.
    if hopeless := [s for s in sizes if needed[s.size] == most_seeds]:
        steps = max((size.size.steps for size in sizes), default=0)
        longer = {} if "steps" in fixed else {"train.steps": f"{MORE_SEEDS * steps}"}
        return advice(
            "noisy", hopeless, settings={**longer, **finer}, needed=needed, fixed=tuple(fixed)
        )
    return advice("seeds", **seeded(needed, (max(needed.values()) - rule.seeds) * points))


def chances(
    size: SizeVerdict, rule: LadderRule, times: float, confidence: float = 0.95
) -> tuple[float, float]:
    """How likely `size` is told to hold, and to fail, with so many `times` its runs.

    An interval that reaches h to both sides reaches h / sqrt(times) then, around a value that moves
    by a normal of the variance that goes (`Foretold`): so one near its threshold moves off it.
    """
    deviations = NormalDist().inv_cdf((1 + confidence) / 2)
    allowed = rule.allowed_gap(size.loss.value)
    holds, fails = 1.0, 0.0
    for estimate, limit in ((size.shift_log2, rule.max_shift), (size.loss_gap, allowed)):
        value, half = abs(estimate.value), (estimate.high - estimate.low) / 2
        if not math.isfinite(half):
            return 0.0, 0.0
        moves = half / deviations * math.sqrt(1 - 1 / times) + 1e-12
        # A loss gap reaches further up than down.
        below = value - (estimate.low if estimate.value > 0 else -estimate.high)
        above = max(-estimate.low, estimate.high) - value
        up, down = (Foretold(value, moves, reach / math.sqrt(times)) for reach in (above, below))
        # It holds at most as likely as the less likely of the two; to fail, one is enough.
        holds = min(holds, up.within(limit) if up.half < limit else 0.0)
        fails = max(fails, down.above(limit))
    return holds, fails
