"""Reading the JSON documents of a study's folder: what is missing or odd never stops a page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import yaml  # type: ignore[import-untyped]

from sweeper.transfer.ladder import JOINT_AXIS, LADDER_AXES

Document = Mapping[str, Any]
"""A JSON object as a study's folder holds it."""


def number(value: object) -> float:
    """A JSON number as a float; "inf", "-inf" and "nan" are read, anything else is NaN."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


PLANNED = "planned_log2_eta"
"""In a verdict's record: the eta of the plan, where it is not that of the search."""


def planned_value(validation: Document) -> float:
    """Log2 of what a verdict's plan has at the base, of the hyperparameter that it is along."""
    along = validation.get("along", "eta")
    found = validation.get(PLANNED) if along == "eta" else None
    return number(validation.get(f"transferred_log2_{along}") if found is None else found)


def takes(config: str, name: str) -> bool:
    """Whether a study's trials take a size, by its kept `config`: a command may take no {depth}."""
    try:
        runner = yaml.safe_load(config)["runner"]
        if not (command := runner.get("command")):
            return True
        names = {name, "trial", *["plan"] * (name in ("width", "depth"))}
        told, uses = f"{command} {runner.get('arguments')}", set(runner.get("uses") or ())
    except (yaml.YAMLError, KeyError, TypeError, AttributeError):
        return True
    found = re.search(rf"\{{[^{{}}]*\b({'|'.join(names)})\b", told)
    return found is not None or not uses.isdisjoint({*names, "*"})


def interval(estimate: Document | None, form: str, scale: float = 1.0) -> dict[str, str] | None:
    """An estimate times `scale` as text, and its interval; None when it is not known."""
    value, low, high = (scale * number((estimate or {}).get(k)) for k in ("value", "low", "high"))
    if not math.isfinite(value):
        return None
    span = f"{form.format(low)} to {form.format(high)}"
    if not math.isfinite(low) or not math.isfinite(high):
        ends = {"at least": low, "at most": high}
        known = [f"{word} {form.format(one)}" for word, one in ends.items() if math.isfinite(one)]
        span = next(iter(known), "no interval")
    return {"value": form.format(value), "range": span}


def ladder_curves(validation: Document, axis: str) -> list[Document]:
    """The curves that belong to `axis`, ascending: all else of their size is the base's."""
    curves = list(validation.get("curves") or ())
    sizes = [size["size"] for size in axis_verdict(validation, axis).get("sizes") or ()]
    if axis == JOINT_AXIS:
        return [curve for size in sizes for curve in curves if is_curve_of(size, curve)]

    def others(size: Document) -> tuple[object, ...]:
        return tuple(size.get(key) for key in LADDER_AXES if key != axis)

    shared = [others(size) for size in sizes] or [others(curve) for curve in curves]
    fixed = max(shared, key=shared.count, default=None)
    return sorted((c for c in curves if others(c) == fixed), key=lambda c: float(c[axis]))


def is_curve_of(size: Document, curve: Document) -> bool:
    """Whether a curve is that of a size."""
    return all(size.get(key) == curve.get(key) for key in LADDER_AXES)


def axis_verdict(validation: Document, axis: str) -> Document:
    """The verdict over `axis`, empty when there is none."""
    verdicts = [v for v in validation.get("axes") or () if v.get("axis") == axis]
    return verdicts[0] if verdicts else {}
