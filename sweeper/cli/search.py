"""`sweeper search`: the trials of the base size, and their conclusion."""

from __future__ import annotations

import math
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sweeper.cli.cost import say_command, say_losses, tell_cost
from sweeper.cli.shared import check_model, progress, write_page
from sweeper.command.metrics import PRINTED
from sweeper.command.runner import reports_no_loss, unknown_to_script
from sweeper.config.command_line import FIRST
from sweeper.config.compose import Tree, read_tree, to_yaml
from sweeper.config.settings import Experiment, Settings, resolve
from sweeper.config.studies import Invocation
from sweeper.errors import BadInput, ConfigError
from sweeper.files import write_json, write_summed
from sweeper.launch.executor import Scheduled
from sweeper.launch.folder import check_owner
from sweeper.records import to_json
from sweeper.report import console as show
from sweeper.report.answer import Verbatim
from sweeper.report.next import again, first_transfer
from sweeper.report.output import DONE, FAILED, Output
from sweeper.report.sentences import diverged, failure_notes
from sweeper.search.optuna.storage import check_storage
from sweeper.search.optuna.url import redact
from sweeper.search.strategy import Conclusion
from sweeper.study.cost import Cost, flops_of, keep_flops
from sweeper.study.folder import StudyFolder
from sweeper.study.lock import StudyLock
from sweeper.study.setup import check_setup, provenance, trials_of, write_setup
from sweeper.study.study import Study, check_not_saved
from sweeper.study.trust import remember
from sweeper.sweep.experiment import changed_code, failures_of, open_experiment, run_time
from sweeper.sweep.neighbours import without_result
from sweeper.sweep.replay import replay_search
from sweeper.sweep.sweep import Submitted, Sweep
from sweeper.table import counted
from sweeper.trial import FORMAT, Result, defaults, in_use, named

SEARCHED = ("parameterization", "model", "optimizer", "search", "data", "train", "fp8")
"""The groups that a search's conclusion depends on."""


def search(
    tree: Tree,
    invocation: Invocation,
    output: Output,
    *,
    dry_run: bool = False,
    detach: bool = False,
    new_setup: bool = False,
) -> int:
    """Search at the base size; continue whatever the study already holds.

    `tree` is the configuration that `invocation` gives. With `detach`, collect what jobs have
    finished, submit what can be named, and return.
    """
    settings = resolve(tree)
    if f"experiment={FIRST}" in invocation.overrides:
        output.tell(
            "This searches the learning rate alone, by short runs (experiment=first). The u-muP "
            "paper's search is `sweeper search search=independent`, at its size and with its "
            "ladders `sweeper search size=paper`: hours, and days without a GPU. --dry-run says "
            "how long."
        )
    if isinstance(settings.launcher, Scheduled):
        settings.launcher.check(settings.folder.absolute())
    elif detach:
        name = settings.plugin_spec("launcher").name
        raise ConfigError("launcher", name, "--detach needs one with a queue: launcher=slurm")
    check_not_saved(settings.folder)
    if dry_run:
        return _dry_run(settings, invocation, output, new_setup=new_setup)
    experiment, start = open_experiment(settings), time.time()
    if not new_setup:
        check_setup(settings.folder, experiment.spec(settings.base))
    check_model(experiment, output)
    _note_command(settings, invocation, output)
    tell_cost(experiment, invocation, output)
    if settings.storage is not None:
        check_storage(settings.storage)
    output.within(settings.folder)
    check_owner(settings.folder)
    # Up to here nothing of the study is written: what can be refused is refused above.
    with StudyLock(settings.folder) as lock:
        if lock.previous is not None:
            output.tell(f"The last driver of this study ({lock.previous}) was killed; going on.")
        # The lock first: to open a study mends its files, which only its one driver may.
        with Study.open(settings.folder, settings.storage) as study:
            _withdraw_other_conclusion(settings, study)
            if changed := changed_code(experiment, study):
                unused = "earlier trials are of other code, and not used"
                output.tell(f"Note: {', '.join(changed)} changed: {unused}")
            # The study keeps its configuration under its own name, and no password.
            storage = None if settings.storage is None else redact(settings.storage)
            kept = {**settings.raw, "study": {"name": settings.name, "storage": storage}}
            config = StudyFolder(settings.folder).config
            write_summed(config, to_yaml(kept))
            # As later commands will read it: trust is a digest of these very values.
            remember(settings.folder, read_tree(config, ()))
            output.notes(write_setup(settings.folder, experiment.spec(settings.base)))
            try:
                conclusion = run_search(experiment, study, output, wait=not detach)
            except Submitted as submitted:
                output.notes(study.notices)
                output.end(
                    f"{submitted.trials} trials are in jobs now, {len(study)} are finished.",
                    {"study": settings.folder},
                    {
                        "study": settings.name,
                        "finished": len(study),
                        "submitted": submitted.trials,
                    },
                    again(invocation, "search", settings, why="to collect them, and go on"),
                )
                return DONE
            notes = [
                *study.notices,
                *failure_notes(failures_of(study.results(), settings.identity)),
            ]
            notes += diverged(trials_of(study).searched)
            notes += show.clip_note(trials_of(study).searched)
            notes += show.accuracy_note(trials_of(study).searched)
            found = math.isfinite(conclusion.objective)
            searched = trials_of(study).searched if found else ()
            lacking = without_result(searched, conclusion.best_log2)
            for name, each in lacking:
                value = each.trial.values[name]
                there = f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                notes.append(
                    f"the search is not finished: {there}, beside the best, has no result, and may "
                    "be better"
                )
            output.tell_speed(study.results(), since=start)
        if conclusion.pairs:
            # matplotlib, which no trial waits for.
            from sweeper.report.drawing import save
            from sweeper.report.figures import pairs_figure

            save(pairs_figure(conclusion.pairs), settings.folder / "pairs")
        # Now, while the study's classes are imported: reports later import none.
        keep_flops(settings.folder, {result.trial.spec for result in study.results()})
        places = write_page(settings.folder, output)
    output.show(*show.conclusion(conclusion, settings.space))
    output.notes(notes)
    if conclusion.pairs:
        places["pairs"] = settings.folder / "pairs.png"
    if lacking:
        next_command = again(invocation, "search", settings, why="to train what has no result")
    elif found:
        next_command = first_transfer(settings.folder, settings.base.width, invocation.config_dir)
    elif all(result.status == "failed" for result in study.results()):
        next_command = again(invocation, "search", settings, why="to try them again")
    else:
        eta, key = settings.space["eta"], "parameterization.space.eta"
        # Every run diverged: the same range of eta, 2^-4 times as high.
        lower = [f"{key}.{end}={getattr(eta, end) - 4:g}" for end in ("low", "high", "default")]
        next_command = again(invocation, "search", settings, *lower, why="to search lower eta")
    record = _search_record(settings, conclusion, finished=not lacking)
    text = show.conclusion_text(conclusion)
    if lacking:
        write_json(StudyFolder(settings.folder).search, record)
        text += " Not finished: a neighbour of the best has no result."
    output.end(text, places, record, next_command)
    return DONE if found and not lacking else FAILED


def _withdraw_other_conclusion(settings: Settings, study: Study) -> None:
    """Take back the conclusion of an earlier search of other settings, which would be this one's.

    To be called before the study's configuration is written anew: it still is the earlier one's.
    """
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
        # None in the place of what Optuna's copy shows of the study as a whole.
        study.describe(dict.fromkeys(("best", "loss", "loss_error", "loss_of")))
        study.notices.append(
            f"the study was searched with other values of {', '.join(others)} before: "
            "those trials are kept, and count where they are the same"
        )


def _note_command(settings: Settings, invocation: Invocation, output: Output) -> None:
    """Say before the search what its end would be too late for: adding a seed is a new search."""
    if options := unknown_to_script(settings.raw):
        output.tell(
            f"Note: behind -- all words go to the command, whose script does not mention "
            f"{', '.join(options)}: words for sweeper stand before --"
        )
    if reports_no_loss(settings.raw):
        output.tell(
            f"Note: no metric= is given, and the script does not mention SWEEPER_REPORT: {PRINTED}"
        )
    typed = {word.partition("=")[0] for word in invocation.overrides}
    for name in settings.not_taken:
        if f"train.{name}" in typed:
            output.tell(
                f"Note: the command takes no {{{name}}}: train.{name} tells sweeper what the runs "
                f"have, and changes nothing in them. Where the script takes one, add "
                f"--{name}={{{name}}}"
            )
    if not settings.runner.takes("seed"):
        output.tell(
            "Note: the command takes no {seed}: `sweeper transfer --validate` cannot judge a "
            "transfer, since several seeds tell noise from a shift. Where the script takes one, "
            "add --seed={seed}"
        )


def run_search(experiment: Experiment, study: Study, output: Output, *, wait: bool) -> Conclusion:
    """Train what the study lacks, `search.json` written after every batch.

    Without `wait`, Submitted is raised once jobs are in a queue.
    """
    settings = experiment.settings
    planned = sum(phase.trials for phase in settings.search.plan(settings.space))
    path = StudyFolder(settings.folder).search

    known = study.results()

    def tells(result: Result) -> bool:
        """Whether a run of this command got as far as its losses say something."""
        return result.trial.spec.runner == settings.identity and result.status != "failed"

    are_losses_said = any(map(tells, known))

    def heard(result: Result) -> None:
        nonlocal are_losses_said
        # Once, and early: a pattern that reads no losses is seen while little is trained.
        if not are_losses_said and tells(result):
            are_losses_said = True
            say_losses(settings, output, [result])

    def after_batch(conclusion: Conclusion, finished: bool) -> None:
        write_json(path, _search_record(settings, conclusion, finished=finished))

    with progress(settings, output, "search", planned, known=known, heard=heard) as monitor:
        conclusion = Sweep(experiment, study, monitor, wait=wait).search(after_batch)
    study.describe(_shown_by_optuna(conclusion, settings))
    return conclusion


def _shown_by_optuna(conclusion: Conclusion, settings: Settings) -> dict[str, Any]:
    """What Optuna's copy shows of the whole study, and makes its best trial of."""
    return {
        "best": in_use(settings.space, conclusion.best_log2),
        "loss": to_json(conclusion.objective),
        "loss_error": to_json(conclusion.error),
        "loss_of": conclusion.basis,
    }


def _search_record(settings: Settings, conclusion: Conclusion, *, finished: bool) -> dict[str, Any]:
    """The content of `search.json`."""
    record, space = asdict(conclusion), settings.space
    record["best_log2"] = named(space, conclusion.best_log2)
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
        else {"low": axis.low, "high": axis.high, "default": axis.default}
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


def _dry_run(settings: Settings, invocation: Invocation, output: Output, *, new_setup: bool) -> int:
    """What a search would run; the corpus goes to a folder that is removed again."""
    with tempfile.TemporaryDirectory() as temporary:
        experiment = open_experiment(settings, Path(temporary))
        spec, phases = experiment.spec(settings.base), settings.search.plan(settings.space)
        if not new_setup:
            check_setup(settings.folder, spec)
        check_model(experiment, output)
        _note_command(settings, invocation, output)
        known = Study.read(settings.folder).results() if settings.folder.is_dir() else []
        per_job, seconds = run_time(experiment, settings.base, known)
        trial = experiment.trial(settings.base, defaults(settings.space), 0, "dry run")
        finished = 0
        if settings.folder.is_dir():  # failed trials are tried again
            history, _ = replay_search(experiment, Study.read(settings.folder).get)
            finished = sum(result.status != "failed" for result in history.results)
    parameters = settings.runner.parameters(spec)
    facts = (
        f"{'' if parameters is None else f'{parameters:,} parameters a trial, '}"
        f"{spec.train.steps} steps. Points that phases share are trained once; a line that ends at "
        f"its optimum is extended. Time: {'not known' if math.isnan(seconds) else 'measured'} "
        f"here, {counted(per_job, 'trial')} a job."
        f"{f' Of these trials, {finished} are finished already.' if finished else ''}"
    )
    flops = flops_of(spec)
    costs = [
        (phase.name, Cost(trials=n, flops=n * flops, seconds=n * seconds))
        for phase in phases
        for n in [phase.trials]
    ]
    output.show(*show.dry_run("This search would run", "phase", costs, "trials", facts))
    record: dict[str, Any] = {
        "study": settings.name,
        "phases": [{"phase": name, **to_json(cost)} for name, cost in costs],
        "finished": finished,
        "batched_trials": per_job,
    }
    if command := say_command(settings, trial, output, at="at the defaults"):
        record["command"] = command
        record["losses"] = say_losses(settings, output, known)
    if isinstance(settings.launcher, Scheduled):
        # Of the first phase alone: how many jobs follow depends on its results.
        jobs = -(-phases[0].trials // per_job)
        record["script"] = settings.launcher.script(settings.folder.absolute(), jobs)
        script = f"The batch script of the first {jobs} jobs:\n{record['script']}"
        output.show(Verbatim(script, title="The batch script", detail=True))
    planned = sum(phase.trials for phase in phases)
    left = max(0, planned - finished)
    answer = f"{left} of {planned} trials are to be trained; nothing was written."
    flags = ["--new-setup"] * new_setup
    next_command = again(invocation, "search", settings, *flags, why="to train them")
    output.end(answer, {}, record, next_command)
    return DONE
