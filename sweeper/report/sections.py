"""Sections of the report on what other commands found: diagnoses, coordinate checks, scales.

A record that is of another shape than its command writes is as if it were missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from markupsafe import Markup

from sweeper.errors import ConfigError
from sweeper.files import RECORD_ERRORS
from sweeper.laws.law import AppliedLaw
from sweeper.records import call_checked, from_json
from sweeper.report.console import size_text, trend_text
from sweeper.report.cost import NO_SIZES, NOT_KNOWN, Cost, Saving, cost_table, saving, times
from sweeper.report.documents import Document, Documents, axis_verdict, interval, number
from sweeper.report.drawing import svg
from sweeper.report.table import Table, duration
from sweeper.verdict.trend import Exponent, Trend

Section = dict[str, Any]
"""What the template shows of a record."""


def _whole(make: Callable[[Any], Section], records: Iterable[Any]) -> list[Section]:
    """The sections of the records that `make` can take apart."""
    found = []
    for record in records:
        try:
            found.append(make(record))
        except (*RECORD_ERRORS, LookupError, ArithmeticError):
            continue
    return found


def diagnoses(records: Iterable[Document]) -> list[Section]:
    """The diagnoses, each with the ablation that explains most first."""
    return _whole(_diagnosis, filter(None, records))


def _diagnosis(record: Document) -> Section:
    results = [_result(result) for result in record["results"]]
    before = record["results"][0]["before"] if results else {}
    return {
        "axis": str(record["axis"]),
        "answer": str(record["answer"]),
        "conclusion": str(record["conclusion"]),
        "before": _numbers(before),
        "results": sorted(results, key=lambda result: -result["order"]),
    }


def _result(record: Document) -> Section:
    """One ablation: its numbers, and what they mean in a sentence."""
    ablation, fraction = record["ablation"], number(record["explained"]["value"])
    return {
        "name": str(ablation["name"]),
        "evidence": str(ablation["evidence"]),
        "sentence": str(record["sentence"]),
        "explained": interval(record["explained"], "{:.0f}", scale=100),
        "bar": round(100 * min(1.0, max(0.0, fraction))) if math.isfinite(fraction) else 0,
        "order": fraction if math.isfinite(fraction) else -1.0,
        **_numbers(record["after"] or {}),
    }


def _numbers(size: Document) -> Section:
    """Shift, loss gap and loss of the large size, with their intervals."""
    return {
        "shift": interval(size.get("shift_log2"), "{:+z.2f}"),
        "loss_gap": interval(size.get("loss_gap"), "{:z.4f}"),
        "loss": interval(size.get("loss"), "{:.4f}"),
    }


def checks(record: Document, name: Callable[[], str]) -> list[Section]:
    """The coordinate check, a section an axis; `name` hands out the drawings' names."""
    return _whole(lambda axis: _check(record, axis, name()), _list(record.get("axes")))


def _check(record: Document, axis: Document, name: str) -> Section:
    # It brings torch, which no other section needs.
    from sweeper.check.judge import CheckRule, CoordinateCheck
    from sweeper.report.checks import coordinate_figure, coordinate_table

    found, rule = from_json(CoordinateCheck, axis), record["rule"]
    settled = CheckRule(**{key: rule[key] for key in ("share", "batch", "seeds")})
    eta = number(record["log2_hps"]["eta"])
    return {
        "axis": found.axis,
        "answer": found.answer,
        "todo": f"{found.todo(settled)}." * (found.answer == "cannot say"),
        "runs": f"{rule['seeds']} runs a size, each of {rule['steps']} steps on one batch of "
        f"{rule['batch']}, at {number(rule['share']):g} times η; log2 η is {eta:g}",
        "table": coordinate_table(found, number(rule["threshold"])),
        "figure": Markup(svg(coordinate_figure(found), name)),
    }


def scales(records: Sequence[Document], name: Callable[[], str]) -> list[Section]:
    """The scale report, if there is one."""
    return _whole(lambda found: _scales(found, name()), filter(None, [records]))


def _scales(records: Sequence[Document], name: str) -> Section:
    from sweeper.engine.operand_scales import OperandScale
    from sweeper.report.checks import scale_figure, scale_table

    found = [from_json(OperandScale, record) for record in records]
    return {"table": scale_table(found), "figure": Markup(svg(scale_figure(found), name))}


def law(plan: Document) -> list[str]:
    """The lines on the law of a plan; none without one."""
    applied = _law(plan)
    return [line.removeprefix("- ") for line in applied.lines()] if applied else []


def trend(validation: Document, *, corrected: bool) -> str:
    """What the optima over width predict for the target, as the terminal says it; empty: none."""
    if not validation.get("trend"):
        return ""
    try:
        return trend_text(call_checked(Trend, validation["trend"], {}), applied=corrected)
    except ConfigError:
        return ""


def exponents(validation: Document) -> list[str]:
    """The law that was fitted to the ladders, a line an exponent; none without one."""
    fitted = validation.get("exponents") or {}
    try:
        return [str(call_checked(Exponent, one, {})) for one in _list(fitted.get("exponents"))]
    except ConfigError:
        return []


def target_text(plan: Document, name: str, *, deep: bool) -> str:
    """A plan's target in words; the folder's `name` where there is no plan."""
    if not (size := plan.get("target")):
        return name
    words, applied = size_text(size, deep=deep), _law(plan)
    if applied is None:
        return words
    base, target = applied.base, applied.target
    if (base.batch, base.steps) == (target.batch, target.steps):
        return words
    return f"{words}, {target.steps:,} steps of {target.batch:,}"


def _law(plan: Document) -> AppliedLaw | None:
    if not plan.get("law"):
        return None
    try:
        applied: AppliedLaw = call_checked(AppliedLaw, plan["law"], {})
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return applied


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


# The head of a report: the few numbers that a reader looks for first.


def cards(documents: Documents) -> list[dict[str, str]]:
    """The few numbers that a reader looks for first: name, value, and what it rests on."""
    target = max(documents.targets, key=_width, default=None)
    plan = target.plan if target is not None else {}
    validation = next((t.validation for t in reversed(documents.targets) if t.validation), {})
    best = [_optimum(documents.search, validation), _loss(documents.search)]
    return [card for card in [*best, _planned(plan), _saved(documents, plan)] if card]


def _width(target: Any) -> int:
    return int((target.plan.get("target") or {}).get("width", 0))


def _optimum(search: Document, validation: Document) -> dict[str, str] | None:
    """The best eta of the base: measured on its curve, else what the search chose."""
    sizes = axis_verdict(validation, "width").get("sizes") or ()
    base: Document = next((size for size in sizes if size.get("is_base")), {})
    estimate = base.get("optimum_log2") or {}
    value, low, high = (number(estimate.get(key)) for key in ("value", "low", "high"))
    width = (search.get("base") or {}).get("width")
    name = f"Best η at width {width}" if width else "Best η"
    if math.isfinite(value):
        known = math.isfinite(low) and math.isfinite(high)
        span = f"95 % interval {2**low:.3g} to {2**high:.3g}" if known else "no interval"
        return _card(name, f"{2**value:.4g}", f"log2 {value:.2f}; {span}")
    log2 = number((search.get("best_log2") or {}).get("eta"))
    if not math.isfinite(log2):
        return None
    return _card(name, f"{2**log2:.4g}", f"log2 {log2:g}; no interval before --validate")


def _loss(search: Document) -> dict[str, str] | None:
    loss, seeds = number(search.get("objective")), search.get("seeds")
    if not math.isfinite(loss):
        return None
    note = f"of the best configuration, {'one seed' if seeds == 1 else f'mean over {seeds} seeds'}"
    return _card("Training loss", f"{loss:.4f} nats", note)


def _planned(plan: Document) -> dict[str, str] | None:
    eta, size = number((plan.get("hps") or {}).get("eta")), plan.get("target") or {}
    if not math.isfinite(eta) or not size:
        return None
    origin = str((plan.get("source") or {}).get("eta_from") or "the study")
    words = f"log2 {math.log2(eta):.2f}, from {origin}" if eta > 0 else f"from {origin}"
    return _card(f"Planned η for width {size['width']}", f"{eta:.4g}", words)


def _saved(documents: Documents, plan: Document) -> dict[str, str] | None:
    """Against tuning at the target, in FLOPs."""
    found = saving(documents.trials, plan)
    if found is None:
        return None
    name = f"Tuning here, against width {found.width}"
    if not math.isfinite(found.factor):
        return _card(name, "not known", NO_SIZES)
    here, there = (_time(cost) for cost in (found.tuning, found.at_target))
    total = times(found.factor_with_validation)
    note = f"FLOPs; {here} here, about {there} there; with the validation {total}"
    return _card(name, times(found.factor), note)


def _time(cost: Cost) -> str:
    return duration(cost.seconds) if math.isfinite(cost.seconds) else NOT_KNOWN


def _card(name: str, value: str, note: str) -> dict[str, str]:
    return {"name": name, "value": value, "note": note}


def costs(documents: Documents, base: str) -> tuple[Table, Saving] | None:
    """What was spent at the `base`, and beside it the same tuning at each plan's target."""
    found = [one for t in documents.targets if (one := saving(documents.trials, t.plan))]
    if not found:
        return None
    tuning, validation = found[0].tuning, found[0].validation
    rows = [([f"tuning at {base}"], tuning)]
    rows += [(["validation on ladders"], validation)] * bool(validation.trials)
    for each in found:
        size = size_text({"width": each.width, "depth": each.depth}, deep=documents.deep)
        rows.append(([f"the same tuning at {size}"], each.at_target))
    table = cost_table("", ["what"], rows, guessed=[each.at_target for each in found])
    table.legend = [f"{found[-1]} Times are those of trials on their devices."]
    return table, found[-1]
