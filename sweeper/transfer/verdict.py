"""Does the transfer hold along a ladder? Stated thresholds against measured intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sweeper.transfer.curve import Estimate, Fit, fit
from sweeper.transfer.ladder import LadderRule, Size, SizeCurve
from sweeper.trial import encode

Answer = Literal["holds", "fails", "cannot say yet"]


@dataclass(frozen=True, kw_only=True)
class SizeVerdict:
    """One size: its optimum (log2 eta), the shift from the base's, its least loss (nats).

    `regret` is the loss of training at the transferred eta, `cost` that of training at the
    optimum of the base's own curve. The answer rests on `shift` and `cost`: an eta that is off
    at the base already is a matter of the search, not of the transfer.
    """

    size: Size
    optimum: Estimate
    shift: Estimate
    loss: Estimate
    regret: Estimate
    cost: Estimate
    at_end: bool
    answer: Answer
    reason: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer for one axis, from that of its sizes.

    `todo` says what would settle a doubt; `note` warns of an eta that the base itself refutes.
    """

    axis: str
    answer: Answer
    sizes: tuple[SizeVerdict, ...]
    todo: str = ""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        found: dict[str, Any] = encode(asdict(self))
        return found


def judge(
    axis: str, curves: Sequence[SizeCurve], transferred: float, base: Size, rule: LadderRule
) -> Verdict:
    """Fit every curve and judge it against the thresholds of `rule`.

    `transferred` is the log2 eta that the plan uses. A size holds when both intervals lie
    within the thresholds, fails when one lies beyond its threshold or the base's optimum
    diverges, and is open otherwise: there is no interval without at least two seeds. The axis
    fails with any size, and holds with all.
    """
    fits = [(curve.size, fit(curve, transferred)) for curve in curves]
    reference = next(found for size, found in fits if size == base)
    sizes = [_judge_size(size, found, reference, rule) for size, found in fits]
    answers = {size.answer for size in sizes}
    answer: Answer = "holds"
    if "fails" in answers:
        answer = "fails"
    elif "cannot say yet" in answers:
        answer = "cannot say yet"
    todo = _todo(sizes, rule) if answer == "cannot say yet" else ""
    note = _note(transferred, reference, rule)
    return Verdict(axis=axis, answer=answer, sizes=tuple(sizes), todo=todo, note=note)


def _note(transferred: float, reference: Fit | None, rule: LadderRule) -> str:
    """What to say when the transferred eta is not the optimum of the base's own curve."""
    if reference is None or reference.regret.low <= 0:
        return ""
    if reference.regret.value <= rule.max_regret * reference.loss.value:
        return ""
    better = reference.optimum.value
    return (
        f"at the base itself eta=2^{transferred:g} costs {reference.regret.value:.4f} nats against "
        f"2^{better:.2f}: the other hyperparameters moved the optimum. transfer.eta={better:.2f} "
        "plans with it"
    )


UNKNOWN = Estimate(value=math.nan, low=-math.inf, high=math.inf)


def _judge_size(
    size: Size, found: Fit | None, reference: Fit | None, rule: LadderRule
) -> SizeVerdict:
    if found is None or reference is None:
        answer: Answer = "fails" if found is None else "cannot say yet"
        reason = "every run diverged" if found is None else "every run of the base diverged"
        return SizeVerdict(
            size=size,
            optimum=UNKNOWN,
            shift=UNKNOWN,
            loss=UNKNOWN,
            regret=UNKNOWN,
            cost=UNKNOWN,
            at_end=False,
            answer=answer,
            reason=reason,
        )
    shift = cost = Estimate(value=0.0, low=0.0, high=0.0)
    if found is not reference:
        moved = found.optimum_draws - reference.optimum_draws
        shift = Estimate.of(found.optimum.value - reference.optimum.value, moved)
        cost = found.cost(reference.optimum.value, reference.optimum_draws)
    if math.isinf(cost.low):
        answer, reason = "fails", "the base's optimum diverges here"
    elif math.isnan(found.noise) or math.isnan(reference.noise):
        answer, reason = "cannot say yet", "too few seeds or finite runs to tell the noise"
    else:
        answer, reason = _answer(found, shift, cost, rule)
    return SizeVerdict(
        size=size,
        optimum=found.optimum,
        shift=shift,
        loss=found.loss,
        regret=found.regret,
        cost=cost,
        at_end=found.at_end,
        answer=answer,
        reason=reason,
    )


def _answer(fit: Fit, shift: Estimate, cost: Estimate, rule: LadderRule) -> tuple[Answer, str]:
    """The answer for one size and the finding behind it."""
    allowed = rule.max_regret * fit.loss.value
    least = max(0.0, shift.low, -shift.high)
    if cost.low > allowed:
        return "fails", f"the base's optimum costs at least {cost.low:.4f} nats here"
    if least > rule.max_shift:
        return "fails", f"the optimum moved by at least {least:.2f} in log2"
    if fit.at_end:
        return "cannot say yet", "the optimum is at the end of the curve"
    if math.isinf(cost.high):
        return "cannot say yet", "the curve was not measured at the base's optimum"
    if cost.high > allowed:
        return "cannot say yet", f"the base's optimum may cost up to {cost.high:.4f} nats here"
    if max(abs(shift.low), abs(shift.high)) > rule.max_shift:
        return "cannot say yet", f"the shift may be {shift.low:+.2f} to {shift.high:+.2f}"
    return "holds", "shift and cost are within the thresholds"


def _todo(sizes: Sequence[SizeVerdict], rule: LadderRule) -> str:
    """What to run next: a longer curve, or as many seeds as shrink the widest interval enough.

    An interval of half-width h around a value that is d off its threshold clears it with
    (h / d)^2 times the seeds.
    """
    open_sizes = [size for size in sizes if size.answer == "cannot say yet"]
    ends = [str(size.size) for size in open_sizes if size.at_end]
    if ends:
        return f"let the curves reach further at {'; '.join(ends)}: raise transfer.extend"
    if rule.seeds == 1:
        return "train at least two seeds a point: transfer.seeds=2"
    gaps = [str(size.size) for size in open_sizes if math.isinf(size.cost.high)]
    if gaps:
        return (
            f"measure the curves at the base's optimum for {'; '.join(gaps)}: "
            "lower transfer.step or raise transfer.span"
        )
    factor = max((_more(size, rule) for size in open_sizes), default=1.0)
    seeds = max(rule.seeds + 1, math.ceil(rule.seeds * min(factor, 16.0)))
    return f"train about {seeds} seeds a point: transfer.seeds={seeds}"


def _more(size: SizeVerdict, rule: LadderRule) -> float:
    """How many times the seeds would settle `size`: one estimate beyond suffices to fail it."""
    pairs = ((size.shift, rule.max_shift), (size.cost, rule.max_regret * size.loss.value))
    within, beyond = list[float](), list[float]()
    for estimate, limit in pairs:
        room = limit - abs(estimate.value)
        half = max(estimate.high - estimate.value, estimate.value - estimate.low)
        factor = (half / room) ** 2 if half < 4 * abs(room) else 16.0
        (within if room > 0 else beyond).append(factor)
    return min(beyond) if beyond else max(within)
