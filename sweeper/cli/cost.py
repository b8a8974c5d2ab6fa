"""What a search or a ladder is going to cost, measured before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sweeper.cli.validate import finished
from sweeper.command.evidence import evidence_of
from sweeper.command.metrics import describe_source
from sweeper.command.runner import Command
from sweeper.config.compose import compose_tree
from sweeper.config.settings import Experiment, Settings, checked_plugin
from sweeper.config.studies import Invocation
from sweeper.decide.settle import SEEDS
from sweeper.errors import BadInput
from sweeper.launch.inline import Inline
from sweeper.records import to_json
from sweeper.report import console as show
from sweeper.report.next import NextCommand
from sweeper.report.output import Output
from sweeper.report.sentences_transfer import ladder_end, ladder_progress
from sweeper.search.strategy import Strategy
from sweeper.stats.ladder import JOINT_AXIS, Size, describe_size
from sweeper.study.cost import Cost, flops_of
from sweeper.study.study import Study
from sweeper.sweep.experiment import run_time, shared_steps
from sweeper.sweep.replay import SettledLadder, replay_ladder
from sweeper.table import duration
from sweeper.trial import Log2Hps, Result, Trial, defaults

FAST_FLOPS = 2e10
"""FLOPs a second that few processors reach on small models: what is short even so is not timed."""
LONG = 600.0
"""Seconds from which on the cost is said."""


# A search says how long it takes, before it begins, where that is long.


def tell_cost(experiment: Experiment, invocation: Invocation, output: Output) -> None:
    """Say how long a new search takes on this processor, and a smaller one to try first.

    Of a command is said how its trials share this machine. Nothing is said of a short one, of one
    that goes on, or where time cannot be measured here: on a GPU that jobs may share, on a cluster,
    and of commands.
    """
    settings = experiment.settings
    if how := sharing(settings):
        output.tell(how)
    flops = settings.runner.flops(experiment.spec(settings.base))
    trials = _planned(settings.search, settings)
    # A user command's FLOPs are a mere proportion, and it knows no parameters: that tells it here.
    known = flops is not None and settings.runner.parameters(experiment.spec(settings.base))
    # float32 is what auto stands for on a processor; on a GPU it is bfloat16.
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
    # One of the learning rate alone by shorter runs, at most as long.
    replaced = ("search=", "search.", "train.steps=", "study")
    kept = [word for word in invocation.overrides if not word.startswith(replaced)]
    kept.append("search=lr")
    try:
        search = checked_plugin(compose_tree(kept, invocation.config_dir)["search"], Strategy)
    except BadInput:  # an experiment of the user's that sets keys of another search
        return
    # From here on `search` and `trials` are those of the smaller search.
    trials, all_steps = _planned(search, settings), settings.raw["train"]["steps"]
    # As many steps as make it last LONG, in tens, but no less than a twentieth of the run's.
    share = min(1.0, LONG / (trials * seconds))
    steps = max(all_steps // 20, 10 * round(all_steps * share / 10), 1)
    smaller = NextCommand.of(
        "search",
        *kept,
        f"train.steps={steps}",
        # A study's name has at most 100 letters.
        study=f"{settings.name[:90]}-try",
        root=settings.root,
        config_dir=invocation.config_dir,
        why=f"about {duration(trials * seconds * steps / all_steps)}",
    )
    output.tell(f"To try it first, in {smaller.why}: {smaller}")


def _planned(search: Strategy, settings: Settings) -> int:
    return sum(phase.trials for phase in search.plan(settings.space))


def say_command(settings: Settings, trial: Trial, output: Output, *, at: str) -> list[str] | None:
    """The words of a user's command for `trial`, said with where its losses are looked for."""
    command = settings.runner.argv(trial, settings.folder.absolute() / "trials" / "KEY")
    if command is not None:
        name = "the command of a trial"
        output.command(f"{name.capitalize()}, {at}:", command)
        losses = describe_source(settings.raw["runner"].get("metric"))
        output.say(f"Its losses: {losses}.")
        if how := sharing(settings):
            output.say(how)
    return command


def sharing(settings: Settings) -> str:
    """How a command's trials share this machine, in a sentence; empty where nothing is chosen."""
    runner = settings.runner
    how = runner.sharing(settings.launcher) if isinstance(runner, Command) else ""
    return f"On this machine: {how}." if how else ""


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


def show_ladder_cost(
    experiment: Experiment,
    study: Study,
    best: Log2Hps,
    target: Size,
    next_command: NextCommand,
    output: Output,
    settle: SettledLadder | None = None,
) -> None:
    """Say what the ladders around `best` lack; the `next_command` trains it.

    The cost is said beside that of the `target`'s run, too. Of ladders that are to `settle` it is
    that of the next round.
    """
    settings, rule = experiment.settings, experiment.settings.transfer
    ladders, base = settings.ladders(), settings.ladder_base
    names = {base: f"{describe_size(base, next(iter(ladders)))} (base)"} | {
        size: str(size)
        if axis == JOINT_AXIS
        else describe_size(size, axis) + f", {size.steps} steps" * (settings.steps_of is not None)
        for axis, sizes in ladders.items()
        for size in sizes
        if size != base
    }
    costs, records, runs = list[tuple[str, Cost]](), list[dict[str, Any]](), 0
    ranges = set[tuple[str, str]]()
    lacking_runs = dict[Size, list[Trial]]()
    values_of = dict[Size, list[float]]()
    if settle is not None:
        every = settle.trials()
        for size in names:
            lacking_runs[size] = [t for t in every if t.spec == experiment.spec(size)]
            values_of[size] = sorted({value for one, value, _ in settle.asked if one == size})
    else:
        for size in names:
            (curve,), _, missing = replay_ladder(experiment, best, [size], finished(study))
            lacking = (trial.log2_hps[rule.hyperparameter] for trial in missing)
            lacking_runs[size], values_of[size] = missing, sorted({*curve.losses, *lacking})
        # Of all sizes together: a run branches off one of another number of steps.
        every = [trial for missing in lacking_runs.values() for trial in missing]
    branches = shared_steps(settings, every)
    for size, name in names.items():
        missing, values, count = lacking_runs[size], values_of[size], len(lacking_runs[size])
        # What a run takes from a longer one is trained there.
        steps = experiment.spec(size).train.steps
        whole = count - sum(branches.get(trial.key, 0) for trial in missing) / steps
        seconds = whole * run_time(experiment, size, study.results())[1] if missing else 0.0
        flops = whole * flops_of(experiment.spec(size))
        costs.append((name, Cost(trials=count, flops=flops, seconds=seconds)))
        if values:
            ranges.add((f"{values[0]:g}", f"{values[-1]:g}"))
        asked = rule.seeds * len(values)
        if settle is not None:
            asked = sum(one == size for one, *_ in settle.asked)
        runs += asked
        cost = to_json(costs[-1][1])
        planned = {"size": to_json(size), "values_log2": values, "runs": asked}
        records.append({**planned, "missing": cost.pop("trials"), **cost})
    if math.isnan(sum(cost.seconds for _, cost in costs)):
        time = "not known here"
    elif settings.raw["runner"].get("command"):
        time = (
            "by the runs that the study has finished, as many at once; of a size that has none, "
            "a guess by the root of width^2 x depth x tokens"
        )
    else:
        time = "measured here"
    where = "around what the law plans there"  # for each size another range
    if len(ranges) == 1:
        where = "from {} to {}".format(*ranges.pop())
    begins: dict[str, Any] = {}
    if settle is not None:
        begins = _settled_cost(settle, len(every))
        facts = f"{begins['sentence']} Values of log2 {rule.hyperparameter} {where}. Time: {time}."
    else:
        facts = (
            f"Each size: {len(records[0]['values_log2'])} values of log2 {rule.hyperparameter}, "
            f"{rule.step:g} apart, {where}, {rule.seeds} seed{'s' * (rule.seeds != 1)} each; a "
            f"curve whose lowest point is at its end grows there by up to {rule.extend}. Time: "
            f"{time}."
        )
    facts += branches_text(every, branches)
    flops = sum(cost.flops for _, cost in costs)
    share = flops / flops_of(experiment.spec(target)) if runs else math.nan
    if math.isfinite(share):
        facts += f" All of it takes {_share(share)} the compute of the target's run."
    output.show(*show.dry_run("This would train", "size", costs, "runs", facts))
    record: dict[str, Any] = {
        "study": settings.name,
        "share_of_target": share,
        **({"settle": begins} if begins else {}),
        "branches": {"runs": len(branches), "steps": sum(branches.values())},
        "hyperparameter": rule.hyperparameter,
        "seeds": rule.seeds if settle is None else SEEDS,
        "sizes": records,
    }
    trial = experiment.trial(settings.base, defaults(settings.space), 0, "dry run")
    if command := say_command(settings, trial, output, at="at the base's defaults"):
        record["command"] = command
    left = sum(cost.trials for _, cost in costs)
    answer = f"{left} of {runs} run{'s' * (runs != 1)} are to be trained; nothing was written."
    if settle is not None:
        next_round = " next" if settle.looks else " to begin with"
        answer = f"{left} run{'s' * (left != 1)} are to be trained{next_round * bool(left)}; "
        answer += "nothing was written."
    # What trains nothing still judges: it writes the verdict.
    why = next_command.why if left else "to have it judged"
    output.end(answer, {}, record, replace(next_command, why=why))


def _share(share: float) -> str:
    """A share in words."""
    return f"{share:.2g} times" if share >= 1 else f"{100 * share:.2g} % of"


def _settled_cost(ladder: SettledLadder, missing: int) -> dict[str, Any]:
    """What ladders train next and may take, in a sentence and in numbers."""
    most = f"at most {ladder.budget} runs in all"
    if ladder.hours is not None:
        most += f" and {ladder.hours:g} hours"
    if not ladder.looks:
        count, there = missing, len(ladder.asked) - missing
        have = f", of which it has {there}" * bool(there)
        count += there
        sentence = (
            f"With --settle it begins with {count} runs at {len(ladder.started)} sizes, its ends"
            f"{have}, and goes on until it is settled, {most}."
        )
    elif missing:
        sentence = (
            f"With --settle the runs that are there are looked at: {ladder_progress(ladder)}. "
            f"It goes on until it is settled, {most}."
        )
    else:
        looked = f"{ladder_progress(ladder)}. {ladder_end(ladder.ending)}"
        sentence = f"With --settle nothing is trained: {looked}."
    return {"sentence": sentence, "runs": missing, "most": ladder.budget}


def branches_text(missing: Sequence[Trial], branches: Mapping[str, int]) -> str:
    """What branches save of the runs that are missing, to append; "" where there are none."""
    if not branches:
        return ""
    total = sum(trial.spec.train.steps for trial in missing)
    return (
        f" {len(branches)} runs branch off longer ones where they begin to decay: "
        f"{sum(branches.values()) / total:.0%} of all {total:,} steps are saved, and not counted "
        "here."
    )
