"""How much the runs of a study compute, kept where no class of the study's is imported."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

from sweeper.files import try_json, write_json
from sweeper.study.folder import StudyFolder
from sweeper.trial import TrialSpec

ENGINE = "engine"
"""The runner whose trials' FLOPs are known; how much a command computes is not."""


def flops_of(spec: TrialSpec) -> float:
    """FLOPs of a whole run; NaN where they are not known: of commands, and of lost models."""
    return _engine_flops(spec) if spec.runner.get("name", ENGINE) == ENGINE else math.nan


@lru_cache(maxsize=256)
def _engine_flops(spec: TrialSpec) -> float:
    # It brings torch, which a study without trials does not need.
    from sweeper.engine.prepare import prepare

    try:
        return prepare(spec).flops()
    except Exception:  # a model of the user's own that is gone, or needs what is not here
        return math.nan


def keep_flops(folder: Path, specs: Iterable[TrialSpec]) -> None:
    """Keep the FLOPs of a run of each of `specs` for commands that import no class of a study's."""
    counted = try_json(StudyFolder(folder).flops)
    new = {spec.digest: flops_of(spec) for spec in {*specs} if spec.digest not in counted}
    if new := {key: flops for key, flops in new.items() if not math.isnan(flops)}:
        write_json(StudyFolder(folder).flops, counted | new)


def flops_in(folder: Path) -> Callable[[TrialSpec], float]:
    """`flops_of` for trials of the study in `folder`, by what it has kept."""
    counted = try_json(StudyFolder(folder).flops)

    # The file first: to count anew builds the model, by a class that may be a stranger's.
    def flops(spec: TrialSpec) -> float:
        known = counted.get(spec.digest)
        return float(known) if isinstance(known, int | float) else flops_of(spec)

    return flops
