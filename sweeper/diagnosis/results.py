"""What ablations of a failing transfer show: how much of the failure each explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sweeper.catalog import with_names
from sweeper.diagnosis.ablations import Ablation
from sweeper.transfer.curve import Estimate
from sweeper.transfer.ladder import LadderRule, SizeCurve
from sweeper.transfer.verdict import Answer, SizeVerdict
from sweeper.trial import encode

MAX_SEVERITY = 16.0
"""A failure counts at most this many times its threshold: a fraction of infinity says nothing."""
CAUSE_FRACTION = 0.5
"""From this fraction on, an ablation explains the failure; from half of it on, a part of it."""


@dataclass(frozen=True, kw_only=True)
class AblationResult:
    """What an ablation showed at the large size: its verdicts without and with the change.

    `explained` is the fraction of the failure that is gone with the change, NaN when the
    ablation could not be run: `error` then says why.
    """

    ablation: Ablation
    explained: Estimate
    before: SizeVerdict
    after: SizeVerdict | None = None
    error: str = ""

    @property
    def sentence(self) -> str:
        """The result with its numbers."""
        change = f"with {self.ablation.change}"
        if self.after is None:
            return f"{change}: it could not be tried ({self.error})"
        before, after = self.before, self.after
        return (
            f"{change}: the shift is {_number(after.shift_log2, '+.2f')} in log2 instead of "
            f"{_number(before.shift_log2, '+.2f')}, and the loss gap is "
            f"{_number(after.loss_gap, '.4f')} nats instead of "
            f"{_number(before.loss_gap, '.4f')}; {self._meaning()}"
        )

    def _meaning(self) -> str:
        fraction = f"{100 * self.explained.value:.0f} % of the failure"
        doubt = ", but by its interval it may explain nothing" if self.explained.low <= 0 else ""
        if self.explained.value >= CAUSE_FRACTION:
            return f"this explains {fraction}{doubt}"
        if self.explained.value >= CAUSE_FRACTION / 2:
            return f"this explains a part, {fraction}{doubt}"
        return "this does not explain the failure"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All results, the one that explains most first. `answer` is the verdict on the transfer."""

    axis: str
    answer: Answer
    results: tuple[AblationResult, ...] = ()
    todo: str = ""

    @property
    def sentence(self) -> str:
        """The conclusion."""
        if self.answer == "holds":
            return (
                f"Nothing to diagnose: the transfer over {self.axis} holds from the base to the "
                "largest size, which are all that a diagnosis looks at."
            )
        if self.answer != "fails":
            todo = f" To settle it, {self.todo}." if self.todo else ""
            return f"Nothing to diagnose yet: the verdict on the transfer is still open.{todo}"
        best = self.results[0] if self.results else None
        if best is None or not best.explained.value >= CAUSE_FRACTION:
            return "No ablation explains the failure."
        return (
            f"The likeliest cause ({best.ablation.name}): {best.ablation.cause}. Without it, "
            f"{100 * best.explained.value:.0f} % of the failure is gone."
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, each result with its sentence; plugins have their stable names."""
        record = asdict(self) | {"conclusion": self.sentence}
        for entry, result in zip(record["results"], self.results, strict=True):
            entry["sentence"] = result.sentence
            ablation = entry["ablation"]
            ablation["overrides"] = with_names("parameterization", ablation["overrides"])
        plain: dict[str, Any] = encode(record)
        return plain


def severity(shift: float, loss_gap: float, loss: float, rule: LadderRule) -> float:
    """The larger of shift (log2) and loss gap (nats), each in multiples of its threshold.

    At most `MAX_SEVERITY`, which also stands for a value that is NaN: every run diverged.
    """
    allowed = rule.allowed_gap(loss)
    gap_ratio = loss_gap / allowed if allowed else MAX_SEVERITY * (loss_gap > 0)
    ratios = (abs(shift) / rule.max_shift, gap_ratio)
    return min(MAX_SEVERITY, max(MAX_SEVERITY if math.isnan(one) else one for one in ratios))


def explained_fraction(before: SizeVerdict, after: SizeVerdict, rule: LadderRule) -> Estimate:
    """The fraction of the failure that is gone: 1 less `severity` after over before, at least 0.

    The interval is that of `after` alone: `before` is known to fail beyond its noise.
    """
    whole = severity(before.shift_log2.value, before.loss_gap.value, before.loss.value, rule)
    shift, gap = after.shift_log2, after.loss_gap
    least_shift = max(0.0, shift.low, -shift.high)
    most_shift = max(abs(shift.low), abs(shift.high))
    # The worst case of both explains least, the best case of both most.
    value, low, high = (
        min(1.0, max(0.0, 1 - severity(one_shift, one_gap, after.loss.value, rule) / whole))
        for one_shift, one_gap in (
            (shift.value, gap.value),
            (most_shift, gap.high),
            (least_shift, max(0.0, gap.low)),
        )
    )
    return Estimate(value=value, low=min(low, value), high=max(high, value))


def judge_ablation(
    ablation: Ablation, before: SizeVerdict, after: SizeVerdict | str, rule: LadderRule
) -> AblationResult:
    """The result; `after` is the verdict with the change, or why there is none."""
    if isinstance(after, str):
        unknown = Estimate(value=math.nan, low=0.0, high=1.0)
        return AblationResult(ablation=ablation, explained=unknown, before=before, error=after)
    fraction = explained_fraction(before, after, rule)
    return AblationResult(ablation=ablation, explained=fraction, before=before, after=after)


def rank(results: Sequence[AblationResult]) -> tuple[AblationResult, ...]:
    """What explains most first; of equals, what has evidence, then the lower loss; untried last."""

    def order(result: AblationResult) -> tuple[bool, float, bool, float]:
        if result.after is None:
            return True, 0.0, False, 0.0
        loss = result.after.loss.value
        return False, -result.explained.value, not result.ablation.evidence, loss

    return tuple(sorted(results, key=order))


def distance_to_divergence(curve: SizeCurve) -> float:
    """From the curve's lowest point to the first rate above it that diverged, in log2; or +inf."""
    means = {eta: sum(losses) / len(losses) for eta, losses in sorted(curve.losses.items())}
    best = min(means, key=lambda eta: means[eta])
    diverged = [eta for eta, mean in means.items() if eta > best and math.isinf(mean)]
    return min(diverged) - best if diverged and math.isfinite(means[best]) else math.inf


def _number(estimate: Estimate, form: str) -> str:
    value = estimate.value
    if math.isnan(value):
        return "unknown"
    return f"{value:{form}}" if math.isfinite(value) else "infinite"
