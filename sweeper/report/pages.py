"""The pages of a study, or of several: what they say in a line, and where they lie."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sweeper.errors import SHELL, as_text, spelled
from sweeper.report.answer import Item, Sentence
from sweeper.report.comparison import findings, panels, write_several
from sweeper.report.figures import write_picture
from sweeper.report.index import write_index
from sweeper.report.live import EVERY, is_live
from sweeper.report.next import NextCommand, next_of
from sweeper.report.present import Shown
from sweeper.report.study_page import headline, write_report
from sweeper.study.folder import StudyFolder
from sweeper.study.lock import live_holder
from sweeper.table import counted
from sweeper.verbs.report import ReportAnswer, SeveralAnswer


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
        why = "to rank them all the same"
        names = (*answer.names, "--anyway")
        following = [NextCommand.of("compare", *names, root=answer.root, why=why)]
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
