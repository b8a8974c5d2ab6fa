"""Does the learning rate of runs transfer? A verdict on what there is; nothing is trained."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.errors import BadInput, ConfigError, Keyword, Text, as_text
from sweeper.evidence.batch.decision import CriticalBatch
from sweeper.evidence.batch.reading import (
    BatchRuns,
    batch_runs,
    critical_of,
    of_results,
)
from sweeper.evidence.each.decision import EachAnswer, judge_each
from sweeper.evidence.each.reading import VariedSettings, study_lines, varied_settings
from sweeper.evidence.flags import columns_text, ignored
from sweeper.evidence.judge.decision import TableQuestion, TableVerdict, judge_runs
from sweeper.evidence.judge.request import JudgeRequest
from sweeper.evidence.rates.decision import RateLaw, RateTarget, law_of_runs
from sweeper.evidence.rates.reading import of_two_sizes
from sweeper.evidence.runs.divergence import HUGE
from sweeper.evidence.runs.grid import GridOptions, ladder_runs
from sweeper.evidence.runs.read import EVERY_LADDER, read, study_folder
from sweeper.evidence.runs.roles import LADDER_ROLES, axis_key
from sweeper.evidence.runs.run import Runs
from sweeper.evidence.runs.series import Objective
from sweeper.evidence.runs.sizes import axis_name
from sweeper.stats.ladder import JOINT_AXIS
from sweeper.study.folder import StudyFolder
from sweeper.study.setup import command_line
from sweeper.study.study import StudyRecord, find_study
from sweeper.study.watcher import Watcher
from sweeper.verbs.answer import Outcome, VerbAnswer


@dataclass(frozen=True, kw_only=True)
class JudgeAnswer(VerbAnswer):
    """A verdict on runs and its folder; over the batch with what `critical` says of it."""

    judged: TableVerdict
    critical: CriticalBatch | None = None
    folder: Path
    root: Path


@dataclass(frozen=True, kw_only=True)
class EachJudgeAnswer(VerbAnswer):
    """An answer to every setting that was varied, and the folder that it belongs into."""

    each: EachAnswer
    varied: VariedSettings
    folder: Path


@dataclass(frozen=True, kw_only=True)
class CriticalAnswer(VerbAnswer):
    """The critical batch of runs that are no ladder of rates; `facts` are what it rests on."""

    critical: CriticalBatch
    facts: Mapping[str, Any]
    folder: Path


@dataclass(frozen=True, kw_only=True)
class RatesAnswer(VerbAnswer):
    """The rate and the batch over models and horizons; `facts` are what it rests on."""

    law: RateLaw
    facts: Mapping[str, Any]
    folder: Path


def judge(request: JudgeRequest, watcher: Watcher) -> VerbAnswer:
    """Read the runs and judge them."""
    root = Path(DEFAULT_ROOT if request.root is None else request.root).expanduser()
    source = request.source
    if source is None and request.study is None:
        raise BadInput(
            "judge takes runs: a table, a folder of runs, wandb:ENTITY/PROJECT, an Optuna "
            "storage's URL, or ",
            Keyword("study", ...),
            " with a study of yours",
        )
    if source is None:
        source = str(root / find_study(request.study, root))
    axis = axis_key(request.axis)
    objective = Objective(series=request.series, window=request.window, study=request.study or "")
    if request.each:
        return _each(request, source, axis, root, objective)
    over_batch = axis == "batch_size"
    objective = replace(objective, whole=over_batch)
    question = TableQuestion(
        reading=GridOptions(axis=axis, noise=request.noise, diverged=request.diverged),
        to=request.to_width,
        eta=request.eta,
    )
    target = _rates_asked(request)
    runs = read(
        source,
        columns=columns_text(request.columns),
        where=request.where,
        ignore=ignored(request.ignore),
        root=root,
        objective=objective,
        axis=axis if target is None else EVERY_LADDER,
    )
    folder, command = _folder(source, runs.name, root), command_line()
    facts = {"source": runs.name, "sha256": runs.sha256, "where": runs.where, "command": command}
    # Nothing was asked that only a ladder has: a table over models and horizons is then one law.
    plain = {request.axis, request.to_width, request.eta} == {None}
    if target is not None or (plain and of_two_sizes(runs)):
        law = law_of_runs(runs, question.reading, target)
        return RatesAnswer(
            outcome=Outcome.NOT_VALIDATED
            if request.strict and law.answer != "predicted"
            else Outcome.DONE,
            law=law,
            facts={**facts, "columns": law.columns},
            folder=folder,
        )
    critical, notes = None, tuple[Text, ...]()
    if over_batch and (curves := _curves(source, runs, root)) is not None:
        critical = critical_of(curves)
        notes = () if critical.code == "too_few" else tuple(map(as_text, curves.notes))
        # Series are no cells that settings could be compared by.
        runs = replace(runs, frame=runs.frame.drop(columns="series", errors="ignore"))
    elif over_batch:
        if study_folder(source, root) is None:
            runs.with_roles(LADDER_ROLES).check_columns({"batch_size": "the batch"})
        notes = (NO_CURVES,)
    is_critical = critical is not None and critical.code != "too_few"
    try:
        judged = judge_runs(ladder_runs(runs, objective), question, command)
        if is_critical and all(one_rate(each) for each in judged.ladders or (judged,)):
            raise BadInput("it takes several at each batch")
    except BadInput as error:
        # Runs that are no ladder of rates may still tell the critical batch.
        if critical is None or not is_critical:
            raise
        return CriticalAnswer(
            notes=(*notes, ("no verdict on the learning rate: ", *error.args)),
            critical=critical,
            facts=facts,
            folder=folder,
        )
    if request.to_width is not None and axis is None and judged.axis not in ("width", JOINT_AXIS):
        raise BadInput(
            *(Keyword("to_width", ...), " is a width, and the runs differ in the "),
            *(axis_name(judged.axis), ": for a target of it add ", Keyword("axis", judged.axis)),
        )
    return JudgeAnswer(
        notes=notes,
        critical=critical,
        outcome=Outcome.NOT_VALIDATED
        if request.strict and judged.answer != "holds"
        else Outcome.DONE,
        judged=judged,
        folder=folder,
        root=root,
    )


TARGETS = ("to_width", "to_params", "to_tokens", "to_batch")
NO_CURVES: Text = (
    "no critical batch: it takes losses at several steps of each batch, of curves or of runs of "
    "several lengths",
)
OF_LADDERS = (*TARGETS, "eta", "strict")


def one_rate(judged: TableVerdict) -> bool:
    """Whether each size was run at one learning rate alone: no ladder of rates."""
    return bool(judged.curves) and all(len(curve.losses) == 1 for curve in judged.curves)


def _each(
    request: JudgeRequest, source: Any, axis: str | None, root: Path, objective: Objective
) -> EachJudgeAnswer:
    if others := [name for name in OF_LADDERS if getattr(request, name)]:
        raise BadInput(
            *(Keyword(others[0], ...), " is of learning rates along sizes, and not of "),
            *(Keyword("each"), ": leave one of them out"),
        )
    if request.noise is not None and not 1 / HUGE <= request.noise <= HUGE:
        raise ConfigError(Keyword("noise"), request.noise, "a positive number of nats")
    if (study := study_folder(source, root)) is not None:
        varied = study_lines(study)
    else:
        runs = read(
            source,
            columns=columns_text(request.columns),
            where=request.where,
            ignore=ignored(request.ignore),
            root=root,
            objective=objective,
        )
        varied = varied_settings(runs, axis)
    each = judge_each(varied, request.noise)
    folder = _folder(source, varied.name, root)
    return EachJudgeAnswer(each=each, varied=varied, folder=folder)


def _curves(source: object, runs: Runs, root: Path) -> BatchRuns | None:
    curves = batch_runs(runs)
    folder = study_folder(source, root)
    # A study's table has the ends of runs: their curves are in its results.
    if folder is None or (curves is not None and any(len(c.steps) > 1 for c in curves.curves)):
        return curves
    return of_results(StudyRecord.read(folder).results())


def _rates_asked(request: JudgeRequest) -> RateTarget | None:
    if (request.to_params, request.to_tokens, request.to_batch) == (None, None, None):
        return None
    for name in ("axis", "eta"):
        if getattr(request, name) is not None:
            raise BadInput(
                *(Keyword(name, ...), " goes with a transfer along one size, and "),
                *(Keyword("to_params", ...), ", ", Keyword("to_tokens", ...), " and "),
                *(Keyword("to_batch", ...), " ask for the rate of any: leave one of them out"),
            )
    if request.to_width is not None and request.to_params is not None:
        raise BadInput(
            *(Keyword("to_width", ...), " and ", Keyword("to_params", ...)),
            " both name the model of the run to come: leave one of them out",
        )
    return RateTarget(
        params=request.to_params,
        width=request.to_width,
        tokens=request.to_tokens,
        batch=request.to_batch,
    )


def _folder(source: object, name: str, root: Path) -> Path:
    if (study := study_folder(source, root)) is not None:
        return StudyFolder(study).judged
    name = re.sub(r"[^\w.-]+", "-", Path(name).stem).strip("-.") or "runs"
    return root / "judged" / name
