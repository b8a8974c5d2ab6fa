"""`sweeper report`: it trains nothing."""

from __future__ import annotations

from pathlib import Path

from sweeper.decide.documents import Documents
from sweeper.report.next import next_of
from sweeper.report.output import DONE, Output
from sweeper.study.folder import StudyFolder
from sweeper.study.lock import live_holder
from sweeper.study.study import find_study
from sweeper.table import counted


def report(name: str | None, root: Path, output: Output, csv: Path | None = None) -> int:
    """Write the study's page anew; with `csv`, the runs of its latest validation too."""
    # matplotlib and Jinja2 are for the page alone.
    from sweeper.report.live import EVERY, is_live
    from sweeper.report.study_page import headline, write_report

    folder = root / find_study(name, root)
    if csv is not None:
        from sweeper.runs.study import write_runs

        count = write_runs(folder, csv)
        output.say(f"{counted(count, 'run')} of its validation: {csv}")
    documents = Documents.read(folder)
    # A page that its driver keeps writing goes on renewing itself.
    runs = is_live(StudyFolder(folder).report) and live_holder(folder) is not None
    path = write_report(folder, documents, live=EVERY if runs else 0.0)
    output.notes(documents.notices)
    document = {"study": folder.name, "report": str(path)}
    document |= {"csv": str(csv)} if csv is not None else {}
    headlined = f"Study {folder.name}: {headline(documents)}."
    output.end(headlined, {"report": path}, document, next_of(folder))
    return DONE
