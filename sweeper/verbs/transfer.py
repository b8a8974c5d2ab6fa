"""Carry a study's optimum over to a larger model: its plan, and whether ladders show it to hold."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.config.command_line import of_study
from sweeper.config.studies import Invocation, split_root, study_tree
from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.files import private_folder, write_json
from sweeper.records import to_json
from sweeper.stats.ladder import Size
from sweeper.study.folder import TargetFolder, read_document
from sweeper.study.study import find_study
from sweeper.study.watcher import Watcher, Words
from sweeper.verbs.answer import Outcome, VerbAnswer
from sweeper.verbs.requests import TransferRequest, budget_of

if TYPE_CHECKING:
    from sweeper.config.settings import Experiment, Settings
    from sweeper.decide.validation import Validation
    from sweeper.plan.plan import TransferPlan
    from sweeper.study.setup import Failure
    from sweeper.sweep.coordinates import QuickCheck
    from sweeper.sweep.ladder_cost import LadderCost, RungCosts
    from sweeper.sweep.ladders import StaleVerdict, Validated
    from sweeper.sweep.planning import TargetOptions, TransferTarget, Unvalidated
    from sweeper.sweep.sweep import Submitted

K = Keyword


@dataclass(frozen=True, kw_only=True)
class AnswerAtTarget(VerbAnswer):
    """What is said of a target, whichever way it was asked for."""

    request: TransferRequest
    settings: Settings
    invocation: Invocation
    target: TransferTarget


@dataclass(frozen=True, kw_only=True)
class TransferAnswer(AnswerAtTarget):
    """The plan, in `folder`, and what `ladders` say; `kept` is the verdict that lies there.

    `unvalidated` are axes of which no ladder says anything, `removed` verdicts on other plans.
    `notice` is what a logger has to tell.
    """

    folder: Path
    plan: TransferPlan
    ladders: Validated
    kept: Validation | None
    check: QuickCheck | None
    unvalidated: Sequence[Unvalidated]
    removed: Sequence[StaleVerdict]
    notice: str


@dataclass(frozen=True, kw_only=True)
class LadderCostAnswer(AnswerAtTarget):
    """What the ladders would train."""

    cost: LadderCost


@dataclass(frozen=True, kw_only=True)
class QueuedLadders(AnswerAtTarget):
    """Ladders whose runs are in a queue."""

    queued: Submitted


@dataclass(frozen=True, kw_only=True)
class HorizonsAnswer(AnswerAtTarget):
    """Sizes at several horizons: what they lacked, and the target's `plan` in `folder`.

    A dry run has no plan. `failed` are reasons of trials that failed.
    """

    costs: RungCosts
    failed: Sequence[Failure] = ()
    plan: TransferPlan | None = None
    folder: Path | None = None
    removed: Sequence[StaleVerdict] = ()


@dataclass(frozen=True, kw_only=True)
class EachTransferAnswer(VerbAnswer):
    """Ladders of several hyperparameters: each one's `answers` by its name.

    `gainless` ones would gain nothing that is seen, and have no ladder.
    """

    request: TransferRequest
    folder: Path
    answers: Mapping[str, AnswerAtTarget]
    gainless: Sequence[str]


CURVES_OF = "transfer.hyperparameter"
"""The key of what varies on a ladder's curves: "all", or a list, has a ladder of each trained."""


def transfer(request: TransferRequest, watcher: Watcher) -> VerbAnswer:
    """The plan for the target from the study's optimum and, if asked, its validation."""
    check_asked(request)
    if (several := _several(request)) is not None:
        return _each(request, several, watcher)
    root = None if request.root is None else str(request.root)
    name, others = of_study(request.overrides, request.study, root)
    # A misspelt setting is refused before torch loads.
    tree, invocation = study_tree(name, others, request.config_dir, trust=request.trust)
    from sweeper.sweep.experiment import check_queue, check_target, open_experiment, resolve_study
    from sweeper.sweep.ladders import judged_before, validate
    from sweeper.sweep.optimum import check_storage_password
    from sweeper.sweep.planning import as_measured, target_folder, target_of
    from sweeper.sweep.sweep import Submitted

    settings = resolve_study(tree, invocation)
    size = Size(width=request.to_width, depth=request.to_depth or settings.base.depth)
    check_target(settings, size)
    if request.horizons:
        return _horizons(request, settings, size, invocation, watcher)
    if request.validate or request.dry_run:
        settings = settings.up_to(size.width, invocation.overrides)
    if request.detach:
        check_queue(settings)
    if request.dry_run:
        with tempfile.TemporaryDirectory() as temporary:
            experiment = open_experiment(settings, Path(temporary))
            return _cost(request, experiment, size, invocation, watcher)
    if request.validate:
        check_storage_password(settings)
    experiment = open_experiment(settings)
    settings = experiment.settings
    target = target_of(experiment, size, _asked(request))
    folder = target_folder(settings, target.size)

    if request.validate:
        private_folder(folder)
        settle, wait = _asked(request).settle, not request.detach
        try:
            ladders = validate(
                experiment, target.best, target.size, folder, watcher, settle, wait=wait
            )
        except Submitted as queued:
            return QueuedLadders(
                request=request,
                settings=settings,
                invocation=invocation,
                target=target,
                queued=queued,
            )
    else:
        before = judged_before(experiment, target.best, target.size, folder, watcher)
        ladders = before or as_measured(experiment, target, watcher)
    return _planned(request, target, ladders, folder, invocation, watcher)


def _several(request: TransferRequest) -> list[str] | None:
    """The hyperparameters of `all` or a list, in the order given; None of a single one."""
    values = [
        word.partition("=")[2] for word in request.overrides if word.startswith(f"{CURVES_OF}=")
    ]
    text = values[-1] if values else ""
    if text != "all" and not text.startswith("["):
        return None
    names = [name.strip(" '\"") for name in text.strip("[]").split(",")]
    if not request.validate:
        raise BadInput(f"{CURVES_OF}={text} is of ladders: give ", K("validate"), ", too")
    return list(dict.fromkeys(filter(None, names)))


def _each(request: TransferRequest, names: Sequence[str], watcher: Watcher) -> EachTransferAnswer:
    from sweeper.stats.line import FLAT
    from sweeper.study.searched import read_searched

    root = None if request.root is None else str(request.root)
    name, others = of_study(request.overrides, request.study, root)
    place, _ = split_root(others)
    folder = place / find_study(name, place)
    searched = read_searched(folder, [])
    space = searched.space if searched else {}
    best = searched.conclusion.best_log2 if searched else {}
    gainless = list[str]()
    if names == ["all"]:
        lines = searched.conclusion.lines if searched else ()
        # What is flat between the default and the best is not worth a ladder.
        gainless = [
            line.name
            for line in lines
            if line.name in space
            and line.gain(space[line.name].default) < FLAT * abs(line.objective)
        ]
        names = [n for n in space if n not in gainless and space[n].low < space[n].high]
        names = [n for n in names if not space[n].choices and n in best]
        if not names:
            allowed = "no hyperparameter gains anything that a ladder could carry: a list of names"
            raise ConfigError(CURVES_OF, "all", allowed)
    typed = {word.lstrip("+").partition("=")[0] for word in request.overrides}

    others = [word for word in others if not word.startswith(f"{CURVES_OF}=")]
    tree, _ = study_tree(name, others, request.config_dir, trust=request.trust)
    span = float(tree["transfer"]["span"])

    def asked(name: str) -> TransferRequest:
        overrides = [word for word in request.overrides if not word.startswith(f"{CURVES_OF}=")]
        overrides.append(f"{CURVES_OF}={name}")
        # Without its default a curve cannot tell what carrying gains.
        away = abs(best[name] - space[name].default) if name in best and name in space else 0.0
        if away > span and "transfer.span" not in typed:
            overrides.append(f"transfer.span={math.ceil(2 * away) / 2:g}")
        return replace(request, overrides=tuple(overrides))

    answers = dict[str, AnswerAtTarget]()
    for at, name in enumerate(names):
        if not request.dry_run:
            watcher.tell(f"{name}: the ladder {at + 1} of {len(names)}")
        # The coordinate check is the same for all ladders of a model: it comes with the first.
        overrides = ["transfer.check=false"] * (at > 0 and "transfer.check" not in typed)
        wanted = asked(name)
        wanted = replace(wanted, overrides=(*wanted.overrides, *overrides))
        answer = transfer(wanted, watcher)
        assert isinstance(answer, AnswerAtTarget)
        answers[name] = answer
    # Exit codes grow: where one ladder is not validated, all of them are not.
    return EachTransferAnswer(
        outcome=max(answer.outcome for answer in answers.values()),
        notes=tuple(dict.fromkeys(note for answer in answers.values() for note in answer.notes)),
        request=request,
        folder=folder,
        answers=answers,
        gainless=gainless,
    )


def _horizons(
    request: TransferRequest,
    settings: Settings,
    size: Size,
    invocation: Invocation,
    watcher: Watcher,
) -> HorizonsAnswer:
    """Train what the study lacks of sizes x steps at the planned eta, and plan the target."""
    from sweeper.study.lock import StudyLock
    from sweeper.study.setup import failures_of
    from sweeper.study.study import StudyRecord
    from sweeper.sweep.experiment import open_experiment, progress_of
    from sweeper.sweep.ladder_cost import rung_costs, rungs
    from sweeper.sweep.optimum import check_storage_password, planned_before
    from sweeper.sweep.planning import as_measured, target_folder, target_of
    from sweeper.sweep.sweep import Sweep

    # Where something is trained the corpus is the study's, and a kill leaves no folder behind.
    with tempfile.TemporaryDirectory() if request.dry_run else nullcontext() as temporary:
        experiment = open_experiment(settings, Path(temporary) if temporary else None)
        # What no plan could be made for is no loss to come.
        planned = target_of(experiment, size, _asked(request))
        study = planned.study
        best = planned_before(settings, planned.optimum.conclusion.best_log2)
        trials = rungs(experiment, best)
        answer = HorizonsAnswer(
            notes=tuple((notice,) for notice in study.notices),
            request=request,
            settings=settings,
            invocation=invocation,
            target=planned,
            costs=rung_costs(experiment, study, trials),
        )
        if request.dry_run:
            return answer
    check_storage_password(settings)
    with StudyLock(settings.folder), StudyRecord.open(settings.folder, settings.storage) as opened:
        earlier = opened.results()
        with progress_of(settings, watcher, "horizons", len(trials), results=earlier) as progress:
            Sweep(experiment, opened, progress).runs(trials)
        failed = failures_of(opened.results(), settings.identity)
        notes = (*answer.notes, *((notice,) for notice in opened.notices))
    folder = target_folder(settings, planned.size)
    plan, removed = _write_plan(planned, as_measured(experiment, planned, watcher), folder)
    return replace(answer, failed=failed, notes=notes, plan=plan, folder=folder, removed=removed)


def check_asked(request: TransferRequest) -> None:
    """BadInput for keywords that do not go together."""
    budget_of(request.budget)
    if request.strict and not request.validate:
        raise BadInput(K("strict"), " judges the verdict of ", K("validate"), ": give both")
    if request.dry_run and not request.validate and not request.horizons:
        raise BadInput(
            *(K("dry_run"), " shows what ", K("validate"), " or ", K("horizons")),
            " would train: give one",
        )
    if request.settle and not request.validate:
        raise BadInput(K("settle"), " trains the ladders of ", K("validate"), ": give both")
    if request.budget is not None and not request.settle:
        raise BadInput(
            *(K("budget", ...), " bounds what ", K("settle"), " trains: give "),
            *(K("validate"), " ", K("settle"), ", too"),
        )
    if request.detach and (not request.validate or request.dry_run):
        raise BadInput(K("detach"), " leaves the runs of ", K("validate"), " in a queue: give both")
    if request.horizons and (request.validate or request.to_batch is not None):
        other = K("validate") if request.validate else K("to_batch", ...)
        raise BadInput(
            *(K("horizons"), " trains its own ladder, at the base's batch: leave ", other, " out")
        )


def _asked(request: TransferRequest) -> TargetOptions:
    from sweeper.sweep.ladders import Settle
    from sweeper.sweep.planning import TargetOptions

    runs, hours = budget_of(request.budget)
    settle = Settle(budget=runs, hours=hours) if request.settle else None
    return TargetOptions(
        tokens=request.to_tokens, batch=request.to_batch, validate=request.validate, settle=settle
    )


def _cost(
    request: TransferRequest,
    experiment: Experiment,
    size: Size,
    invocation: Invocation,
    wording: Words,
) -> LadderCostAnswer:
    from sweeper.sweep.ladder_cost import ladder_cost
    from sweeper.sweep.ladders import settling_of
    from sweeper.sweep.optimum import finished
    from sweeper.sweep.planning import target_folder, target_of

    settings, asked, settling = experiment.settings, _asked(request), None
    target = target_of(experiment, size, asked)
    if asked.settle is not None:
        folder, lookup = target_folder(settings, target.size), finished(target.study)
        settling = settling_of(
            experiment,
            target.study,
            target.best,
            target.size,
            folder,
            asked.settle,
            lookup,
            wording,
        )
    return LadderCostAnswer(
        notes=tuple((notice,) for notice in target.study.notices),
        request=request,
        settings=settings,
        invocation=invocation,
        target=target,
        cost=ladder_cost(experiment, target, settling),
    )


def _write_plan(
    target: TransferTarget, ladders: Validated, folder: Path
) -> tuple[TransferPlan, Sequence[StaleVerdict]]:
    from sweeper.sweep.ladders import remove_stale_verdicts
    from sweeper.sweep.planning import plan_target

    plan = plan_target(target, ladders, folder)
    private_folder(folder)
    # Before the plan is written: a page must never show it beside a verdict on another.
    removed = remove_stale_verdicts(ladders.experiment.settings, target.best, folder)
    write_json(TargetFolder(folder).plan, to_json(plan))
    return plan, removed


def _planned(
    request: TransferRequest,
    target: TransferTarget,
    ladders: Validated,
    folder: Path,
    invocation: Invocation,
    watcher: Watcher,
) -> TransferAnswer:
    from sweeper.decide.validation import Validation
    from sweeper.study.flops import keep_flops
    from sweeper.study.logs.log import notice_of
    from sweeper.sweep.coordinates import quick_check
    from sweeper.sweep.planning import unvalidated

    settings, files = ladders.experiment.settings, TargetFolder(folder)
    plan, removed = _write_plan(target, ladders, folder)
    kept = read_document(files.validation_of(settings.transfer.hyperparameter), Validation, [])
    notice = notice_of(lambda: settings.logger.plan(settings.folder, folder))
    # An axis along which the target differs and no ladder was judged keeps the answer open.
    asks = request.validate or ladders.verdicts
    open_axes = unvalidated(settings, target.size, ladders.verdicts) if asks else []
    check = None
    checks = settings.transfer.check and settings.runner.measures("coordinates")
    if checks and target.size.width != settings.base.width:
        # A target as wide as the base uses no rule for the width, which is what this looks at.
        check = quick_check(ladders.experiment, ladders.planned, invocation, watcher)
    results = type(target.study).read(settings.folder).results()
    keep_flops(settings.folder, [each.trial.spec for each in results])
    holds = all(
        verdict.answer == "holds" and (verdict.target is None or verdict.target.answer == "holds")
        for verdict in ladders.verdicts
    )
    rules_hold = check is None or check.check is None or check.check.answer != "fail"
    passed = holds and not open_axes and rules_hold
    return TransferAnswer(
        outcome=Outcome.NOT_VALIDATED if request.strict and not passed else Outcome.DONE,
        notes=tuple((notice,) for notice in target.study.notices),
        request=request,
        settings=settings,
        invocation=invocation,
        target=target,
        folder=folder,
        plan=plan,
        ladders=ladders,
        kept=kept,
        check=check,
        unvalidated=open_axes,
        removed=removed,
        notice=notice or "",
    )
