"""What a large run will reach, by the law of the runs that there are. Trains nothing."""

from __future__ import annotations

import math
from collections.abc import Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.config.command_line import DEFAULT_ROOT, with_place
from sweeper.errors import SHELL, BadInput, ConfigError, Keyword, as_text, spelled
from sweeper.evidence.flags import columns_text, fixed_values, ignored
from sweeper.evidence.predict.decision import (
    LossQuestion,
    NoLossLaw,
    Prediction,
    RunsSource,
    predict_runs,
)
from sweeper.evidence.predict.earlier import earlier_band
from sweeper.evidence.predict.request import PredictRequest
from sweeper.evidence.runs.curves import EarlierRun, earlier_runs
from sweeper.evidence.runs.loss_runs import LossRuns, law_notes, law_runs, loss_runs_of
from sweeper.evidence.runs.read import read, study_folder
from sweeper.evidence.runs.run import Runs
from sweeper.stats.ladder import Size
from sweeper.study.setup import command_line
from sweeper.study.study import find_study
from sweeper.study.watcher import Watcher
from sweeper.verbs.answer import VerbAnswer

if TYPE_CHECKING:
    from sweeper.config.studies import Invocation
    from sweeper.evidence.predict.reading import Predicted


@dataclass(frozen=True, kw_only=True)
class PredictAnswer(VerbAnswer):
    """The prediction of a study's runs; `invocation` is how its configuration was given."""

    question: LossQuestion
    predicted: Predicted
    invocation: Invocation | None = None


@dataclass(frozen=True, kw_only=True)
class TablePrediction(VerbAnswer):
    """The prediction of a table's runs, which belongs into `folder`."""

    table: Runs
    runs: LossRuns
    folder: Path
    prediction: Prediction | NoLossLaw


def predict(request: PredictRequest, watcher: Watcher) -> PredictAnswer | TablePrediction:
    """Fit the law of a source's runs, or of a study's, and carry it on to the run to come."""
    root = Path(DEFAULT_ROOT if request.root is None else request.root).expanduser()
    question = LossQuestion(
        params=request.to_params,
        tokens=request.to_tokens,
        flops=request.flops,
        fixed=fixed_values(request.fixed),
    )
    source, study = request.source, request.study
    if (folder := study_folder(source, root)) is not None:
        if folder.parent.resolve() != root.resolve():
            where = f"{folder.parent}, where {folder.name} lies"
            raise ConfigError(Keyword("root"), str(root), where)
        source, study = None, folder.name
    _check_meant(request, of_table=source is not None)
    if source is not None:
        return _of_table(source, request, question, root)
    return _of_study(find_study(study, root), request, question, root)


def _of_study(
    name: str, request: PredictRequest, question: LossQuestion, root: Path
) -> PredictAnswer:
    # A study has models, whose parameters torch counts; a table is answered before that has loaded.
    from sweeper.config.studies import tree_of
    from sweeper.evidence.predict.reading import predict_trained
    from sweeper.sweep.experiment import check_target, open_experiment, resolve_study

    asked_root = None if request.root is None else str(request.root)
    placed = with_place([], None, asked_root)
    tree, invocation = tree_of(name, placed, None, trust=request.trust)
    settings = resolve_study(tree, invocation)
    base, is_asked = settings.base, request.to_width or request.to_depth or request.to_tokens
    size = Size(width=request.to_width or base.width, depth=request.to_depth or base.depth)
    check_target(settings, size)
    target = size if is_asked else None
    experiment = open_experiment(settings)
    predicted = predict_trained(experiment, target, question, where=request.where)
    return PredictAnswer(question=question, predicted=predicted, invocation=invocation)


def _check_meant(request: PredictRequest, *, of_table: bool) -> None:
    """ConfigError for a keyword of the other kind of source, else passed over in silence."""
    of_tables, of_studies = (
        ("columns", "to_params", "ignore", "curves"),
        ("study", "to_width", "to_depth"),
    )
    for name in of_studies if of_table else of_tables:
        value = getattr(request, name)
        # A table has no truth, and a text or a mapping may be empty.
        is_given = value is not None and not (isinstance(value, Sized) and not len(value))
        if is_given:
            text = value if isinstance(value, str | int | float) else f"a {type(value).__name__}"
            sizes = Keyword("to_params", ...), " and ", Keyword("to_tokens", ...)
            names = Keyword("columns", "params=COLUMN,tokens=COLUMN")
            instead = (": of a table's run to come give ", *sizes, ", and ", names)
            kind = "a study" if of_table else "a table"
            meant = (f"given with the runs of {kind} alone", *instead * of_table)
            raise ConfigError(Keyword(name), text, meant)


def _of_table(
    source: object, request: PredictRequest, question: LossQuestion, root: Path
) -> TablePrediction:
    columns = columns_text(request.columns)
    ignore = ignored(request.ignore)
    table = read(source, columns=columns, where=request.where, ignore=ignore, root=root)
    table = law_runs(table)
    runs = loss_runs_of(table)
    curves = None if request.curves is None else _curves(request, root)
    notes = tuple(map(as_text, law_notes(table, runs)))
    name = "stdin" if str(source) == "-" else Path(table.name).stem or "table"
    folder = root / "predictions" / name
    prediction = predict_runs(
        runs,
        question,
        RunsSource(
            source=table.name, sha256=table.sha256, where=request.where, columns=table.columns
        ),
        notes=[spelled(note, SHELL) for note in notes],
        command=command_line(),
    )
    if curves is not None and isinstance(prediction, Prediction):
        assert prediction.aim is not None, "a run or a budget was asked about"
        steps, log_size = max(run.length for run in curves), math.log(prediction.aim.params)
        prediction = replace(prediction, band=earlier_band(curves, steps, log_size))
    return TablePrediction(
        notes=notes, table=table, runs=runs, folder=folder, prediction=prediction
    )


def _curves(request: PredictRequest, root: Path) -> list[EarlierRun]:
    """Curves of earlier runs; BadInput where their sizes are not those that a law speaks of."""
    source = request.curves
    name = str(source) if isinstance(source, str | Path) else "the table of curves"
    if request.to_params is request.to_tokens is request.flops is None:
        raise ConfigError(Keyword("curves"), name, "given with a run to come, or its budget")
    runs = earlier_runs(source, "", root=root)
    if len({run.size for run in runs}) > 1 and any(run.size_is != "params" for run in runs):
        raise BadInput(
            f"{name} has runs of several widths, and the law speaks of parameters: it needs a "
            "column params"
        )
    return runs
