"""`sweeper predict`: what a large run will reach, by the law of the runs that there are."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from sweeper.cli.output import DONE, Output
from sweeper.prediction.prediction import Prediction, Question, predict_runs
from sweeper.prediction.runs import ROLES, Design, Rungs, Runs, runs_of
from sweeper.tables.source import Source


def predict_table(
    path: Path,
    columns: str,
    where: str,
    question: Question,
    output: Output,
    out: Path | None,
    root: Path,
) -> int:
    """Fit the law of a table's runs, show and write the prediction. Trains nothing."""
    source = Source.read(path, where)
    named = source.columns(columns, ROLES)
    runs = runs_of(source, named)
    read = ", ".join(f"{role} is {column!r}" for role, column in named.items())
    output.tell(f"{len(runs)} runs of {path}: {read}")
    command = shlex.join(["sweeper", *sys.argv[1:]])
    prediction = predict_runs(
        runs,
        question,
        source=str(path),
        sha256=source.sha256,
        where=where,
        columns=named,
        command=command,
    )
    folder = out or root / "predictions" / path.stem
    return _report(prediction, runs, folder, output)


def _report(prediction: Prediction, runs: Runs, folder: Path, output: Output) -> int:
    from sweeper.report.prediction import answer_text, reasons_text, tables, write_prediction

    rungs = Rungs.of(runs, Design.of(runs))
    for table in tables(prediction):
        table.print(output.people)
    places = write_prediction(prediction, runs, rungs, folder)
    for line in reasons_text(prediction):
        output.say(line)
    if strays := prediction.inputs.strays:
        output.notes([f"far off the law, and counted less: {', '.join(strays)}"])
    output.say(f"SHA-256 of prediction.json: {prediction.sha256}")
    output.end(answer_text(prediction), places, document_of(prediction))
    return DONE


def document_of(prediction: Prediction) -> dict[str, object]:
    """The document with the digest of its file."""
    import json

    return {**json.loads(prediction.text()), "sha256": prediction.sha256}
