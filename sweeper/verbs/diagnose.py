"""Why a transfer fails: short ladders that differ in one thing."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from sweeper.config.command_line import of_study
from sweeper.config.settings import Experiment, Settings, resolve
from sweeper.config.studies import Invocation, split_root, study_tree
from sweeper.decide.diagnosis import (
    ABLATIONS,
    Ablation,
    AblationResult,
    Diagnosis,
    FailedTransfer,
    HeadScale,
    applicable_ablations,
    distance_to_divergence,
    has_eps,
    judge_ablation,
    rank,
)
from sweeper.decide.transfer import Answer, SizeVerdict, Verdict, judge_ladder
from sweeper.decide.validation import newest_validation
from sweeper.errors import ConfigError, Keyword, suggest
from sweeper.files import private_folder, write_json
from sweeper.plan.explain import Explained, explain
from sweeper.plan.plan import PlannedParameter, make_plan
from sweeper.records import to_json
from sweeper.stats.ladder import LadderSize, Size, SizeCurve
from sweeper.study.cost import NOTHING, Cost
from sweeper.study.flops import flops_of, keep_flops
from sweeper.study.folder import StudyFolder
from sweeper.study.lock import StudyLock, cancel_requested
from sweeper.study.setup import Failure, failures_of
from sweeper.study.study import Study, find_study
from sweeper.study.watcher import ProgressDisplay, Watcher, Words
from sweeper.sweep.experiment import (
    open_experiment,
    progress_of,
    resolve_study,
    run_time,
    short_run,
    tell_speed,
)
from sweeper.sweep.optimum import check_storage_password, finished, optimum
from sweeper.sweep.replay import Missing, replay_ladder
from sweeper.sweep.sweep import Sweep, measure_trials
from sweeper.trial import Log2Hps, PluginSpec, plain
from sweeper.verbs.answer import VerbAnswer
from sweeper.verbs.requests import DiagnoseRequest


@dataclass(frozen=True, kw_only=True)
class DiagnosisAnswer(VerbAnswer):
    """Why a transfer fails, in `record`; `unfinished` trials of a search that is not at its end."""

    settings: Settings
    invocation: Invocation
    diagnosis: Diagnosis
    record: Path
    failures: Sequence[Failure]
    unfinished: int


@dataclass(frozen=True, kw_only=True)
class DiagnosisCostAnswer(VerbAnswer):
    """What a diagnosis would train at most: the transfer as it is, and what is changed.

    `verdict` is that of the transfer, where its runs are there.
    """

    settings: Settings
    invocation: Invocation
    axis: str
    only: Sequence[str]
    large: Size
    as_it_is: Cost
    changes: Sequence[tuple[str, Cost]]
    verdict: Verdict | None
    unfinished: int


def diagnose(request: DiagnoseRequest, watcher: Watcher) -> VerbAnswer:
    """Find out why the transfer over an axis fails, by short ladders that differ in one thing."""
    axis = request.over
    if axis not in ("width", "depth"):
        raise ConfigError(Keyword("over"), axis, "width or depth")
    name, others = of_study(request.overrides, request.study, request.root)
    ladder = _judged_ladder(name, others, axis, watcher)
    tree, invocation = study_tree(name, [*others, *ladder], request.config_dir, trust=request.trust)
    for ablation in request.only:
        if ablation not in ABLATIONS:
            allowed = f"there is no such ablation; {suggest(ablation, ABLATIONS)}"
            raise ConfigError(Keyword("only"), ablation, allowed)
    settings = resolve_study(tree, invocation)
    large, study = _large(settings, axis), Study.read(settings.folder)

    def pair_of(cache: Path | None = None) -> tuple[TwoSizes, int]:
        experiment = open_experiment(settings, cache)
        found = optimum(experiment, study)
        best = found.conclusion.best_log2
        if settings.transfer.eta is not None:
            # As `transfer` does: what is diagnosed is the transfer of this very eta.
            best = Log2Hps({**best, "eta": settings.transfer.eta})
        pair = TwoSizes(
            experiment=experiment, best_log2=best, axis=axis, large=large, words=watcher
        )
        return pair, found.unfinished

    if request.dry_run:
        with TemporaryDirectory() as temporary:
            pair, unfinished = pair_of(Path(temporary))
            as_it_is, changes, verdict = _cost(pair, study, request.only)
        return DiagnosisCostAnswer(
            notes=tuple((notice,) for notice in study.notices),
            settings=settings,
            invocation=invocation,
            axis=axis,
            only=request.only,
            large=large,
            as_it_is=as_it_is,
            changes=changes,
            verdict=verdict,
            unfinished=unfinished,
        )
    check_storage_password(settings)
    (pair, unfinished), files = pair_of(), StudyFolder(settings.folder)
    private_folder(files.transfer)  # before hours of work, not after
    start = time.time()
    with StudyLock(settings.folder), Study.open(settings.folder, settings.storage) as opened:
        # One ladder of two sizes: what is needed beyond follows from it.
        planned = 2 * settings.transfer.points_per_line() * settings.transfer.seeds
        known = opened.results()
        with progress_of(settings, watcher, "diagnose", planned, known=known) as progress:
            diagnosed = AblationTrainer(pair, opened, progress).diagnose(request.only, watcher)
        results = opened.results()
        tell_speed(watcher, results, since=start)
    record = files.diagnosis(axis)
    write_json(record, to_json(diagnosed))
    keep_flops(settings.folder, {result.trial.spec for result in results})
    notices = dict.fromkeys([*study.notices, *opened.notices])
    return DiagnosisAnswer(
        notes=tuple((notice,) for notice in notices),
        settings=settings,
        invocation=invocation,
        diagnosis=diagnosed,
        record=record,
        failures=failures_of(results, settings.identity),
        unfinished=unfinished,
    )


def _judged_ladder(
    study: str | None, overrides: Sequence[str], axis: str, watcher: Watcher
) -> list[str]:
    """Overrides for the ladder of the study's newest verdict over `axis`, whose runs there are.

    Empty where the user's own say which ladder, or where there was none.
    """
    root, others = split_root(overrides)
    if any(word.lstrip("+").startswith(("transfer.", "law")) for word in others):
        return []
    folder = root / find_study(study, root)
    newest = newest_validation(folder, lambda each: each.over(axis) is not None)
    words = newest.ladder_words() if newest else []
    if words:
        watcher.tell(f"The ladder is that of the verdict: {shlex.join(words)}")
    return words


def _large(settings: Settings, axis: str) -> Size:
    """The largest size of the ladder; ConfigError for a transfer that cannot be diagnosed."""
    if settings.transfer.hyperparameter != "eta":
        raise ConfigError(
            "transfer.hyperparameter", settings.transfer.hyperparameter, "eta, when it is diagnosed"
        )
    # Sizes, not ladder sizes: an ablation may change the batch size and the steps.
    ladder_sizes = settings.ladders().get(axis, [])
    ladder = [Size(width=size.width, depth=size.depth) for size in ladder_sizes]
    if len(ladder) < 2 or ladder[-1] == settings.base:
        raise ConfigError(
            f"transfer.{axis}s",
            list(getattr(settings.transfer, f"{axis}s")),
            f"a size beyond the base, {settings.base}",
        )
    return ladder[-1]


def _cost(
    pair: TwoSizes, study: Study, only: Sequence[str]
) -> tuple[Cost, list[tuple[str, Cost]], Verdict | None]:
    """What the transfer as it is lacks, and every change; and the verdict where nothing lacks."""
    base, changes = pair.experiment.settings.base, list[tuple[str, Cost]]()
    a_run = {size: _run_cost(pair.experiment, size, study) for size in (base, pair.large)}

    def lacking(experiment: Experiment, sizes: Sequence[Size]) -> tuple[Cost, list[SizeCurve]]:
        curves, cost = list[SizeCurve](), NOTHING
        for size in sizes:
            [curve], _, missing = replay_ladder(experiment, pair.best_log2, [size], finished(study))
            count, (flops, seconds) = len(missing), a_run[size]
            cost += Cost(trials=count, flops=count * flops, seconds=count * seconds)
            curves.append(curve)
        return cost, curves

    # Which changes apply follows from the verdict; without it only the first part has a cost.
    as_it_is, curves = lacking(pair.experiment, [base, pair.large])
    verdict = None if as_it_is.trials else pair.judge(curves)
    if verdict is not None and verdict.answer == "fails":
        for ablation in applicable_ablations(pair.situation(curves, UNKNOWN_EPS), only):
            if not pair.untaken(ablation):
                with suppress(ConfigError):  # a change that this model or search cannot have
                    changed = pair.changed(ablation)
                    changes.append((ablation.name, lacking(changed, pair.sizes(changed))[0]))
    return as_it_is, changes, verdict


def _run_cost(experiment: Experiment, size: Size, study: Study) -> tuple[float, float]:
    return flops_of(experiment.spec(size)), run_time(experiment, size, study.results())[1]


UNKNOWN_EPS = (math.nan, math.nan)
"""Where nobody has measured the shares of entries that eps holds back."""


@dataclass(frozen=True, kw_only=True)
class TwoSizes:
    """The base and the `large` end of a ladder over `axis`, around the optimum."""

    experiment: Experiment
    best_log2: Log2Hps
    axis: str
    large: Size
    words: Words

    def judge(self, curves: Sequence[SizeCurve]) -> Verdict:
        """Whether eta transfers between them, by their curves."""
        settings = self.experiment.settings
        rule = settings.transfer
        # As `transfer` judges them: the draws behind the intervals follow from the whole size.
        known = [replace(curve, size=self.on_ladder(curve.size)) for curve in curves]
        base = settings.ladder_base
        fixed = settings.not_taken
        return self.words.worded(
            judge_ladder(self.axis, known, self.best_log2["eta"], base, rule, fixed=fixed)
        )

    def on_ladder(self, size: Size) -> LadderSize:
        """The size as the ladder of the study has it, also where an ablation trains another."""
        base = self.experiment.settings.ladder_base
        return replace(base, width=size.width, depth=size.depth)

    def changed(self, ablation: Ablation) -> Experiment:
        """The experiment with one change; ConfigError where it cannot have it."""
        settings = self.experiment.settings
        # Resolved anew, since a change may bring another search space; where trials run stays.
        changed = resolve(ablation.apply(settings.raw))
        changed = replace(changed, runner=settings.runner, launcher=settings.launcher)
        return replace(self.experiment, settings=changed)

    def sizes(self, changed: Experiment) -> list[Size]:
        """The sizes whose curves are others in the `changed` experiment."""
        same = self._same_at_base(changed)
        return [self.large] if same else [changed.settings.base, self.large]

    def _same_at_base(self, changed: Experiment) -> bool:
        """Whether the change changes nothing at the base, whose curve need not be trained again.

        Only a change of the parameterization can be seen through: it is the same if it prescribes
        the same, at two rates, since decay may follow eta.
        """
        if self.experiment.settings.scaled_by_user:
            return False
        base = self.experiment.settings.base
        prepared_specs = [experiment.prepared(base) for experiment in (self.experiment, changed)]
        # With the parameterization's name taken out of both, the rest must be equal.
        unlike = PluginSpec(name="")
        first, second = (replace(p.spec, parameterization=unlike) for p in prepared_specs)
        if first != second:
            return False
        for eta in (self.best_log2["eta"], self.best_log2["eta"] + 1):
            hps = plain(Log2Hps({**self.best_log2, "eta": eta}))
            before, after = ((p.prescriptions(hps), p.buffers(hps)) for p in prepared_specs)
            if before != after:
                return False
        return True

    def untaken(self, ablation: Ablation) -> str:
        """What an ablation would change and a command does not take; empty where it takes all."""
        settings = self.experiment.settings
        by_plan = () if settings.scaled_by_user else ("parameterization", "optimizer")
        for key in ablation.overrides:
            group, _, name = key.partition(".")
            # What these two groups prescribe reaches a command's script by its plan, not by
            # placeholders.
            asked = name if group == "train" else key
            if group not in by_plan and not settings.runner.takes(asked):
                return key
        return ""

    def situation(self, curves: Sequence[SizeCurve], eps: tuple[float, ...]) -> FailedTransfer:
        """What is known before any ablation; `eps` are the shares of `below_eps`."""
        settings, base, large = self.experiment.settings, self.experiment.settings.base, self.large
        hps, rows = plain(self.best_log2), list[Explained]()
        parameters: Sequence[PlannedParameter] = ()
        heads: list[HeadScale] = []
        if not settings.scaled_by_user:  # of a command that scales by itself nothing more is known
            prepared = self.experiment.prepared(large)
            plan = make_plan(prepared, base, large, hps, {})
            parameters = plan.parameters
            if large.width != base.width:
                narrow = self.experiment.prepared(Size(width=base.width, depth=large.depth))
                rows = explain(plan, narrow, prepared, hps)
            for model in (self.experiment.prepared(base), prepared):
                # One stands for all that the model has.
                for op in [op for op in model.scaled_ops if op.kind == "attention"][:1]:
                    logit = model.parameterization.scale_op(op, hps)["logit"]
                    heads.append(HeadScale(head_size=op.geometry["head_size"], logit=logit))
        return FailedTransfer(
            tree=settings.raw,
            best_log2=self.best_log2,
            base=base,
            large=large,
            parameters=parameters,
            rows=rows,
            attention=(heads[0], heads[1]) if len(heads) == 2 else None,
            distances_to_divergence=(
                distance_to_divergence(curves[0]),
                distance_to_divergence(curves[1]),
            ),
            below_eps=(eps[0], eps[1]),
        )


@dataclass(frozen=True)
class AblationTrainer:
    """Trains and judges the two sizes, as the study has them and with one change at a time."""

    pair: TwoSizes
    study: Study
    monitor: ProgressDisplay

    def diagnose(self, only: Sequence[str], watcher: Watcher) -> Diagnosis:
        """Judge the transfer; if it fails, every ablation that applies."""
        base = self.pair.experiment.settings.base
        # Two sizes are enough for a failure, and an ablation costs one curve, or two.
        curves = self._curves(self.pair.experiment, [base, self.pair.large])
        # A transfer that does not fail has no cause to be found.
        verdict = self.pair.judge(curves)
        if verdict.answer != "fails":
            return self._diagnosed(verdict.answer, (), verdict.todo)
        results = []
        eps: tuple[float, ...] = UNKNOWN_EPS
        settings = self.pair.experiment.settings
        measures = settings.runner.measures("below_eps") and has_eps(settings.raw)
        if measures and (not only or "epsilon" in only):
            # Short runs, but runs: only where the ablation that needs them is wanted.
            eps = self._below_eps([base, self.pair.large], watcher)
        tried = list[Ablation]()
        for ablation in applicable_ablations(self.pair.situation(curves, eps), only):
            if untaken := self.pair.untaken(ablation):
                watcher.tell(
                    f"Not applicable: {ablation.name}, since the command takes no {untaken}."
                )
            else:
                tried.append(self.pair.words.worded(ablation))
        known, lacking = zip(*map(self._trials, tried), strict=True) if tried else ((), ())
        trained = 0
        for number, ablation in enumerate(tried, 1):
            which = f"ablation {number} of {len(tried)}"
            watcher.tell(f"Trying {which}, {ablation.name}: {ablation.change}.")
            after = [trial for missing in lacking[number:] for trial in missing]
            # What a part finds trained is none of what the diagnosis trains.
            there, name = known[number - 1], f"{ablation.name} ({number} of {len(tried)})"
            self.monitor.part(name, trained - there, after)
            results.append(self._try(ablation, curves[0], self._large(verdict)))
            trained += self._trials(ablation)[0] - there
        return self._diagnosed("fails", rank(results))

    def _diagnosed(
        self, answer: Answer, results: tuple[AblationResult, ...], todo: str = ""
    ) -> Diagnosis:
        found = Diagnosis(axis=self.pair.axis, answer=answer, results=results, todo=todo)
        return self.pair.words.worded(found)

    def _trials(self, ablation: Ablation) -> tuple[int, Missing]:
        """How many trials an ablation has, and those that it lacks if its curves do not grow."""
        with suppress(ConfigError):  # a change that this model or search cannot have
            changed = self.pair.changed(ablation)
            best, sizes = self.pair.best_log2, self.pair.sizes(changed)
            _, count, missing = replay_ladder(changed, best, sizes, finished(self.study))
            return count, missing
        return 0, []

    def _curves(self, experiment: Experiment, sizes: Sequence[Size]) -> list[SizeCurve]:
        return Sweep(experiment, self.study, self.monitor).ladder(self.pair.best_log2, sizes)

    def _large(self, verdict: Verdict) -> SizeVerdict:
        large = self.pair.on_ladder(self.pair.large)
        return next(size for size in verdict.sizes if size.size == large)

    def _try(self, ablation: Ablation, base: SizeCurve, before: SizeVerdict) -> AblationResult:
        settings = self.pair.experiment.settings
        try:
            changed = self.pair.changed(ablation)
            curves = self._curves(changed, self.pair.sizes(changed))
        except ConfigError as error:
            return judge_ablation(ablation, before, str(error), settings.transfer)
        # Where the change leaves the base alone, its curve is that of before.
        after = self._large(self.pair.judge([base, *curves][-2:]))
        return judge_ablation(ablation, before, after, settings.transfer)

    def _below_eps(self, sizes: Sequence[Size], watcher: Watcher) -> tuple[float, ...]:
        """The shares of entries that eps holds back at `sizes`, after short runs."""
        steps = self.pair.experiment.settings.check.scale_steps
        trials = [
            short_run(self.pair.experiment, size, self.pair.best_log2, 0, "below_eps", steps=steps)
            for size in sizes
        ]
        watcher.tell(f"Second moments at {' and '.join(map(str, sizes))}: {steps} steps")
        folder = StudyFolder(self.study.folder).transfer
        cancelled = partial(cancel_requested, self.study.folder)
        # Measurements are no trials of the study: its record stays as it is.
        results = measure_trials(
            self.pair.experiment, folder, trials, self.monitor, watcher.tell, cancelled
        )
        return tuple(float(results[trial.key].measurements) for trial in trials)
