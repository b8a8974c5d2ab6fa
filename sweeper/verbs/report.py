"""What there is to show of a study, or of several beside each other; nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.config.command_line import place_of
from sweeper.decide.documents import Documents
from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.study.rows import write_runs
from sweeper.study.study import find_study
from sweeper.study.watcher import Watcher
from sweeper.verbs.answer import VerbAnswer
from sweeper.verbs.requests import ReportRequest

if TYPE_CHECKING:
    from sweeper.decide.speed import SpeedUp
    from sweeper.sweep.compared import ComparedStudies

K = Keyword


@dataclass(frozen=True, kw_only=True)
class ReportAnswer(VerbAnswer):
    """All documents of the study in `folder`; so many `runs` of its validation are in `csv`."""

    folder: Path
    documents: Documents
    csv: Path | None = None
    runs: int = 0


@dataclass(frozen=True, kw_only=True)
class SeveralAnswer(VerbAnswer):
    """Studies of one `root`, ranked where they can be; their page is to lie in `folder`."""

    names: Sequence[str]
    root: Path
    folder: Path
    compared: ComparedStudies
    faster: Sequence[SpeedUp]
    picture: Path | None


def report(request: ReportRequest, watcher: Watcher) -> ReportAnswer | SeveralAnswer:
    """Read a study, and write the runs of its validation to `csv`; or rank several."""
    # A root may stand among the names, as in other verbs.
    if request.study is None and len([n for n in request.name if not n.startswith("root=")]) > 1:
        return _several(request)
    if request.picture is not None:
        raise BadInput(K("picture", ...), " is of several studies: name them")
    name, root = place_of(request.name, request.study, request.root)
    folder, runs = root / find_study(name, root), 0
    if request.csv is not None:
        runs = write_runs(folder, request.csv)
    documents = Documents.read(folder)
    return ReportAnswer(folder=folder, documents=documents, csv=request.csv, runs=runs)


def _several(request: ReportRequest) -> SeveralAnswer:
    from sweeper.decide.speed import speed_ups
    from sweeper.sweep.compared import compared, comparison_folder, named_studies

    names, root = named_studies(request.name, request.root)
    if request.csv is not None:
        raise BadInput(K("csv", ...), " is of one study: name one")
    picture = request.picture
    if picture is not None and picture.suffix != ".svg":
        raise ConfigError(K("picture"), str(picture), "a file whose name ends in .svg")
    if picture is not None and not picture.parent.is_dir():
        allowed = f"there is no folder {picture.parent}: make it first"
        raise ConfigError(K("picture"), str(picture), allowed)
    ranked = compared(names, root, anyway=False)
    faster: list[SpeedUp] = []
    if ranked.comparison is not None:
        ladders = {entry.ladder.name: entry.ladder for entry in ranked.entries}
        faster = speed_ups([ladders[rank.name] for rank in ranked.comparison.by_transferred])
    return SeveralAnswer(
        names=names,
        root=root,
        folder=comparison_folder(names, root),
        compared=ranked,
        faster=faster,
        picture=picture,
    )
