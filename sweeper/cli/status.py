"""`sweeper status`, `sweeper report` and `sweeper cancel`: they train nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from sweeper.decide.documents import Documents
from sweeper.errors import BadInput
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
    from sweeper.report.page import headline, write_report

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


def serve_reports(study: str | None, root: Path, port: int | None, output: Output) -> int:
    """Serve the pages of all studies in `root` until Ctrl-C, that of a `study` named first."""
    from sweeper.report.serve import PORT, serve

    if study is not None:
        find_study(study, root)
    elif not root.is_dir():
        raise BadInput(f"there is no folder {root}: --root DIR names that of the studies")

    def tell(address: str) -> None:
        output.say(f"Studies of {root}: {address} (on this machine alone; Ctrl-C ends it)")
        # Now, since there is no end at which to say it.
        output.flush()
        output.document({"address": address, "root": str(root)})
        sys.stdout.flush()

    try:
        serve(root, PORT if port is None else port, study, tell)
    except KeyboardInterrupt:
        output.tell("Stopped serving.")
    return DONE
