"""What a search is going to cost, said before it begins where that is long."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from sweeper.commands.experiment import trial_seconds
from sweeper.commands.output import Output
from sweeper.config import compose_tree
from sweeper.errors import BadInput
from sweeper.launch.inline import Inline
from sweeper.overrides import command_line, repeated
from sweeper.report.console import PlannedRuns
from sweeper.report.progress import duration
from sweeper.report.seconds import at_once
from sweeper.search.strategy import Strategy
from sweeper.settings import Experiment, Settings
from sweeper.space import checked_plugin
from sweeper.trainer.metrics import describe_source
from sweeper.transfer.ladder import Size
from sweeper.trial import Result, Trial, defaults

FAST_FLOPS = 2e10
"""FLOPs a second that few processors reach on small models: what is short even so is not timed."""
LONG = 600.0
"""Seconds from which on the cost is said."""
MOST_IN_PACK = 16
"""Trials that are timed together."""


def tell_cost(
    experiment: Experiment, words: Sequence[str], config_dir: Path | None, output: Output
) -> None:
    """Say how long a new search takes on this processor, and a smaller one to try first.

    Nothing is said of a short one, of one that goes on, or where time cannot be measured here:
    on a GPU that jobs may share, on a cluster, and of commands.
    """
    settings = experiment.settings
    flops = settings.runner.flops(experiment.spec(settings.base))
    trials = _planned(settings.search, settings)
    known = flops is not None and settings.runner.parameters(experiment.spec(settings.base))
    if not flops or not known or experiment.precision != "float32" or _begun(settings.folder):
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
    if smaller := _smaller(settings, seconds, words, config_dir):
        output.tell(smaller)


def _begun(folder: Path) -> bool:
    """Whether the study has trials already."""
    return any(path.stat().st_size for path in folder.glob("results/*.jsonl"))


def _planned(search: Strategy, settings: Settings) -> int:
    return sum(phase.trials for phase in search.plan(settings.space))


def run_time(experiment: Experiment, size: Size, known: Sequence[Result] = ()) -> tuple[int, float]:
    """Trials to a job, and seconds to be counted for one of this size.

    They are measured here; runs of a command take as long as those of `known` did, as many at a
    time. NaN where neither is possible.
    """
    settings, hps = experiment.settings, defaults(experiment.settings.space)
    trials = [experiment.trial(size, hps, seed, "cost") for seed in range(MOST_IN_PACK)]
    pack, seconds = settings.runner.estimate(trials, experiment.corpus, settings.launcher)
    if settings.raw["runner"].get("command"):
        return pack, trial_seconds(settings, known).of(trials[0]) / at_once(known)
    return pack, seconds * trials[0].spec.train.steps


def _smaller(
    settings: Settings, seconds: float, words: Sequence[str], config_dir: Path | None
) -> str:
    """A search of the learning rate alone by shorter runs, and its time; empty where none is."""
    replaced = ("search=", "search.", "train.steps=", "study")
    kept = [*(word for word in words if not word.startswith(replaced)), "search=lr"]
    try:
        search = checked_plugin(compose_tree(kept, config_dir)["search"], Strategy)
    except BadInput:  # an experiment of the user's that sets keys of another search
        return ""
    trials, all_steps = _planned(search, settings), settings.raw["train"]["steps"]
    share = min(1.0, LONG / (trials * seconds))
    steps = max(all_steps // 20, 10 * round(all_steps * share / 10), 1)
    given = repeated([*kept, f"train.steps={steps}"], settings.root, config_dir)
    line = command_line("search", *given, study=f"{settings.name[:90]}-try")
    return f"To try it first, in about {duration(trials * seconds * steps / all_steps)}: {line}"


def cost_record(row: PlannedRuns) -> dict[str, float | None]:
    """What planned runs cost, for a document; None: not known."""
    each = {"flops": row.flops, "seconds": row.seconds}
    return {name: None if math.isnan(value) else value for name, value in each.items()}


def say_command(settings: Settings, trial: Trial, output: Output, *, at: str) -> list[str] | None:
    """The words of a user's command for `trial`, said with where its losses are looked for."""
    words = settings.runner.words(trial, settings.folder.absolute() / "trials" / "KEY")
    if words is not None:
        losses = describe_source(settings.raw["runner"].get("metric"))
        output.say(f"\nThe command of a trial, {at}:\n{shlex.join(words)}\nIts losses: {losses}.")
    return words
