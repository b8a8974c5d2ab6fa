"""The report's first lines as a notebook shows them: of a study, a transfer, a verdict.

As text for a terminal, and as a piece of HTML whose style reaches nothing outside of it. Colours
are such as can be read on light and dark pages; drawings stand on white.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from markupsafe import Markup
from rich.console import Console

from sweeper.decide.documents import Documents
from sweeper.decide.transfer import Verdict
from sweeper.decide.validation import Validation
from sweeper.plan.plan import TransferPlan, rules_text
from sweeper.report import console as show
from sweeper.report.drawing import svg
from sweeper.report.figures import learning_rate_figure
from sweeper.report.page import answer_of, cards, fragment, headline
from sweeper.report.terminal import Terminal
from sweeper.stats.ladder import extent
from sweeper.study.folder import StudyFolder, TargetFolder
from sweeper.table import TONES, answer_first

_PAGE, _DRAWINGS = uuid4().hex[:6], count()
"""Ids hold for a whole notebook, cells of an earlier kernel included."""


@dataclass(frozen=True, kw_only=True)
class NextCall:
    """What to call next, and why, as in "to validate the transfer"."""

    why: str
    call: str

    def __str__(self) -> str:
        return f"Next, {self.why}: {self.call}"


def study_card(
    documents: Documents, folder: Path, notes: Sequence[str], following: NextCall | None
) -> str:
    """A study: the answer, the numbers that a reader looks for first, what comes next."""
    verdicts = [
        _verdict(verdict, target.validation)
        for target in documents.targets[-1:]
        if target.validation
        for verdict in target.validation.axes
    ]
    head, tone = _headline(documents)
    return fragment(
        "card.html.j2",
        head=f"{folder.name}: {head}",
        tone=tone,
        under=_trained(documents),
        cards=cards(documents),
        verdicts=verdicts,
        notes=[*documents.notices, *notes],
        next=following,
        folder=f"Report: {StudyFolder(folder).report}",
    )


def study_text(
    documents: Documents, folder: Path, notes: Sequence[str], following: NextCall | None
) -> str:
    """A study in some lines of text."""
    numbers = [f"{c['name']}: {c['value']} ({c['note']})" for c in cards(documents)]
    notes = [f"Note: {note}" for note in (*documents.notices, *notes)]
    head = f"Study {folder.name}: {_headline(documents)[0]}; {_trained(documents)}"
    report = StudyFolder(folder).report
    place = [f"Report: {report}"] * report.is_file()
    after = [str(following)] if following else []
    return "\n".join([head, *numbers, *notes, *place, *after])


def _headline(documents: Documents) -> tuple[str, str]:
    """What is known, and the tone of it."""
    if answer := answer_of(documents):
        return headline(documents), TONES.get(answer, "open")
    searched = documents.searched
    if searched is None:
        return "the search has no result yet", "plain"
    if not searched.finished:
        return "the search has not finished", "plain"
    planned = any(target.plan for target in documents.targets)
    return "planned, not validated yet" if planned else "the search is finished", "plain"


def _trained(documents: Documents) -> str:
    """How many trials there are, by how they ended."""
    ended = [f"{number} {status}" for status, number in documents.counts.items()]
    return f"{sum(documents.counts.values())} trials" + (f" ({', '.join(ended)})" if ended else "")


def verdict_card(verdict: Verdict, validation: Validation) -> str:
    """A verdict: its sentences, the table of its sizes, the curves."""
    return fragment("card.html.j2", verdicts=[_verdict(verdict, validation)])


def verdict_text(verdict: Verdict, validation: Validation) -> str:
    """A verdict as the command line prints it."""
    # In a notebook rich would show what is captured, beside the card.
    console = Console(file=StringIO(), width=120, color_system=None, force_jupyter=False)
    with console.capture() as captured:
        Terminal(console).print(show.verdicts([verdict], validation.hyperparameter))
    lines = map(str.rstrip, captured.get().splitlines())
    return "\n".join(line for line in lines if line)


def _verdict(verdict: Verdict, validation: Validation) -> dict[str, Any]:
    axis = verdict.axis.replace("_", " ")
    ladder = extent(verdict.axis, [size.size for size in verdict.sizes])
    sentences = [{"answer": verdict.answer, "text": f"over {axis} at {ladder}"}]
    sentences[0]["todo"] = verdict.todo
    if (target := verdict.target) is not None:
        said = {"answer": target.answer, "text": target.sentence, "todo": target.todo}
        sentences.append(said)
    shown = show.verdict_table(verdict, validation.hyperparameter)
    figure = Markup()
    if validation.ladder(verdict.axis):
        name = f"c{_PAGE}-{next(_DRAWINGS)}"
        figure = Markup(svg(learning_rate_figure(validation, verdict), name))
    return {
        "sentences": sentences,
        "note": verdict.note,
        "table": answer_first(replace(shown, legend=())),
        "legend": " ".join(shown.legend),
        "figure": figure,
    }


def transfer_card(
    plan: TransferPlan,
    answer: str,
    verdicts: Sequence[tuple[Verdict, Validation]],
    folder: Path,
    notes: Sequence[str],
    following: NextCall | None,
) -> str:
    """A plan and what was validated of it."""
    table = replace(show.plan_table(plan), legend=(), remarks=()) if plan.parameters else None
    return fragment(
        "card.html.j2",
        head=f"Plan for {plan.target}, tuned at {plan.base}: {answer}",
        tone=TONES.get(answer, "plain" if not verdicts else "open"),
        under=rules_text(plan),
        verdicts=[_verdict(*each) for each in verdicts],
        tables=[table] if table else [],
        needs=plan.needs,
        notes=notes,
        next=following,
        folder=f"Plan: {TargetFolder(folder).plan}",
    )
