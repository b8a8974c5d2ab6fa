"""Parts of the report: diagnoses, coordinate checks, scales, the numbers at its head, costs.

A record of a diagnosis or a check that is of another shape than its command writes is as if it were
missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from markupsafe import Markup

from sweeper.plan.plan import TransferPlan
from sweeper.records import from_json
from sweeper.report.console import Numbers, Tried, ablation_table, size_text
from sweeper.report.cost import NO_SIZES, NOT_KNOWN, Cost, Saving, cost_table, saving, times
from sweeper.report.documents import READ_ERRORS, Document, Documents, Searched, estimate_of, number
from sweeper.report.drawing import svg
from sweeper.table import Table, duration
from sweeper.verdict.curve import UNKNOWN
from sweeper.verdict.ladder import Size

Section = dict[str, Any]
"""What the template shows of a record."""


def _whole(make: Callable[[Any], Section], records: Iterable[Any]) -> list[Section]:
    """The sections of the records that `make` can take apart; others are passed over."""
    shown = []
    for record in records:
        try:
            shown.append(make(record))
        except READ_ERRORS:
            continue
    return shown


def diagnoses(records: Iterable[Document]) -> list[Section]:
    """The diagnoses, each with the ablation that explains most first."""
    return _whole(_diagnosis, filter(None, records))


def _diagnosis(record: Document) -> Section:
    def numbers(size: Document) -> Numbers:
        shift, gap, loss = (estimate_of(size.get(n)) for n in ("shift_log2", "loss_gap", "loss"))
        return shift, gap, loss

    ablations = [
        Tried(
            name=str(result["ablation"]["name"]),
            evidence=str(result["ablation"]["evidence"]),
            sentence=str(result["sentence"]),
            explained=estimate_of(result["explained"]),
            after=numbers(result["after"]) if result["after"] else None,
        )
        for result in record["results"]
    ]
    # NaN of what could not be tried goes last.
    ablations.sort(key=lambda tried: -tried.explained.value if tried.after else math.inf)
    axis, table = str(record["axis"]), None
    if ablations:
        table = ablation_table(axis, numbers(record["results"][0]["before"]), ablations)
    return {
        "axis": axis,
        "answer": str(record["answer"]),
        "conclusion": str(record["conclusion"]),
        "table": table,
    }


def checks(record: Document, name: Callable[[], str]) -> list[Section]:
    """The coordinate check, a section an axis; `name` hands out the drawings' names."""
    return _whole(lambda axis: _check(record, axis, name()), _list(record.get("axes")))


def _check(record: Document, axis: Document, name: str) -> Section:
    # It brings torch, which no other section needs.
    from sweeper.check.judge import CheckRule, CoordinateCheck
    from sweeper.report.checks import coordinate_figure, coordinate_table

    check, rule = from_json(CoordinateCheck, axis), record["rule"]
    # Of the rule only what the advice, `todo`, changes: its other fields are shown as recorded.
    settled = CheckRule(**{key: rule[key] for key in ("share", "batch", "seeds")})
    eta = number(record["log2_hps"]["eta"])
    return {
        "axis": check.axis,
        "answer": check.answer,
        "todo": f"{check.todo(settled)}." * (check.answer == "cannot say"),
        "runs": f"{rule['seeds']} runs a size, each of {rule['steps']} steps on one batch of "
        f"{rule['batch']}, at {number(rule['share']):g} times η; log2 η is {eta:g}",
        "table": coordinate_table(check, number(rule["threshold"])),
        "figure": Markup(svg(coordinate_figure(check), name)),
    }


def scales(records: Sequence[Document], name: Callable[[], str]) -> list[Section]:
    """The scale report, if there is one; `name` hands out the drawing's name."""
    return _whole(lambda report: _scales(report, name()), filter(None, [records]))


def _scales(records: Sequence[Document], name: str) -> Section:
    from sweeper.engine.measurements import OperandScale
    from sweeper.report.checks import scale_figure, scale_table

    operands = [from_json(OperandScale, record) for record in records]
    return {"table": scale_table(operands), "figure": Markup(svg(scale_figure(operands), name))}


def target_text(plan: TransferPlan | None, name: str, *, deep: bool) -> str:
    """A plan's target in words; the folder's `name` where there is no plan."""
    if plan is None:
        return name
    text = size_text(plan.target, deep=deep)
    if plan.law is None:
        return text
    base, target = plan.law.base, plan.law.target
    if (base.batch, base.steps) == (target.batch, target.steps):
        return text
    return f"{text}, {target.steps:,} steps of {target.batch:,}"


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


# The head of a report: the few numbers that a reader looks for first.


def cards(documents: Documents) -> list[dict[str, str]]:
    """The few numbers that a reader looks for first: name, value, and what it rests on."""
    # Of several targets the widest: it is what tuning small was for.
    plans = [target.plan for target in documents.targets if target.plan]
    plan = max(plans, key=lambda plan: plan.target.width, default=None)
    shown = [
        _optimum(documents),
        _loss(documents.searched),
        _planned(plan),
        _saved(documents, plan),
    ]
    return [card for card in shown if card]


def _optimum(documents: Documents) -> dict[str, str] | None:
    """The best eta of the base: measured on its curve, else what the search chose."""
    searched = documents.searched
    name = "Best η"
    if searched and searched.base:
        name = f"Best η at width {searched.base.width}"
    validations = [t.validation for t in reversed(documents.targets) if t.validation]
    verdicts = validations[0].verdicts if validations else ()
    sizes = next((verdict.sizes for verdict in verdicts if verdict.axis == "width"), ())
    measured = next((size.optimum_log2 for size in sizes if size.is_base), UNKNOWN)
    if math.isfinite(measured.value):
        low, high = measured.low, measured.high
        known = math.isfinite(low) and math.isfinite(high)
        ends = f"95 % interval {2**low:.3g} to {2**high:.3g}" if known else "no interval"
        return _card(name, f"{2**measured.value:.4g}", f"log2 {measured.value:.2f}; {ends}")
    log2 = searched.conclusion.best_log2.get("eta", math.nan) if searched else math.nan
    if not math.isfinite(log2):
        return None
    return _card(name, f"{2**log2:.4g}", f"log2 {log2:g}; no interval before --validate")


def _loss(searched: Searched | None) -> dict[str, str] | None:
    if searched is None or not math.isfinite(searched.conclusion.objective):
        return None
    note = f"of the best configuration, {searched.conclusion.basis}"
    return _card("Training loss", f"{searched.conclusion.objective:.4f} nats", note)


def _planned(plan: TransferPlan | None) -> dict[str, str] | None:
    eta = number(plan.hps.get("eta")) if plan else math.nan
    if plan is None or not math.isfinite(eta):
        return None
    origin = str(plan.source.get("eta_from") or "the study")
    note = f"log2 {math.log2(eta):.2f}, from {origin}" if eta > 0 else f"from {origin}"
    return _card(f"Planned η for width {plan.target.width}", f"{eta:.4g}", note)


def _saved(documents: Documents, plan: TransferPlan | None) -> dict[str, str] | None:
    """What tuning here costs against tuning at the target, in FLOPs."""
    saved = saving(documents.trials, plan, documents.flops)
    if saved is None:
        return None
    name = f"Tuning here, against width {saved.width}"
    if not math.isfinite(saved.factor):
        return _card(name, "not known", NO_SIZES)
    here, there = (_time(cost) for cost in (saved.tuning, saved.at_target))
    total = times(saved.factor_with_validation)
    note = f"FLOPs; {here} here, about {there} there; with the validation {total}"
    return _card(name, times(saved.factor), note)


def _time(cost: Cost) -> str:
    return duration(cost.seconds) if math.isfinite(cost.seconds) else NOT_KNOWN


def _card(name: str, value: str, note: str) -> dict[str, str]:
    return {"name": name, "value": value, "note": note}


def costs(documents: Documents, base: str) -> tuple[Table, Saving] | None:
    """What was spent at the `base`, and beside it the same tuning at each plan's target."""
    savings = [
        s for t in documents.targets if (s := saving(documents.trials, t.plan, documents.flops))
    ]
    if not savings:
        return None
    # What was spent is the same beside every target.
    tuning, validation = savings[0].tuning, savings[0].validation
    rows = [([f"tuning at {base}"], tuning)]
    rows += [(["validation on ladders"], validation)] * bool(validation.trials)
    for each in savings:
        size = size_text(Size(width=each.width, depth=each.depth), deep=documents.deep)
        rows.append(([f"the same tuning at {size}"], each.at_target))
    table = cost_table("", ["what"], rows, guessed=[each.at_target for each in savings])
    table.legend = [f"{savings[-1]} Times are those of trials on their devices."]
    return table, savings[-1]
