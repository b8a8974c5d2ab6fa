"""What a transfer keeps of its ladders, and which ladder to train next, as settings.

Kept are the curves of one hyperparameter, and the verdict on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.decide.ladder_verdict import MAX_SEED_FACTOR, Verdict
from sweeper.decide.trend import Exponent, Trend
from sweeper.records import WRITTEN_IF_SET, Build
from sweeper.search.strategy import Conclusion
from sweeper.stats.ladder import LADDER_AXES, SizeCurve, curves_along
from sweeper.study.folder import StudyFolder, read_document
from sweeper.trial import Choice, PluginSpec, Space, defaults, in_use


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """`settling.json`: keys of the runs from which a ladder began, so that it can go on."""

    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Validation:
    """`validation.json`, or `validation-NAME.json`: the curves of one hyperparameter, judged.

    `log2_hps` is the search's optimum, choices by their values. `planned_log2` is log2 of what the
    plan has of the hyperparameter at the base: the optimum's, but for an eta that the base's own
    curve shows to be wrong. `law` is the law that it was judged by, `exponents` what one that was
    fitted to the ladders says, `settled` how ladders ended that were trained until they were
    settled, `needed` how many runs would likely do where these did not, and `command` what trained
    them. `rule` has the settings of `transfer` that the verdict rests on.
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
    rule: Mapping[str, float] = field(default_factory=dict, metadata=WRITTEN_IF_SET)
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
        """The curves along `axis`, ascending: all else of their size is as in its verdict."""
        verdict = self.over(axis)
        sizes = [size.size for size in verdict.sizes] if verdict else []
        return curves_along(axis, self.curves, sizes)


def unjudged(conclusion: Conclusion, space: Space, judged: Collection[str]) -> dict[str, Choice]:
    """What a plan carries as the search found it, and no ladder has judged.

    `judged` are the hyperparameters whose curves were. One that the search left at its default is
    what it would be without it: nothing of it is carried.
    """
    # What is not in use counts for nothing: the space has conditions.
    before = in_use(space, defaults(space))
    return {
        name: value
        for name, value in in_use(space, conclusion.best_log2).items()
        if name not in (*conclusion.not_searched, *judged) and value != before.get(name)
    }


def newest_validation(folder: Path, fits: Callable[[Validation], bool]) -> Validation | None:
    """The newest verdict on eta of the study in `folder` that can be read and `fits`, if any."""
    for path in StudyFolder(folder).validations():
        validation = read_document(path, Validation, [])
        if validation is not None and fits(validation):
            return validation
    return None


def settling_ladder(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Settings that would settle all open `verdicts` at once; none where none is known to."""
    asked: dict[str, float] = {}
    for key, text in (override.split("=", 1) for each in verdicts for override in each.settle):
        # One command answers all: the finest step, and of all else the most.
        least = min if key == "transfer.step" else max
        asked[key] = least(asked.get(key, float(text)), float(text))
    return asked


def without_settled(verdicts: Sequence[Verdict]) -> list[str]:
    """Overrides that leave out the ladders which ask for nothing."""
    return [
        f"transfer.{LADDER_AXES[verdict.axis]}=[]"
        for verdict in verdicts
        if not verdict.settle and verdict.axis in LADDER_AXES
    ]


def settling_budget(validation: Validation) -> int | None:
    """The runs that likely settle a ladder which was to be, and did not; None where none would."""
    runs = sum(len(seeds) for curve in validation.curves for seeds in curve.losses.values())
    less_noise = any(key.startswith("train.") for v in validation.axes for key in v.settle)
    if less_noise or not runs < validation.needed <= MAX_SEED_FACTOR * runs:
        return None
    return validation.needed
