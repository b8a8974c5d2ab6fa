"""`sweeper transfer`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sweeper.commands.experiment import changed_code, check_target, open_experiment
from sweeper.commands.laws import (
    check_law,
    exponent_lines,
    fit_measured,
    folder_name,
    law_record,
    target_size,
)
from sweeper.commands.output import DONE, NOT_PROVEN, Output, find_study
from sweeper.commands.quick_check import quick_check, summary
from sweeper.commands.study_config import split_root, study_tree
from sweeper.commands.validate import (
    Validation,
    check_ladders,
    measured_trend,
    planned_before,
    remove_stale_verdicts,
    validate,
)
from sweeper.errors import BadInput, ConfigError, SweeperError
from sweeper.files import private_folder, write_json
from sweeper.overrides import command_line, repeated
from sweeper.planned import apply_law, given
from sweeper.replay import replay_search
from sweeper.report import console as show
from sweeper.report.log import notice_of
from sweeper.report.page import write_report
from sweeper.report.provenance import provenance
from sweeper.report.words import short
from sweeper.search.strategy import Conclusion
from sweeper.settings import Experiment, Settings, resolve
from sweeper.study import Study
from sweeper.transfer.ladder import JOINT_AXIS, LADDER_AXES, Size
from sweeper.transfer.plan import TransferPlan, make_plan, own_plan
from sweeper.transfer.trend import MIN_TREND_WIDTHS, Trend
from sweeper.transfer.verdict import Verdict
from sweeper.trial import Log2Hps, defaults, in_use, named, plain


def load_study(name: str | None, words: Sequence[str], config_dir: Path | None) -> Settings:
    """A study's settings with overrides on top; BadInput for what a study cannot change."""
    tree = study_tree(name, words, config_dir)
    try:
        return resolve(tree)
    except ConfigError as error:
        root, others = split_root(words)
        if others:
            raise
        raise BadInput(f"{root / find_study(name, root) / 'config.yaml'}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class TransferRequest:
    """What `sweeper transfer` is asked for."""

    width: int
    depth: int | None = None
    tokens: float | None = None
    batch: int | None = None
    validate: bool = False
    strict: bool = False


def transfer(
    study_name: str | None,
    request: TransferRequest,
    words: Sequence[str],
    config_dir: Path | None,
    output: Output,
) -> int:
    """The plan for the target from the study's optimum and, if asked, the proof that it holds."""
    settings = load_study(study_name, words, config_dir)
    size = Size(width=request.width, depth=request.depth or settings.base.depth)
    check_target(settings, size)
    if request.validate:
        check_storage_password(settings)
    experiment = open_experiment(settings)
    size = target_size(experiment, size, request.tokens, request.batch)
    check_law(experiment, size, defaults(settings.space), validate=request.validate)
    if request.validate:
        check_ladders(experiment)
    study = Study.read(settings.folder)
    conclusion = optimum(experiment, study, output)
    if settings.transfer.eta is not None:
        best = Log2Hps({**conclusion.best_log2, "eta": settings.transfer.eta})
        conclusion = replace(conclusion, best_log2=best)
    folder = settings.folder / "transfer" / folder_name(settings, size)
    found = _measured(experiment, study, conclusion, request, size, folder, output)
    experiment, verdicts, trend = found.experiment, found.verdicts, found.trend
    plan = _plan(experiment, size, conclusion, found, folder)
    if found.exponents is not None and not request.validate:
        for line in exponent_lines(found.exponents):
            output.say(line)
    _keep(settings, conclusion, plan, trend, folder, output)
    judged = [verdict.axis for verdict in verdicts]
    unproven = _unproven(settings, size, judged) if request.validate else []
    output.notes(unproven)
    words, check = repeated(words, settings.root, config_dir), None
    if _checks(settings) and size.width != settings.base.width:
        check = quick_check(experiment, found.planned, words, output)
    places = {"report": settings.folder / "report.html", "plan": folder / "plan.json"}
    following = _following(settings, request, verdicts, words, plan)
    output.end(_found(plan, verdicts), places, following)
    document = {
        "study": settings.name,
        "plan": plan.to_json(),
        "verdicts": [verdict.to_json() for verdict in verdicts] or None,
        "trend": trend and trend.to_json(),
        "check": summary(check),
    }
    if found.exponents is not None:
        document["exponents"] = found.exponents.to_json()
    output.document(document)
    holds = all(verdict.answer == "holds" and not verdict.up_to for verdict in verdicts)
    proven = holds and not unproven and (check is None or check.answer != "fail")
    return NOT_PROVEN if request.strict and not proven else DONE


def _keep(
    settings: Settings,
    conclusion: Conclusion,
    plan: TransferPlan,
    trend: Trend | None,
    folder: Path,
    output: Output,
) -> None:
    """Write the plan and the report, and show them."""
    private_folder(folder)
    log2_hps = named(settings.space, conclusion.best_log2)
    output.notes(remove_stale_verdicts(folder, log2_hps, law_record(settings)))
    write_json(folder / "plan.json", plan.to_json())
    _show_plan(plan, output)
    show.trend(output.people, trend, applied=plan.source["correction"] is not None)
    if settings.transfer.correct and trend is None:
        output.say(
            "No correction: fewer than two widths have an optimum; add widths to transfer.widths."
        )
    if sentence := notice_of(lambda: settings.logger.plan(settings.folder, folder)):
        output.notes([sentence])
    write_report(settings.folder)


def _measured(
    experiment: Experiment,
    study: Study,
    conclusion: Conclusion,
    request: TransferRequest,
    size: Size,
    folder: Path,
    output: Output,
) -> Validation:
    """What ladders say: trained now where asked for, else as far as the study holds them."""
    if request.validate:
        private_folder(folder)
        return validate(experiment, conclusion, size.width, folder, output)
    best = conclusion.best_log2
    experiment, exponents = fit_measured(experiment, study, best)
    planned = planned_before(experiment.settings, best)
    trend = measured_trend(experiment, study, best, planned, size.width)
    _check_correction(experiment.settings, trend)
    return Validation(
        experiment=experiment, planned=planned, verdicts=[], trend=trend, exponents=exponents
    )


def _checks(settings: Settings) -> bool:
    """Whether a plan comes with a coordinate check."""
    return settings.transfer.check and settings.runner.measures("coordinates")


def _show_plan(plan: TransferPlan, output: Output) -> None:
    show.plan(output.people, plan)
    if command := plan.source.get("target_command"):
        output.say(f"\nThe target's command:\n{shlex.join(command)}\n")


def _found(plan: TransferPlan, verdicts: Sequence[Verdict]) -> str:
    """What was found, in a sentence."""
    answers = [
        f"over {v.axis.replace('_', ' ')}: {v.answer}{f' up to {v.up_to}' if v.up_to else ''}"
        for v in verdicts
    ]
    proof = f"the transfer {', '.join(answers)}" if answers else "the transfer is not validated"
    eta = f", at eta {short(plan.hps['eta'])}" if "eta" in plan.hps else ""
    return f"Planned {plan.target}{eta}; {proof}."


def _following(
    settings: Settings,
    request: TransferRequest,
    verdicts: Sequence[Verdict],
    words: Sequence[str],
    plan: TransferPlan,
) -> str:
    """The command that goes on from here: validation, what would settle it, or the trend."""
    seeds = max((v.seed_advice.seeds for v in verdicts if v.seed_advice is not None), default=0)
    at_ends = any("transfer.extend" in v.todo for v in verdicts)
    limited = any(verdict.up_to for verdict in verdicts)
    if request.validate and not (seeds or at_ends or limited):
        return _after_verdict(settings, request, verdicts, plan)
    options = ["--to-width", str(request.width)]
    depth = request.depth or settings.base.depth
    options += ["--to-depth", str(depth)] if depth != settings.base.depth else []
    options += ["--to-tokens", f"{request.tokens:.0f}"] if request.tokens is not None else []
    options += ["--to-batch", str(request.batch)] if request.batch is not None else []
    settled = [
        LADDER_AXES[v.axis]
        for v in verdicts
        if v.seed_advice is None and "transfer.extend" not in v.todo and v.axis in LADDER_AXES
    ]
    given = [f"transfer.seeds={seeds}"] if seeds else []
    given += [f"transfer.extend={2 * settings.transfer.extend or 4}"] if at_ends else []
    given += [f"transfer.{key}=[]" for key in settled] if given else []
    given = given or ["transfer.correct=true"] * limited
    replaced = tuple(f"{word.partition('=')[0]}=" for word in given)
    kept = [*(word for word in words if not word.startswith(replaced)), *given]
    return command_line("transfer", *options, "--validate", *kept, study=settings.name)


def _after_verdict(
    settings: Settings,
    request: TransferRequest,
    verdicts: Sequence[Verdict],
    plan: TransferPlan,
) -> str:
    """The causes of a failure over width or depth, or what the plan is for; else nothing."""
    flags = repeated((), settings.root, None)
    answers = {verdict.axis: verdict.answer for verdict in verdicts}
    failed = [axis for axis in ("width", "depth") if answers.get(axis) == "fails"]
    if failed and settings.transfer.along == "eta":
        return command_line("diagnose", "--over", failed[0], *flags, study=settings.name)
    if set(answers.values()) != {"holds"}:
        return ""
    if settings.own:
        return shlex.join(plan.source.get("target_command") or ())
    size = ["--to-width", str(request.width), "--to-depth"]
    size += [str(request.depth or settings.base.depth)]
    return command_line("export", "--to", "pytorch", *size, *flags, study=settings.name)


def _unproven(settings: Settings, target: Size, judged: Sequence[str]) -> list[str]:
    """Where the target differs from the base along an axis that no ladder `judged` changes."""
    ladders, notes = settings.transfer.ladders(settings.ladder_base), []
    for axis in LADDER_AXES:
        base = getattr(settings.ladder_base, axis)
        asked = getattr(target, axis, base)
        sizes = [size for name in (axis, JOINT_AXIS) if name in judged for size in ladders[name]]
        if asked != base and all(getattr(size, axis) == base for size in sizes):
            words = axis.replace("_", " ")
            notes.append(
                f"the target's {words}, {asked}, is not proven: no ladder changes it from the "
                f"base's {base}; add transfer.{LADDER_AXES[axis]}=[{base},{2 * base},{4 * base}]"
            )
    return notes


def _check_correction(settings: Settings, trend: Trend | None) -> None:
    """BadInput when a correction is asked for and the widths were not measured."""
    if settings.transfer.correct and trend is None:
        raise BadInput(
            "transfer.correct=true needs the optima of at least two widths: add --validate, and "
            f"give {MIN_TREND_WIDTHS} widths or more, as in transfer.widths=[32,64,128]"
        )


def check_storage_password(settings: Settings) -> None:
    """BadInput when the study cannot be written because its storage's password was not kept."""
    if settings.storage is not None and "***" in settings.storage:
        raise BadInput(
            "the storage's password is not kept: give study.storage=... again "
            f"(it was {settings.storage})"
        )


def optimum(experiment: Experiment, study: Study, output: Output) -> Conclusion:
    """The study's conclusion; BadInput when it has no trial of this configuration."""
    settings = experiment.settings
    history, missing = replay_search(experiment, study.get)
    if not history.results:
        changed = changed_code(experiment, study)
        code = f" ({', '.join(changed)} changed since)" if changed else ""
        raise BadInput(
            f"the study {settings.name!r} has no finished trial of this configuration{code}: "
            f"run `sweeper search --study {settings.name}` with the same overrides"
            f"{' and --new-setup' if changed else ''} first"
        )
    output.notes(study.notices)
    if missing:
        output.say(
            f"Note: the search is not finished; this is its best of {len(history.results)} trials."
        )
    conclusion = settings.search.conclude(settings.space, history)
    if not math.isfinite(conclusion.objective):
        raise SweeperError(
            f"every trial of {settings.name!r} diverged or failed: there is no optimum. Search "
            "anew, with lower values of parameterization.space.eta where they diverged"
        )
    return conclusion


def _plan(
    experiment: Experiment,
    size: Size,
    conclusion: Conclusion,
    found: Validation,
    folder: Path,
) -> TransferPlan:
    """The plan at the transferred eta, or where `transfer.correct` asks at the trend's."""
    settings, trend, best_log2 = experiment.settings, found.trend, found.planned
    origin = "the study" if settings.transfer.eta is None else "transfer.eta"
    if best_log2 != conclusion.best_log2:
        origin = "the base's curve on the ladder"
    correction = None
    if settings.transfer.correct and trend is not None and trend.warranted:
        best_log2 = Log2Hps({**best_log2, "eta": trend.predicted_log2.value})
        origin = "the trend over width"
        correction = trend.to_json()
    source = {
        "study": settings.name,
        "search": settings.plugin_spec("search").name,
        "objective": conclusion.objective,
        "runs": conclusion.runs,
        "seeds": conclusion.seeds,
        "eta_from": origin,
        "correction": correction,
        "data": experiment.corpus.identity(),
        "model": asdict(settings.plugin_spec("model")),
        **provenance(),
    }
    law = apply_law(experiment, size, best_log2)
    planned = best_log2 if law is None else given(experiment, law, best_log2)
    trial = experiment.trial(size, planned, 0, "target")
    target = Size(width=size.width, depth=size.depth)
    if command := settings.runner.words(trial, folder.absolute(), write=True):
        source["target_command"] = command
    if settings.own:
        hps = in_use(settings.space, planned)
        return own_plan(settings.base, target, hps, source, law)
    prepared = experiment.prepared(size)
    return make_plan(prepared, settings.base, target, plain(best_log2), source, law)
