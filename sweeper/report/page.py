"""The report of a study: one HTML page that needs nothing beside itself."""

from __future__ import annotations

import base64
import hashlib
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from jinja2 import Environment, PackageLoader, UndefinedError
from markupsafe import Markup

from sweeper.files import RECORD_ERRORS, private_folder, write_atomically
from sweeper.report import sections
from sweeper.report.console import NOT_SEARCHED, alike, role_name, size_text
from sweeper.report.documents import (
    UNDECIDED,
    Document,
    Documents,
    TargetDocuments,
    interval,
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
from sweeper.report.table import Table
from sweeper.trial import Status
from sweeper.verdict.ladder import label_size

# Templates as pages: one script, one style, and nothing that is loaded from elsewhere.


def rendered(template: str, **values: object) -> str:
    """A page from a template of this package."""
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
        pairs = [(key, _nested(one)) for key, one in value.items() if one not in (None, "")]
        return ", ".join(f"{str(key).replace('_', ' ')} {text}" for key, text in pairs)
    return ", ".join(map(_nested, value)) if isinstance(value, list) else str(value)


def _nested(value: object) -> str:
    text = _text(value)
    return f"({text or 'none'})" if isinstance(value, Mapping | list) else text


def _plain(value: object) -> str:
    """A loss in words."""
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


MALFORMED_ERRORS = (*RECORD_ERRORS, LookupError, ArithmeticError, UndefinedError)
"""What a document of another shape raises."""
STATUSES = get_args(Status)
HEADLINES = {
    "holds": "The transfer holds",
    "fails": "The transfer fails",
    UNDECIDED: "Cannot say yet whether the transfer holds",
    "": "The transfer has not been validated yet",
}


def write_report(folder: Path) -> Path:
    """Write `report.html` into the study's `folder`, whatever of the study there is so far.

    The search's figures are put beside it in `figures/`, as PNG and SVG. OSError when it cannot be
    written; an older report is then untouched.
    """
    path = folder / "report.html"
    documents, page = _rendered(folder)
    write_atomically(path, page)
    search = documents.search
    for name, figure in (("best_loss", best_loss_figure), ("lines", lines_figure)):
        if search.get("best_loss_curve" if name == "best_loss" else name):
            private_folder(folder / "figures")
            save(figure(search), folder / "figures" / name)
    return path


def headline(folder: Path) -> str:
    """What the report of the study in `folder` says first."""
    words = HEADLINES[_overall(Documents.read(folder).targets)]
    return words[0].lower() + words[1:]


def render(folder: Path) -> str:
    """The report of the study in `folder` as HTML."""
    return _rendered(folder)[1]


def _rendered(folder: Path) -> tuple[Documents, str]:
    """The page, and the documents that are on it."""
    documents = Documents.read(folder)
    try:
        return documents, _page(documents)
    except MALFORMED_ERRORS:
        documents = _sound(documents)
        return documents, _page(documents)


def _sound(documents: Documents) -> Documents:
    """Without the documents that are of another shape than their command writes."""
    empty = Documents(name=documents.name, search={}, targets=(), config="")
    damaged, targets = list(documents.damaged), []
    search = documents.search if _shows(replace(empty, search=documents.search)) else {}
    damaged += ["search.json"] * (search != documents.search)
    for target in documents.targets:
        bare = replace(target, plan={}, validation={}, others=())
        plan = replace(bare, plan=target.plan)
        validation = replace(bare, validation=target.validation)
        if not _shows(replace(empty, targets=(plan,))):
            damaged.append(f"transfer/{target.name}/plan.json")
            plan = replace(plan, plan={})
        if not _shows(replace(empty, targets=(validation,))):
            damaged.append(f"transfer/{target.name}/validation.json")
            validation = replace(validation, validation={})
        each = [replace(bare, validation=other) for other in target.others]
        others = tuple(o.validation for o in each if _shows(replace(empty, targets=(o,))))
        if len(others) < len(each):
            damaged.append(f"transfer/{target.name}/validation-*.json")
        targets.append(replace(plan, validation=validation.validation, others=others))
    return replace(documents, search=search, targets=tuple(targets), damaged=tuple(damaged))


def _shows(documents: Documents) -> bool:
    """Whether a page can be made."""
    try:
        _page(documents)
    except MALFORMED_ERRORS:
        return False
    return True


def _page(documents: Documents) -> str:
    """The page of these documents."""
    search, names, diagnoses = documents.search, _Names(), sections.diagnoses(documents.diagnoses)
    failed = any(one["answer"] == "fails" for one in diagnoses)
    has_best, has_lines = bool(search.get("best_loss_curve")), bool(search.get("lines"))
    return rendered(
        "report.html.j2",
        documents=documents,
        search=search,
        answer=_overall(documents.targets) or "fails" * failed,
        headlines=HEADLINES,
        base=_base(documents),
        transfers=[_transfer(target, names, deep=documents.deep) for target in documents.targets],
        best=_best(search),
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
    )


class _Names:
    """Hands out the names that keep the ids of a page's drawings apart."""

    def __init__(self) -> None:
        self.used = 0

    def next(self) -> str:
        self.used += 1
        return f"f{self.used}"


def _overall(targets: Iterable[TargetDocuments]) -> str:
    """The worst answer of all that were validated, empty when none was."""
    answers = {answer for target in targets for answer in target.answers}
    return next(
        (a for a in ("fails", UNDECIDED, "holds") if a in answers), UNDECIDED * bool(answers)
    )


def _base(documents: Documents) -> str:
    """The base in words; empty where no search tells it."""
    base = documents.search.get("base")
    return size_text(base, deep=documents.deep) if base else ""


def _transfer(target: TargetDocuments, names: _Names, *, deep: bool) -> dict[str, Any]:
    """A target as the template shows it."""
    source = target.plan.get("source") or {}
    return {
        "name": target.name,
        "label": sections.target_text(target.plan, target.name, deep=deep),
        "law": sections.law(target.plan),
        "exponents": sections.exponents(target.validation),
        "answers": target.answers,
        "axes": [
            _axis(validation, verdict, target.plan, names)
            for validation in (target.validation, *target.others)
            for verdict in validation.get("axes") or ()
        ],
        "parameters": _parameters(target.plan.get("parameters") or ()),
        "count": len(target.plan.get("parameters") or ()),
        "operations": {
            name: ", ".join(f"{key} {number(value):.4g}" for key, value in factors.items())
            for name, factors in (target.plan.get("operations") or {}).items()
        },
        "needs": [str(need) for need in target.plan.get("needs") or ()],
        "command": shlex.join(map(str, source.get("target_command") or ())),
        "source": facts(target.plan.get("source")),
    }


def _axis(validation: Document, verdict: Document, plan: Document, names: _Names) -> dict[str, Any]:
    """One axis of a validation: the answer, a row a size, the drawing."""
    axis, hyperparameter = str(verdict["axis"]), str(validation.get("hyperparameter", "eta"))
    base, corrected = plan.get("base") or {}, bool((plan.get("source") or {}).get("correction"))
    has_curves = bool(ladder_curves(validation, axis))
    drawing = svg(learning_rate_figure(validation, axis), names.next()) if has_curves else ""
    return {
        "axis": axis,
        "hyperparameter": hyperparameter if hyperparameter != "eta" else "",
        "answer": verdict.get("answer", UNDECIDED),
        "todo": verdict.get("todo", ""),
        "note": verdict.get("note", ""),
        "limits": verdict.get("limits", ""),
        "trend": sections.trend(validation, corrected=corrected) if axis == "width" else "",
        "law": verdict.get("law", ""),
        "sizes": [_size(size, axis, base) for size in verdict.get("sizes") or ()],
        "figure": Markup(drawing),
    }


def _size(size: Document, axis: str, base: Document) -> dict[str, Any]:
    """One row of the verdict's table."""
    loss, is_base = number((size.get("loss") or {}).get("value")), _is_base(size, base)
    shift = interval(size.get("shift_log2"), "{:+z.2f}")
    return {
        "size": f"{label_size(size['size'], axis)}{' (base)' if is_base else ''}",
        "optimum": interval(size.get("optimum_log2"), "{:z.2f}"),
        "shift": {"value": "0", "range": "by definition"} if is_base and shift else shift,
        "basin": interval((size.get("basin") or {}).get("width_log2"), "{:.2f}"),
        "loss": interval(size.get("loss"), "{:.4f}"),
        "regret": interval(size.get("regret"), "{:.4f}"),
        "loss_gap": interval(
            size.get("loss_gap"), "{:.2f}", scale=100 / loss if loss else math.nan
        ),
        "answer": size.get("answer", UNDECIDED),
        "why": "" if size.get("answer") == "holds" else size.get("reason", ""),
    }


def _is_base(size: Document, base: Document) -> bool:
    """Whether a row is the base's; a record that does not say so has its width and depth."""
    return bool(size.get("is_base", size["size"] == base))


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


def _best(search: Document) -> list[dict[str, str]]:
    """A row for each of the best hyperparameters."""
    rows, space = [], search.get("space_log2") or {}
    for name, value in (search.get("best") or {}).items():
        axis = space.get(name) or {}
        if choices := axis.get("choices"):
            rows.append(_chosen(name, value, choices, axis.get("default")))
            continue
        log2 = number((search.get("best_log2") or {}).get(name))
        low, high, default = (number(axis.get(key)) for key in ("low", "high", "default"))
        rows.append(
            {
                "name": name,
                "value": f"{number(value):.5g}",
                "log2": f"{log2:g}",
                "default": f"{default:g}",
                "range": f"{low:g} to {high:g}",
            }
        )
    unmoved = search.get("not_searched") or ()
    return [row | {"note": NOT_SEARCHED * (row["name"] in unmoved)} for row in rows]


def _chosen(name: str, value: object, choices: Sequence[object], default: object) -> dict[str, str]:
    """A row of one that is chosen from a list."""
    texts = {"value": value, "log2": "", "default": default}
    return {"name": name, "range": ", ".join(map(str, choices))} | {
        key: str(text) for key, text in texts.items()
    }


def _parameters(parameters: Sequence[Document]) -> list[dict[str, str]]:
    """The rows of the plan's table; layers that are alike share one."""
    rows = alike([_parameter(one) for one in parameters], lambda row: row["name"], _content)
    return [row | {"name": name} for name, row in rows]


def _content(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(value for key, value in row.items() if key != "name")


def _parameter(parameter: Document) -> dict[str, str]:
    """A row of the plan's table: base, and an arrow to the target where it differs."""
    base, target = parameter.get("base") or {}, parameter.get("target") or {}
    shapes = ("x".join(map(str, parameter.get(key) or ())) for key in ("base_shape", "shape"))
    row = {"name": str(parameter.get("name")), "role": role_name(str(parameter.get("role")))}
    row["shape"] = _change(*shapes)
    for key in ("init_std", "multiplier", "lr", "eps", "weight_decay"):
        row[key] = _change(*(f"{number(side.get(key)):.3g}" for side in (base, target)))
    init = str(parameter.get("init", "normal"))
    return row if init == "normal" else row | {"init_std": init}


def _change(base: str, target: str) -> str:
    return target if base == target else f"{base} → {target}"


def _commands(documents: Documents) -> list[str]:
    """The commands behind the search and the plans, in order, each once."""
    records = [
        documents.search.get("provenance"),
        *(t.plan.get("source") for t in documents.targets),
    ]
    return list(dict.fromkeys(str(r["command"]) for r in records if r and r.get("command")))
