"""Does the transfer hold along a ladder? Stated thresholds against measured intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any, Literal

from sweeper.transfer.advice import More, advise
from sweeper.transfer.basin import UNKNOWN_BASIN, Basin
from sweeper.transfer.curve import Fit, fit
from sweeper.transfer.estimate import Estimate
from sweeper.transfer.ladder import LadderRule, Size, SizeCurve, named
from sweeper.trial import encode

Answer = Literal["holds", "fails", "cannot say yet"]


@dataclass(frozen=True, kw_only=True)
class SizeVerdict:
    """One size: its optimum in log2 eta, the shift from the base's, its least loss (nats).

    `regret` is the loss of training at the transferred eta, `cost` that of training at the
    optimum of the base's own curve. The answer rests on `shift_log2` and `cost`: an eta that is off
    at the base already is a matter of the search, not of the transfer. `basin` is the range of
    learning rates within 1 % of the least loss.
    """

    size: Size
    optimum_log2: Estimate
    shift_log2: Estimate
    loss: Estimate
    regret: Estimate
    cost: Estimate
    at_end: bool
    answer: Answer
    reason: str
    basin: Basin = UNKNOWN_BASIN
    is_base: bool = False


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer for one axis, from that of its sizes.

    `todo` says what would settle a doubt, and `more` how many seeds if it is seeds; `note` warns
    of an eta that the base itself refutes, and of larger models that are worse. `limits` are the
    thresholds in words.
    """

    axis: str
    answer: Answer
    sizes: tuple[SizeVerdict, ...]
    todo: str = ""
    note: str = ""
    limits: str = ""
    more: More | None = None

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
    sizes = [
        _judge_size(size, found, reference, rule, is_base=size == base) for size, found in fits
    ]
    answers = {size.answer for size in sizes}
    answer: Answer = "holds"
    if "fails" in answers:
        answer = "fails"
    elif "cannot say yet" in answers:
        answer = "cannot say yet"
    todo, more = "", None
    if answer == "cannot say yet":
        points = sum(len(curve.losses) for curve in curves)
        todo, more = advise(axis, [s for s in sizes if s.answer == answer], points, rule)
    notes = filter(None, (_note(transferred, reference, rule), _worse(axis, sizes)))
    return Verdict(
        axis=axis,
        answer=answer,
        sizes=tuple(sizes),
        todo=todo,
        note=". Also, ".join(notes),
        limits=f"shift within {rule.max_shift:g}, cost within {100 * rule.max_regret:g} % of loss",
        more=more,
    )


def _worse(axis: str, sizes: Sequence[SizeVerdict]) -> str:
    """What to say when a larger model is the worse one: its eta may stay, and its scheme be wrong.

    Under muP wider is better throughout training (Tensor Programs V, section 8).
    """
    if axis not in ("width", "depth"):
        return ""
    base = next(size for size in sizes if size.is_base)
    place = attrgetter(f"size.{axis}")
    larger = [s for s in sizes if s.loss.low > base.loss.high and place(s) > place(base)]
    if not larger:
        return ""
    first = larger[0]
    return (
        f"{named(first.size, axis)} is worse than the base by "
        f"{first.loss.value - base.loss.value:.4f} nats at its own best eta, where a larger model "
        "should be better: `sweeper check` shows whether a module grows or vanishes"
    )


def _note(transferred: float, reference: Fit | None, rule: LadderRule) -> str:
    """What to say when the transferred value is not the optimum of the base's own curve."""
    if reference is None or reference.regret.low <= 0:
        return ""
    if reference.regret.value <= rule.allowed(reference.loss.value):
        return ""
    better = reference.optimum.value
    return (
        f"at the base itself {rule.along}=2^{transferred:g} costs {reference.regret.value:.4f} "
        f"nats against 2^{better:.2f}: the other hyperparameters moved the optimum"
        + (f". transfer.eta={better:.2f} plans with it" if rule.along == "eta" else "")
    )


UNKNOWN = Estimate(value=math.nan, low=-math.inf, high=math.inf)


def _judge_size(
    size: Size, found: Fit | None, reference: Fit | None, rule: LadderRule, *, is_base: bool
) -> SizeVerdict:
    if found is None or reference is None:
        answer: Answer = "fails" if found is None else "cannot say yet"
        reason = "every run diverged" if found is None else "every run of the base diverged"
        return SizeVerdict(
            size=size,
            optimum_log2=UNKNOWN,
            shift_log2=UNKNOWN,
            loss=UNKNOWN,
            regret=UNKNOWN,
            cost=UNKNOWN,
            at_end=False,
            answer=answer,
            reason=reason,
            is_base=is_base,
        )
    shift = cost = Estimate(value=0.0, low=0.0, high=0.0)
    if not is_base:
        moved = found.place_draws - reference.place_draws
        shift = Estimate.of(found.optimum.value - reference.optimum.value, moved)
        cost = found.cost(reference.optimum.value, reference.optimum_draws)
        if found.unsure or reference.unsure:
            shift = shift.unsure()
            cost = cost if math.isinf(cost.low) else cost.unsure(0.0)
    if math.isinf(cost.low):
        answer, reason = "fails", "the base's optimum diverges here"
    elif found.unsure or reference.unsure:
        answer, reason = "cannot say yet", "too few seeds or finite runs to tell the noise"
    else:
        answer, reason = _answer(found, shift, cost, rule)
    return SizeVerdict(
        size=size,
        optimum_log2=found.optimum,
        shift_log2=shift,
        loss=found.loss,
        regret=found.regret,
        cost=cost,
        at_end=found.at_end,
        answer=answer,
        reason=reason,
        basin=found.basin,
        is_base=is_base,
    )


def _answer(fit: Fit, shift: Estimate, cost: Estimate, rule: LadderRule) -> tuple[Answer, str]:
    """The answer for one size and the finding behind it."""
    allowed = rule.allowed(fit.loss.value)
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
