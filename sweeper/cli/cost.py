"""What a search is going to cost, measured before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sweeper.command.evidence import evidence_of
from sweeper.config.compose import compose_tree
from sweeper.config.settings import Experiment, Settings, checked_plugin
from sweeper.config.studies import Invocation
from sweeper.errors import BadInput
from sweeper.launch.inline import Inline
from sweeper.report.costs import sharing, trial_command
from sweeper.report.next import NextCommand
from sweeper.report.output import Output
from sweeper.search.strategy import Strategy
from sweeper.sweep.experiment import run_time
from sweeper.table import duration
from sweeper.trial import Result, Trial

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
        output.show(*trial_command(settings, command, at=at))
    return command


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
