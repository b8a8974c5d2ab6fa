"""Reading the JSON documents of a study's folder: what is missing or odd never stops a page."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from sweeper.files import read_json, try_json
from sweeper.study.setup import Trials, trials_of
from sweeper.study.study import Study
from sweeper.verdict.curve import Estimate
from sweeper.verdict.ladder import JOINT_AXIS, LADDER_AXES

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
    """Log2 of what a verdict's plan has at the base, of its hyperparameter."""
    name = validation.get("hyperparameter", "eta")
    found = validation.get(PLANNED) if name == "eta" else None
    return number(validation.get(f"transferred_log2_{name}") if found is None else found)


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


def estimate_of(record: Document | None) -> Estimate:
    """An estimate as it was recorded; NaN where it is not known."""
    value, low, high = (number((record or {}).get(end)) for end in ("value", "low", "high"))
    return Estimate(value=value, low=low, high=high)


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


# What a report is made from: the documents and the trials of a study's folder.


DIAGNOSED_AXES = ("width", "depth")
UNDECIDED = "cannot say yet"


@dataclass(frozen=True, kw_only=True)
class TargetDocuments:
    """One folder of `transfer/`: the plan for a size, and its validation; empty when missing.

    `others` are validations of other hyperparameters than eta, which the headline leaves out.
    """

    name: str
    plan: Document
    validation: Document
    others: tuple[Document, ...] = ()

    @property
    def answers(self) -> list[str]:
        """The verdict of every axis."""
        return [str(axis.get("answer", UNDECIDED)) for axis in self.validation.get("axes") or ()]


@dataclass(frozen=True, kw_only=True)
class Documents:
    """All that a report is made from; what is missing or cannot be read is empty."""

    name: str
    search: Document
    targets: tuple[TargetDocuments, ...]
    config: str
    diagnoses: tuple[Document, ...] = ()
    check: Document = field(default_factory=dict)
    scales: Sequence[Document] = ()
    trials: Trials = field(default_factory=lambda: Trials([], 0))
    damaged: tuple[str, ...] = ()
    """Names of the documents that are there and cannot be shown."""

    @property
    def counts(self) -> Counter[str]:
        """Trials of the current setup by status, validation included."""
        return Counter(result.status for result in self.trials.current)

    @property
    def deep(self) -> bool:
        """Whether trials take a depth."""
        return takes(self.config, "depth")

    @classmethod
    def read(cls, folder: Path) -> Documents:
        """The documents in the study's `folder`."""
        search = try_json(folder / "search.json")
        return cls(
            name=str(search.get("study") or folder.absolute().name),
            search=search,
            targets=tuple(_targets(folder / "transfer")),
            config=_text(folder / "config.yaml"),
            diagnoses=tuple(
                try_json(folder / f"transfer/diagnosis-{a}.json") for a in DIAGNOSED_AXES
            ),
            check=try_json(folder / "check/check.json"),
            scales=_records(folder / "check/scales.json"),
            trials=trials_of(Study.read(folder)),
            damaged=tuple(_damaged(folder)),
        )


def _records(path: Path) -> list[Any]:
    """The JSON list at `path`; empty when there is none that can be read."""
    value = _read(path)
    return value if isinstance(value, list) else []


def _read(path: Path) -> object:
    try:
        return read_json(path)
    except (OSError, ValueError):
        return None


def _damaged(folder: Path) -> Iterable[str]:
    """Documents that are there and are no JSON of the right kind."""
    for pattern in ("search.json", "transfer/*.json", "transfer/*/*.json", "check/*.json"):
        for path in sorted(folder.glob(pattern)):
            kind = list if path.name in ("rules.json", "scales.json") else dict
            if not isinstance(_read(path), kind):
                yield str(path.relative_to(folder))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _targets(folder: Path) -> Iterable[TargetDocuments]:
    """The targets in `transfer/` by size; a folder without any readable document is no target."""
    for path in sorted(folder.glob("*"), key=lambda path: _numbers(path.name)):
        plan, validation = try_json(path / "plan.json"), try_json(path / "validation.json")
        others = tuple(filter(None, map(try_json, sorted(path.glob("validation-*.json")))))
        if plan or validation or others:
            yield TargetDocuments(name=path.name, plan=plan, validation=validation, others=others)


def _numbers(name: str) -> tuple[list[int], str]:
    """Sorts w64-d2 before w256-d2."""
    return [int(digits) for digits in re.findall("[0-9]+", name)], name
