"""What ablations on a failing transfer mean: how much of the failure each explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sweeper.catalog import with_names
from sweeper.transfer.battery import Ablation
from sweeper.transfer.estimate import Estimate
from sweeper.transfer.ladder import LadderRule, SizeCurve
from sweeper.transfer.verdict import Answer, SizeVerdict
from sweeper.trial import encode

WORST = 16.0
"""A failure counts as at most this many times a threshold, so that a share of it can be told."""
MOST = 0.5
"""From this share on an ablation is said to explain the failure; below half of it, not to."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What an ablation showed at the large size.

    `explained` is the share of the failure that is gone with the change (see `explained`), NaN
    when the ablation could not be run: `error` then says why.
    """

    ablation: Ablation
    explained: Estimate
    before: SizeVerdict
    after: SizeVerdict | None = None
    error: str = ""

    @property
    def sentence(self) -> str:
        """The finding with its numbers."""
        said = f"with {self.ablation.change}"
        if self.after is None:
            return f"{said}: it could not be tried ({self.error})"
        then, now = self.before, self.after
        return (
            f"{said}: the optimum moves by {_number(now.shift_log2, '+.2f')} instead of "
            f"{_number(then.shift_log2, '+.2f')} and the base's optimum costs "
            f"{_number(now.cost, '.4f')} instead of {_number(then.cost, '.4f')} nats; "
            f"{self._meaning()}"
        )

    def _meaning(self) -> str:
        share = f"{100 * self.explained.value:.0f} % of the failure"
        doubt = ", though the intervals allow for nothing" if self.explained.low <= 0 else ""
        if self.explained.value >= MOST:
            return f"this explains {share}{doubt}"
        if self.explained.value >= MOST / 2:
            return f"this explains a part, {share}{doubt}"
        return "this does not explain it"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All findings, what explains most first. `answer` is the verdict on the transfer itself."""

    axis: str
    answer: Answer
    findings: tuple[Finding, ...] = ()
    todo: str = ""

    @property
    def sentence(self) -> str:
        """The conclusion."""
        if self.answer == "holds":
            return f"Nothing to diagnose: the transfer over {self.axis} holds."
        if self.answer != "fails":
            todo = f" First, {self.todo}." if self.todo else ""
            return f"Nothing to diagnose yet: whether the transfer fails is not settled.{todo}"
        best = self.findings[0] if self.findings else None
        if best is None or not best.explained.value >= MOST:
            return "No ablation explains the failure."
        return (
            f"The likeliest cause ({best.ablation.name}): {best.ablation.cause}. Without it, "
            f"{100 * best.explained.value:.0f} % of the failure is gone."
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, each finding with its sentence; plugins have their stable names."""
        found = asdict(self) | {"conclusion": self.sentence}
        for record, finding in zip(found["findings"], self.findings, strict=True):
            record["sentence"] = finding.sentence
            ablation = record["ablation"]
            ablation["overrides"] = with_names("parameterization", ablation["overrides"])
        plain: dict[str, Any] = encode(found)
        return plain


def failure(shift: float, cost: float, loss: float, rule: LadderRule) -> float:
    """How many times its threshold the worse of shift (log2) and cost (nats) is; at most WORST."""
    allowed = rule.allowed(loss)
    shares = (abs(shift) / rule.max_shift, cost / allowed if allowed else WORST * (cost > 0))
    return min(WORST, max(WORST if math.isnan(share) else share for share in shares))


def explained(before: SizeVerdict, after: SizeVerdict, rule: LadderRule) -> Estimate:
    """The share of the failure that is gone: 1 less `failure` after over before, at least 0.

    The interval is that of `after` alone: the failure itself is beyond its own noise.
    """
    whole = failure(before.shift_log2.value, before.cost.value, before.loss.value, rule)
    shift, cost, loss = after.shift_log2, after.cost, after.loss.value
    least = max(0.0, shift.low, -shift.high)
    most = max(abs(shift.low), abs(shift.high))
    value, low, high = (
        min(1.0, max(0.0, 1 - failure(one, other, loss, rule) / whole))
        for one, other in (
            (shift.value, cost.value),
            (most, cost.high),
            (least, max(0.0, cost.low)),
        )
    )
    return Estimate(value=value, low=min(low, value), high=max(high, value))


def find(
    ablation: Ablation, before: SizeVerdict, after: SizeVerdict | str, rule: LadderRule
) -> Finding:
    """The finding; `after` is the verdict with the change, or why there is none."""
    if isinstance(after, str):
        unknown = Estimate(value=math.nan, low=0.0, high=1.0)
        return Finding(ablation=ablation, explained=unknown, before=before, error=after)
    share = explained(before, after, rule)
    return Finding(ablation=ablation, explained=share, before=before, after=after)


def ranked(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """What explains most first; of equals, what something spoke for, then the lower loss."""

    def place(finding: Finding) -> tuple[float, bool, float]:
        share = finding.explained.value
        loss = math.inf if finding.after is None else finding.after.loss.value
        return -1.0 if math.isnan(share) else -share, not finding.ablation.seen, loss

    known = [finding for finding in findings if finding.after is not None]
    return (*sorted(known, key=place), *(f for f in findings if f.after is None))


def margin(curve: SizeCurve) -> float:
    """How far, in log2, the curve's lowest point is below the first rate that diverged; or +inf."""
    means = {eta: sum(losses) / len(losses) for eta, losses in sorted(curve.losses.items())}
    best = min(means, key=lambda eta: means[eta])
    beyond = [eta for eta, mean in means.items() if eta > best and math.isinf(mean)]
    return min(beyond) - best if beyond and math.isfinite(means[best]) else math.inf


def _number(estimate: Estimate, form: str) -> str:
    value = estimate.value
    if math.isnan(value):
        return "nobody knows how much"
    return f"{value:{form}}" if math.isfinite(value) else "every run"
