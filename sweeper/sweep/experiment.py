"""A study's settings as an experiment: checked, its corpus prepared, its runs made and timed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.config.compose import Tree, parse_overrides
from sweeper.config.settings import Experiment, Settings, check_model_size, resolve
from sweeper.config.studies import Invocation, split_root
from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.launch.executor import Scheduled
from sweeper.launch.job import can_be_sent
from sweeper.stats.ladder import LadderSize, Size
from sweeper.study.cost import Cost, TrialSeconds, at_once
from sweeper.study.flops import flops_of, speeds
from sweeper.study.folder import StudyFolder
from sweeper.study.searched import read_searched
from sweeper.study.setup import command_line
from sweeper.study.study import StudyRecord
from sweeper.study.watcher import ProgressDisplay, Watcher
from sweeper.sweep.study_replay import at_fixed_ratio
from sweeper.trial import Log2Hps, Result, Trial, defaults

CPU_RATE, GPU_RATE = 4e10, 2e13
"""FLOPs a second of small models, beside what their steps take anyhow: a guess that serves until a
second size has trained."""
MOST_BATCHED = 16
"""Trials that are timed together."""


PLACE = re.compile(
    r" (?:--(?:study|root)[ =]|(?:study|study\.name|root)=)(?:'[^']*'|\S+)| '(?:study|root)=[^']*'"
)
"""What of a command names a study and the folder of all."""


def resolve_study(tree: Tree, invocation: Invocation) -> Settings:
    """Check a study's settings; BadInput names its file, or the search that writes it anew."""
    try:
        return resolve(tree, invocation.overrides)
    except ConfigError as error:
        root, others = split_root(invocation.overrides)
        named = [str(override.key_or_group) for override in parse_overrides(others)]
        if any(error.key == key or error.key.startswith((f"{key}.", f"{key}[")) for key in named):
            raise
        folder = root / str(invocation.study)
        searched = read_searched(folder, [])
        line, dashes, own = (str(searched.command) if searched else "").partition(" -- ")
        # Of a study that was copied the command is about the copy.
        at = ["--root", str(folder.parent)] * (str(folder.parent) != DEFAULT_ROOT)
        line = f"{PLACE.sub('', line)} {shlex.join(['--study', folder.name, *at])}{dashes}{own}"
        anew = f"; `{line}` writes it anew" if line.split()[1:2] == ["search"] else ""
        raise BadInput(str(StudyFolder(folder).config), ": ", *error.args, anew) from error


def open_experiment(settings: Settings, cache: Path | None = None) -> Experiment:
    """Prepare the corpus; BadInput when it cannot serve the training."""
    try:
        # Tokenized corpora are kept for all studies.
        corpus = settings.source.prepare(cache or settings.root / ".cache")
    except BadInput as error:
        raise BadInput("data: ", *error.args) from error
    train = settings.raw["train"]
    corpus.check(train["batch_size"], train["seq_len"])
    if not can_be_sent(corpus):
        settings = settings.trained_here(
            f"the data ({type(corpus).__name__}) are an object that no other process can be given",
            "Make its class a dataclass of a module, with fields of plain values and paths",
        )
    precision = settings.runner.precision(settings.launcher)
    return at_fixed_ratio(Experiment(settings=settings, corpus=corpus, precision=precision))


def changed_code(experiment: Experiment, study: StudyRecord) -> list[str]:
    """The user's own files and modules that are others than those of the study's last trial."""
    results = study.results()
    if not results:
        return []
    # A file that only one of the two has belongs to another command or model: it has not changed.
    now, then = experiment.settings.identity, results[-1].trial.spec.runner
    changed = []
    for kind in ("code", "modules"):
        old, new = then.get(kind) or {}, now.get(kind) or {}
        changed += [name for name in old if name in new and old[name] != new[name]]
    return changed


def check_queue(settings: Settings) -> None:
    """ConfigError where nobody waits for jobs, and the launcher has no queue that keeps them."""
    if not isinstance(settings.launcher, Scheduled):
        name = settings.plugin_spec("launcher").name
        queue = (Keyword("detach"), " needs one with a queue: launcher=slurm")
        raise ConfigError("launcher", name, queue)


def check_target(settings: Settings, size: Size) -> None:
    """Refuse a target that the model cannot have, by the name of the option that gave it."""
    try:
        check_model_size(settings, size)
        check_taken(settings, {"width": size.width, "depth": size.depth})
    except ConfigError as error:
        name = {"model.width": "to_width", "model.depth": "to_depth"}.get(error.key)
        raise error.renamed(Keyword(name)) if name else error from error
    for name in ("width", "depth"):
        asked, base = getattr(size, name), getattr(settings.base, name)
        if asked < base:
            raise ConfigError(
                Keyword(f"to_{name}"),
                asked,
                f"at least the base's {name}, {base}, since small models are tuned and large ones "
                f"trained. Search with model.{name}={asked} or less; a {name} below the base's may "
                f"be on the ladder, transfer.{name}s=[{asked},{base}]",
            )


def check_taken(settings: Settings, sizes: Mapping[str, int]) -> None:
    """ConfigError for a size that differs from the base's and that the command does not take."""
    base = settings.ladder_base
    for name, size in sizes.items():
        if size != getattr(base, name) and not settings.runner.takes(name):
            raise ConfigError(
                "runner.command",
                " ".join(settings.raw["runner"]["command"]),
                f"a command that takes {{{name}}}: it is to differ from the base's, "
                f"{getattr(base, name)}",
            )


def short_run(
    experiment: Experiment,
    size: Size,
    log2_hps: Log2Hps,
    seed: int,
    measurement: str,
    **changed: Any,
) -> Trial:
    """A run that measures, in full precision, its training `changed`: no trial of the study."""
    spec = experiment.spec(size)
    train = replace(spec.train, **changed)
    if train.precision != "float64":
        # bfloat16 keeps 8 bits: its rounding is as large as what a few steps change.
        train = replace(train, precision="float32")
    trial = experiment.trial(size, log2_hps, seed, "check")
    return replace(trial, spec=replace(spec, train=train), measurement=measurement)


def work_of(settings: Settings) -> Callable[[Trial], float]:
    """A trial's FLOPs; trials weigh the same where nobody knows them."""
    return lambda trial: settings.runner.flops(trial.spec) or 1.0


def trial_seconds(settings: Settings, results: Iterable[Result]) -> TrialSeconds:
    """How long a run takes, by those results that this very runner has made."""
    same = (result for result in results if result.trial.spec.runner == settings.identity)
    if settings.raw["runner"].get("command"):
        return TrialSeconds(work_of(settings), same)
    on_gpu = settings.runner.precision(settings.launcher) == "bfloat16"
    return TrialSeconds(work_of(settings), same, GPU_RATE if on_gpu else CPU_RATE)


def run_time(experiment: Experiment, size: Size, done: Sequence[Result] = ()) -> tuple[int, float]:
    """Trials to a job, and seconds to be counted for one of this size.

    A run takes as long as those of its size did that are `done`, as many at a time, else as its
    steps do that are measured here. Of a command's other sizes those tell; NaN where nothing does.
    """
    settings, hps = experiment.settings, defaults(experiment.settings.space)
    trials = [experiment.trial(size, hps, seed, "cost") for seed in range(MOST_BATCHED)]
    per_job, seconds = settings.runner.estimate(trials, experiment.corpus, settings.launcher)
    same = [result for result in done if result.trial.spec.runner == settings.identity]
    taken = trial_seconds(settings, same)
    if settings.raw["runner"].get("command") or taken.has(trials[0]):
        return per_job, taken.of(trials[0]) / at_once(same)
    return per_job, seconds * trials[0].spec.train.steps


def lacking_cost(
    experiment: Experiment,
    lacking: Sequence[Trial],
    branches: Mapping[str, int],
    results: Sequence[Result],
) -> Cost:
    """What trials of one model cost, less the steps that they take from longer runs' `branches`."""
    if not lacking:
        return Cost(trials=0, flops=0.0, seconds=0.0)
    longest = max((trial.spec for trial in lacking), key=lambda spec: spec.train.steps)
    steps = sum(trial.spec.train.steps - branches.get(trial.key, 0) for trial in lacking)
    whole = steps / longest.train.steps
    seconds = whole * run_time(experiment, LadderSize.of_spec(longest), results)[1]
    return Cost(trials=len(lacking), flops=whole * flops_of(longest), seconds=seconds)


def shared_steps(settings: Settings, missing: Sequence[Trial]) -> dict[str, int]:
    """Steps by a trial's key that it takes from a longer one's run: none of a user's command."""
    if settings.raw["runner"].get("command"):
        return {}
    from sweeper.engine.branches import shared

    return shared(missing)


def progress_of(
    settings: Settings,
    watcher: Watcher,
    job: str,
    planned: int,
    folder: Path | None = None,
    results: Sequence[Result] = (),
    heard: Callable[[Result], None] | None = None,
    kept: Sequence[Result] = (),
) -> ProgressDisplay:
    """What shows a job to the `watcher`, and learns from earlier `results` how long others take.

    It writes to `folder`; without one to the study's, and the study's page as results come. The
    best loss may be one of the job's own that were `kept` before.
    """
    same = [result for result in results if result.trial.spec.runner == settings.identity]
    return watcher.progress(
        folder or settings.folder,
        job,
        planned=planned,
        seconds=trial_seconds(settings, same),
        at_once=at_once(same),
        page=folder is None,
        heard=heard,
        kept=kept,
        command=command_line(),
    )


def check_model(experiment: Experiment, watcher: Watcher) -> None:
    """Train one step of the base model; say which rules the ladder's models cannot follow."""
    settings = experiment.settings
    trial = experiment.trial(settings.base, defaults(settings.space), 0, "check")
    settings.runner.validate(trial, experiment.corpus, settings.launcher)
    for note in settings.notes:
        watcher.tell(f"Note: {note}")


def tell_speed(watcher: Watcher, results: Iterable[Result], since: float) -> None:
    """Throughput by size of what was trained since then: no two runs are alike."""
    # How much a command computes is not known.
    recent = (r for r in results if r.finished_at >= since)
    for speed in speeds(r for r in recent if r.trial.spec.runner.get("name") == "engine"):
        watcher.tell(f"Speed at {speed}")
