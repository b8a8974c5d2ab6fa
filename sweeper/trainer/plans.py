"""The plan of one trial: for scripts that load it, under a scheme of sweeper's."""

from __future__ import annotations

from sweeper.training.prepare import prepare
from sweeper.transfer.ladder import Size
from sweeper.transfer.plan import TransferPlan, make_plan
from sweeper.trial import Trial


def plan_of_trial(trial: Trial) -> TransferPlan:
    """What the trial's model is trained with, at its own hyperparameters and size."""
    spec = trial.spec
    base = Size(width=spec.base_width, depth=spec.base_depth)
    target = Size(width=spec.width, depth=spec.depth)
    source = {"trial": trial.key, "seed": trial.seed}
    return make_plan(prepare(spec), base, target, trial.hps, source)
