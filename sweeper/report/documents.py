"""What lies in a study's folder, read back typed; what is damaged never stops a page."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml  # type: ignore[import-untyped]

from sweeper.check.judge import CheckRecord
from sweeper.decide.diagnosis import Diagnosis
from sweeper.decide.transfer import Verdict
from sweeper.decide.trend import Exponent, Trend
from sweeper.files import RECORD_ERRORS, note_damage, read_json
from sweeper.plan.plan import TransferPlan
from sweeper.records import WRITTEN_IF_SET, Build, from_json
from sweeper.search.strategy import Conclusion
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import JOINT_AXIS, LADDER_AXES, LadderSize, Size, SizeCurve
from sweeper.study.cost import flops_in, flops_of
from sweeper.study.setup import Trials, trials_of
from sweeper.study.study import Study
from sweeper.trial import Axis, Choice, PluginSpec, Space, TrialSpec

T = TypeVar("T")

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


def read_document(path: Path, make: type[T] | Callable[[Any], T], notes: list[str]) -> T | None:
    """The document at `path`, of a class or as `make` makes it; None without one, or a damaged one.

    A note then says which field it is, and what it costs.
    """
    try:
        return _made(make, path)
    except FileNotFoundError:
        return None
    except (OSError, *READ_ERRORS) as error:
        why = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        if len(why) > 200:  # a value of another shape may be all curves of a ladder
            why = f"{why[:100]} ... {why[-80:]}"
        # One remedy for the curves of all hyperparameters, validation-NAME.json.
        name = re.sub(r"^validation-.*", "validation.json", path.name)
        notes.append(f"{path} cannot be read ({why}): {REMEDIES[name]}")
        return None


def _made(make: type[T] | Callable[[Any], T], path: Path) -> T:
    record = read_json(path)
    return from_json(make, record) if isinstance(make, type) else make(record)


@lru_cache(maxsize=8)  # a page asks several times, and YAML is slow to read
def takes(config: str, name: str) -> bool:
    """Whether a study's trials take a size, by its kept `config`: a command may take no {depth}."""
    try:
        # The kept text, not Settings: those would import the study's classes.
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


@dataclass(frozen=True, kw_only=True)
class Searched:
    """`search.json`: what a search found, where, and in which space."""

    study: str
    parameterization: str
    strategy: str
    finished: bool
    conclusion: Conclusion
    space: Space
    base: Size | None
    provenance: Mapping[str, Any]

    @property
    def command(self) -> object:
        """The command line of the search; None where it was not kept."""
        return self.provenance.get("command")

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Searched:
        """One of `READ_ERRORS` for a record of another shape than `sweeper search` writes.

        People read `search.json`: it is a conclusion with more around it, where a choice stands
        by its value. Strategies know a choice by its place among all.
        """
        space: Space = {str(name): _axis(axis) for name, axis in record["space_log2"].items()}

        def places(log2: Mapping[str, Any]) -> dict[str, Any]:
            known = {name: space[name].choices for name in log2 if name in space}
            return {n: known[n].index(v) if known.get(n) else v for n, v in log2.items()}

        # The record holds more than a conclusion: its fields are picked out, the rest is named
        # below.
        names = {each.name for each in fields(Conclusion)}
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
            study=str(record.get("study") or ""),
            parameterization=str(record.get("parameterization")),
            strategy=str(record.get("search")),
            finished=bool(record.get("finished")),
            conclusion=from_json(Conclusion, parts),
            space=space,
            base=from_json(Size, base) if base else None,
            provenance=dict(record.get("provenance") or {}),
        )


def _axis(record: Mapping[str, Any]) -> Axis:
    # As `read_space` makes an axis over places in a list.
    if not (choices := record.get("choices")):
        return from_json(Axis, record)
    place = float(choices.index(record["default"]))
    return Axis(low=0.0, high=len(choices) - 1.0, default=place, choices=tuple(choices))


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """`settling.json`: the keys of the runs that were there when a ladder began to be settled.

    What is trained follows from which they were; after a kill the study holds more.
    """

    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Validation:
    """`validation.json`, or `validation-NAME.json`: the curves of one hyperparameter, judged.

    `log2_hps` is the search's optimum, choices by their values. `planned_log2` is log2 of what the
    plan has of the hyperparameter at the base: the optimum's, but for an eta that the base's own
    curve shows to be wrong. `law` is the law that it was judged by, `exponents` what one that was
    fitted to the ladders says, `settled` how ladders ended that were trained until they were
    settled, `needed` how many runs would likely do where these did not, and `command` what trained
    them.
    """

    hyperparameter: str = "eta"
    log2_hps: Mapping[str, Choice] = field(default_factory=dict)
    planned_log2: float
    axes: tuple[Verdict, ...] = ()
    trend: Trend | None = None
    curves: tuple[SizeCurve, ...] = ()
    law: PluginSpec | None = None
    exponents: tuple[Exponent, ...] = ()
    settled: str = field(default="", metadata=WRITTEN_IF_SET)
    needed: int = field(default=0, metadata=WRITTEN_IF_SET)
    command: str = ""

    @classmethod
    def read_json(cls, record: Mapping[str, Any], build: Build) -> Validation:
        """ValueError where the value that was planned is no number."""
        validation: Validation = build(record)
        if not math.isfinite(validation.planned_log2):
            raise ValueError(f"no {validation.hyperparameter} is named that was judged")
        return validation

    def over(self, axis: str) -> Verdict | None:
        """The verdict over an axis."""
        return next((verdict for verdict in self.axes if verdict.axis == axis), None)

    def ladder(self, axis: str) -> list[SizeCurve]:
        """The curves along `axis`, ascending: all else of their size is as in its verdict.

        Ladders over several axes share one list of curves, and the base's curve is in each.
        """
        verdict = self.over(axis)
        sizes = [size.size for size in verdict.sizes] if verdict else []
        if axis == JOINT_AXIS:
            curves = {curve.size: curve for curve in self.curves}
            return [curves[size] for size in sizes if size in curves]

        def others(size: LadderSize) -> tuple[int, ...]:
            return tuple(getattr(size, key) for key in LADDER_AXES if key != axis)

        # Without a verdict the base is not known: it is what most curves have beside the axis.
        shared = [others(size) for size in sizes or [curve.size for curve in self.curves]]
        fixed = max(shared, key=shared.count, default=None)
        curves_along = (curve for curve in self.curves if others(curve.size) == fixed)
        return sorted(curves_along, key=lambda curve: int(getattr(curve.size, axis)))


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
        verdicts = self.validation.axes if self.validation else ()
        targets = [verdict.target.answer for verdict in verdicts if verdict.target is not None]
        return [*(verdict.answer for verdict in verdicts), *targets]


@dataclass(frozen=True, kw_only=True)
class PredictionSummary:
    """What a folder's `prediction.json` says; the whole is on the page beside it."""

    name: str
    answer: str
    time: str
    loss: Estimate | None
    flops: float | None

    @classmethod
    def read(cls, name: str, record: Mapping[str, Any]) -> PredictionSummary:
        """One of `READ_ERRORS` for a record of another shape."""
        said, target = record["prediction"], record["target"] or record["optimum"]
        loss = said and Estimate(value=said["loss"], low=said["low"], high=said["high"])
        return cls(
            name=name,
            answer=str(record["answer"]),
            time=str(record["time"]),
            loss=loss,
            flops=float(target["flops"]) if target else None,
        )


@dataclass(frozen=True, kw_only=True)
class Documents:
    """All that a report is made from; what is missing or cannot be read is None or empty.

    `check` is the newest, of `sweeper check` or with a plan.
    """

    name: str
    searched: Searched | None
    targets: tuple[TargetDocuments, ...]
    config: str
    diagnoses: tuple[Diagnosis, ...] = ()
    predictions: tuple[PredictionSummary, ...] = ()
    check: CheckRecord | None = None
    scales: tuple[Any, ...] = ()
    trials: Trials = field(default_factory=lambda: Trials([], 0))
    notices: tuple[str, ...] = ()
    """What the results have to tell."""
    flops: Callable[[TrialSpec], float] = flops_of
    damaged: tuple[str, ...] = ()
    """Names of the documents that are there and cannot be shown."""

    @property
    def conclusion(self) -> Conclusion | None:
        """What the search found."""
        return self.searched.conclusion if self.searched else None

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

        def read(path: Path, make: type[T] | Callable[[Any], T]) -> T | None:
            """What a document holds; None where there is none, or a damaged one."""
            try:
                return _made(make, path)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except (OSError, *READ_ERRORS) as error:
                note_damage(path, error)
                damaged.append(str(path.relative_to(folder)))
                return None

        def target(place: Path) -> TargetDocuments:
            others = (read(path, Validation) for path in sorted(place.glob("validation-*.json")))
            return TargetDocuments(
                name=place.name,
                plan=read(place / "plan.json", TransferPlan),
                validation=read(place / "validation.json", Validation),
                others=tuple(filter(None, others)),
            )

        def by_numbers(place: Path) -> tuple[list[int], str]:
            """Sorts w64-d2 before w256-d2."""
            return [int(digits) for digits in re.findall("[0-9]+", place.name)], place.name

        def scales(record: Any) -> tuple[Any, ...]:
            # It brings torch, which no other document needs.
            from sweeper.engine.measurements import OperandScale

            return from_json(cast(Any, tuple[OperandScale, ...]), record)

        study, searched = Study.read(folder), read(folder / "search.json", Searched.read)
        places = sorted((folder / "transfer").glob("*/"), key=by_numbers)
        targets = [t for t in map(target, places) if t.plan or t.validation or t.others]
        predictions = (
            read(place / "prediction.json", partial(PredictionSummary.read, place.name))
            for place in places
        )
        paths = [folder / f"transfer/diagnosis-{axis}.json" for axis in ("width", "depth")]
        diagnoses = [read(path, Diagnosis) for path in paths]
        # The newest coordinate check: that of `sweeper check`, or the one that came with a plan.
        checks = [folder / "check" / name for name in ("check.json", "transfer.json")]
        checks = sorted(filter(Path.is_file, checks), key=lambda path: path.stat().st_mtime_ns)
        operands = read(folder / "check/scales.json", scales)
        # No page shows it; it is read so that damage is told.
        read(folder / "check/rules.json", list)
        try:
            config = (folder / "config.yaml").read_text(encoding="utf-8", errors="replace")
        except OSError:
            config = ""
        return cls(
            name=(searched and searched.study) or folder.absolute().name,
            searched=searched,
            targets=tuple(targets),
            config=config,
            diagnoses=tuple(filter(None, diagnoses)),
            predictions=tuple(filter(None, predictions)),
            check=read(checks[-1], CheckRecord) if checks else None,
            scales=operands or (),
            trials=trials_of(study),
            notices=tuple(study.notices),
            flops=flops_in(folder),
            damaged=tuple(damaged),
        )
