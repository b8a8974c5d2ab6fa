"""A search at the base size: what it lacks is trained and concluded; or what it would cost."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sweeper.command.command_runner import Command, clips_scales, reports_no_loss, unknown_to_script
from sweeper.command.evidence import Evidence, evidence_of
from sweeper.command.metrics import PRINTED
from sweeper.config.compose import Tree, read_tree, to_yaml
from sweeper.config.settings import Experiment, Settings
from sweeper.config.studies import Invocation
from sweeper.data.corpus import placeholder_data
from sweeper.engine.prepare import prepare
from sweeper.errors import BadInput, Call, Keyword, flag
from sweeper.files import write_json, write_summed
from sweeper.launch.executor import Scheduled
from sweeper.launch.inline import Inline
from sweeper.launch.job_states import check_owner
from sweeper.plan.factors import is_edit
from sweeper.plan.plan import make_plan
from sweeper.records import to_json
from sweeper.search.line_search import LearningRateLine
from sweeper.search.optuna.storage import check_storage
from sweeper.search.optuna.url import redact
from sweeper.search.strategy import FRESH_SEEDS, Conclusion, Strategy
from sweeper.study.cost import Cost
from sweeper.study.flops import flops_of, keep_flops
from sweeper.study.folder import StudyFolder
from sweeper.study.lock import StudyLock
from sweeper.study.searched import read_searched
from sweeper.study.setup import check_setup, provenance, trials_of, write_setup
from sweeper.study.study import StudyRecord
from sweeper.study.trust import remember
from sweeper.study.watcher import Watcher
from sweeper.sweep.experiment import (
    changed_code,
    check_model,
    check_queue,
    open_experiment,
    progress_of,
    run_time,
    tell_speed,
)
from sweeper.sweep.study_replay import replay_search
from sweeper.sweep.sweep import Submitted, Sweep
from sweeper.table import duration
from sweeper.trial import FORMAT, Axis, Log2Hps, Result, defaults, in_use, named, plain, split

SEARCHED = ("parameterization", "model", "optimizer", "search", "data", "train", "fp8")
"""The groups that a search's conclusion depends on."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search found, and what became of its trials; `record` is what `search.json` holds.

    `lacking` are neighbours of the best without a result, by the hyperparameter in which they
    differ: it is not finished then.
    """

    conclusion: Conclusion
    record: Mapping[str, Any]
    results: Sequence[Result]
    searched: Sequence[Result]
    lacking: Sequence[tuple[str, Result]]
    notices: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class SearchCost:
    """What a search would run: trials by phase, so many of them are `finished`.

    `seconds` and `flops` are of one trial, NaN where not known. A user's `command` is that of the
    first trial, and `losses` are those of a run that is there; `script` is that of `jobs` on a
    cluster.
    """

    phases: Sequence[tuple[str, Cost]]
    finished: int
    per_job: int
    parameters: int | None
    steps: int
    command: Sequence[str] | None
    losses: Sequence[Evidence] = ()
    jobs: int = 0
    script: str = ""

    @property
    def remaining(self) -> int:
        """Trials that are to be trained."""
        return max(0, self.planned - self.finished)

    @property
    def planned(self) -> int:
        """Trials of all phases."""
        return sum(cost.trials for _, cost in self.phases)


def check_place(settings: Settings, *, detach: bool) -> None:
    """Refuse what cannot be searched there, before any data are read."""
    if isinstance(settings.launcher, Scheduled):
        settings.launcher.check(settings.folder.absolute())
    elif detach:
        check_queue(settings)


def search_study(
    settings: Settings, invocation: Invocation, watcher: Watcher, *, detach: bool, new_setup: bool
) -> Found | Submitted:
    """Search at the base size, on from what the study holds; with `detach`, submit and return."""
    experiment, start = open_experiment(settings), time.time()
    if not new_setup:
        check_setup(settings.folder, experiment.spec(settings.base))
    check_model(experiment, watcher)
    _tell_of_command(settings, invocation, watcher)
    tell_cost(experiment, watcher)
    if settings.storage is not None:
        check_storage(settings.storage)
    check_owner(settings.folder)
    # Up to here nothing of the study is written: what can be refused is refused above.
    with StudyLock(settings.folder) as lock:
        if lock.previous is not None:
            watcher.tell(f"The last driver of this study ({lock.previous}) was killed; going on.")
        # The lock first: to open a study mends its files, which only its one driver may.
        with StudyRecord.open(settings.folder, settings.storage, settings.space) as study:
            _withdraw_other_conclusion(settings, study)
            _tell_of_optuna(settings, watcher)
            if changed := changed_code(experiment, study):
                unused = "earlier trials are of other code, and not used"
                watcher.tell(f"Note: {', '.join(changed)} changed: {unused}")
            # The study keeps its configuration under its own name, and no password.
            storage = None if settings.storage is None else redact(settings.storage)
            kept = {**experiment.settings.raw, "study": {"name": settings.name, "storage": storage}}
            config = StudyFolder(settings.folder).config
            write_summed(config, to_yaml(kept))
            # As later commands will read it: trust is a digest of these very values.
            remember(settings.folder, read_tree(config, ()))
            moved = write_setup(settings.folder, experiment.spec(settings.base))
            try:
                conclusion, keys = run_search(experiment, study, watcher, wait=not detach)
            except Submitted as queued:
                queued.notices = [*moved, *study.notices]
                return queued
            tell_speed(watcher, study.results(), since=start)
        # Not what was trained ahead and never asked for, nor what another search has left.
        searched = [result for result in trials_of(study).searched if result.key in keys]
        searched_results = searched if math.isfinite(conclusion.objective) else ()
        lacking = without_result(searched_results, conclusion.best_log2, settings.space)
        record = search_record(settings, conclusion, finished=not lacking)
        if lacking:
            write_json(StudyFolder(settings.folder).search, record)
        # Now, while the study's classes are imported: reports later import none.
        keep_flops(settings.folder, {result.trial.spec for result in study.results()})
    return Found(
        conclusion=conclusion,
        record=record,
        results=study.results(),
        searched=searched,
        lacking=lacking,
        notices=[*moved, *study.notices],
    )


def search_cost(
    settings: Settings, invocation: Invocation, watcher: Watcher, *, new_setup: bool
) -> SearchCost:
    """What a search would run; the corpus goes to a folder that is removed again."""
    with tempfile.TemporaryDirectory() as temporary:
        experiment = open_experiment(settings, Path(temporary))
        spec, phases = experiment.spec(settings.base), settings.search.plan(settings.space)
        if not new_setup:
            check_setup(settings.folder, spec)
        check_model(experiment, watcher)
        _tell_of_command(settings, invocation, watcher)
        results = StudyRecord.read(settings.folder).results() if settings.folder.is_dir() else []
        per_job, seconds = run_time(experiment, settings.base, results)
        trial = experiment.trial(settings.base, defaults(settings.space), 0, "dry run")
        finished = 0
        if settings.folder.is_dir():  # failed trials are tried again
            history, _ = replay_search(experiment, StudyRecord.read(settings.folder).get)
            finished = sum(result.status != "failed" for result in history.results)
    # Of the first phase alone: how many jobs follow depends on its results.
    scheduler, jobs = settings.launcher, -(-phases[0].trials // per_job)
    command = settings.runner.argv(trial, StudyFolder(settings.folder.absolute()).trials / "KEY")
    script = ""
    if isinstance(scheduler, Scheduled):
        script = scheduler.script(settings.folder.absolute(), jobs)
    return SearchCost(
        phases=[
            (phase.name, Cost(trials=n, flops=n * flops_of(spec), seconds=n * seconds))
            for phase in phases
            for n in [phase.trials]
        ],
        finished=finished,
        per_job=per_job,
        parameters=settings.runner.parameters(spec),
        steps=spec.train.steps,
        command=command,
        losses=tell_losses(settings, watcher, results) if command else (),
        jobs=jobs if script else 0,
        script=script,
    )


def _withdraw_other_conclusion(settings: Settings, study: StudyRecord) -> None:
    """To be called before the study's configuration is written anew: it is the earlier one's."""
    earlier: Tree = {}
    with suppress(BadInput):  # there is none, or it cannot be read
        earlier = read_tree(StudyFolder(settings.folder).config, ())
    others = []
    for group in SEARCHED if earlier else ():
        old, new = earlier.get(group) or {}, settings.raw.get(group) or {}
        keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        others += [f"{group}.{key}" for key in keys]
    if others:
        StudyFolder(settings.folder).search.unlink(missing_ok=True)
        # None in the place of the answer that Optuna's study has as its attributes.
        study.describe(dict.fromkeys(("best", "loss", "loss_error", "loss_of")))
        study.notices.append(
            f"the study was searched with other values of {', '.join(others)} before: "
            "those trials are kept, and count where they are the same"
        )


def _tell_of_optuna(settings: Settings, watcher: Watcher) -> None:
    """Say before anything is trained that a sampler may ask for other points than the last time."""
    searched, now = read_searched(settings.folder, []), provenance()["optuna"]
    before = searched.provenance.get("optuna", now) if searched else now
    if before != now and settings.plugin_spec("search").name in ("optuna", "tpe"):
        watcher.tell(
            f"Note: this search was asked of Optuna {before}, and goes on with Optuna {now}, whose "
            "sampler may ask for other points: these are trained, too. To ask for the same, stop "
            f"it and run: pip install optuna=={before}"
        )


def _tell_of_command(settings: Settings, invocation: Invocation, watcher: Watcher) -> None:
    """Say before the search what its end would be too late for: adding a seed is a new search."""
    if options := unknown_to_script(settings.raw):
        watcher.tell(
            f"Note: all words of the command go to it, and its script does not mention "
            f"{', '.join(options)}: words for sweeper stand before the command"
        )
    if reports_no_loss(settings.raw):
        watcher.tell(
            f"Note: no metric= is given, and the script does not mention SWEEPER_REPORT: {PRINTED}"
        )
    if not settings.scaled_by_user and (note := clips_scales(settings.raw)):
        watcher.tell(f"Note: {note}")
    by_script = settings.raw["runner"].get("command") and not settings.scaled_by_user
    if by_script and (note := edits_of_script(settings)):
        watcher.tell(f"Note: {note}")
    idle = [key for key in ("cpus", "memory", "time") if settings.raw["runner"].get(key)]
    if idle and not isinstance(settings.launcher, Scheduled):
        effect = "has no effect without launcher=slurm; runner.hang ends a run that says nothing"
        watcher.tell(f"Note: runner.{', runner.'.join(idle)} {effect}")
    typed = {word.partition("=")[0] for word in invocation.overrides}
    for name in settings.not_taken:
        if f"train.{name}" in typed:
            watcher.tell(
                f"Note: the command takes no {{{name}}}: train.{name} tells sweeper what the runs "
                f"have, and changes nothing in them. Where the script takes one, add "
                f"--{name}={{{name}}}"
            )
    if not settings.runner.takes("seed"):
        watcher.tell(
            "Note: the command takes no {seed}: ",
            Call("transfer", Keyword("validate")),
            " cannot judge a transfer, since several seeds tell noise from a shift. Where the "
            f"script takes one, add {flag('seed')}={{seed}}",
        )


def edits_of_script(settings: Settings) -> str:
    """The factors that a script's model applies, as at the widest size: a tied head's is 1 here."""
    base, sizes = settings.base, [settings.base, *settings.ladders().get("width", ())]
    at, edits = replace(base, width=max(size.width for size in sizes)), ""
    with suppress(BadInput):  # it may not run there: a ladder says so
        prepared = prepare(settings.spec(placeholder_data(settings.source), "float32", at))
        plan = make_plan(prepared, base, at, plain(defaults(settings.space)), {})
        edits = "; ".join(filter(is_edit, plan.needs))
    note = f"the plan is of a model whose own code does this, as at width {at.width}: {edits}"
    return note if edits else ""


def run_search(
    experiment: Experiment, study: StudyRecord, watcher: Watcher, *, wait: bool
) -> tuple[Conclusion, set[str]]:
    """Train what the study lacks, `search.json` written after every batch; the keys of its trials.

    Without `wait`, Submitted is raised once jobs are in a queue.
    """
    settings = experiment.settings
    planned = _planned(settings.search, settings)
    path, results = StudyFolder(settings.folder).search, study.results()

    def tells(result: Result) -> bool:
        """Whether a run of this command got as far as its losses say something."""
        return result.trial.spec.runner == settings.identity and result.status != "failed"

    are_losses_said = any(map(tells, results))

    def heard(result: Result) -> None:
        nonlocal are_losses_said
        # Once, and early: a pattern that reads no losses is seen while little is trained.
        if not are_losses_said and tells(result):
            are_losses_said = True
            tell_losses(settings, watcher, [result])

    def after_batch(conclusion: Conclusion, finished: bool) -> None:
        write_json(path, search_record(settings, conclusion, finished=finished))

    kept = trials_of(study).searched
    with progress_of(
        settings, watcher, "search", planned, results=results, heard=heard, kept=kept
    ) as monitor:
        sweep = Sweep(experiment, study, monitor, wait=wait)
        conclusion = sweep.search(after_batch)
    study.describe(
        {
            "best": in_use(settings.space, conclusion.best_log2),
            "loss": to_json(conclusion.objective),
            "loss_error": to_json(conclusion.error),
            "loss_of": conclusion.basis,
        }
    )
    return conclusion, sweep.searched


ENDS = ("low", "high", "default", "step")


def search_record(settings: Settings, conclusion: Conclusion, *, finished: bool) -> dict[str, Any]:
    """The content of `search.json`."""
    record, space = asdict(conclusion), settings.space
    record["best_log2"] = named(space, conclusion.best_log2)
    if not conclusion.untrained:
        del record["untrained"]
    if (combined := conclusion.combination) is not None:
        record["combination"] |= {
            "combined_log2": named(space, combined.combined_log2),
            "single_log2": named(space, combined.single_log2),
            "finding": combined.summary,
        }
    if (retune := conclusion.retune) is not None:
        record["retune"]["finding"] = retune.summary
        del record["retune"]["line"]["choices"]
    # Axes of choices alone have some: elsewhere the empty list says nothing.
    for line in record["lines"]:
        if not line["choices"]:
            del line["choices"]
    axes: dict[str, dict[str, Any]] = {
        name: {"choices": list(axis.choices), "default": axis.choices[round(axis.default)]}
        if axis.choices
        else {k: v for k in ENDS if (v := getattr(axis, k)) is not None}
        for name, axis in space.items()
    }
    return {
        "format": FORMAT,
        "study": settings.name,
        "parameterization": settings.plugin_spec("parameterization").name,
        "search": settings.plugin_spec("search").name,
        "finished": finished,
        "base": asdict(settings.base),
        "space_log2": axes,
        "best": in_use(space, conclusion.best_log2),
        **record,
        "provenance": provenance(),
    }


FAST_FLOPS = 2e10
"""FLOPs a second that few processors reach on small models: what is short even so is not timed."""
SHORT = 20.0
"""Seconds from which on the cost is said."""
LONG = 600.0
"""Seconds from which on a smaller search is named, too."""


def tell_cost(experiment: Experiment, watcher: Watcher) -> None:
    """Say how long a new search takes on this processor, and a smaller one to try first.

    Of a command is said how its trials share this machine. Nothing is said of a short one, of one
    that goes on, or where time cannot be measured here: on a GPU that jobs may share, on a cluster,
    and of commands.
    """
    settings = experiment.settings
    runner = settings.runner
    if isinstance(runner, Command) and (how := runner.sharing(settings.launcher)):
        watcher.tell(f"On this machine: {how}.")
    spec = experiment.spec(settings.base)
    flops, trials = settings.runner.flops(spec), _planned(settings.search, settings)
    # A user command's FLOPs are a mere proportion, and it knows no parameters: that tells it here.
    counted = flops is not None and settings.runner.parameters(spec)
    # float32 is what auto stands for on a processor; on a GPU it is bfloat16.
    if not flops or not counted or experiment.precision != "float32":
        return
    goes_on = any(path.stat().st_size for path in settings.folder.glob("results/*.jsonl"))
    if goes_on or trials * flops / FAST_FLOPS < SHORT:
        return
    # Of one trial: on a processor others beside it gain little.
    trial = experiment.trial(settings.base, defaults(settings.space), 0, "cost")
    _, step = settings.runner.estimate([trial], experiment.corpus, settings.launcher)
    seconds, steps = step * spec.train.steps, spec.train.steps
    if not math.isfinite(seconds) or trials * seconds < SHORT:
        return
    watcher.tell(f"This search trains {trials} trials: about {duration(trials * seconds)} here.")
    if trials * seconds < LONG:
        return
    local = "launcher=local, " * isinstance(settings.launcher, Inline)
    watcher.tell(
        f"More cores, {local}a GPU or launcher=slurm shorten it; stop it whenever you like."
    )
    # Of the learning rate alone, with as many steps as make it last LONG, in tens, but no less than
    # a twentieth of the run's.
    alone = seconds * (LearningRateLine().line.points + FRESH_SEEDS)
    fewer = max(steps // 20, 10 * round(steps * min(1.0, LONG / alone) / 10), 1)
    watcher.tell(
        f"To try it first, in about {duration(alone * fewer / steps)}: the same with ",
        # A study's name has at most 100 letters.
        Keyword("study", f"{settings.name[:90]}-try"),
        f" search=lr train.steps={fewer}",
    )


def _planned(search: Strategy, settings: Settings) -> int:
    return sum(phase.trials for phase in search.plan(settings.space))


def tell_losses(settings: Settings, watcher: Watcher, results: Sequence[Result]) -> list[Evidence]:
    """Say where the losses of a study's first run were read, and what speaks against them.

    Where no result is of this command, the last log tells what a new pattern would read.
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
    earlier = [path for path in complete if path.is_file()]
    first = next(iter([*logs, *earlier, *others]), None)
    if first is None:
        return []
    read = evidence_of(first.parent, metric=runner["metric"], heldout=runner["heldout"])
    metric, *heldout = read
    facts = [metric.facts(), *(each.facts(beside=metric) for each in heldout)]
    if ours and (train := ours[0].trial.spec.train).objective == "training":
        facts.insert(1, f"the objective is the mean over its last {train.window()} steps")
    which = "the first run" if logs else "an earlier run"
    watcher.tell(f"Losses of {which} ({first}): {'; '.join(facts)}.")
    for doubt in (doubt for evidence in read for doubt in evidence.doubts()):
        watcher.tell(f"Note: {doubt}")
    return read


def without_result(
    results: Sequence[Result], best: Log2Hps, space: Mapping[str, Axis]
) -> list[tuple[str, Result]]:
    """Failed trials beside the best, by the one hyperparameter in which they differ from it.

    No trial with a result lies between. Of choices, which have no order, those of the best count.
    """
    numbers, chosen = split(space, best)
    alike = [result for result in results if result.trial.choices == chosen]
    places = [
        ({n: hps[n] - best for n, best in numbers.items() if hps[n] != best}, result)
        for result in alike
        for hps in [result.trial.log2_hps]
    ]
    done = [moved for moved, result in places if result.status != "failed"]
    failed: dict[tuple[str, float], Result] = {}
    for moved, result in places:
        if result.status != "failed" or len(moved) != 1:
            continue
        [(name, distance)] = moved.items()
        # On the same side of the best, and as near to it: another seed of this very place, too.
        nearer = any(
            other.keys() == moved.keys() and 0 < other[name] / distance <= 1 for other in done
        )
        if not nearer:
            failed[name, distance] = result
    nearest = {
        (name, distance > 0): min(
            (d for n, d in failed if n == name and (d > 0) == (distance > 0)), key=abs
        )
        for name, distance in failed
    }
    return [(name, failed[name, distance]) for (name, _), distance in nearest.items()]
