"""`sweeper transfer`: the plan for a target, and the verdict on it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sweeper import schedule
from sweeper.check.judge import CoordinateCheck, sentence
from sweeper.cli.coordinates import quick_check
from sweeper.cli.cost import show_ladder_cost
from sweeper.cli.shared import write_page
from sweeper.cli.validate import (
    Settle,
    Validated,
    check_ladders,
    check_law,
    curves_name,
    exponent_lines,
    finished,
    fit_measured,
    measured_trend,
    remove_stale_verdicts,
    settling_of,
    target_size,
    validate,
)
from sweeper.config.compose import Tree
from sweeper.config.settings import Experiment, Settings
from sweeper.config.studies import Invocation
from sweeper.decide.saving import at_target
from sweeper.decide.transfer import Verdict
from sweeper.decide.trend import MIN_TREND_SIZES
from sweeper.decide.validation import Validation
from sweeper.errors import ConfigError
from sweeper.files import private_folder, write_json
from sweeper.launch.executor import Scheduled
from sweeper.laws.law import NoLaw
from sweeper.plan.plan import TransferPlan, make_plan, own_plan
from sweeper.records import to_json
from sweeper.report import console as show
from sweeper.report.answer import Sentence
from sweeper.report.console import size_text
from sweeper.report.next import NextCommand, after_plan
from sweeper.report.output import DONE, NOT_VALIDATED, Output
from sweeper.search.strategy import Conclusion
from sweeper.stats.ladder import JOINT_AXIS, LADDER_AXES, LadderSize, Size, extent
from sweeper.study.cost import keep_flops
from sweeper.study.folder import StudyFolder, TargetFolder, read_document
from sweeper.study.logs.log import notice_of
from sweeper.study.setup import provenance
from sweeper.study.study import Study
from sweeper.sweep.experiment import check_target, open_experiment, resolve_study
from sweeper.sweep.optimum import optimum as study_optimum
from sweeper.sweep.optimum import planned_before
from sweeper.sweep.replay import after_law, apply_law
from sweeper.sweep.sweep import Submitted
from sweeper.table import short
from sweeper.trial import Log2Hps, defaults, in_use, plain


@dataclass(frozen=True, kw_only=True)
class TransferRequest:
    """What `sweeper transfer` is asked for."""

    width: int
    depth: int | None = None
    tokens: float | None = None
    batch: int | None = None
    validate: bool = False
    settle: Settle | None = None
    strict: bool = False
    dry_run: bool = False
    detach: bool = False


def transfer(tree: Tree, request: TransferRequest, invocation: Invocation, output: Output) -> int:
    """The plan for the target from the study's optimum and, if asked, its validation.

    `tree` is the study's configuration with the overrides of the `invocation`.
    """
    settings = resolve_study(tree, invocation)
    size = Size(width=request.width, depth=request.depth or settings.base.depth)
    check_target(settings, size)
    if request.validate or request.dry_run:
        settings = settings.up_to(size.width)
    if request.detach and not isinstance(settings.launcher, Scheduled):
        name = settings.plugin_spec("launcher").name
        raise ConfigError("launcher", name, "--detach needs one with a queue: launcher=slurm")
    again = _command_again(settings, size, request, invocation)
    if request.dry_run:
        with tempfile.TemporaryDirectory() as temporary:
            experiment = open_experiment(settings, Path(temporary))
            size, study, conclusion = _opened(experiment, size, request, output)
            settle = None
            if request.settle is not None:
                best, folder = conclusion.best_log2, _folder(settings, size)
                settle, _ = settling_of(
                    experiment, study, best, size, folder, request.settle, finished(study)
                )
            show_ladder_cost(experiment, study, conclusion.best_log2, size, again, output, settle)
        return DONE
    if request.validate:
        check_storage_password(settings)
    experiment = open_experiment(settings)
    settings = experiment.settings
    size, study, conclusion = _opened(experiment, size, request, output)
    best = conclusion.best_log2
    folder = _folder(settings, size)
    output.within(settings.folder)

    # What ladders say: trained now where asked for, else as far as the study holds them.
    if request.validate:
        private_folder(folder)
        try:
            ladders = validate(
                experiment, best, size, folder, output, request.settle, wait=not request.detach
            )
        except Submitted as submitted:
            known = len(Study.read(settings.folder).results())
            output.end(
                f"{submitted.trials} trials are in jobs now, {known} are finished.",
                {"study": settings.folder},
                {"study": settings.name, "finished": known, "submitted": submitted.trials},
                replace(again, why="to collect them, and go on"),
            )
            return DONE
    else:
        ladders = _as_measured(experiment, study, best, size.width)
    experiment, verdicts, trend = ladders.experiment, ladders.verdicts, ladders.trend

    plan = _plan(size, conclusion, ladders, folder)
    # Once the law has said that it reaches the target; `validate` has told its own.
    if ladders.exponents is not None and not request.validate:
        for line in exponent_lines(ladders.exponents):
            output.say(line)
    private_folder(folder)
    files = TargetFolder(folder)
    # Before the plan is written: a page must never show it beside a verdict on another.
    output.notes(remove_stale_verdicts(settings, best, folder))
    kept = read_document(files.validation_of(settings.transfer.hyperparameter), Validation, [])
    write_json(files.plan, to_json(plan))
    # Beside a verdict the plan is no news: the last lines say its eta, and its file all else.
    output.show(*show.plan(plan, deep=settings.runner.takes("depth"), detail=bool(verdicts)))
    if trend is not None:
        applied = plan.source["correction"] is not None
        brief = show.trend_brief(trend, applied=applied)
        whole = show.trend_text(trend, applied=applied)
        said = whole if output.verbose else brief
        output.show(Sentence(said))
    if settings.transfer.correct and trend is None:
        output.say(
            "No correction: fewer than two widths have an optimum; add widths to transfer.widths."
        )
    if notice := notice_of(lambda: settings.logger.plan(settings.folder, folder)):
        output.notes([notice])

    not_validated = _not_validated(settings, size, verdicts) if request.validate else []
    output.notes(not_validated)
    check: CoordinateCheck | None = None
    checked: dict[str, object] | None = None
    checks = settings.transfer.check and settings.runner.measures("coordinates")
    if checks and size.width != settings.base.width:
        # A target as wide as the base uses no rule for the width, which is what this looks at.
        check = quick_check(experiment, ladders.planned, invocation, output)
    specs = [result.trial.spec for result in Study.read(settings.folder).results()]
    keep_flops(settings.folder, [*specs, *(at_target(spec, plan) for spec in specs)])
    places = write_page(settings.folder, output)
    if check is not None:
        shown = {key: getattr(check, key) for key in ("axis", "sizes", "answer", "origins")}
        checked = {**shown, "sentence": sentence(check, settings.check)}
    document: dict[str, object] = {
        "study": settings.name,
        "plan": to_json(plan),
        "verdicts": verdicts or None,
        "trend": trend,
        "check": checked,
    }
    if ladders.settled:
        document["settled"] = ladders.settled
    if ladders.exponents is not None:
        document["exponents"] = ladders.exponents
    eta = f", at eta {short(plan.hps['eta'])}" if "eta" in plan.hps else ""
    target = size_text(plan.target, deep=settings.runner.takes("depth"))
    next_command = after_plan(settings.folder, folder, plan, again, kept)
    target_command = plan.source.get("target_command")
    if target_command and not (next_command and not next_command.verb):
        doubt = _doubt(verdicts or (kept.axes if kept else ()))
        note = f"Its eta is in doubt: {doubt}." if doubt else ""
        output.command("The target's command:", target_command, note)
    places["plan"] = files.plan
    if verdicts:
        curves = curves_name(settings.transfer.hyperparameter, verdicts[0].axis)
        places["curves"] = folder / f"{curves}.png"
    output.end(
        f"Planned {target}{eta}; {_validated_text(verdicts, kept)}.", places, document, next_command
    )
    holds = all(
        verdict.answer == "holds" and (verdict.target is None or verdict.target.answer == "holds")
        for verdict in verdicts
    )
    passed = holds and not not_validated and (check is None or check.answer != "fail")
    return NOT_VALIDATED if request.strict and not passed else DONE


def _folder(settings: Settings, size: Size) -> Path:
    """The target's folder."""
    # The target's batch and steps are told where they are others.
    base, name = settings.ladder_base, f"w{size.width}-d{size.depth}"
    if isinstance(size, LadderSize) and (size.batch_size, size.steps) != (
        base.batch_size,
        base.steps,
    ):
        name += f"-b{size.batch_size}-s{size.steps}"
    return StudyFolder(settings.folder).target(name).path


def _opened(
    experiment: Experiment, size: Size, request: TransferRequest, output: Output
) -> tuple[Size, Study, Conclusion]:
    """The whole target, the study, and its optimum; BadInput for what cannot be asked of them."""
    settings = experiment.settings
    timed = settings.with_steps(replace(settings.ladder_base, width=size.width, depth=size.depth))
    if settings.steps_of is not None:
        spans = {s.steps for sizes in settings.ladders().values() for s in sizes}
        output.say(
            f"At {settings.transfer.tokens_per_parameter:g} tokens a parameter the target trains "
            f"{timed.steps:,} steps, and the ladder's sizes {min(spans, default=timed.steps):,} to "
            f"{max(spans, default=timed.steps):,}."
        )
    if settings.steps_of is None or isinstance(settings.law, NoLaw):
        size = target_size(experiment, size, request.tokens, request.batch)
    else:  # a law is asked about the steps, too
        size = target_size(experiment, timed, request.tokens, request.batch)
    check_law(experiment, size, defaults(settings.space), validate=request.validate)
    if request.validate:
        check_ladders(experiment, request.settle)
    study = Study.read(settings.folder)
    conclusion = optimum(experiment, study, output)
    if settings.transfer.eta is not None:
        best = Log2Hps({**conclusion.best_log2, "eta": settings.transfer.eta})
        conclusion = replace(conclusion, best_log2=best)
    return size, study, conclusion


def _command_again(
    settings: Settings, size: Size, request: TransferRequest, invocation: Invocation
) -> NextCommand:
    """This command, its target's options in full."""
    options = ["--to-width", str(size.width)]
    options += ["--to-depth", str(size.depth)] if size.depth != settings.base.depth else []
    options += ["--to-tokens", f"{request.tokens:.0f}"] if request.tokens is not None else []
    options += ["--to-batch", str(request.batch)] if request.batch is not None else []
    return NextCommand.of(
        "transfer",
        *(*options, *_settling(request), *invocation.overrides),
        study=settings.name,
        root=settings.root,
        config_dir=invocation.config_dir,
        why="to train them",
    )


def _settling(request: TransferRequest) -> list[str]:
    """The options that say how ladders are trained."""
    settle = request.settle
    if not request.validate or settle is None:
        return ["--validate"] * request.validate
    budget = ["--budget", str(settle.budget)] if settle.budget is not None else []
    hours = ["--hours", f"{settle.hours:g}"] if settle.hours is not None else []
    return ["--validate", "--settle", *budget, *hours]


def _as_measured(experiment: Experiment, study: Study, best: Log2Hps, width: int) -> Validated:
    """What the ladders say that the study holds already, for a target of `width`: no verdict.

    ConfigError where `transfer.correct` asks for a trend that they do not show.
    """
    settings = experiment.settings
    experiment, exponents = fit_measured(experiment, study, best)
    planned = planned_before(settings, best)
    trend = measured_trend(experiment, study, best, planned, width)
    if settings.transfer.correct and trend is None:
        raise ConfigError(
            "transfer.correct",
            True,
            "it needs the optima of at least two widths: add --validate, "
            f"and give {MIN_TREND_SIZES} widths or more, as in transfer.widths=[32,64,128]",
        )
    return Validated(
        experiment=experiment, planned=planned, verdicts=[], trend=trend, exponents=exponents
    )


def _plan(size: Size, conclusion: Conclusion, ladders: Validated, folder: Path) -> TransferPlan:
    """The plan at the transferred eta, or where `transfer.correct` asks at the trend's."""
    experiment, trend, best_log2 = ladders.experiment, ladders.trend, ladders.planned
    settings = experiment.settings
    origin = "the study" if settings.transfer.eta is None else "transfer.eta"
    if best_log2 != conclusion.best_log2:
        origin = "the base's curve on the ladder"
    correction = None
    if settings.transfer.correct and trend is not None and trend.warranted:
        best_log2 = Log2Hps({**best_log2, "eta": trend.predicted_log2.value})
        origin = "the trend over width"
        correction = to_json(trend)
    source = {
        "study": settings.name,
        "search": settings.plugin_spec("search").name,
        "objective": conclusion.objective,
        "error": conclusion.error,
        "runs": conclusion.runs,
        "seeds": conclusion.seeds,
        "fresh_seeds": conclusion.fresh_seeds,
        "eta_from": origin,
        "correction": correction,
        "validation": [
            {
                "axis": verdict.axis,
                "ladder": f"{verdict.answer} at "
                + extent(verdict.axis, [size.size for size in verdict.sizes]),
                "target": verdict.target and verdict.target.answer,
                "sentence": verdict.target.sentence if verdict.target else "",
            }
            for verdict in ladders.verdicts
        ]
        or None,
        "data": experiment.corpus.identity(),
        "model": asdict(settings.plugin_spec("model")),
        **provenance(),
    }
    law = apply_law(experiment, size, best_log2)
    # The target's command gets what the law plans; the plan itself applies the law to `best_log2`.
    planned = best_log2 if law is None else after_law(experiment, law, best_log2)
    if settings.steps_of is not None and not isinstance(size, LadderSize):
        timed = replace(settings.ladder_base, width=size.width, depth=size.depth)
        size = settings.with_steps(timed)
        source["tokens_per_parameter"] = settings.transfer.tokens_per_parameter
        source["steps"] = size.steps
    trial = experiment.trial(size, planned, 0, "target")
    trained = trial.train
    takes = any(map(settings.runner.takes, schedule.PLACEHOLDERS))
    source["schedule"] = schedule.record(trained.schedule, trained.span) if takes else schedule.OWN
    target = Size(width=size.width, depth=size.depth)
    if command := settings.runner.argv(trial, folder.absolute(), write=True):
        source["target_command"] = command
    if settings.scaled_by_user:
        hps = in_use(settings.space, planned)
        return own_plan(settings.base, target, hps, source, law)
    prepared = experiment.prepared(size)
    return make_plan(prepared, settings.base, target, plain(best_log2), source, law)


def _not_validated(settings: Settings, target: Size, verdicts: Sequence[Verdict]) -> list[str]:
    """Where the target differs from the base along an axis that no verdict's ladder changes."""
    ladders, notes = settings.ladders(), []
    judged = [verdict.axis for verdict in verdicts]
    for axis in LADDER_AXES:
        base = getattr(settings.ladder_base, axis)
        # A plain Size has no batch and no steps: then they are the base's.
        asked = getattr(target, axis, base)
        sizes = [size for name in (axis, JOINT_AXIS) if name in judged for size in ladders[name]]
        if axis == "steps" and settings.steps_of is not None:
            continue  # every ladder changes them, as the target does
        if asked != base and all(getattr(size, axis) == base for size in sizes):
            name = axis.replace("_", " ")
            notes.append(
                f"the target's {name}, {asked}, is not validated: no ladder changes it from the "
                f"base's {base}; add transfer.{LADDER_AXES[axis]}=[{base},{2 * base},{4 * base}]"
            )
    return notes


def _doubt(verdicts: Sequence[Verdict]) -> str:
    """Which verdicts do not hold, and speak against the eta; "" where all do."""
    doubts = []
    for verdict in verdicts:
        axis, target = f"over {verdict.axis.replace('_', ' ')}", verdict.target
        if verdict.answer != "holds":
            doubts.append(f"{axis}: {verdict.answer}")
        elif target is not None and target.answer != "holds":
            doubts.append(f"{axis}, at the target: {target.answer}")
    return "; ".join(doubts)


def _validated_text(verdicts: Sequence[Verdict], kept: Validation | None) -> str:
    """What was validated now (`verdicts`), or by an earlier command on this plan (`kept`)."""
    judged = verdicts or (kept.axes if kept else ())
    answers = ", ".join(
        f"over {verdict.axis.replace('_', ' ')}: {verdict.answer}"
        + (f", at the target: {verdict.target.answer}" if verdict.target else "")
        for verdict in judged
    )
    before = "" if verdicts else ", as validated before,"
    return f"the transfer{before} {answers}" if judged else "the transfer is not validated"


def check_storage_password(settings: Settings) -> None:
    """BadInput when the study cannot be written because its storage's password was not kept."""
    if settings.storage is not None and "***" in settings.storage:
        raise ConfigError(
            "study.storage", settings.storage, "its password is not kept: give it again"
        )


def planned_optimum(experiment: Experiment, study: Study, output: Output) -> Log2Hps:
    """What the study plans with: the optimum of its search, with the eta of its ladder."""
    best = optimum(experiment, study, output).best_log2
    return planned_before(experiment.settings, best)


def optimum(experiment: Experiment, study: Study, output: Output) -> Conclusion:
    """The study's conclusion; BadInput when it has no trial of this configuration."""
    found = study_optimum(experiment, study)
    output.notes(study.notices)
    if found.unfinished:
        output.say(
            f"Note: the search is not finished; this is its best of {found.unfinished} trials."
        )
    return found.conclusion
