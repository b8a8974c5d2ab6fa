"""What a report is made from: the documents and the trials of a study's folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.files import read_json, try_json
from sweeper.report.documents import Document, takes
from sweeper.setup import Trials, trials_of
from sweeper.study import Study

DIAGNOSED_AXES = ("width", "depth")
UNDECIDED = "cannot say yet"


@dataclass(frozen=True, kw_only=True)
class TargetDocuments:
    """One folder of `transfer/`: the plan for a size, and its validation; empty when missing.

    `others` are validations along other hyperparameters than eta, which the headline leaves out.
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
