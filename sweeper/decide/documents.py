"""All that lies in a study's folder, read back typed; what is damaged never stops a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from sweeper.check.judge import CheckRecord
from sweeper.decide.ladder_verdict import Answer
from sweeper.decide.validation import Validation
from sweeper.files import note_damage
from sweeper.plan.plan import TransferPlan
from sweeper.records import from_json
from sweeper.search.strategy import Conclusion
from sweeper.stats.estimate import Estimate
from sweeper.study.flops import flops_in, flops_of
from sweeper.study.folder import READ_ERRORS, Make, StudyFolder, TargetFolder, document
from sweeper.study.searched import Searched, config_text, takes
from sweeper.study.setup import Trials, trials_of
from sweeper.study.study import StudyRecord
from sweeper.trial import TrialSpec

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TargetDocuments:
    """One folder of `transfer/`; `others` are validations of others than eta. None when missing."""

    place: Path
    plan: TransferPlan | None = None
    validation: Validation | None = None
    others: tuple[Validation, ...] = ()

    @property
    def answers(self) -> list[Answer]:
        """The verdict of every axis, and that at the target where it lies elsewhere on it."""
        verdicts = self.validation.axes if self.validation else ()
        targets = [verdict.target.answer for verdict in verdicts if verdict.target is not None]
        return [*(verdict.answer for verdict in verdicts), *targets]


@dataclass(frozen=True, kw_only=True)
class PredictionSummary:
    """What a folder's `prediction.json` says; the whole is on the page beside it."""

    name: str
    answer: str
    loss: Estimate | None

    @classmethod
    def read(cls, name: str, record: Mapping[str, Any]) -> PredictionSummary:
        """One of `READ_ERRORS` for a record of another shape."""
        loss = record["prediction"]
        loss = loss and Estimate(value=loss["loss"], low=loss["low"], high=loss["high"])
        return cls(name=name, answer=str(record["answer"]), loss=loss)


@dataclass(frozen=True, kw_only=True)
class Documents:
    """All that a report is made from, the newest `check`; what cannot be read is None or empty."""

    folder: Path
    searched: Searched | None
    targets: tuple[TargetDocuments, ...]
    config: str
    predictions: tuple[PredictionSummary, ...] = ()
    check: CheckRecord | None = None
    scales: tuple[Any, ...] = ()
    trials: Trials = field(default_factory=lambda: Trials([], 0))
    notices: tuple[str, ...] = ()
    flops: Callable[[TrialSpec], float] = flops_of
    damaged: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The folder's: a study may have been renamed or copied."""
        return self.folder.absolute().name

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
        files, damaged = StudyFolder(folder), list[str]()

        def read(path: Path, make: Make[T]) -> T | None:
            try:
                return document(path, make)
            # What is missing was not asked for yet; what cannot be read is damage, and said.
            except (FileNotFoundError, NotADirectoryError):
                return None
            except (OSError, *READ_ERRORS) as error:
                note_damage(path, error)
                damaged.append(str(path.relative_to(folder)))
                return None

        def target(place: TargetFolder) -> TargetDocuments:
            eta = place.validation
            others = (read(path, Validation) for path in place.validations if path != eta)
            return TargetDocuments(
                place=place.path,
                plan=read(place.plan, TransferPlan),
                validation=read(eta, Validation),
                others=tuple(filter(None, others)),
            )

        def scales(record: Any) -> tuple[Any, ...]:
            # It brings torch, which no other document needs.
            from sweeper.engine.measurements import OperandScale

            return from_json(cast(Any, tuple[OperandScale, ...]), record)

        study, searched = StudyRecord.read(folder, curves=False), read(files.search, Searched.read)
        places = files.targets()
        # A folder with a prediction alone is no transfer.
        targets = [t for t in map(target, places) if t.plan or t.validation or t.others]
        predictions = (
            read(place.prediction, partial(PredictionSummary.read, place.path.name))
            for place in places
        )
        checks = files.checks()
        operands = read(files.measured("scales"), scales)
        return cls(
            folder=folder,
            searched=searched,
            targets=tuple(targets),
            config=config_text(folder),
            predictions=tuple(filter(None, predictions)),
            check=read(checks[0], CheckRecord) if checks else None,
            scales=operands or (),
            trials=trials_of(study),
            notices=tuple(study.notices),
            flops=flops_in(folder),
            damaged=tuple(damaged),
        )
