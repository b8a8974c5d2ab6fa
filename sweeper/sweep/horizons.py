"""Sizes at several horizons, by which the loss of a larger run can be told, and their cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sweeper.config.settings import Experiment
from sweeper.engine.branches import trunk_key
from sweeper.study.cost import Cost
from sweeper.study.setup import LADDER_PHASE
from sweeper.study.study import StudyRecord
from sweeper.sweep.experiment import lacking_cost, shared_steps
from sweeper.sweep.study_replay import planned_log2
from sweeper.trial import Log2Hps, Trial


def rungs(experiment: Experiment, best: Log2Hps) -> list[Trial]:
    """Every size of the ladders over width and depth at every number of steps, as planned there.

    Without `transfer.steps` an eighth, a quarter and a half of a size's beside its own.
    """
    settings = experiment.settings
    rule, base = settings.transfer, settings.ladder_base
    models = {(base.width, base.depth)}
    models |= {(width, base.depth) for width in rule.widths}
    models |= {(base.width, depth) for depth in rule.depths}
    whole = [settings.with_steps(replace(base, width=w, depth=d)) for w, d in sorted(models)]
    return [
        experiment.trial(size, planned_log2(experiment, size, best), seed, LADDER_PHASE)
        for longest in whole
        for steps in sorted(
            {longest.steps, *(rule.steps or [max(1, longest.steps // part) for part in (8, 4, 2)])}
        )
        for size in [replace(longest, steps=steps)]
        for seed in range(rule.seeds)
    ]


@dataclass(frozen=True, kw_only=True)
class RungCosts:
    """What the horizons of each size lack: `missing` of all `trials`, and what branches share."""

    trials: Sequence[Trial]
    missing: Sequence[Trial]
    branches: Mapping[str, int]
    sizes: Mapping[str, Cost]
    seeds: int
    could_branch: bool

    @property
    def horizons(self) -> list[int]:
        """The numbers of steps."""
        return sorted({trial.spec.train.steps for trial in self.trials})


def rung_costs(experiment: Experiment, study: StudyRecord, trials: Sequence[Trial]) -> RungCosts:
    """What is lacking of the trials, and what that costs, by size."""
    settings = experiment.settings
    missing = [t for t in trials if (r := study.get(t.key)) is None or r.status == "failed"]
    branches = shared_steps(settings, missing)
    depths = len({trial.spec.depth for trial in trials}) > 1
    sizes = {}
    for width, depth in dict.fromkeys((trial.spec.width, trial.spec.depth) for trial in trials):
        lacking = [t for t in missing if (t.spec.width, t.spec.depth) == (width, depth)]
        cost = lacking_cost(experiment, lacking, branches, study.results())
        sizes[f"width {width}" + f", depth {depth}" * depths] = cost
    several = len({trial.spec.train.steps for trial in trials}) > 1
    command = settings.raw["runner"].get("command")
    return RungCosts(
        trials=trials,
        missing=missing,
        branches=branches,
        sizes=sizes,
        seeds=settings.transfer.seeds,
        could_branch=bool(missing) and several and not command and not any(map(trunk_key, missing)),
    )
