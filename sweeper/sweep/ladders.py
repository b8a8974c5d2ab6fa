"""Ladders trained and judged: curves by size, verdicts, the trend over width, a law's own fit."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from sweeper.config.compose import read_tree, to_yaml
from sweeper.config.settings import Experiment, Settings, check_seeds
from sweeper.decide.ladder_verdict import NoiseLeft, Verdict, missed_optimum
from sweeper.decide.settle import AT_FIRST, SEEDS, JudgedLadder, Settling
from sweeper.decide.target import Prior, prior_for
from sweeper.decide.trend import (
    MIN_TREND_SIZES,
    FittedExponents,
    Trend,
    fit_exponents,
    fit_trend,
    judge_with_target,
)
from sweeper.decide.validation import Beginning, Validation, newest_validation
from sweeper.errors import BadInput, ConfigError, Keyword, key_prefix
from sweeper.files import private_folder, write_json, write_summed
from sweeper.laws.law import NoLaw, is_of_ladders
from sweeper.stats.curve import CurveFit, fit_curves, with_noise_left
from sweeper.stats.ladder import JOINT_AXIS, LADDER_AXES, LADDER_KEYS, LadderSize, Size, SizeCurve
from sweeper.study.flops import keep_flops
from sweeper.study.folder import StudyFolder, TargetFolder, read_document
from sweeper.study.lock import StudyLock
from sweeper.study.runs_table import RULE
from sweeper.study.setup import LADDER_PHASE, Failure, failures_of, provenance, trials_of
from sweeper.study.study import StudyRecord
from sweeper.study.watcher import Watcher, Words
from sweeper.sweep.experiment import check_taken, progress_of, tell_speed, trial_seconds
from sweeper.sweep.optimum import finished
from sweeper.sweep.settled_ladder import SettledLadder, settle_ladder
from sweeper.sweep.study_replay import (
    Lookup,
    apply_law,
    describe_law,
    example_length,
    planned_log2,
    replay_ladder,
    scale_of,
    token_unit,
)
from sweeper.sweep.sweep import Sweep
from sweeper.trial import Log2Hps, PluginSpec, Result, defaults, named

MAX_TOKENS = 10**18
"""More is a slip of the pen."""


def target_size(
    experiment: Experiment, size: Size, tokens: float | None, batch: int | None
) -> Size:
    """The target with its batch and steps, where they are asked for; BadInput for what none has.

    To the nearest step, tokens = steps x batch x an example's length; else it is the base's.
    """
    if tokens is None and batch is None:
        return size
    base, length = experiment.settings.ladder_base, example_length(experiment) or 1
    taken = batch or base.batch_size
    asked = base.steps * base.batch_size * length if tokens is None else tokens
    # Typed as a float, so that 1e9 can be said; meant is a whole number.
    if not (math.isfinite(asked) and asked == int(asked) and asked <= MAX_TOKENS):
        raise ConfigError(Keyword("to_tokens"), tokens, f"a whole number of at most {MAX_TOKENS:g}")
    if asked < taken * length:
        unit = token_unit(experiment)
        step = f"{taken} x {length} tokens" if length > 1 else f"{taken} {unit}"
        raise ConfigError(
            Keyword("to_batch" if tokens is None else "to_tokens"),
            taken if tokens is None else int(asked),
            f"{int(asked):,} {unit} are less than one step of {step}",
        )
    steps = round(asked / (taken * length))
    target = LadderSize(width=size.width, depth=size.depth, batch_size=taken, steps=steps)
    check_taken(experiment.settings, asdict(target))
    return target


def check_law(experiment: Experiment, target: Size, best_log2: Log2Hps, *, validate: bool) -> None:
    """BadInput, before anything is trained, for a target that the law says nothing about."""
    settings = experiment.settings
    if not is_of_ladders(settings.law):
        apply_law(experiment, target, best_log2)
        return
    if settings.transfer.hyperparameter != "eta":
        hyperparameter = settings.transfer.hyperparameter
        raise BadInput(
            f"law=fit fits eta, and transfer.hyperparameter={hyperparameter}: leave one of them out"
        )
    ladders = settings.ladders()
    if validate and not {"batch_size", "steps", "size"} & set(ladders):
        base = settings.ladder_base.steps
        raise BadInput(
            "law=fit needs a ladder over steps or batch: add "
            f"transfer.steps=[{max(1, base // 2)},{base},{2 * base}], and likewise "
            "transfer.batches for another batch"
        )


def fit_law(
    experiment: Experiment, best_log2: Log2Hps, curves: Iterable[SizeCurve]
) -> tuple[Experiment, FittedExponents | None]:
    """The experiment with its law fitted to the curves of the base's width and depth, if it can."""
    settings = experiment.settings
    law: Any = settings.law
    if not is_of_ladders(law):
        return experiment, None
    base = settings.base
    pairs = [
        (scale_of(experiment, curve.size, best_log2), curve)
        for curve in curves
        # A law is of one model: curves of other sizes have a drift of their own.
        if (curve.size.width, curve.size.depth) == (base.width, base.depth)
    ]
    exponents = fit_exponents(pairs, best_log2["eta"])
    if exponents is None:
        return experiment, None
    fitted = replace(settings, law=law.fitted_to(exponents))
    return replace(experiment, settings=fitted), exponents


def fit_measured(
    experiment: Experiment, study: StudyRecord, best_log2: Log2Hps
) -> tuple[Experiment, FittedExponents | None]:
    """`fit_law` with the ladders that the study holds; BadInput where these are too few."""
    if not is_of_ladders(experiment.settings.law):
        return experiment, None
    base = experiment.settings.ladder_base
    spans = {
        (spec.train.batch_size, spec.train.steps)
        for spec in (r.trial.spec for r in study.results() if r.trial.phase == "validate")
        if (spec.width, spec.depth) == (base.width, base.depth)
    }
    curves = []
    for batch, steps in sorted(spans):
        size = replace(base, batch_size=batch, steps=steps)
        (curve,), _, missing = replay_ladder(experiment, best_log2, [size], finished(study))
        # A curve with a hole is none: its optimum may lie in it.
        curves += [] if missing else [curve]
    fitted, exponents = fit_law(experiment, best_log2, curves)
    if exponents is None:
        raise BadInput(
            f"law=fit needs the curves of {MIN_TREND_SIZES} sizes or more that differ in steps or "
            f"batch, each with its optimum inside, and this study has {len(curves)} measured ones "
            "for these settings: add ",
            Keyword("validate"),
            " with transfer.steps=[...] or transfer.batches=[...], "
            "or repeat the transfer.* settings that they were measured with",
        )
    return fitted, exponents


def law_spec(settings: Settings) -> PluginSpec | None:
    """Which law verdicts are judged by; None without one."""
    return None if isinstance(settings.law, NoLaw) else settings.plugin_spec("law")


@dataclass(frozen=True, kw_only=True)
class Settle:
    """Ladders are trained until they are settled, with at most `budget` runs, or `hours`.

    None: three times the runs of the fixed design, and any time. Hours are those of the runs,
    as many as are trained at a time.
    """

    budget: int | None = None
    hours: float | None = None


def settling_of(
    experiment: Experiment,
    study: StudyRecord,
    best: Log2Hps,
    target: Size,
    folder: Path,
    settle: Settle,
    lookup: Lookup,
    wording: Words,
) -> SettledLadder:
    """The ladders as they stand; ConfigError where the hours have no room for their beginning."""
    settings = experiment.settings
    name, files = settings.transfer.hyperparameter, TargetFolder(folder)
    earlier = read_document(files.validation_of(name), Validation, [])
    judge = LadderJudge(experiment, best, target, earlier, wording)
    begun_with = read_document(files.settling_of(name), Beginning, [])
    ladder = settle_ladder(
        experiment,
        best,
        lookup,
        judge.looks,
        settle.budget,
        settle.hours,
        done=study.results(),
        began_with=None if begun_with is None else begun_with.keys,
    )
    # Once one of its own has ended, it goes on to its end: the time that runs take is known then.
    if settle.hours is not None and not ladder.goes_on:
        timed = trial_seconds(settings, study.results())
        check_hours(settle.hours, [timed.of(trial) for trial in ladder.trials()], ladder.slots)
    return ladder


def check_hours(
    hours: float | None, seconds: Sequence[float], slots: int, begin: str = "these ladders begin"
) -> None:
    """ConfigError for hours with no room for the first runs, by what others took."""
    needed = math.fsum(seconds) / slots / 3600
    if hours is not None and needed > hours:
        least = math.ceil(1000 * needed) / 1000 if needed < 1 else math.ceil(10 * needed) / 10
        allowed = (
            f"at least {least:g}h, which the {len(seconds)} runs with which {begin} "
            "take by what runs took so far"
        )
        raise ConfigError(Keyword("budget"), f"{hours:g}h", allowed)


def check_ladders(experiment: Experiment, settle: Settle | None = None) -> None:
    """BadInput for nothing to judge, too small a budget, or too little data for a batch."""
    settings = experiment.settings
    ladders = settings.ladders()
    if not ladders:
        raise BadInput(
            Keyword("validate"),
            " has no ladder to train: give transfer.widths, depths, batches, steps "
            "or sizes at least one value that is not the base's",
        )
    if settle is not None:  # it refuses a budget with which it cannot begin
        rule, base, budget = settings.transfer, settings.ladder_base, settle.budget
        Settling(rule, ladders, base, lambda *_: None, lambda *_: [], budget=budget)
    check_seeds(settings, "transfer.seeds", settings.transfer.seeds if settle is None else SEEDS)
    for size in (size for ladder in ladders.values() for size in ladder):
        check_taken(settings, asdict(size))
        with key_prefix("runner"):  # an expression of a command may have no value at a size
            trial = experiment.trial(size, defaults(settings.space), 0, "check")
            settings.runner.argv(trial, settings.folder)
    for axis, key in (("batch_size", "batches"), (JOINT_AXIS, "sizes")):
        for size in ladders.get(axis, ()):
            try:
                experiment.corpus.check(size.batch_size, settings.raw["train"]["seq_len"])
            except BadInput as error:
                raise BadInput(f"transfer.{key}: ", *error.args) from error


@dataclass(frozen=True, kw_only=True)
class Validated:
    """What the ladders say: a verdict an axis, eta's trend over width, and a law fitted to them.

    `experiment` has that law where it could be fitted. `planned` are the hyperparameters to plan
    with (log2): the search's, but for an eta that the base's own curve shows to be wrong there.
    """

    experiment: Experiment
    planned: Log2Hps
    verdicts: Sequence[Verdict] = ()
    trend: Trend | None = None
    exponents: FittedExponents | None = None
    trained: Trained | None = None

    @property
    def settled(self) -> str:
        """Says with how many runs the ladders were settled, or why they were not."""
        return self.trained.record.settled if self.trained else ""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What was trained to judge ladders: the `record` of curves and verdicts, and all `runs`.

    `kept` are the runs of this record and of the earlier one, where that stays as it rests on more.
    `notices` are what the study and damaged records have to tell.
    """

    record: Validation
    runs: Sequence[Result]
    failures: Sequence[Failure]
    notices: Sequence[str] = ()
    kept: tuple[int, int] | None = None


def validate(
    experiment: Experiment,
    best: Log2Hps,
    target: Size,
    folder: Path,
    watcher: Watcher,
    settle: Settle | None = None,
    *,
    wait: bool = True,
) -> Validated:
    """Train the ladders around `best` and judge them; without `wait`, Submitted once jobs queue."""
    settings, rule, start = experiment.settings, experiment.settings.transfer, time.time()
    ladders: Mapping[str, Sequence[LadderSize]] = settings.ladders()
    files = TargetFolder(folder)
    path = files.validation_of(rule.hyperparameter)
    notices: list[str] = []
    earlier = read_document(path, Validation, notices)
    # The base is on every ladder, and trained once.
    sizes = sorted({size for ladder in ladders.values() for size in ladder})
    ladder_judge = LadderJudge(experiment, best, target, earlier, watcher)
    confidence = AT_FIRST
    with StudyLock(settings.folder), StudyRecord.open(settings.folder, settings.storage) as study:
        planned = len(sizes) * rule.points_per_line() * rule.seeds
        planned, results = 0 if settle else planned, study.results()
        runs_before = _of_ladders(study)
        _keep_ladder(settings)
        # Now, while the study's classes are imported: a page that is read meanwhile imports none.
        keep_flops(settings.folder, map(experiment.spec, sizes))
        with progress_of(
            settings, watcher, "validate", planned, results=results, kept=runs_before
        ) as bar:
            sweep = Sweep(experiment, study, bar, wait=wait)
            if settle is None:
                curves = {c.size: c for c in sweep.ladder(best, sizes)}
                by_axis = {
                    axis: [curves[size] for size in of_axis] for axis, of_axis in ladders.items()
                }
            else:
                settling = settling_of(
                    experiment, study, best, target, folder, settle, sweep.lookup, watcher
                )
                # Before any is trained: a command that goes on begins with the same.
                beginning = Beginning(keys=tuple(settling.began_with))
                write_json(files.settling_of(rule.hyperparameter), beginning)
                sweep.settle(
                    settling, lambda: bar.announce(watcher.sentence(settling), settling.likely)
                )
                by_axis, confidence = settling.by_axis(), settling.looks[-1].confidence
        notices += study.notices
        failures = failures_of(study.results(), settings.identity)
        ladder_runs = _of_ladders(study)
        tell_speed(watcher, study.results(), since=start)
    judged = ladder_judge.judged(by_axis, confidence)
    exponents = judged.exponents
    record = Validation(
        hyperparameter=rule.hyperparameter,
        log2_hps=named(settings.space, best),
        planned_log2=judged.planned[rule.hyperparameter],
        axes=tuple(judged.verdicts),
        trend=judged.trends.get("width"),
        curves=judged.every,
        law=law_spec(settings),
        exponents=tuple(exponents.exponents) if exponents else (),
        settled="" if settle is None else watcher.sentence(settling.ending),
        needed=settling.ending.needed if settle and settling.ending else 0,
        rule=_rule(settings),
        command=provenance()["command"],
    )
    kept = None
    if settle is not None and earlier is not None and _rests_on_less(record, earlier):
        kept = (_runs(record), _runs(earlier))
        # With its plan, and what it says of trend and law.
        record = replace(earlier, settled=record.settled, needed=record.needed)
    write_json(path, _with_earlier(record, earlier))
    trained = Trained(
        record=record, runs=ladder_runs, failures=failures, notices=notices, kept=kept
    )
    return _validated(judged, trained)


def _validated(judged: JudgedLadders, trained: Trained) -> Validated:
    record, name = trained.record, trained.record.hyperparameter
    return Validated(
        experiment=judged.experiment,
        planned=Log2Hps({**judged.planned, name: record.planned_log2}),
        verdicts=[verdict for verdict in record.axes if verdict.axis in judged.curves],
        # `transfer.correct` moves eta, and nothing else.
        trend=record.trend if name == "eta" else None,
        exponents=judged.exponents,
        trained=trained,
    )


def judged_before(
    experiment: Experiment, best: Log2Hps, target: Size, folder: Path, wording: Words
) -> Validated | None:
    """What ladders that were judged for another target say of this one, which has no verdict yet.

    None where none was, of the same hyperparameters by the same law and rule. The verdict is
    written into the target's `folder`.
    """
    settings, path = experiment.settings, TargetFolder(folder).validation
    same = (named(settings.space, best), law_spec(settings), _rule(settings))
    other = newest_validation(settings.folder, lambda v: (v.log2_hps, v.law, v.rule) == same)
    if other is None or path.exists() or settings.transfer.hyperparameter != "eta":
        return None
    by_axis = {verdict.axis: other.ladder(verdict.axis) for verdict in other.axes}
    ladder_judge = LadderJudge(experiment, best, target, other, wording)
    judged = ladder_judge.judged(by_axis, other.axes[0].confidence)
    record = replace(other, axes=tuple(judged.verdicts), trend=judged.trends.get("width"))
    apply_law(judged.experiment, target, judged.planned)  # it may refuse the target
    private_folder(folder)
    write_json(path, record)
    return _validated(judged, Trained(record=record, runs=(), failures=()))


def _rule(settings: Settings) -> dict[str, float]:
    return {key: float(getattr(settings.transfer, key)) for key in RULE}


def _keep_ladder(settings: Settings) -> None:
    """Keep eta's ladders in the study's configuration, for later commands.

    Not that there be none along an axis, which leaves out what is settled already; nor two widths
    that nobody typed, which are for this target alone.
    """
    rule, path = settings.transfer, StudyFolder(settings.folder).config
    asked = settings.raw["transfer"] | {"seeds": rule.seeds, "step": rule.step}
    if len(rule.widths) > 2:
        asked["widths"] = [*rule.widths]
    tree = read_tree(path, ())
    kept = tree["transfer"]
    keys = [key for key in (*LADDER_KEYS, "extend") if asked.get(key) not in (None, [])]
    tree["transfer"] = kept | {key: asked[key] for key in keys}
    if rule.hyperparameter == "eta" and tree["transfer"] != kept:
        write_summed(path, to_yaml(tree))


def _of_ladders(study: StudyRecord) -> list[Result]:
    return [run for run in trials_of(study).current if run.trial.phase == LADDER_PHASE]


@dataclass(frozen=True, kw_only=True)
class JudgedLadders:
    """What curves say: `experiment` has a law that was fitted to them, `planned` the plan's hps."""

    experiment: Experiment
    planned: Log2Hps
    curves: Mapping[str, Sequence[SizeCurve]]
    fits: Mapping[str, Mapping[LadderSize, CurveFit | None]]
    verdicts: list[Verdict]
    trends: Mapping[str, Trend | None]
    exponents: FittedExponents | None

    @property
    def every(self) -> tuple[SizeCurve, ...]:
        """The curves of all ladders by size, the base's but once."""
        by_size = {curve.size: curve for curves in self.curves.values() for curve in curves}
        return tuple(by_size[size] for size in sorted(by_size))


@dataclass(frozen=True)
class LadderJudge:
    """Judges ladders around `best` for a `target`; `earlier` is the verdict that its folder has."""

    experiment: Experiment
    best: Log2Hps
    target: Size
    earlier: Validation | None
    wording: Words

    def looks(
        self, by_axis: Mapping[str, Sequence[SizeCurve]], confidence: float
    ) -> list[JudgedLadder]:
        """What ladders that are not whole yet say."""
        judged = self.judged(by_axis, confidence)
        return [
            JudgedLadder(verdict=verdict, fits=judged.fits[verdict.axis])
            for verdict in judged.verdicts
        ]

    def judged(
        self, by_axis: Mapping[str, Sequence[SizeCurve]], confidence: float
    ) -> JudgedLadders:
        """The verdicts, an axis each, with their answers at the target."""
        best, base = self.best, self.experiment.settings.ladder_base
        every = {curve.size: curve for curves in by_axis.values() for curve in curves}
        experiment, exponents = fit_law(self.experiment, best, every.values())
        settings, rule = experiment.settings, experiment.settings.transfer
        name = rule.hyperparameter
        if exponents is not None:
            # A curve has the place of its planned value relative to the base's. law=fit is known
            # only now, from these very curves: where it puts each size is filled in after the fact.
            for size, curve in every.items():
                there = planned_log2(experiment, size, best)[name]
                every[size] = replace(curve, planned_log2=there - best[name])
        curves = {axis: [every[c.size] for c in of_axis] for axis, of_axis in by_axis.items()}
        hps, note = _planned(settings, curves, best, self.earlier, self.wording)
        runs = {len(losses) for curve in every.values() for losses in curve.losses.values()}
        if rule.seeds == 1 and runs == {1}:  # as of a table with one run a cell
            noisy = {curve.size: curve for curve in with_noise_left([*every.values()])}
            curves = {axis: [noisy[c.size] for c in of_axis] for axis, of_axis in curves.items()}
            levels = [curve.noise.deviation for curve in noisy.values() if curve.noise]
            noise = NoiseLeft(low=min(levels), high=max(levels)) if levels else None
            note = ". Also, ".join(filter(None, (note, self.wording.sentence(noise))))
        centre = hps[name]
        # What the target does not name is the base's.
        sizes_named = {key: value for key, value in asdict(self.target).items() if value}
        whole = replace(base, **sizes_named)
        verdicts, trends = list[Verdict](), dict[str, Trend | None]()
        fits = {axis: fit_curves(of_axis, centre) for axis, of_axis in curves.items()}
        for axis, of_axis in curves.items():
            law = describe_law(experiment, [curve.size for curve in of_axis], best)
            verdict, trend = judge_with_target(
                *(axis, of_axis, fits[axis], centre, base, rule, _prior(settings, axis), whole),
                law=law,
                confidence=confidence,
                fixed=settings.not_taken,
            )
            # The base's own size asks for no extrapolation; the trend is shown all the same.
            if axis != JOINT_AXIS:
                trends[axis] = trend and self.wording.worded(trend)
            verdicts.append(self.wording.worded(verdict).with_note(note))
        return JudgedLadders(
            experiment=experiment,
            planned=hps,
            curves=curves,
            fits=fits,
            verdicts=verdicts,
            trends=trends,
            exponents=exponents,
        )


def _with_earlier(record: Validation, earlier: Validation | None) -> Validation:
    """The record with what an earlier command judged on other ladders, where that still holds.

    It does for the same hyperparameters, planned by the same law; what both judged is the record's.
    """
    same = attrgetter("hyperparameter", "log2_hps", "law", "planned_log2")
    if earlier is None or same(earlier) != same(record):
        return record
    axes = {verdict.axis: verdict for verdict in (*earlier.axes, *record.axes)}
    by_size = {curve.size: curve for curve in (*earlier.curves, *record.curves)}
    return replace(
        record,
        axes=tuple(axes.values()),
        curves=tuple(by_size.values()),
        trend=record.trend or earlier.trend,
    )


def _runs(validation: Validation) -> int:
    return sum(len(losses) for curve in validation.curves for losses in curve.losses.values())


def _rests_on_less(record: Validation, earlier: Validation) -> bool:
    """Whether all curves of a record are `earlier`'s, with fewer runs, for the same plan."""
    same = attrgetter("hyperparameter", "log2_hps", "law")
    axes = {verdict.axis for verdict in record.axes}
    if same(earlier) != same(record) or any(earlier.over(axis) is None for axis in axes):
        return False
    there = {curve.size: curve.losses for curve in earlier.curves}
    contained = all(
        losses == there.get(curve.size, {}).get(eta, ())[: len(losses)]
        for curve in record.curves
        for eta, losses in curve.losses.items()
    )
    return contained and _runs(record) < _runs(earlier)


def _prior(settings: Settings, axis: str) -> Prior:
    parameterization = settings.plugin_spec("parameterization").name
    eta = settings.transfer.hyperparameter == "eta"
    return prior_for(axis if eta else "", parameterization, settings.transfer.theory)


def _planned(
    settings: Settings,
    ladders: Mapping[str, Sequence[SizeCurve]],
    best: Log2Hps,
    earlier: Validation | None,
    wording: Words,
) -> tuple[Log2Hps, str]:
    """The hyperparameters to plan with, and a note where they are not those of the search.

    The base's optimum is that of the ladder over width, or of the first, so that table, note and
    plan say the same. The ladders of an `earlier` verdict were judged with its eta: while that is
    good enough, it stays. An eta that the user gave stays too: the verdict says what it loses.
    """
    rule = settings.transfer
    curves = ladders.get("width") or next(iter(ladders.values()))
    base = next(curve for curve in curves if curve.size == settings.ladder_base)
    if rule.hyperparameter != "eta" or rule.eta is not None or base.failed:
        return best, ""
    fit = fit_curves(curves, best["eta"])[settings.ladder_base]
    missed = missed_optimum(fit, best["eta"], rule)
    if missed is None:
        return best, ""
    cause = "the search had fewer runs there, or tuning the other hyperparameters moved the optimum"
    if earlier is not None and earlier.log2_hps == named(settings.space, best):
        others = {verdict.axis for verdict in earlier.axes} - set(ladders)
        kept = earlier.planned_log2
        again = fit_curves(curves, kept)[settings.ladder_base]
        if others and missed_optimum(again, kept, rule) is None:
            keeps = f"the plan keeps 2^{kept:.2f} of the ladders before: {cause}"
            note = f"{wording.sentence(missed)}; {keeps}"
            return Log2Hps({**best, "eta": kept}), note
    note = f"{wording.sentence(missed)}, with which the plan is made: {cause}"
    return Log2Hps({**best, "eta": missed.optimum_log2}), note


@dataclass(frozen=True, kw_only=True)
class StaleVerdict:
    """A verdict that was removed, as it was `of_law` another than a plan's, or other numbers."""

    name: str
    of_law: bool


def remove_stale_verdicts(settings: Settings, best: Log2Hps, folder: Path) -> list[StaleVerdict]:
    """Remove verdicts in a target's `folder` on other hyperparameters or another law than a plan's.

    A page must not show a plan beside a verdict on another. The verdicts' trials stay in the study,
    so validating the other plan again trains nothing.
    """
    log2_hps, law = named(settings.space, best), law_spec(settings)
    removed = []
    for path in TargetFolder(folder).validations:
        judged = read_document(path, Validation, [])
        if judged is None or (judged.log2_hps == log2_hps and judged.law == law):
            continue
        for axis in (*LADDER_AXES, JOINT_AXIS):
            for suffix in ("png", "svg"):
                (folder / f"{curves_stem(path)}-{axis}.{suffix}").unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        removed.append(StaleVerdict(name=path.name, of_law=judged.log2_hps == log2_hps))
    return removed


def curves_stem(record: Path) -> str:
    """What the pictures of a verdict's `record` are called, but for the axis."""
    return record.stem.replace("validation", "curves", 1)


def measured_trend(
    experiment: Experiment, study: StudyRecord, best: Log2Hps, planned: Log2Hps, target: int
) -> Trend | None:
    """The trend over width when the study has measured its whole ladder already, else None."""
    settings = experiment.settings
    if settings.transfer.hyperparameter != "eta":
        return None
    sizes: Sequence[LadderSize] = settings.ladders().get("width", ())
    curves, _, missing = replay_ladder(experiment, best, sizes, finished(study))
    prior = _prior(settings, "width")
    return None if missing else fit_trend("width", curves, planned["eta"], target, prior)
