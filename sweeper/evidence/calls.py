"""`sweeper.judge`, `sweeper.compare` and `sweeper.predict`: what a notebook calls of runs."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from sweeper.api.calls import TURNS, answered, folder_of
from sweeper.api.keywords import keywords_of, request_of
from sweeper.api.shown import Answer, Study, nearby
from sweeper.api.words import settings_words
from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.decide.loss import NoLossLaw, Prediction
from sweeper.errors import PYTHON, ConfigError, Keyword, spelled
from sweeper.evidence.shown import Compared, Critical, Judgement, Rates
from sweeper.records import to_json
from sweeper.registry import only_named
from sweeper.report.each import each_text
from sweeper.report.present import Silent, perform, present
from sweeper.verbs.compare import asks_for_winner
from sweeper.verbs.evidence_requests import CompareRequest, JudgeRequest, PredictRequest
from sweeper.verbs.judge import CriticalAnswer, EachJudgeAnswer, JudgeAnswer, RatesAnswer
from sweeper.verbs.predict import PredictAnswer, TablePrediction
from sweeper.verbs.requests import options_of


@keywords_of(CompareRequest)
def compare(*studies: Any, **settings: Any) -> Compared | Answer:
    """Which change wins at a target, or how studies rank, as `sweeper compare` says it.

    Of runs of any source as `judge` takes them, with `by` and `baseline`, the variants are carried
    to `to_params`, `to_tokens` or `to_width`; nothing is written but with `out`. Of two validated
    studies or more, of one root, the ranking at equal compute. With `settle` seeds are trained at
    each study's optimum until it is decided which is the best; further keywords are settings such
    as `launcher="slurm"`. Errors as `search`.
    """
    sources = tuple(map(_source, studies))
    known = options_of(CompareRequest)
    own = {name: value for name, value in settings.items() if name in known}
    asked = request_of(CompareRequest, {**own, "names": ()})
    if asks_for_winner(sources, vars(asked), Path(asked.root or DEFAULT_ROOT)):
        # Under strict nothing is written: a call writes nothing but with `out`.
        request = replace(request_of(CompareRequest, {**settings, "names": ()}), names=sources)
        return Answer.of(answered(replace(request, strict=request.out is None))[1])
    folders = [folder_of(study, settings.get("root")) for study in studies]
    parents = {folder.absolute().parent for folder in folders}
    if len(parents) > 1:
        raise ConfigError(
            Keyword("studies"), [*map(str, folders)], "studies of one folder, their root"
        )
    changes = {name: value for name, value in settings.items() if name not in known}
    if folders:
        own["root"] = folders[0].parent
    words = settings_words("transfer", changes, None)
    own["names"] = [*(folder.name for folder in folders), *words]
    _, output = answered(request_of(CompareRequest, own))
    if not output.places:
        return Answer.of(output)
    found = Compared()
    found.take(output)
    return found


@keywords_of(JudgeRequest)
def judge(source: Any = None, **keywords: Any) -> Judgement | Rates | Critical | Answer:
    """What `sweeper judge` says of runs: does their best learning rate stay? Trains nothing.

    `source` is a DataFrame, columns by name, a study, or a place as on the command line, a row a
    run. `columns` name them by role, as a text or a mapping: `{"width": "n_embd", "eta": "lr"}`.
    Nothing is written but with `out`; BadInput says what is missing.
    """
    request = request_of(JudgeRequest, {**keywords, "source": _source(source)})
    with TURNS:
        answer = perform(request, Silent())
        found: Judgement | Rates | Critical | Answer
        match answer:
            case EachJudgeAnswer():
                found = Answer()
                found.text, found.document = each_text(answer.each), to_json(answer.each)
            case RatesAnswer():
                found = Rates(answer)
            case CriticalAnswer():
                found = Critical(answer)
            case JudgeAnswer():
                found = Judgement(answer)
            case _:
                raise TypeError(type(answer).__name__)
        if request.out is not None:
            written = present("judge", answer).places
            found.places = {name: Path(str(place)) for name, place in written.items()}
    return found


@keywords_of(PredictRequest)
def predict(source: Any = None, **keywords: Any) -> Prediction | NoLossLaw:
    """What `sweeper predict` says of a table, or of a study: the loss of a larger run.

    `source` is a DataFrame, columns by name, a study, or a place as on the command line, a row a
    finished run. Of too few runs it cannot say yet, as there: the `answer` of both. Nothing is
    written but with `out`.
    """
    request = request_of(PredictRequest, {**keywords, "source": _source(source)})
    with TURNS, only_named():
        answer = perform(request, Silent())
        if request.out is not None:
            present("predict", answer)
    assert isinstance(answer, PredictAnswer | TablePrediction)
    found = answer.predicted if isinstance(answer, PredictAnswer) else answer
    if found.prediction is not None:
        # Those of a table stand first, and name keywords.
        told = [spelled(note, PYTHON) for note in answer.notes]
        return replace(found.prediction, notes=(*told, *found.prediction.notes[len(told) :]))
    assert found.too_few is not None
    return found.too_few.answer


def _source(source: Any) -> Any:
    """Runs as a request has them: a study by its folder."""
    if isinstance(source, Study):
        return str(nearby(source.folder))
    return fspath(source) if isinstance(source, PathLike) else source
