"""What the files of a study are called, and how a document among them is read.

No other file spells these names. A class that knows what a document holds reads it by
`read_document`; which one is the newest, `StudyFolder` says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sweeper.errors import Call, Keyword, Text, spelled
from sweeper.files import RECORD_ERRORS, note_record, read_json
from sweeper.records import from_json

T = TypeVar("T")

READ_ERRORS = (*RECORD_ERRORS, LookupError, ArithmeticError)
"""What a document of another shape raises."""
CONFIG, PLAN, VALIDATION = "config.yaml", "plan.json", "validation.json"
_SEARCH, _PROGRESS = "search.json", "progress.json"
_CHECK, _PLANS_CHECK = "check.json", "transfer.json"
_VALIDATE = Call("transfer", Keyword("validate"))
_REMEDIES: Mapping[str, Text] = {
    _SEARCH: ("the same ", Call("search"), " command writes it again, and trains nothing anew"),
    _PROGRESS: ("its driver writes it again within seconds",),
    PLAN: (Call("transfer"), " writes it again"),
    VALIDATION: (_VALIDATE, " writes it again, and trains nothing anew"),
    _CHECK: (Call("check"), " measures it again"),
    _PLANS_CHECK: (Call("transfer"), " measures it again"),
}
"""What becomes of a document that cannot be read, by its name."""


class _File:
    """A file or a folder by its name in a folder, whether it is there or not."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: Any, _: type) -> Path:
        return Path(folder.path, self.name)


@dataclass(frozen=True)
class TargetFolder:
    """What lies in `transfer/NAME`: all that was found out of one target."""

    path: Path

    plan = _File(PLAN)
    """What every parameter gets there."""
    validation = _File(VALIDATION)
    """The verdict on eta, with the curves that it rests on."""
    prediction = _File("prediction.json")
    """The loss that is predicted there."""

    def validation_of(self, hyperparameter: str) -> Path:
        """The verdict on the curves of a hyperparameter."""
        other = "" if hyperparameter == "eta" else f"-{hyperparameter}"
        return self.validation.with_stem(f"{self.validation.stem}{other}")

    def settling_of(self, hyperparameter: str) -> Path:
        """The runs with which a ladder began that was trained until it was settled."""
        validation = self.validation_of(hyperparameter)
        return validation.with_name(validation.name.replace("validation", "settling", 1))

    @property
    def validations(self) -> list[Path]:
        """All verdicts that are there, of whichever hyperparameter."""
        return sorted(self.path.glob(f"{self.validation.stem}*.json"))


@dataclass(frozen=True)
class StudyFolder:
    """The files of the study in `path`."""

    path: Path

    config = _File(CONFIG)
    """The settings of its search: a folder without it is no study."""
    setup = _File("setup.json")
    """The specification of its current search's trials."""
    results = _File("results")
    """The record: files of lines, one for each result."""
    search = _File(_SEARCH)
    """What the search found, written after every batch."""
    progress = _File(_PROGRESS)
    """How far the driver is, or came before it was stopped."""
    flops = _File("flops.json")
    """FLOPs of whole runs, by the digest of what they train."""
    transfer = _File("transfer")
    """A folder for every target."""
    check = _File("check")
    """What `sweeper check` measured, and the check that came with a plan."""
    set_aside = _File("setups")
    """Findings of other setups, in a folder each."""
    trials = _File("trials")
    """The folders in which a user's own command trains."""
    report = _File("report.html")
    judged = _File("judged")
    """What `sweeper judge` said of the study's runs."""
    warnings = _File("warnings.txt")
    """What libraries warned of while its latest command ran."""

    FINDINGS = ("transfer", "check")
    """Folders of what was found out of one setup: plans, verdicts, coordinate checks."""

    def target(self, name: str) -> TargetFolder:
        """The folder of a target."""
        return TargetFolder(self.transfer / name)

    def targets(self) -> list[TargetFolder]:
        """Folders of all targets, w64-d2 before w256-d2."""

        def by_numbers(path: Path) -> tuple[list[int], str]:
            return [int(digits) for digits in re.findall("[0-9]+", path.name)], path.name

        return [TargetFolder(path) for path in sorted(self.transfer.glob("*/"), key=by_numbers)]

    def measured(self, name: str) -> Path:
        """What `sweeper check` measured: `check`, `scales` or `rules`."""
        return self.check / f"{name}.json"

    @property
    def plans_check(self) -> Path:
        """The coordinate check that came with a plan."""
        return self.check / _PLANS_CHECK

    def plans(self) -> list[Path]:
        """All plans, the newest first."""
        return newest_first(self.transfer.glob(f"*/{PLAN}"))

    def validations(self) -> list[Path]:
        """All verdicts on eta, the newest first."""
        return newest_first(self.transfer.glob(f"*/{VALIDATION}"))

    def checks(self) -> list[Path]:
        """The coordinate checks, the newest first."""
        return newest_first(filter(Path.is_file, (self.check / _CHECK, self.plans_check)))


def newest_first(paths: Iterable[Path]) -> list[Path]:
    """Paths by when they were written, the last one first."""
    return sorted(paths, key=lambda path: -path.stat().st_mtime_ns)


def studies(root: Path) -> list[str]:
    """Names of all studies in `root`."""
    return sorted(path.parent.name for path in configs(root))


def configs(root: Path) -> list[Path]:
    """The settings of all studies in `root`."""
    return sorted(root.glob(f"[!.]*/{CONFIG}"))


def is_study(folder: Path) -> bool:
    """Whether a folder is that of a study of ours."""
    study = StudyFolder(folder)
    return study.config.is_file() and study.results.is_dir()


Make = type[T] | Callable[[Any], T]
"""A class of records, or what makes a value of a record."""


def read_document(path: Path, make: Make[T], notes: list[str]) -> T | None:
    """The document at `path`, of a class or as `make` makes it; None without one, or a damaged one.

    A note then says which field it is, and what it costs.
    """
    try:
        return document(path, make)
    except FileNotFoundError:
        return None
    except (OSError, *READ_ERRORS) as error:
        why = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        if len(why) > 200:  # a value of another shape may be all curves of a ladder
            why = f"{why[:100]} ... {why[-80:]}"
        # One remedy for the curves of all hyperparameters, validation-NAME.json.
        name = re.sub(r"^validation-.*", VALIDATION, path.name)
        reason = f"cannot be read ({why}): {spelled(_REMEDIES[name])}"
        notes.append(f"{path} {reason}")
        note_record(path, reason)  # where its reader says nothing of it, the verb's end does
        return None


def document(path: Path, make: Make[T]) -> T:
    """The document at `path`; OSError or one of `READ_ERRORS` for one that cannot be read."""
    record = read_json(path)
    return from_json(make, record) if isinstance(make, type) else make(record)
