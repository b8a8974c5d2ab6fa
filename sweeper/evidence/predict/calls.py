"""`sweeper.predict`: what a notebook calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sweeper.api.bar import TURNS
from sweeper.api.keywords import keywords_of, request_of
from sweeper.api.shown import source_of
from sweeper.errors import PYTHON, spelled
from sweeper.evidence.predict.decision import NoLossLaw, Prediction
from sweeper.evidence.predict.request import PredictRequest
from sweeper.evidence.predict.verb import PredictAnswer, TablePrediction
from sweeper.registry import only_named
from sweeper.report.present import Silent, perform


@keywords_of(PredictRequest)
def predict(source: Any = None, **keywords: Any) -> Prediction | NoLossLaw:
    """What `sweeper predict` says of a table, or of a study: the loss of a larger run.

    `source` is a DataFrame, columns by name, a study, or a place as on the command line, a row a
    finished run. Of too few runs it cannot say yet, as there: the `answer` of both. Nothing is
    written but by its `write`.
    """
    request = request_of(PredictRequest, {**keywords, "source": source_of(source)})
    with TURNS, only_named():
        answer = perform(request, Silent())
    assert isinstance(answer, PredictAnswer | TablePrediction)
    source_answer = answer.predicted if isinstance(answer, PredictAnswer) else answer
    if isinstance(prediction := source_answer.prediction, NoLossLaw):
        return prediction
    # Those of a table stand first, and name keywords.
    notes = [spelled(note, PYTHON) for note in answer.notes]
    return replace(prediction, notes=(*notes, *prediction.notes[len(notes) :]))
