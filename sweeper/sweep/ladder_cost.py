"""What ladders lack, and what it takes to train that, measured before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sweeper.config.settings import Experiment
from sweeper.engine.branches import trunk_key
from sweeper.stats.ladder import LadderSize
from sweeper.study.cost import Cost
from sweeper.study.flops import flops_of
from sweeper.study.setup import LADDER_PHASE
from sweeper.study.study import StudyRecord
from sweeper.sweep.experiment import lacking_cost, shared_steps
from sweeper.sweep.optimum import finished
from sweeper.sweep.planning import TransferTarget
from sweeper.sweep.settled_ladder import SettledLadder
from sweeper.sweep.study_replay import planned_log2, replay_ladder
from sweeper.trial import Log2Hps, Trial, defaults


@dataclass(frozen=True, kw_only=True)
class SizeCost:
    """A size on the ladder over `axis`: what it lacks, of `runs` at `values_log2`."""

    size: LadderSize
    axis: str
    cost: Cost
    values_log2: Sequence[float]
    runs: int


@dataclass(frozen=True, kw_only=True)
class LadderCost:
    """What ladders lack, the base first; of those that are to `settle`, their next round.

    `branches` are the steps that runs take from longer ones, by key; `steps` those of all that is
    lacking. `share` is the compute of all as a share of the target's run. `command` is that of a
    trial where the user has one.
    """

    sizes: Sequence[SizeCost]
    branches: Mapping[str, int]
    steps: int
    share: float
    settle: SettledLadder | None = None
    command: Sequence[str] | None = None

    @property
    def missing(self) -> int:
        """How many runs are to be trained."""
        return sum(size.cost.trials for size in self.sizes)

    @property
    def runs(self) -> int:
        """How many there will be."""
        return sum(size.runs for size in self.sizes)


def ladder_cost(
    experiment: Experiment, target: TransferTarget, settle: SettledLadder | None = None
) -> LadderCost:
    """What the ladders around the study's optimum lack."""
    settings, rule = experiment.settings, experiment.settings.transfer
    study, best = target.study, target.best
    ladders, base = settings.ladders(), settings.ladder_base
    axes = {base: next(iter(ladders))} | {
        size: axis for axis, sizes in ladders.items() for size in sizes if size != base
    }
    lacking_runs = dict[LadderSize, Sequence[Trial]]()
    values_of = dict[LadderSize, list[float]]()
    if settle is not None:
        every = settle.trials()
        for size in axes:
            lacking_runs[size] = [t for t in every if t.spec == experiment.spec(size)]
            values_of[size] = sorted({value for of, value, _ in settle.asked if of == size})
    else:
        for size in axes:
            (curve,), _, missing = replay_ladder(experiment, best, [size], finished(study))
            lacking = (trial.log2_hps[rule.hyperparameter] for trial in missing)
            lacking_runs[size], values_of[size] = missing, sorted({*curve.losses, *lacking})
        # Of all sizes together: a run branches off one of another number of steps.
        every = [trial for missing in lacking_runs.values() for trial in missing]
    branches = shared_steps(settings, every)
    costs = []
    for size, axis in axes.items():
        values = values_of[size]
        asked = rule.seeds * len(values)
        if settle is not None:
            asked = sum(run_size == size for run_size, *_ in settle.asked)
        cost = lacking_cost(experiment, lacking_runs[size], branches, study.results())
        costs.append(SizeCost(size=size, axis=axis, cost=cost, values_log2=values, runs=asked))
    all_flops = sum(size.cost.flops for size in costs)
    some = any(size.runs for size in costs)
    trial = experiment.trial(settings.base, defaults(settings.space), 0, "dry run")
    key = settings.folder.absolute() / "trials" / "KEY"
    there = flops_of(experiment.spec(settings.timed(target.size)))
    return LadderCost(
        sizes=costs,
        branches=branches,
        steps=sum(trial.spec.train.steps for trial in every),
        share=all_flops / there if some else math.nan,
        settle=settle,
        command=settings.runner.argv(trial, key),
    )


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
