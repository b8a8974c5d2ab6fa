"""What a search or a ladder is going to cost, measured before anything is trained."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.cli.next import Invocation, NextCommand
from sweeper.cli.output import Output
from sweeper.cli.shared import trial_seconds
from sweeper.cli.validate import finished
from sweeper.command.evidence import evidence_of
from sweeper.command.metrics import describe_source
from sweeper.config.compose import compose_tree
from sweeper.config.settings import Experiment, Settings, checked_plugin
from sweeper.errors import BadInput
from sweeper.launch.inline import Inline
from sweeper.records import to_json
from sweeper.report import console as show
from sweeper.report.cost import NOTHING, Cost, at_once, flops_of
from sweeper.report.table import duration
from sweeper.search.strategy import Strategy
from sweeper.study.study import Study
from sweeper.sweep.replay import replay_ladder
from sweeper.trial import Log2Hps, Result, Trial, defaults
from sweeper.verdict.ladder import JOINT_AXIS, LadderSize, Size, describe_size

FAST_FLOPS = 2e10
"""FLOPs a second that few processors reach on small models: what is short even so is not timed."""
LONG = 600.0
"""Seconds from which on the cost is said."""
MOST_BATCHED = 16
"""Trials that are timed together."""


# A search says how long it takes, before it begins, where that is long.


def tell_cost(experiment: Experiment, invocation: Invocation, output: Output) -> None:
    """Say how long a new search takes on this processor, and a smaller one to try first.

    Nothing is said of a short one, of one that goes on, or where time cannot be measured here:
    on a GPU that jobs may share, on a cluster, and of commands.
    """
    settings = experiment.settings
    flops = settings.runner.flops(experiment.spec(settings.base))
    trials = _planned(settings.search, settings)
    known = flops is not None and settings.runner.parameters(experiment.spec(settings.base))
    if not flops or not known or experiment.precision != "float32":
        return
    if any(path.stat().st_size for path in settings.folder.glob("results/*.jsonl")):
        return
    if trials * flops / FAST_FLOPS < LONG:
        return
    _, seconds = run_time(experiment, settings.base)
    if not math.isfinite(seconds) or trials * seconds < LONG:
        return
    output.tell(f"This search trains {trials} trials: about {duration(trials * seconds)} here.")
    local = "launcher=local, " * isinstance(settings.launcher, Inline)
    output.tell(
        f"More cores, {local}a GPU or launcher=slurm shorten it; stop it whenever you like."
    )
    if smaller := _smaller(settings, seconds, invocation):
        output.tell(f"{smaller.why[0].upper()}{smaller.why[1:]}: {smaller}")


def _planned(search: Strategy, settings: Settings) -> int:
    return sum(phase.trials for phase in search.plan(settings.space))


def run_time(experiment: Experiment, size: Size, known: Sequence[Result] = ()) -> tuple[int, float]:
    """Trials to a job, and seconds to be counted for one of this size.

    They are measured here; runs of a command take as long as those of `known` did, as many at a
    time. NaN where neither is possible.
    """
    settings, hps = experiment.settings, defaults(experiment.settings.space)
    trials = [experiment.trial(size, hps, seed, "cost") for seed in range(MOST_BATCHED)]
    per_job, seconds = settings.runner.estimate(trials, experiment.corpus, settings.launcher)
    if settings.raw["runner"].get("command"):
        return per_job, trial_seconds(settings, known).of(trials[0]) / at_once(known)
    return per_job, seconds * trials[0].spec.train.steps


def _smaller(settings: Settings, seconds: float, invocation: Invocation) -> NextCommand | None:
    """A search of the learning rate alone by shorter runs; None where none can be composed."""
    replaced = ("search=", "search.", "train.steps=", "study")
    kept = [word for word in invocation.overrides if not word.startswith(replaced)]
    kept.append("search=lr")
    try:
        search = checked_plugin(compose_tree(kept, invocation.config_dir)["search"], Strategy)
    except BadInput:  # an experiment of the user's that sets keys of another search
        return None
    trials, all_steps = _planned(search, settings), settings.raw["train"]["steps"]
    share = min(1.0, LONG / (trials * seconds))
    steps = max(all_steps // 20, 10 * round(all_steps * share / 10), 1)
    return NextCommand.of(
        "search",
        *kept,
        f"train.steps={steps}",
        study=f"{settings.name[:90]}-try",
        root=settings.root,
        config_dir=invocation.config_dir,
        why=f"to try it first, in about {duration(trials * seconds * steps / all_steps)}",
    )


def say_command(settings: Settings, trial: Trial, output: Output, *, at: str) -> list[str] | None:
    """The words of a user's command for `trial`, said with where its losses are looked for."""
    words = settings.runner.argv(trial, settings.folder.absolute() / "trials" / "KEY")
    if words is not None:
        losses = describe_source(settings.raw["runner"].get("metric"))
        output.say(f"\nThe command of a trial, {at}:\n{shlex.join(words)}\nIts losses: {losses}.")
    return words


def say_losses(
    settings: Settings, output: Output, results: Sequence[Result]
) -> list[dict[str, Any]]:
    """Say where the losses of a study's first run were read, and what speaks against them.

    Where none of its `results` is of this command, the last run that left a log tells what a new
    pattern would read.
    """
    runner, trials = settings.raw["runner"], settings.folder / "trials"
    if not runner.get("command"):
        return []
    # A run that diverged or failed ends anywhere: a complete one tells more.
    ours = [r for r in results if r.trial.spec.runner == settings.identity and r.status != "failed"]
    ours.sort(key=lambda r: r.status != "complete")
    logs = [path for r in ours if (path := trials / r.key / "log.txt").is_file()]
    complete = [trials / r.key / "log.txt" for r in reversed(results) if r.status == "complete"]
    others = sorted(trials.glob("*/log.txt"), key=lambda path: -path.stat().st_mtime_ns)
    known = [path for path in complete if path.is_file()]
    first = next(iter([*logs, *known, *others]), None)
    if first is None:
        return []
    read = evidence_of(first.parent, metric=runner["metric"], heldout=runner["heldout"])
    which, facts = "the first run" if logs else "an earlier run", "; ".join(e.facts() for e in read)
    output.tell(f"Losses of {which} ({first}): {facts}.")
    for doubt in (doubt for evidence in read for doubt in evidence.doubts()):
        output.tell(f"Note: {doubt}")
    return [
        {"key": e.key, "values": e.count, "facts": e.facts(), "doubts": e.doubts()} for e in read
    ]


# `sweeper transfer --validate --dry-run`: what ladders would train, and what that would take.


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The curve of a size: its values of eta (log2), how many runs it has, and those it lacks."""

    name: str
    size: LadderSize
    values: Sequence[float]
    missing: Sequence[Trial]
    cost: Cost

    def to_json(self, seeds: int) -> dict[str, Any]:
        """Plain JSON."""
        cost = to_json(self.cost)
        return {
            "size": to_json(self.size),
            "values_log2": list(self.values),
            "runs": seeds * len(self.values),
            "missing": cost.pop("trials"),
            **cost,
        }


def show_ladder_cost(
    experiment: Experiment,
    study: Study,
    best: Log2Hps,
    next_command: NextCommand,
    output: Output,
) -> None:
    """Say what the ladders around `best` lack; the `next_command` trains it."""
    settings, rule = experiment.settings, experiment.settings.transfer
    ladders, base = rule.ladders(settings.ladder_base), settings.ladder_base
    names = {base: f"{describe_size(base, next(iter(ladders)))} (base)"} | {
        size: str(size) if axis == JOINT_AXIS else describe_size(size, axis)
        for axis, sizes in ladders.items()
        for size in sizes
        if size != base
    }
    rows = [_size_cost(experiment, study, best, size, name) for size, name in names.items()]
    if math.isnan(sum((row.cost for row in rows), NOTHING).seconds):
        time = "not known here"
    elif settings.raw["runner"].get("command"):
        time = (
            "by the runs that the study has finished, as many at once; of a size that has none, "
            "a guess by the root of width^2 x depth x tokens"
        )
    else:
        time = "measured here"
    ranges = {(f"{row.values[0]:g}", f"{row.values[-1]:g}") for row in rows}
    where = "around what the law plans there"  # for each size another range
    if len(ranges) == 1:
        where = "from {} to {}".format(*ranges.pop())
    facts = (
        f"Each size: {len(rows[0].values)} values of log2 {rule.hyperparameter}, "
        f"{rule.step:g} apart, {where}, {_counted(rule.seeds, 'seed')} each; a curve whose lowest "
        f"point is at its end grows there by up to {rule.extend}. Time: {time}."
    )
    costs = [(row.name, row.cost) for row in rows]
    show.dry_run(output.people, "This would train", "size", costs, "runs", facts)
    record = {
        "study": settings.name,
        "hyperparameter": rule.hyperparameter,
        "seeds": rule.seeds,
        "sizes": [row.to_json(rule.seeds) for row in rows],
    }
    trial = experiment.trial(settings.base, defaults(settings.space), 0, "dry run")
    if command := say_command(settings, trial, output, at="at the base's defaults"):
        record["command"] = command
    runs = sum(rule.seeds * len(row.values) for row in rows)
    left = sum(len(row.missing) for row in rows)
    found = f"{left} of {_counted(runs, 'run')} are to be trained; nothing was written."
    output.end(found, {}, record, next_command)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _size_cost(
    experiment: Experiment, study: Study, best: Log2Hps, size: LadderSize, name: str
) -> Planned:
    """What the study holds and lacks of a size's curve."""
    hyperparameter = experiment.settings.transfer.hyperparameter
    (curve,), _, missing = replay_ladder(experiment, best, [size], finished(study))
    values = {*curve.losses, *(trial.log2_hps[hyperparameter] for trial in missing)}
    seconds, count = 0.0, len(missing)
    if missing:
        seconds = count * run_time(experiment, size, study.results())[1]
    cost = Cost(trials=count, flops=count * flops_of(experiment.spec(size)), seconds=seconds)
    return Planned(name=name, size=size, values=sorted(values), missing=missing, cost=cost)
