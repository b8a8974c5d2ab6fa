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
from sweeper.laws.applied import AppliedLaw
from sweeper.plugin import call_checked
from sweeper.report.documents import Document, interval, number
from sweeper.report.drawing import svg
from sweeper.report.words import size_words, trend_words
from sweeper.transfer.exponents import Exponent
from sweeper.transfer.trend import Trend

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
    from sweeper.report import coordinates as show
    from sweeper.transfer.check_rule import CheckRule
    from sweeper.transfer.coordinates import CoordinateCheck

    found, rule = CoordinateCheck.from_json(axis), record["rule"]
    settled = CheckRule(**{key: rule[key] for key in ("share", "batch", "seeds")})
    eta = number(record["log2_hps"]["eta"])
    note, *legend = show.legend(found, number(rule["threshold"]))
    return {
        "axis": found.axis,
        "answer": found.answer,
        "todo": f"{found.todo(settled)}." * (found.answer == "cannot say"),
        "runs": f"{rule['seeds']} runs a size, each of {rule['steps']} steps on one batch of "
        f"{rule['batch']}, at {number(rule['share']):g} times η; log2 η is {eta:g}",
        "sizes": ", ".join(map(str, found.sizes)),
        "columns": list(show.columns(found)),
        "rows": show.rows(found),
        "note": note,
        "legend": [line.removeprefix("- ") for line in legend],
        "figure": Markup(svg(show.coordinate_figure(found), name)),
    }


def scales(records: Sequence[Document], name: Callable[[], str]) -> list[Section]:
    """The scale report, if there is one."""
    return _whole(lambda found: _scales(found, name()), filter(None, [records]))


def _scales(records: Sequence[Document], name: str) -> Section:
    from sweeper.measure.scales import OperandScale
    from sweeper.report import coordinates as show

    found = [OperandScale.from_json(record) for record in records]
    columns, rows = show.scale_table(found)
    return {
        "columns": columns,
        "rows": rows,
        "note": show.SCALES_NOTE,
        "figure": Markup(svg(show.scale_figure(found), name)),
    }


def law(plan: Document) -> list[str]:
    """The lines on the law of a plan; none without one."""
    applied = _law(plan)
    return [line.removeprefix("- ") for line in applied.lines()] if applied else []


def trend(validation: Document, *, corrected: bool) -> str:
    """What the optima over width predict for the target, as the terminal says it; empty: none."""
    if not validation.get("trend"):
        return ""
    try:
        return trend_words(call_checked(Trend, validation["trend"], {}), applied=corrected)
    except ConfigError:
        return ""


def exponents(validation: Document) -> list[str]:
    """The law that was fitted to the ladders, a line an exponent; none without one."""
    fitted = validation.get("exponents") or {}
    try:
        return [str(call_checked(Exponent, one, {})) for one in _list(fitted.get("exponents"))]
    except ConfigError:
        return []


def target_words(plan: Document, name: str, *, deep: bool) -> str:
    """A plan's target in words; the folder's `name` where there is no plan."""
    if not (size := plan.get("target")):
        return name
    words, applied = size_words(size, deep=deep), _law(plan)
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
