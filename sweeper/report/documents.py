"""Reading the JSON documents of a study's folder: what is missing or odd never stops a page."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml  # type: ignore[import-untyped]

from sweeper.files import RECORD_ERRORS, note_damage, read_json
from sweeper.plan.plan import TransferPlan
from sweeper.records import from_json
from sweeper.report.cost import flops_in, flops_of
from sweeper.search.strategy import Conclusion
from sweeper.study.setup import Trials, trials_of
from sweeper.study.study import Study
from sweeper.trial import Axis, Space, TrialSpec
from sweeper.verdict.curve import Estimate
from sweeper.verdict.judge import Verdict
from sweeper.verdict.ladder import JOINT_AXIS, LADDER_AXES, LadderSize, Size, SizeCurve
from sweeper.verdict.trend import Exponent, Trend

T = TypeVar("T")

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
    planned = validation.get(PLANNED) if name == "eta" else None
    return number(validation.get(f"transferred_log2_{name}") if planned is None else planned)


def takes(config: str, name: str) -> bool:
    """Whether a study's trials take a size, by its kept `config`: a command may take no {depth}."""
    try:
        runner = yaml.safe_load(config)["runner"]
        if not (command := runner.get("command")):
            return True
        names = {name, "trial", *["plan"] * (name in ("width", "depth"))}
        text, uses = f"{command} {runner.get('arguments')}", set(runner.get("uses") or ())
    except (yaml.YAMLError, KeyError, TypeError, AttributeError):
        return True
    # {depth}, or a term with it, {depth//2}.
    placeholder = re.search(rf"\{{[^{{}}]*\b({'|'.join(names)})\b", text)
    return placeholder is not None or not uses.isdisjoint({*names, "*"})


def estimate_of(record: Document | None) -> Estimate:
    """An estimate as it was recorded; NaN where it is not known."""
    value, low, high = (number((record or {}).get(end)) for end in ("value", "low", "high"))
    return Estimate(value=value, low=low, high=high)


def ladder_curves(validation: Document, axis: str) -> list[Document]:
    """The curves that belong to `axis`, ascending: all else of their size is the base's.

    Ladders over several axes share one list of curves, and the base's curve is in each.
    """
    curves = list(validation.get("curves") or ())
    sizes = [size["size"] for size in axis_verdict(validation, axis).get("sizes") or ()]
    if axis == JOINT_AXIS:
        return [curve for size in sizes for curve in curves if is_curve_of(size, curve)]

    def others(size: Document) -> tuple[object, ...]:
        return tuple(size.get(key) for key in LADDER_AXES if key != axis)

    # Without a verdict the base is not known: it is what most curves have beside the axis.
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


READ_ERRORS = (*RECORD_ERRORS, LookupError, ArithmeticError)
"""What a document of another shape raises."""
REMEDIES = {
    "search.json": "the same `sweeper search` command writes it again, and trains nothing anew",
    "progress.json": "its driver writes it again within seconds",
    "plan.json": "`sweeper transfer` writes it again",
    "validation.json": "`sweeper transfer --validate` writes it again, and trains nothing anew",
    "check.json": "`sweeper check` measures it again",
    "transfer.json": "`sweeper transfer` measures it again",
}
"""What becomes of a document that cannot be read, by its name."""


def read_document(path: Path, make: Callable[[Any], T], notes: list[str]) -> T | None:
    """What `make` makes of the document at `path`; None without one, or where it is damaged.

    A note then says which field it is, and what it costs.
    """
    try:
        return make(read_json(path))
    except FileNotFoundError:
        return None
    except (OSError, *READ_ERRORS) as error:
        why = f"there is no {error}" if isinstance(error, KeyError) else error
        name = re.sub(r"^validation-.*", "validation.json", path.name)
        notes.append(f"{path} cannot be read ({why}): {REMEDIES[name]}")
        return None


# What a report is made from: the documents and the trials of a study's folder.


DIAGNOSED_AXES = ("width", "depth")
UNDECIDED = "cannot say yet"


@dataclass(frozen=True, kw_only=True)
class Searched:
    """`search.json`: what a search found, where, and in which space. Figures draw its `record`."""

    record: Document
    conclusion: Conclusion
    space: Space
    base: Size | None

    @property
    def finished(self) -> bool:
        """Whether it is the conclusion of all trials."""
        return bool(self.record.get("finished"))

    @property
    def command(self) -> object:
        """The command line of the search; None where it was not kept."""
        return (self.record.get("provenance") or {}).get("command")

    @classmethod
    def read(cls, record: Document) -> Searched:
        """One of `READ_ERRORS` for a record of another shape than `sweeper search` writes."""
        space = {str(name): _axis(axis) for name, axis in record["space_log2"].items()}
        # Shown as they are: an error here is better than one in the middle of the page.
        for name in ("best", "provenance"):
            dict(record.get(name) or {})

        def places(log2: Document) -> dict[str, Any]:
            """A choice is recorded by its value, and searched by its place."""
            known = {name: space[name].choices for name in log2 if name in space}
            return {n: known[n].index(v) if known.get(n) else v for n, v in log2.items()}

        names = {field.name for field in fields(Conclusion)}
        # search.json is a conclusion with more around it: `finding`s are sentences for people.
        parts = {name: value for name, value in record.items() if name in names}
        parts["best_log2"] = places(parts["best_log2"])
        if combination := parts.get("combination"):
            sides = {name: places(combination[name]) for name in ("combined_log2", "single_log2")}
            parts["combination"] = {**combination, **sides}
            parts["combination"].pop("finding", None)
        if retune := parts.get("retune"):
            parts["retune"] = {name: part for name, part in retune.items() if name != "finding"}
        base = record.get("base")
        return cls(
            record=record,
            conclusion=from_json(Conclusion, parts),
            space=space,
            base=from_json(Size, base) if base else None,
        )


def _axis(record: Document) -> Axis:
    if not (choices := record.get("choices")):
        return from_json(Axis, record)
    place = float(choices.index(record["default"]))
    return Axis(low=0.0, high=len(choices) - 1.0, default=place, choices=tuple(choices))


@dataclass(frozen=True, kw_only=True)
class Validation:
    """`validation.json`: verdicts on curves over a `hyperparameter`. Figures draw its `record`.

    `curves` have what a law planned at their size.
    """

    record: Document
    hyperparameter: str
    verdicts: tuple[Verdict, ...]
    trend: Trend | None
    exponents: tuple[Exponent, ...]
    curves: Mapping[LadderSize, SizeCurve]

    @property
    def log2_hps(self) -> object:
        """The hyperparameters that were judged; None where they were not kept."""
        return self.record.get("log2_hps")

    @property
    def law(self) -> object:
        """The law that it was judged by; None without one."""
        return self.record.get("law")

    @property
    def planned_log2(self) -> float:
        """What the plan has at the base, of the hyperparameter."""
        return planned_value(self.record)

    @property
    def command(self) -> object:
        """The command line that judged; None where it was not kept."""
        return self.record.get("command")

    def over(self, axis: str) -> Verdict | None:
        """The verdict over an axis."""
        return next((verdict for verdict in self.verdicts if verdict.axis == axis), None)

    @classmethod
    def read(cls, record: Document) -> Validation:
        """One of `READ_ERRORS` for a record of another shape than `transfer --validate` writes."""
        hyperparameter = str(record.get("hyperparameter", "eta"))
        trend, fitted = record.get("trend"), record.get("exponents") or {}
        verdicts = tuple(from_json(Verdict, axis) for axis in record.get("axes") or ())
        planned = {size.size: size.planned_log2 for verdict in verdicts for size in verdict.sizes}
        if not math.isfinite(planned_value(record)):
            raise ValueError(f"no {hyperparameter} is named that was judged")
        curves = {}
        for curve in record.get("curves") or ():
            named = {key: value for key, value in curve.items() if key != "points"}
            size = from_json(LadderSize, named)
            losses = {
                float(point[f"log2_{hyperparameter}"]): tuple(map(float, point["losses"]))
                for point in curve["points"]
            }
            law = planned.get(size, 0.0)
            curves[size] = SizeCurve(size=size, losses=losses, planned_log2=law)
        return cls(
            record=record,
            hyperparameter=hyperparameter,
            verdicts=verdicts,
            trend=from_json(Trend, trend) if trend else None,
            exponents=tuple(from_json(Exponent, fit) for fit in fitted.get("exponents") or ()),
            curves=curves,
        )


@dataclass(frozen=True, kw_only=True)
class TargetDocuments:
    """One folder of `transfer/`: the plan for a size, and its validation; None when missing.

    `others` are validations of other hyperparameters than eta, which the headline leaves out.
    """

    name: str
    plan: TransferPlan | None = None
    validation: Validation | None = None
    others: tuple[Validation, ...] = ()

    @property
    def answers(self) -> list[str]:
        """The verdict of every axis, and that at the target where it lies elsewhere on it."""
        verdicts = self.validation.verdicts if self.validation else ()
        targets = [verdict.target.answer for verdict in verdicts if verdict.target is not None]
        return [*(verdict.answer for verdict in verdicts), *targets]


@dataclass(frozen=True, kw_only=True)
class Documents:
    """All that a report is made from; what is missing or cannot be read is None or empty."""

    name: str
    searched: Searched | None
    targets: tuple[TargetDocuments, ...]
    config: str
    diagnoses: tuple[Document, ...] = ()
    check: Document = field(default_factory=dict)
    scales: Sequence[Document] = ()
    trials: Trials = field(default_factory=lambda: Trials([], 0))
    notices: tuple[str, ...] = ()
    """What the results have to tell."""
    flops: Callable[[TrialSpec], float] = flops_of
    damaged: tuple[str, ...] = ()
    """Names of the documents that are there and cannot be shown."""

    @property
    def search(self) -> Document:
        """The record of the search."""
        return self.searched.record if self.searched else {}

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
        damaged: list[str] = []

        def read(path: Path, make: Callable[[Any], T], kind: type = dict) -> T | None:
            """What `make` makes of a document; None where there is none, or a damaged one."""
            if not path.exists():
                return None
            try:
                record = read_json(path)
                if not isinstance(record, kind):
                    raise TypeError
                return make(record)
            except (OSError, *READ_ERRORS) as error:
                note_damage(path, error)
                damaged.append(str(path.relative_to(folder)))
                return None

        def target(place: Path) -> TargetDocuments:
            others = (
                read(path, Validation.read) for path in sorted(place.glob("validation-*.json"))
            )
            return TargetDocuments(
                name=place.name,
                plan=read(place / "plan.json", lambda record: from_json(TransferPlan, record)),
                validation=read(place / "validation.json", Validation.read),
                others=tuple(filter(None, others)),
            )

        def by_numbers(place: Path) -> tuple[list[int], str]:
            """Sorts w64-d2 before w256-d2."""
            return [int(digits) for digits in re.findall("[0-9]+", place.name)], place.name

        searched = read(folder / "search.json", Searched.read)
        places = sorted((folder / "transfer").glob("*/"), key=by_numbers)
        targets = [
            found for found in map(target, places) if found.plan or found.validation or found.others
        ]
        diagnoses = [
            read(folder / f"transfer/diagnosis-{axis}.json", dict) for axis in DIAGNOSED_AXES
        ]
        # The newest coordinate check: that of `sweeper check`, or the one that came with a plan.
        checks = [folder / "check" / name for name in ("check.json", "transfer.json")]
        checks = sorted(filter(Path.is_file, checks), key=lambda path: path.stat().st_mtime_ns)
        check = read(checks[-1], dict) if checks else None
        scales = read(folder / "check/scales.json", list, list)
        study = Study.read(folder)
        read(folder / "check/rules.json", list, list)
        return cls(
            name=str((searched and searched.record.get("study")) or folder.absolute().name),
            searched=searched,
            targets=tuple(targets),
            config=_text(folder / "config.yaml"),
            diagnoses=tuple(found or {} for found in diagnoses),
            check=check or {},
            scales=scales or [],
            trials=trials_of(study),
            notices=tuple(study.notices),
            flops=flops_in(folder),
            damaged=tuple(damaged),
        )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
