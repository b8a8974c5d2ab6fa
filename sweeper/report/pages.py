"""The pages of a study, or of several: what they say in a line, and where they lie."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from sweeper.decide.transfer import WORST_FIRST
from sweeper.decide.validation import Validation
from sweeper.errors import SHELL, as_text, spelled
from sweeper.files import write_atomically
from sweeper.report.answer import Item, Report, Section, Sentence
from sweeper.report.comparison import findings, panels, write_several
from sweeper.report.figures import write_picture
from sweeper.report.live import EVERY, is_live
from sweeper.report.next import Next, next_of
from sweeper.report.page import page
from sweeper.report.present import Shown
from sweeper.report.study_page import Running, headline, write_report
from sweeper.study.folder import StudyFolder, read_document, studies
from sweeper.study.lock import check_contents, live_holder
from sweeper.study.searched import Searched
from sweeper.study.study import is_saved
from sweeper.table import Cell, Column, Table, Value, answer, counted
from sweeper.verbs.report import ReportAnswer, SeveralAnswer
from sweeper.verbs.requests import CompareRequest


def shown(answer: ReportAnswer | SeveralAnswer, *, verbose: bool = False) -> Shown:
    """Write the page anew, and say where it lies."""
    return _several(answer) if isinstance(answer, SeveralAnswer) else _study(answer)


def _study(answer: ReportAnswer) -> Shown:
    folder, documents, csv = answer.folder, answer.documents, answer.csv
    # A page that its driver keeps writing goes on renewing itself.
    runs = is_live(StudyFolder(folder).report) and live_holder(folder) is not None
    path = write_report(folder, documents, live=EVERY if runs else 0.0)
    items: Sequence[Item] = ()
    document = {"study": folder.name, "report": str(path)}
    if csv is not None:
        items = [Sentence(f"{counted(answer.runs, 'run')} of its validation: {csv}")]
        document["csv"] = str(csv)
    return Shown(
        items=items,
        notes=documents.notices,
        answer=f"Study {folder.name}: {headline(documents)}.",
        places={"report": path},
        document=document,
        next=[next_of(folder)],
    )


def _several(answer: SeveralAnswer) -> Shown:
    ranked, folder, picture = answer.compared, answer.folder, answer.picture
    paths = {name: StudyFolder(answer.root / name).report for name in answer.names}
    pages = {n: os.path.relpath(path, folder) for n, path in paths.items() if path.is_file()}
    page = write_several(ranked, pages, folder, answer.faster)
    places = {"report": page, "all studies": write_index(answer.root)}
    if picture is not None:
        places["picture"], places["picture for dark pages"] = write_picture(panels(ranked), picture)
    answers = ", ".join(f"{name} {answer}" for name, answer in ranked.verdicts.items())
    sentence = f"The transfer over width: {answers}."
    if ranked.comparison is None:
        request = CompareRequest(names=(*answer.names,), anyway=True, root=answer.root)
        following = [Next(request, "to rank them all the same")]
    else:
        sentence += f" {findings(ranked.comparison)[0]}"
        # Studies that are ranked load torch; one study's page does not.
        from sweeper.report.compared import after_comparison

        following = after_comparison(ranked.comparison, ranked.entries)
    return Shown(
        notes=ranked.notes if ranked.comparison is None else (),
        answer=sentence,
        places=places,
        document={
            "studies": list(answer.names),
            "report": str(page),
            "verdicts": ranked.verdicts,
            "ranked": ranked.comparison is not None,
            "notes": [spelled(as_text(note), SHELL) for note in ranked.notes],
            "picture": None if picture is None else str(picture),
        },
        next=following,
    )


# `index.html` beside the studies of a root: where each stands, and the way to its page.


def write_index(root: Path) -> Path:
    """Write the list of the studies in `root`, the last changed first."""
    rows = sorted(map(_row, (root / name for name in studies(root))), key=lambda row: -row[0])
    columns = [
        Column("study", left=True),
        Column("state", left=True),
        Column("best loss", form=".4f"),
        Column("verdict", left=True),
        Column("last change", left=True),
    ]
    table = Table("", columns)
    for _, values in rows:
        table.add(*values)
    items: list[Item] = [table] if rows else [Sentence("There is no study yet.")]
    written = time.strftime("%Y-%m-%d %H:%M")
    about = f"{len(rows)} in {root.absolute()}, the last changed first. Written {written}."
    report = Report(title="Studies", about=about, sections=[Section("", items)])
    path = root / "index.html"
    write_atomically(path, page(report))
    return path


def _row(folder: Path) -> tuple[float, list[Value]]:
    """When a study last changed, and its row; also of one whose records are of no known shape."""
    changed = _changed(folder)
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(changed))
    link = f"{quote(folder.name)}/report.html"
    name = Cell(folder.name, folder.name, link=link * StudyFolder(folder).report.is_file())
    try:
        return changed, [name, *_standing(folder), when]
    except Exception as error:  # the other studies are listed all the same
        return changed, [name, f"cannot be read: {error}", None, "-", when]


def _standing(folder: Path) -> list[Value]:
    """How far a study is, its best loss, and the worst answer of what was validated."""
    check_contents(folder)
    searched = read_document(StudyFolder(folder).search, Searched.read, [])
    state = "finished" if searched and searched.finished else "not finished"
    if is_saved(folder):
        state = "of a table"
    if live_holder(folder) is not None:
        state = f"running: {Running.read(folder, 1.0).sentence}"
    elif (left := Running.stopped(folder)) is not None:
        state = f"stopped: {left.sentence}"
    answers = set[str]()
    for path in StudyFolder(folder).validations():
        record = read_document(path, Validation, [])
        for verdict in record.axes if record else ():
            answers |= {verdict.answer, *([verdict.target.answer] if verdict.target else [])}
    worst = next((each for each in WORST_FIRST if each in answers), "")
    best = searched.conclusion.objective if searched else math.nan
    return [state, best, answer(worst) if worst else "-"]


def _changed(folder: Path) -> float:
    """When anything was last written that a study's page is made from."""
    times, files = [0.0], StudyFolder(folder)
    for path in (files.config, *files.sources()):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)
