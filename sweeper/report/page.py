"""The report of a study: one HTML page, with one script and one style, that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import math
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from sweeper.files import private_folder, write_atomically
from sweeper.plan.plan import TransferPlan
from sweeper.report import sections
from sweeper.report.console import (
    best_table,
    clip_note,
    plan_table,
    size_text,
    trend_text,
    verdict_table,
)
from sweeper.report.documents import (
    UNDECIDED,
    Document,
    Documents,
    Searched,
    TargetDocuments,
    Validation,
    ladder_curves,
    number,
)
from sweeper.report.drawing import save, svg
from sweeper.report.figures import (
    best_loss_figure,
    chosen_trials,
    chosen_widths,
    learning_rate_figure,
    lines_figure,
    pairs_figure,
    steps_figure,
)
from sweeper.table import Table
from sweeper.trial import Status
from sweeper.verdict.judge import Verdict
from sweeper.verdict.ladder import extent


def rendered(template: str, **values: object) -> str:
    """A page from a template of this package."""
    # The page's content security policy allows the one script with this digest: names and notes
    # from files can smuggle in no other.
    environment = _environment()
    script = environment.get_template("report.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(template).render(
        script=Markup(script), script_digest=digest, **values
    )


def table_html(shown: Table) -> str:
    """A table as a piece of a page, with its legend and remarks."""
    macros: Any = _environment().get_template("macros.html.j2").module
    return str(macros.table(shown))


def facts(record: Document | None) -> dict[str, str]:
    """A record as rows of text; nulls and the commands are left out."""
    hidden = {key for key, value in (record or {}).items() if value is None} | {
        "command",
        "target_command",
    }
    facts = {key: value for key, value in (record or {}).items() if key not in hidden}
    return {key.replace("_", " "): _text(value) for key, value in facts.items()}


def _text(value: object) -> str:
    """A value of a record as people write it; what is nested further lies in brackets."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        pairs = [(key, _nested(part)) for key, part in value.items() if part not in (None, "")]
        return ", ".join(f"{str(key).replace('_', ' ')} {text}" for key, text in pairs)
    return ", ".join(map(_nested, value)) if isinstance(value, list) else str(value)


def _nested(value: object) -> str:
    text = _text(value)
    return f"({text or 'none'})" if isinstance(value, Mapping | list) else text


def _plain(value: object) -> str:
    """A loss in words, for the template's filter `loss`."""
    loss = number(value)
    return f"{loss:.4f} nats" if math.isfinite(loss) else "none: every run diverged or failed"


def _environment() -> Environment:
    """Jinja with escaping on: names and notes come from files, and are no HTML."""
    environment = Environment(
        loader=PackageLoader("sweeper.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "loss": _plain,
        "facts": facts,
        "short": lambda t: str(t).rpartition(".")[2],
    }
    return environment


STATUSES = get_args(Status)
HEADLINES = {
    "holds": "The transfer holds",
    "fails": "The transfer fails",
    UNDECIDED: "Cannot say yet whether the transfer holds",
    "": "The transfer has not been validated yet",
}


def write_report(folder: Path, documents: Documents | None = None) -> Path:
    """Write `report.html` into the study's `folder`, whatever of the study there is so far.

    `documents` are those of the folder, where they were read already.
    The search's figures are put beside it in `figures/`, as PNG and SVG. OSError when it cannot be
    written; an older report is then untouched.
    """
    path = folder / "report.html"
    documents = documents or Documents.read(folder)
    write_atomically(path, _page(documents))
    search = documents.search
    for name, figure in (("best_loss", best_loss_figure), ("lines", lines_figure)):
        if search.get("best_loss_curve" if name == "best_loss" else name):
            private_folder(folder / "figures")
            save(figure(search), folder / "figures" / name)
    return path


def headline(documents: Documents) -> str:
    """What the report of a study says first."""
    text = HEADLINES[_overall(documents.targets)]
    return text[0].lower() + text[1:]


def render(folder: Path) -> str:
    """The report of the study in `folder` as HTML."""
    return _page(Documents.read(folder))


def _page(documents: Documents) -> str:
    """The page of these documents."""
    # Drawings are named in the order in which they are made: the same study gives the same page.
    search, names, diagnoses = documents.search, _Names(), sections.diagnoses(documents.diagnoses)
    # A diagnosis judges the transfer anew: one that fails is news where nothing was validated.
    failed = any(diagnosis["answer"] == "fails" for diagnosis in diagnoses)
    has_best, has_lines = bool(search.get("best_loss_curve")), bool(search.get("lines"))
    return rendered(
        "report.html.j2",
        documents=documents,
        search=search,
        answer=_overall(documents.targets) or "fails" * failed,
        headlines=HEADLINES,
        base=_base(documents),
        transfers=[_transfer(target, names, deep=documents.deep) for target in documents.targets],
        best=_best(documents.searched),
        basis=documents.searched.conclusion.basis if documents.searched else "",
        best_loss=Markup(svg(best_loss_figure(search), names.next())) if has_best else "",
        lines=Markup(svg(lines_figure(search), names.next())) if has_lines else "",
        pairs=Markup(svg(pairs_figure(search), names.next())) if search.get("pairs") else "",
        commands=_commands(documents),
        diagnoses=diagnoses,
        checks=sections.checks(documents.check, names.next),
        scales=sections.scales(documents.scales, names.next),
        trials=[(documents.counts[status], status) for status in STATUSES],
        cards=sections.cards(documents),
        costs=sections.costs(documents, _base(documents) or "the base"),
        steps=_steps(documents, names),
        curve_note=_curve_note(search),
        clip_notes=clip_note(documents.trials.current),
    )


class _Names:
    """Hands out the names that keep the ids of a page's drawings apart."""

    def __init__(self) -> None:
        self.used = 0

    def next(self) -> str:
        self.used += 1
        return f"f{self.used}"


def _overall(targets: Iterable[TargetDocuments]) -> str:
    """The worst answer of all that were validated, empty when none was.

    An answer of another kind, such as none yet, leaves it undecided.
    """
    answers = {answer for target in targets for answer in target.answers}
    return next(
        (a for a in ("fails", UNDECIDED, "holds") if a in answers), UNDECIDED * bool(answers)
    )


def _base(documents: Documents) -> str:
    """The base in words; empty where no search tells it."""
    searched = documents.searched
    base = searched.base if searched else None
    return size_text(base, deep=documents.deep) if base else ""


def _transfer(target: TargetDocuments, names: _Names, *, deep: bool) -> dict[str, Any]:
    """A target as the template shows it."""
    plan = target.plan
    shown: dict[str, Any] = {
        "label": sections.target_text(plan, target.name, deep=deep),
        "exponents": list(map(str, target.validation.exponents)) if target.validation else [],
        "axes": [
            _axis(validation, verdict, plan, names)
            for validation in (target.validation, *target.others)
            if validation is not None
            for verdict in validation.verdicts
        ],
    }
    if plan is None:
        return shown
    command = plan.source.get("target_command")
    return shown | {
        "law": [line.removeprefix("- ") for line in plan.law.lines()] if plan.law else [],
        "parameters": plan_table(plan) if plan.parameters else None,
        "count": len(plan.parameters),
        "operations": {
            name: ", ".join(f"{key} {value:.4g}" for key, value in factors.items())
            for name, factors in plan.operations.items()
        },
        "needs": plan.needs,
        "command": shlex.join(map(str, command)) if isinstance(command, list | tuple) else "",
        "source": facts(plan.source),
    }


def _axis(
    validation: Validation, verdict: Verdict, plan: TransferPlan | None, names: _Names
) -> dict[str, Any]:
    """One axis of a validation: the answer, a row a size, the drawing."""
    axis, hyperparameter = verdict.axis, validation.hyperparameter
    drawing = ""
    if ladder_curves(validation.record, axis):
        drawing = svg(learning_rate_figure(validation.record, axis), names.next())
    trend = ""
    if axis == "width" and validation.trend:
        corrected = bool(plan and plan.source.get("correction"))
        trend = trend_text(validation.trend, applied=corrected)
    return {
        "axis": axis,
        "hyperparameter": hyperparameter if hyperparameter != "eta" else "",
        "answer": verdict.answer,
        "todo": verdict.todo,
        "note": verdict.note,
        "extent": extent(axis, [size.size for size in verdict.sizes]),
        "target": verdict.target,
        "trend": trend,
        "law": verdict.law,
        "table": verdict_table(verdict, hyperparameter) if verdict.sizes else None,
        "figure": Markup(drawing),
    }


def _steps(documents: Documents, names: _Names) -> Markup | str:
    """The loss over the steps of chosen trials, drawn; empty where no record holds a curve."""
    search, ladder = chosen_trials(documents.trials), chosen_widths(documents.trials)
    return Markup(svg(steps_figure(search, ladder), names.next())) if search or ladder else ""


def _curve_note(search: Document) -> str:
    """Why the end of the drawn best loss is another number than the loss of the best, if so."""
    points = search.get("best_loss_curve") or [[0, math.nan]]
    last, loss = number(points[-1][1]), number(search.get("objective"))
    if not (math.isfinite(last) and math.isfinite(loss)) or f"{last:.4f}" == f"{loss:.4f}":
        return ""
    return (
        f"Its end, {last:.4f} nats, is no second best loss: it counts other seeds than the "
        f"{loss:.4f} nats of the best configuration."
    )


def _best(searched: Searched | None) -> Table | None:
    """The best hyperparameters; None where there are none yet."""
    if searched is None or not searched.record.get("best"):
        return None
    return best_table(searched.conclusion, searched.space, searched.record["best"])


def _commands(documents: Documents) -> list[str]:
    """The commands behind the search and the plans, in order, each once."""
    records = [
        documents.search.get("provenance"),
        *(target.plan.source for target in documents.targets if target.plan),
    ]
    return list(dict.fromkeys(str(r["command"]) for r in records if r and r.get("command")))
