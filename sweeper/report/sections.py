"""Sections of the report on what other commands found: diagnoses, coordinate checks, scales.

A record that is of another shape than its command writes is as if it were missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from markupsafe import Markup

from sweeper.files import RECORD_ERRORS
from sweeper.report.documents import Document, interval, number
from sweeper.report.plots import svg

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
    findings = [_finding(finding) for finding in record["findings"]]
    before = record["findings"][0]["before"] if findings else {}
    return {
        "axis": str(record["axis"]),
        "answer": str(record["answer"]),
        "conclusion": str(record["conclusion"]),
        "before": _numbers(before),
        "findings": sorted(findings, key=lambda finding: -finding["explains"]),
    }


def _finding(record: Document) -> Section:
    """One ablation: its numbers, and what they mean in a sentence."""
    ablation, share = record["ablation"], number(record["explained"]["value"])
    return {
        "name": str(ablation["name"]),
        "seen": str(ablation["seen"]),
        "sentence": str(record["sentence"]),
        "share": interval(record["explained"], "{:.0f}", scale=100),
        "bar": round(100 * min(1.0, max(0.0, share))) if math.isfinite(share) else 0,
        "explains": share if math.isfinite(share) else -1.0,
        **_numbers(record["after"] or {}),
    }


def _numbers(size: Document) -> Section:
    """Shift, cost and loss of the large size, with their intervals."""
    return {
        "shift": interval(size.get("shift_log2"), "{:+z.2f}"),
        "cost": interval(size.get("cost"), "{:z.4f}"),
        "loss": interval(size.get("loss"), "{:.4f}"),
    }


def checks(record: Document, name: Callable[[], str]) -> list[Section]:
    """The coordinate check, a section an axis; `name` hands out the drawings' names."""
    return _whole(lambda axis: _check(record, axis, name()), _list(record.get("axes")))


def _check(record: Document, axis: Document, name: str) -> Section:
    # It brings torch, which no other section needs.
    from sweeper.report import coordinates as show
    from sweeper.transfer.coordinates import CoordinateCheck

    found, rule = CoordinateCheck.from_json(axis), record["rule"]
    eta = number(record["log2_hps"]["eta"])
    note, *legend = show.legend(found, number(rule["threshold"]))
    return {
        "axis": found.axis,
        "answer": found.answer,
        "todo": show.TODO if found.answer == "cannot say" else "",
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
        "note": show.SHARES,
        "figure": Markup(svg(show.scale_figure(found), name)),
    }


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
