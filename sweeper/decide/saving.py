"""What tuning small has saved, beside the same search at the target."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sweeper.plan.plan import TransferPlan
from sweeper.study.cost import Cost, spent
from sweeper.study.flops import flops_of
from sweeper.study.setup import LADDER_PHASE, Trials
from sweeper.trial import TrialSpec


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Tuning at the base, its validation, and the same tuning at a target of `width` and `depth`.

    `at_target.seconds` follow from the speed at the widest that was trained.
    """

    width: int
    depth: int
    tuning: Cost
    validation: Cost
    at_target: Cost

    @property
    def factor(self) -> float:
        """So many times less than at the target: FLOPs of tuning, without the validation."""
        return self.at_target.flops / self.tuning.flops if self.tuning.flops else math.nan

    @property
    def factor_with_validation(self) -> float:
        """The factor with the validation as a part of the tuning."""
        flops = self.tuning.flops + self.validation.flops
        return self.at_target.flops / flops if flops else math.nan


def at_target(spec: TrialSpec, plan: TransferPlan) -> TrialSpec:
    """What the search's trials of `spec` would be at the plan's target."""
    train = spec.train
    if plan.law is not None:
        scale = plan.law.target
        train = replace(train, batch_size=scale.batch, steps=scale.steps)
    elif isinstance(steps := plan.source.get("steps"), int):  # they follow from its parameters
        train = replace(train, steps=steps)
    return replace(spec, width=plan.target.width, depth=plan.target.depth, train=train)


def saving(
    trials: Trials, plan: TransferPlan | None, flops: Callable[[TrialSpec], float] = flops_of
) -> Saving | None:
    """What the study spent, and what the same search at the plan's target would.

    The trials at the target are those of the search, run for run, each for as many of its
    steps and trained as the plan's law says. None without trials or a plan.
    """
    searched = trials.searched
    if not searched or plan is None:
        return None

    ladders = [run for run in trials.current if run.trial.phase == LADDER_PHASE]
    # A run that diverged or was pruned here is taken to stop at the same share of its steps there.
    there = spent(searched, lambda spec: flops(at_target(spec, plan)))
    seconds = math.nan
    # The widest runs are the best guess of the target's speed: small models leave a device idle.
    if timed := [run for run in (*searched, *ladders) if run.seconds > 0]:
        widest = max(run.trial.width for run in timed)
        wide = [run for run in timed if run.trial.width == widest]
        cost = spent(wide, flops)
        seconds = there.flops * cost.seconds / cost.flops if cost.flops else math.nan
    return Saving(
        width=plan.target.width,
        depth=plan.target.depth,
        tuning=spent(searched, flops),
        validation=spent(ladders, flops),
        at_target=replace(there, seconds=seconds),
    )
