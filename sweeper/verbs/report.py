"""What there is to show of a study; nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sweeper.config.command_line import place_of
from sweeper.decide.documents import Documents
from sweeper.study.runs_table import write_runs
from sweeper.study.study import find_study
from sweeper.study.watcher import Watcher
from sweeper.verbs.answer import VerbAnswer
from sweeper.verbs.requests import ReportRequest


@dataclass(frozen=True, kw_only=True)
class ReportAnswer(VerbAnswer):
    """All documents of the study in `folder`; so many `runs` of its validation are in `csv`."""

    folder: Path
    documents: Documents
    csv: Path | None = None
    runs: int = 0


def report(request: ReportRequest, watcher: Watcher) -> ReportAnswer:
    """Read a study, and write the runs of its validation to `csv`."""
    name, root = place_of(request.name, request.study, request.root)
    folder, runs = root / find_study(name, root), 0
    if request.csv is not None:
        runs = write_runs(folder, request.csv)
    documents = Documents.read(folder)
    return ReportAnswer(folder=folder, documents=documents, csv=request.csv, runs=runs)
