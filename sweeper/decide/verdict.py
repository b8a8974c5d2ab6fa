"""One ladder judged, at its sizes and at the target: what a validation and a table both ask."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from sweeper.decide.ladder_verdict import Verdict, judge_ladder
from sweeper.decide.target import Prior
from sweeper.decide.trend import Trend, judge_joint_target, judge_target, shifts_along
from sweeper.stats.curve import CurveFit
from sweeper.stats.ladder import JOINT_AXIS, LadderRule, LadderSize, SizeCurve


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
