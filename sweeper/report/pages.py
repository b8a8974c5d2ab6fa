"""The page of a study: what it says in a line, and where it lies."""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.report.live import EVERY
from sweeper.report.next import next_of
from sweeper.report.sections import Item, Sentence, Shown
from sweeper.report.study_page import headline, write_report
from sweeper.study.lock import live_holder
from sweeper.table import counted
from sweeper.verbs.report import ReportAnswer


def presented(answer: ReportAnswer) -> Shown:
    """Write the page anew, and say where it lies."""
    folder, documents, csv = answer.folder, answer.documents, answer.csv
    # A page that its driver keeps writing goes on renewing itself.
    runs = live_holder(folder) is not None
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
