"""A transfer's target: what can be asked of it, what its plan is made of, what no ladder shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sweeper import schedule
from sweeper.config.settings import Experiment, Settings
from sweeper.decide.ladder_verdict import Verdict
from sweeper.decide.trend import MIN_TREND_SIZES
from sweeper.errors import ConfigError, Keyword
from sweeper.laws.law import NoLaw
from sweeper.plan.plan import TransferPlan, make_plan, own_plan
from sweeper.records import to_json
from sweeper.search.strategy import Conclusion
from sweeper.stats.ladder import JOINT_AXIS, LADDER_AXES, LadderSize, Size, extent
from sweeper.study.folder import StudyFolder
from sweeper.study.setup import provenance
from sweeper.study.study import StudyRecord
from sweeper.study.watcher import Words
from sweeper.sweep.ladders import (
    Settle,
    Validated,
    check_ladders,
    check_law,
    fit_measured,
    measured_trend,
    target_size,
)
from sweeper.sweep.optimum import SearchedOptimum, planned_before, searched_optimum
from sweeper.sweep.study_replay import after_law, apply_law
from sweeper.trial import Log2Hps, defaults, in_use, plain


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """What is asked of a target, beside its width and depth; `validate`: by ladders."""

    tokens: float | None = None
    batch: int | None = None
    validate: bool = False
    settle: Settle | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedSteps:
    """Steps of a target and of its ladders' sizes, where these follow from their parameters."""

    target: int
    shortest: int
    longest: int


@dataclass(frozen=True, kw_only=True)
class TransferTarget:
    """A target: its size, with batch and steps where these are its own, and the study's optimum."""

    size: Size
    study: StudyRecord
    optimum: SearchedOptimum
    spans: PlannedSteps | None = None

    @property
    def conclusion(self) -> Conclusion:
        """What the search found, eta as `transfer.eta` has it."""
        return self.optimum.conclusion

    @property
    def best(self) -> Log2Hps:
        """The hyperparameters to transfer."""
        return self.optimum.conclusion.best_log2


def target_of(experiment: Experiment, size: Size, asked: TargetOptions) -> TransferTarget:
    """The whole target; BadInput for what cannot be asked of it, or of the study."""
    settings, spans = experiment.settings, None
    timed = settings.with_steps(replace(settings.ladder_base, width=size.width, depth=size.depth))
    if settings.steps_of is not None:
        steps = {s.steps for sizes in settings.ladders().values() for s in sizes} or {timed.steps}
        spans = PlannedSteps(target=timed.steps, shortest=min(steps), longest=max(steps))
    if settings.steps_of is None or isinstance(settings.law, NoLaw):
        size = target_size(experiment, size, asked.tokens, asked.batch)
    else:  # a law is asked about the steps, too
        size = target_size(experiment, timed, asked.tokens, asked.batch)
    check_law(experiment, size, defaults(settings.space), validate=asked.validate)
    if asked.validate:
        check_ladders(experiment, asked.settle)
    study = StudyRecord.read(settings.folder)
    searched = searched_optimum(experiment, study)
    if settings.transfer.eta is not None:
        best = Log2Hps({**searched.conclusion.best_log2, "eta": settings.transfer.eta})
        searched = replace(searched, conclusion=replace(searched.conclusion, best_log2=best))
    return TransferTarget(size=size, study=study, optimum=searched, spans=spans)


def target_folder(settings: Settings, size: Size) -> Path:
    """The target's folder."""
    # The target's batch and steps are named where they are others.
    base, name = settings.ladder_base, f"w{size.width}-d{size.depth}"
    if isinstance(size, LadderSize) and (size.batch_size, size.steps) != (
        base.batch_size,
        base.steps,
    ):
        name += f"-b{size.batch_size}-s{size.steps}"
    return StudyFolder(settings.folder).target(name).path


def as_measured(experiment: Experiment, target: TransferTarget, wording: Words) -> Validated:
    """What the study's ladders say, no verdict; ConfigError for a trend that they do not show."""
    settings, study, best = experiment.settings, target.study, target.best
    experiment, exponents = fit_measured(experiment, study, best)
    planned = planned_before(settings, best)
    trend = measured_trend(experiment, study, best, planned, target.size.width)
    if settings.transfer.correct and trend is None:
        raise ConfigError(
            "transfer.correct",
            True,
            (
                *("it needs the optima of at least two widths: add ", Keyword("validate"), ", "),
                f"and give {MIN_TREND_SIZES} widths or more, as in transfer.widths=[32,64,128]",
            ),
        )
    trend = trend and wording.worded(trend)
    return Validated(experiment=experiment, planned=planned, trend=trend, exponents=exponents)


def plan_target(target: TransferTarget, ladders: Validated, folder: Path) -> TransferPlan:
    """The plan at the transferred eta, or where `transfer.correct` asks at the trend's."""
    size, conclusion = target.size, target.conclusion
    experiment, trend, best_log2 = ladders.experiment, ladders.trend, ladders.planned
    settings = experiment.settings
    origin = "the study" if settings.transfer.eta is None else "transfer.eta"
    if best_log2 != conclusion.best_log2:
        origin = "the base's curve on the ladder"
    correction = None
    if settings.transfer.correct and trend is not None and trend.warranted:
        best_log2 = Log2Hps({**best_log2, "eta": trend.predicted_log2.value})
        origin = "the trend over width"
        correction = to_json(trend)
    source = {
        "study": settings.name,
        "search": settings.plugin_spec("search").name,
        "objective": conclusion.objective,
        "error": conclusion.error,
        "runs": conclusion.runs,
        "seeds": conclusion.seeds,
        "fresh_seeds": conclusion.fresh_seeds,
        "eta_from": origin,
        "correction": correction,
        "validation": [
            {
                "axis": verdict.axis,
                "ladder": f"{verdict.answer} at "
                + extent(verdict.axis, [size.size for size in verdict.sizes]),
                "target": verdict.target and verdict.target.answer,
                "sentence": verdict.target.sentence if verdict.target else "",
            }
            for verdict in ladders.verdicts
        ]
        or None,
        "data": experiment.corpus.identity(),
        "model": asdict(settings.plugin_spec("model")),
        **provenance(),
    }
    law = apply_law(experiment, size, best_log2)
    # The target's command gets what the law plans; the plan itself applies the law to `best_log2`.
    planned = best_log2 if law is None else after_law(experiment, law, best_log2)
    if isinstance(timed := settings.timed(size), LadderSize) and timed is not size:
        size = timed
        source["tokens_per_parameter"] = settings.transfer.tokens_per_parameter
        source["steps"] = timed.steps
    trial = experiment.trial(size, planned, 0, "target")
    trained = trial.train
    takes = any(map(settings.runner.takes, schedule.PLACEHOLDERS))
    source["schedule"] = schedule.record(trained.schedule, trained.span) if takes else schedule.OWN
    model = Size(width=size.width, depth=size.depth)
    if command := settings.runner.argv(trial, folder.absolute(), write=True):
        source["target_command"] = command
    if settings.scaled_by_user:
        hps = in_use(settings.space, planned)
        return own_plan(settings.base, model, hps, source, law)
    prepared = experiment.prepared(size)
    return make_plan(prepared, settings.base, model, plain(best_log2), source, law)


@dataclass(frozen=True, kw_only=True)
class Unvalidated:
    """A target that differs from the base along an axis that no verdict's ladder changes."""

    axis: str
    target: int
    base: int


def unvalidated(settings: Settings, target: Size, verdicts: Sequence[Verdict]) -> list[Unvalidated]:
    """The axes of which the verdicts say nothing, though the target is another there."""
    axes = []
    for axis in LADDER_AXES:
        base = getattr(settings.ladder_base, axis)
        # A plain Size has no batch and no steps: then they are the base's.
        asked = getattr(target, axis, base)
        ladders = (verdict.sizes for verdict in verdicts if verdict.axis in (axis, JOINT_AXIS))
        if axis == "steps" and settings.steps_of is not None:
            continue  # every ladder changes them, as the target does
        if asked != base and all(getattr(s.size, axis) == base for sizes in ladders for s in sizes):
            axes.append(Unvalidated(axis=axis, target=asked, base=base))
    return axes
