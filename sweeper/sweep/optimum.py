"""What a study's search found, as a transfer, a check or an explanation starts from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sweeper.config.settings import Experiment, Settings
from sweeper.decide.validation import newest_validation
from sweeper.errors import BadInput, Call, ConfigError, Keyword, SweeperError
from sweeper.search.strategy import Conclusion
from sweeper.study.study import StudyRecord
from sweeper.sweep.experiment import changed_code
from sweeper.sweep.study_replay import Lookup, replay_search
from sweeper.trial import Log2Hps, Result, named


@dataclass(frozen=True, kw_only=True)
class SearchedOptimum:
    """A search's conclusion; `unfinished` is the number of its trials so far where more follow."""

    conclusion: Conclusion
    unfinished: int = 0


def searched_optimum(experiment: Experiment, study: StudyRecord) -> SearchedOptimum:
    """The study's conclusion; BadInput when it has no trial of this configuration."""
    settings = experiment.settings
    # Not from search.json: the results alone are the record, whatever happened to it.
    history, missing = replay_search(experiment, study.get)
    if not history.results:
        changed = changed_code(experiment, study)
        code = f" ({', '.join(changed)} changed since)" if changed else ""
        anew = [Keyword("new_setup")] if changed else []
        raise BadInput(
            f"the study {settings.name!r} has no finished trial of this configuration{code}: run ",
            Call("search", Keyword("study", settings.name), *anew),
            " with the same overrides first",
        )
    conclusion = settings.search.conclude(settings.space, history)
    if conclusion.untrained:
        raise SweeperError(f"{settings.name!r} has no optimum: {conclusion.untrained}")
    if not math.isfinite(conclusion.objective):
        raise SweeperError(
            f"every trial of {settings.name!r} diverged or failed: there is no optimum. Search "
            "anew, with lower values of parameterization.space.eta where they diverged"
        )
    return SearchedOptimum(conclusion=conclusion, unfinished=len(history.results) if missing else 0)


def finished(study: StudyRecord) -> Lookup:
    """Finds results that are measurements: what was stopped early or failed is none."""

    def lookup(key: str) -> Result | None:
        result = study.get(key)
        return result if result and result.status in ("complete", "diverged") else None

    return lookup


def planned_optimum(experiment: Experiment, study: StudyRecord) -> SearchedOptimum:
    """What the study plans with: the optimum of its search, with the eta of its ladder."""
    searched = searched_optimum(experiment, study)
    best = planned_before(experiment.settings, searched.conclusion.best_log2)
    return replace(searched, conclusion=replace(searched.conclusion, best_log2=best))


def planned_before(settings: Settings, best: Log2Hps) -> Log2Hps:
    """The hyperparameters that the study's latest verdict on the optimum `best` planned with."""
    if settings.transfer.eta is not None:
        return best
    # The newest: each verdict on this optimum was judged, and planned, with an eta of its own.
    log2_hps = named(settings.space, best)
    kept = newest_validation(settings.folder, lambda each: each.log2_hps == log2_hps)
    return Log2Hps({**best, "eta": kept.planned_log2}) if kept else best


def check_storage_password(settings: Settings) -> None:
    """BadInput when the study cannot be written because its storage's password was not kept."""
    if settings.storage is not None and "***" in settings.storage:
        raise ConfigError(
            "study.storage", settings.storage, "its password is not kept: give it again"
        )
