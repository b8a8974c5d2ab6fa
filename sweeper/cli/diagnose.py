"""`sweeper diagnose`: short ladders that differ in one thing, to find why a transfer fails."""

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

from sweeper.cli.shared import progress
from sweeper.cli.transfer import check_storage_password, optimum
from sweeper.cli.validate import finished
from sweeper.config.compose import Tree
from sweeper.config.settings import Experiment, Settings, resolve
from sweeper.config.studies import Invocation, split_root
from sweeper.decide.diagnosis import (
    ABLATIONS,
    CAUSE_FRACTION,
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
from sweeper.decide.transfer import SizeVerdict, Verdict, judge_ladder
from sweeper.errors import ConfigError, Keyword, suggest
from sweeper.files import private_folder, write_json
from sweeper.plan.explain import Explained, explain
from sweeper.plan.plan import PlannedParameter, make_plan
from sweeper.records import to_json
from sweeper.report import console as show
from sweeper.report.next import NextCommand, next_of, validated_by
from sweeper.report.output import DONE, Output
from sweeper.report.sentences import failures
from sweeper.report.sentences_transfer import worded
from sweeper.stats.ladder import LadderSize, Size, SizeCurve
from sweeper.study.cost import NOTHING, Cost, flops_of, keep_flops
from sweeper.study.folder import StudyFolder
from sweeper.study.lock import StudyLock, cancel_requested
from sweeper.study.searched import read_searched
from sweeper.study.study import Study, find_study
from sweeper.sweep.experiment import open_experiment, resolve_study, run_time, short_run
from sweeper.sweep.progress import Progress
from sweeper.sweep.replay import Missing, replay_ladder
from sweeper.sweep.sweep import Sweep, measure_trials
from sweeper.trial import Log2Hps, PluginSpec, plain


def judged_ladder(
    study: str | None, overrides: Sequence[str], axis: str, output: Output
) -> list[str]:
    """Overrides for the ladder of the study's newest verdict over `axis`, whose runs there are.

    Empty where the user's own say which ladder, or where there was none.
    """
    root, others = split_root(overrides)
    if any(word.lstrip("+").startswith(("transfer.", "law")) for word in others):
        return []
    command = validated_by(root / find_study(study, root), axis)
    if command is None or not command.of_ladders:
        return []
    output.tell(f"The ladder is that of the verdict: {shlex.join(command.of_ladders)}")
    return list(command.of_ladders)


def diagnose(
    tree: Tree,
    axis: str,
    only: Sequence[str],
    invocation: Invocation,
    output: Output,
    *,
    dry_run: bool = False,
) -> int:
    """Find out why the transfer over `axis` fails, by short ladders that differ in one thing."""
    for name in only:
        if name not in ABLATIONS:
            raise ConfigError(
                Keyword("only"), name, f"there is no such ablation; {suggest(name, ABLATIONS)}"
            )
    settings = resolve_study(tree, invocation)
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

    def pair_of(cache: Path | None = None) -> TwoSizes:
        experiment = open_experiment(settings, cache)
        best = optimum(experiment, Study.read(settings.folder), output).best_log2
        if settings.transfer.eta is not None:
            # As `transfer` does: what is diagnosed is the transfer of this very eta.
            best = Log2Hps({**best, "eta": settings.transfer.eta})
        return TwoSizes(experiment=experiment, best_log2=best, axis=axis, large=ladder[-1])

    if dry_run:
        with TemporaryDirectory() as temporary:
            return _show_cost(pair_of(Path(temporary)), only, invocation, output)
    check_storage_password(settings)
    pair, folder = pair_of(), StudyFolder(settings.folder).transfer
    private_folder(folder)  # before hours of work, not after
    output.within(settings.folder)
    start = time.time()
    with StudyLock(settings.folder), Study.open(settings.folder, settings.storage) as study:
        # One ladder of two sizes: what is needed beyond follows from it.
        planned = 2 * settings.transfer.points_per_line() * settings.transfer.seeds
        known = study.results()
        with progress(settings, output, "diagnose", planned, known=known) as monitor:
            diagnosed = AblationTrainer(pair, study, monitor).diagnose(only, output)
        output.notes([*study.notices, *failures(study.results(), settings.identity)])
        output.tell_speed(study.results(), since=start)
    write_json(folder / f"diagnosis-{axis}.json", to_json(diagnosed))
    if diagnosed.results:
        output.show(show.ablation_table(diagnosed))
    keep_flops(settings.folder, {result.trial.spec for result in study.results()})
    from sweeper.report.study_page import write_report  # it brings matplotlib

    report, record = write_report(settings.folder), folder / f"diagnosis-{axis}.json"
    places = {"report": report, "diagnosis": record}
    document = {"study": settings.name, "diagnosis": to_json(diagnosed)}
    output.end(
        diagnosed.conclusion, places, document, _after_diagnosis(settings, diagnosed, invocation)
    )
    return DONE


def _show_cost(pair: TwoSizes, only: Sequence[str], invocation: Invocation, output: Output) -> int:
    """Say what a diagnosis would train at most: `--dry-run`."""
    settings, base = pair.experiment.settings, pair.experiment.settings.base
    study, costs = Study.read(settings.folder), list[tuple[str, Cost]]()
    a_run = {size: _run_cost(pair.experiment, size, study) for size in (base, pair.large)}

    def lacking(name: str, experiment: Experiment, sizes: Sequence[Size]) -> list[SizeCurve]:
        curves, row = list[SizeCurve](), NOTHING
        for size in sizes:
            [curve], _, missing = replay_ladder(experiment, pair.best_log2, [size], finished(study))
            count, (flops, seconds) = len(missing), a_run[size]
            row += Cost(trials=count, flops=count * flops, seconds=count * seconds)
            curves.append(curve)
        costs.append((name, row))
        return curves

    curves = lacking("the transfer as it is", pair.experiment, [base, pair.large])
    verdict = None if costs[0][1].trials else pair.judge(curves)
    facts = (
        f"At {base} and {pair.large}, {settings.transfer.seeds} seeds a learning rate; a curve "
        f"whose lowest point is at its end grows there by up to {settings.transfer.extend}."
    )
    if verdict is None:
        facts += " What is changed, one thing at a time, is chosen once the transfer is seen to "
        facts += "fail: each change costs the runs of a curve, or of two."
    elif verdict.answer == "fails":
        for ablation in applicable_ablations(pair.situation(curves, UNKNOWN_EPS), only):
            if not pair.untaken(ablation):
                with suppress(ConfigError):  # a change that this model or search cannot have
                    changed = pair.changed(ablation)
                    lacking(ablation.name, changed, pair.sizes(changed))
    else:
        facts += f" The transfer there {verdict.answer}: there is nothing to diagnose."
    output.show(*show.dry_run("This would train", "change", costs, "runs", facts))
    runs = sum(cost.trials for _, cost in costs)
    named = [word for name in only for word in ("--only", name)]
    again = NextCommand.of(
        "diagnose",
        *("--over", pair.axis, *named, *invocation.overrides),
        study=settings.name,
        root=settings.root,
        config_dir=invocation.config_dir,
        why="to find out why it fails",
    )
    record = {
        "study": settings.name,
        "changes": [{"change": name, **to_json(cost)} for name, cost in costs],
    }
    does_fail = verdict is None or verdict.answer == "fails"
    answer = f"{runs} run{'s' * (runs != 1)} are to be trained; nothing was written."
    output.end(answer, {}, record, again if does_fail else None)
    return DONE


def _run_cost(experiment: Experiment, size: Size, study: Study) -> tuple[float, float]:
    """FLOPs and seconds of a run of a size."""
    return flops_of(experiment.spec(size)), run_time(experiment, size, study.results())[1]


def _widest(diagnosed: Diagnosis) -> int:
    """The width of the large size; 0 where nothing was tried."""
    return max((result.before.size.width for result in diagnosed.results), default=0)


def _after_diagnosis(
    settings: Settings, diagnosed: Diagnosis, invocation: Invocation
) -> NextCommand | None:
    """A search without the likeliest cause, in a study of its own; else what follows anyhow.

    Where the cause is in doubt, the same change with twice the seeds comes first.
    """
    if diagnosed.answer != "fails":
        return next_of(settings.folder)
    why = "to search without the likeliest cause"
    record = read_searched(settings.folder, [])
    searched = NextCommand.recorded(record.command, why) if record else None
    best = diagnosed.results[0] if diagnosed.results else None
    rules = NextCommand.of(
        "explain",
        *("--to-width", str(_widest(diagnosed) or settings.base.width)),
        study=settings.name,
        root=settings.root,
        why="to see what every parameter gets there",
    )
    if not searched or best is None or not best.explained.value >= CAUSE_FRACTION:
        return next_of(settings.folder) or rules
    if best.doubtful:
        ladder = [word for word in invocation.overrides if not word.startswith("transfer.seeds=")]
        return NextCommand.of(
            "diagnose",
            *("--over", diagnosed.axis, "--only", best.ablation.name, *ladder),
            f"transfer.seeds={2 * settings.transfer.seeds}",
            study=settings.name,
            root=settings.root,
            config_dir=invocation.config_dir,
            why="to be surer of the likeliest cause",
        )
    changes = best.ablation.overrides
    plain = all(isinstance(value, str | int | float | bool) for value in changes.values())
    if not changes or not plain:
        return next_of(settings.folder) or rules
    overrides = []
    for key, value in changes.items():
        group, _, name = key.partition(".")
        # A key that the configuration leaves at its default is added with a plus.
        plus = "" if name in (settings.raw.get(group) or {}) else "+"
        overrides.append(f"{plus}{key}={value}")
    study = f"{settings.name}-{best.ablation.name}".replace(" ", "-")
    return searched.as_new_study(study, *overrides, why=why)


UNKNOWN_EPS = (math.nan, math.nan)
"""Where nobody has measured the shares of entries that eps holds back."""


@dataclass(frozen=True, kw_only=True)
class TwoSizes:
    """The base and the `large` end of a ladder over `axis`, around the optimum."""

    experiment: Experiment
    best_log2: Log2Hps
    axis: str
    large: Size

    def judge(self, curves: Sequence[SizeCurve]) -> Verdict:
        """Whether eta transfers between them, by their curves."""
        settings = self.experiment.settings
        rule = settings.transfer
        # As `transfer` judges them: the draws behind the intervals follow from the whole size.
        known = [replace(curve, size=self.on_ladder(curve.size)) for curve in curves]
        base = settings.ladder_base
        fixed = settings.not_taken
        return worded(
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
    monitor: Progress

    def diagnose(self, only: Sequence[str], output: Output) -> Diagnosis:
        """Judge the transfer; if it fails, every ablation that applies."""
        base = self.pair.experiment.settings.base
        # Two sizes are enough for a failure, and an ablation costs one curve, or two.
        curves = self._curves(self.pair.experiment, [base, self.pair.large])
        verdict = self.pair.judge(curves)
        if verdict.answer != "fails":
            return Diagnosis(axis=self.pair.axis, answer=verdict.answer, todo=verdict.todo)
        results = []
        eps: tuple[float, ...] = UNKNOWN_EPS
        settings = self.pair.experiment.settings
        measures = settings.runner.measures("below_eps") and has_eps(settings.raw)
        if measures and (not only or "epsilon" in only):
            # Short runs, but runs: only where the ablation that needs them is wanted.
            eps = self._below_eps([base, self.pair.large], output)
        tried = list[Ablation]()
        for ablation in applicable_ablations(self.pair.situation(curves, eps), only):
            if untaken := self.pair.untaken(ablation):
                output.tell(
                    f"Not applicable: {ablation.name}, since the command takes no {untaken}."
                )
            else:
                tried.append(ablation)
        known, lacking = zip(*map(self._trials, tried), strict=True) if tried else ((), ())
        trained = 0
        for number, ablation in enumerate(tried, 1):
            which = f"ablation {number} of {len(tried)}"
            output.tell(f"Trying {which}, {ablation.name}: {ablation.change}.")
            after = [trial for missing in lacking[number:] for trial in missing]
            # What a part finds trained is none of what the diagnosis trains.
            there, name = known[number - 1], f"{ablation.name} ({number} of {len(tried)})"
            self.monitor.part(name, trained - there, after)
            results.append(self._try(ablation, curves[0], self._large(verdict)))
            trained += self._trials(ablation)[0] - there
        return Diagnosis(axis=self.pair.axis, answer="fails", results=rank(results))

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

    def _below_eps(self, sizes: Sequence[Size], output: Output) -> tuple[float, ...]:
        """The shares of entries that eps holds back at `sizes`, after short runs."""
        steps = self.pair.experiment.settings.check.scale_steps
        trials = [
            short_run(self.pair.experiment, size, self.pair.best_log2, 0, "below_eps", steps=steps)
            for size in sizes
        ]
        output.tell(f"Second moments at {' and '.join(map(str, sizes))}: {steps} steps")
        folder = StudyFolder(self.study.folder).transfer
        cancelled = partial(cancel_requested, self.study.folder)
        results = measure_trials(
            self.pair.experiment, folder, trials, self.monitor, output.tell, cancelled
        )
        return tuple(float(results[trial.key].measurements) for trial in trials)
