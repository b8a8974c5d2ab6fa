"""A study, a transfer and a verdict as a notebook shows them: as text, and as a piece of HTML.

Both are renderings of one report. The HTML has a style that reaches nothing outside of it, in
colours that can be read on light and dark pages; drawings stand on white.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from itertools import count
from pathlib import Path
from uuid import uuid4

from rich.console import Console

from sweeper.decide.documents import Documents
from sweeper.decide.ladder_verdict import Verdict
from sweeper.decide.validation import Validation
from sweeper.errors import PYTHON
from sweeper.plan.factors import is_edit
from sweeper.plan.plan import TransferPlan, plan_parts, rules_text
from sweeper.report.console import planned_eta
from sweeper.report.page import STYLES, fragment
from sweeper.report.sections import Item, Report, Section, Sentence
from sweeper.report.study_page import answer_of, best_section, drawn_verdict, headline
from sweeper.report.terminal import Terminal
from sweeper.study.folder import StudyFolder, TargetFolder

_PAGE, _DRAWINGS = uuid4().hex[:6], count()
"""Ids hold for a whole notebook, cells of an earlier kernel included."""
WIDTH = 120


def html(report: Report) -> str:
    """A report as a piece of HTML for a notebook's cell."""
    style = (STYLES / "card.css").read_text(encoding="utf-8")
    inner = fragment(report, f"c{_PAGE}-{next(_DRAWINGS)}-", PYTHON)
    return f'<div class="sweeper-card">\n<style>\n{style}</style>\n{inner}</div>'


def text(report: Report) -> str:
    """A report as lines of text, without drawings."""
    # In a notebook rich would show what is captured, beside the card.
    console = Console(file=StringIO(), width=WIDTH, color_system=None, force_jupyter=False)
    with console.capture() as captured:
        for section in report.sections:
            heading = [Sentence(section.title)] if section.title else []
            terminal = Terminal(console, verbose=True, spelling=PYTHON)
            terminal.print([*heading, *section.items])
    lines = map(str.rstrip, captured.get().splitlines())
    return "\n".join(line for line in lines if line)


def study_report(
    documents: Documents, folder: Path, notes: Sequence[str], following: str
) -> Report:
    """A study: the answer, the numbers that a reader looks for first, `following`: what is next."""
    head, code = headline(documents), answer_of(documents)
    validations = [target.validation for target in documents.targets[-1:] if target.validation]
    page = StudyFolder(folder).report
    ended = [f"{number} {status}" for status, number in documents.counts.items()]
    trained = f"{sum(documents.counts.values())} trials"
    trained += f" ({', '.join(ended)})" if ended else ""
    title = f"Study {folder.name}: {head}"
    return Report(
        title=title,
        sections=[
            Section(title, [Sentence(trained)], is_answer=True, code=code),
            best_section(documents),
            *(Section("", drawn_verdict(v, each)) for each in validations for v in each.axes),
            _end([*documents.notices, *notes], following, f"Report: {page}" * page.is_file()),
        ],
    )


def _end(notes: Sequence[str], following: str, place: str) -> Section:
    lines = [*(f"Note: {note}" for note in notes), following, place]
    return Section("", [Sentence(line) for line in lines if line])


def verdict_report(verdict: Verdict, validation: Validation) -> Report:
    """A verdict by itself."""
    items = drawn_verdict(verdict, validation)
    return Report(title=f"Transfer over {verdict.axis}", sections=[Section("", items)])


def transfer_report(
    plan: TransferPlan,
    answer: str,
    validated: Sequence[tuple[Verdict, Validation]],
    folder: Path,
    notes: Sequence[str],
    following: str,
) -> Report:
    """A plan and what was validated of it."""
    of_eta = [verdict for verdict, by in validated if by.hyperparameter == "eta"]
    at = f" at eta {planned_eta(plan, of_eta)}" if "eta" in plan.hps else ""
    title = f"Plan for {plan.target}, tuned at {plan.base}{at}: {answer}"
    items, code = list[Item](), answer if validated else ""
    if plan.parameters:
        # As print(plan) has it: what an optimizer's groups hold, every multiplier taken in.
        items.append(plan_parts(plan)[1])
    items += [
        Sentence(f"{'The model itself must do: ' * is_edit(need)}{need}", listed=True, detail=True)
        for need in plan.needs
    ]
    return Report(
        title=title,
        sections=[
            Section(title, [Sentence(rules_text(plan))], is_answer=True, code=code),
            *(Section("", drawn_verdict(*each)) for each in validated),
            Section("", items),
            _end(notes, following, f"Plan: {TargetFolder(folder).plan}"),
        ],
    )
