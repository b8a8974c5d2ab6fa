"""What a machine has for searches, as people and programs read it."""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.errors import SHELL, Call
from sweeper.report.next import Next
from sweeper.report.sections import Shown
from sweeper.table import Column, Table
from sweeper.verbs.doctor import DoctorAnswer, Finding
from sweeper.verbs.requests import SearchRequest
from sweeper.version import __version__

MOST_LETTERS = 47
"""The room of a finding beside the others in a terminal of 80 columns."""
USES = {
    "dashboard": "Optuna's pages of a study",
    "digits": "data=digits",
    "hf": "model=hf",
    "tensorboard": "logger=tensorboard, and metrics from TensorBoard's files",
}


def presented(answer: DoctorAnswer) -> Shown:
    """A row a finding, and whether a search can run."""
    missing = answer.missing
    sentence, why = "A search can run here.", "to see a first search"
    if missing:
        sentence = f"No search can run: {', '.join(map(_name, missing))}."
    demo = Next(SearchRequest(overrides=("experiment=demo",), root=answer.root), why)
    document = {
        "able": not missing,
        "sweeper": __version__,
        "findings": [_record(finding) for finding in answer.findings],
    }
    return Shown(
        items=[_table(answer.findings)],
        answer=sentence,
        document=document,
        next=[] if missing else [demo],
    )


def _table(findings: Sequence[Finding]) -> Table:
    columns = [Column(name, left=True) for name in ("state", "of", "what")]
    table = Table("", [*columns, Column("for", left=True)])
    for finding in findings:
        get = f"get it: {_get(finding)}" * (finding.get is not None and not finding.here)
        # What others say of a failure may be long: it stands below the table.
        is_short = len(finding.what) <= MOST_LETTERS
        note = "; ".join(filter(None, ("" if is_short else finding.what, get)))
        what = finding.what if is_short else "see below"
        name, use = _name(finding), USES.get(finding.extra, "")
        row = (_state(finding), name, what, use)
        table.add(*row, note=note, subject=name)
    return table


def _record(finding: Finding) -> dict[str, object]:
    return {
        "name": _name(finding),
        "here": finding.here,
        "what": finding.what,
        "needed": finding.needed,
        "get": _get(finding),
        "use": USES.get(finding.extra, ""),
        "state": _state(finding),
    }


def _state(finding: Finding) -> str:
    return "ok" if finding.here else "missing" if finding.needed else "not here"


def _name(finding: Finding) -> str:
    return finding.name if isinstance(finding.name, str) else SHELL.keyword(finding.name)


def _get(finding: Finding) -> str | None:
    return SHELL.call(finding.get) if isinstance(finding.get, Call) else finding.get
