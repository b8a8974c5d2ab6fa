"""`sweeper diagnose`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sweeper.commands.experiment import check_device, open_experiment, progress, short_run
from sweeper.commands.output import DONE, Output, failures
from sweeper.commands.transfer import check_storage_password, load_study, optimum
from sweeper.diagnosis.ablations import (
    ABLATIONS,
    Ablation,
    AttentionScale,
    FailedTransfer,
    applicable_ablations,
    has_eps,
)
from sweeper.diagnosis.results import (
    AblationResult,
    Diagnosis,
    distance_to_divergence,
    judge_ablation,
    rank,
)
from sweeper.errors import BadInput, ConfigError, suggest
from sweeper.files import private_folder, write_json
from sweeper.lock import StudyLock
from sweeper.report import console as show
from sweeper.report.page import write_report
from sweeper.report.progress import SweepProgress
from sweeper.settings import Experiment, Settings, resolve
from sweeper.study import Study
from sweeper.sweep import Sweep
from sweeper.training.prepare import PreparedSpec
from sweeper.training.underflow import below_eps
from sweeper.transfer.explain import explain
from sweeper.transfer.ladder import Size, SizeCurve
from sweeper.transfer.plan import make_plan
from sweeper.transfer.verdict import SizeVerdict, Verdict, judge_ladder
from sweeper.trial import Log2Hps


def diagnose(
    study_name: str | None,
    axis: str,
    only: Sequence[str],
    words: Sequence[str],
    config_dir: Path | None,
    output: Output,
) -> int:
    """Find out why the transfer over `axis` fails, by short ladders that differ in one thing."""
    for name in only:
        if name not in ABLATIONS:
            raise BadInput(f"--only {name}: there is no such ablation; {suggest(name, ABLATIONS)}")
    settings = load_study(study_name, words, config_dir)
    if settings.transfer.along != "eta":
        raise ConfigError("transfer.along", settings.transfer.along, "eta, when it is diagnosed")
    # Sizes, not ladder sizes: an ablation may change the batch size and the steps.
    ladder_sizes = settings.transfer.ladders(settings.ladder_base).get(axis, [])
    ladder = [Size(width=size.width, depth=size.depth) for size in ladder_sizes]
    if len(ladder) < 2 or ladder[-1] == settings.base:
        raise BadInput(f"transfer.{axis}s must name a size beyond the base, {settings.base}")
    check_storage_password(settings)
    experiment = open_experiment(settings)
    best = dict(optimum(experiment, Study.read(settings.folder), output).best)
    if settings.transfer.eta is not None:
        best["eta"] = settings.transfer.eta
    folder = settings.folder / "transfer"
    private_folder(folder)  # before hours of work, not after
    start = time.time()
    with StudyLock(settings.folder), Study.open(settings.folder, settings.storage) as study:
        with progress(settings, output, "diagnose", _planned(settings)) as monitor:
            clinic = Clinic(experiment, study, monitor, best, axis, ladder[-1])
            found = clinic.diagnose(only, output)
        output.notes([*study.notices, *failures(study.results())])
        output.tell_speed(study.results(), since=start)
    write_json(folder / f"diagnosis-{axis}.json", found.to_json())
    show.diagnosis(output.people, found)
    output.say(f"Diagnosis: {folder / f'diagnosis-{axis}.json'}")
    output.say(f"Report: {write_report(settings.folder)}")
    output.document({"study": settings.name, "diagnosis": found.to_json()})
    return DONE


def _planned(settings: Settings) -> int:
    """The runs of one ladder of two sizes: what is needed beyond follows from it."""
    return 2 * settings.transfer.points_per_line() * settings.transfer.seeds


@dataclass(frozen=True)
class Clinic:
    """Trains and judges the two sizes, as the study has them and with one change at a time."""

    experiment: Experiment
    study: Study
    monitor: SweepProgress
    best: Log2Hps
    axis: str
    large: Size

    def diagnose(self, only: Sequence[str], output: Output) -> Diagnosis:
        """Judge the transfer; if it fails, every ablation that applies."""
        base = self.experiment.settings.base
        curves = self._curves(self.experiment, [base, self.large])
        verdict = self._judge(curves)
        if verdict.answer != "fails":
            return Diagnosis(axis=self.axis, answer=verdict.answer, todo=verdict.todo)
        findings = []
        eps = (math.nan, math.nan)
        if has_eps(self.experiment.settings.raw) and (not only or "epsilon" in only):
            eps = (self._below_eps(base, output), self._below_eps(self.large, output))
        for ablation in applicable_ablations(self._situation(curves, eps), only):
            output.tell(f"Trying {ablation.name}: {ablation.change}.")
            findings.append(self._try(ablation, curves[0], self._large(verdict)))
        return Diagnosis(axis=self.axis, answer="fails", results=rank(findings))

    def _curves(self, experiment: Experiment, sizes: Sequence[Size]) -> list[SizeCurve]:
        settings = self.experiment.settings
        sweep = Sweep(experiment, self.study, settings.launcher, self.monitor, settings.logger)
        return sweep.ladder(self.best, sizes)

    def _judge(self, curves: Sequence[SizeCurve]) -> Verdict:
        settings = self.experiment.settings
        return judge_ladder(self.axis, curves, self.best["eta"], settings.base, settings.transfer)

    def _large(self, verdict: Verdict) -> SizeVerdict:
        return next(size for size in verdict.sizes if size.size == self.large)

    def _try(self, ablation: Ablation, base: SizeCurve, before: SizeVerdict) -> AblationResult:
        rule = self.experiment.settings.transfer
        try:
            changed = self._changed(ablation)
            if not self._same_at_base(changed):
                (base,) = self._curves(changed, [base.size])
            (large,) = self._curves(changed, [self.large])
        except ConfigError as error:
            return judge_ablation(ablation, before, str(error), rule)
        return judge_ablation(ablation, before, self._large(self._judge([base, large])), rule)

    def _changed(self, ablation: Ablation) -> Experiment:
        """The experiment with the ablation's change, on the same corpus."""
        return replace(
            self.experiment, settings=resolve(ablation.apply(self.experiment.settings.raw))
        )

    def _same_at_base(self, changed: Experiment) -> bool:
        """Whether the change changes nothing at the base, whose curve need not be trained again.

        Only a change of the scheme can be seen through: it is the same if it prescribes the same,
        at two rates, since decay may follow eta.
        """
        base = self.experiment.settings.base
        prepared_specs = [experiment.prepared(base) for experiment in (self.experiment, changed)]
        first, second = ({**r.setup, "parameterization": None} for r in prepared_specs)
        return first == second and all(
            _prescribed(prepared_specs[0], eta, self.best)
            == _prescribed(prepared_specs[1], eta, self.best)
            for eta in (self.best["eta"], self.best["eta"] + 1)
        )

    def _below_eps(self, size: Size, output: Output) -> float:
        """The share of entries that eps holds back at `size`, after a short run."""
        settings, steps = self.experiment.settings, self.experiment.settings.check.scale_steps
        output.tell(f"Second moments at {size}: {steps} steps")
        trial = short_run(self.experiment, size, self.best, 0, {"steps": steps})
        return below_eps(trial, self.experiment.corpus, check_device(settings))

    def _situation(self, curves: Sequence[SizeCurve], eps: tuple[float, float]) -> FailedTransfer:
        """What is known before any ablation; `eps` are the shares of `below_eps`."""
        settings, base, large = self.experiment.settings, self.experiment.settings.base, self.large
        hps = {name: 2.0**value for name, value in self.best.items()}
        prepared = self.experiment.prepared(large)
        plan = make_plan(prepared, base, large, hps, {})
        rows = []
        if large.width != base.width:
            narrow = self.experiment.prepared(Size(width=base.width, depth=large.depth))
            rows = explain(plan, narrow, prepared, hps)
        heads = [_head(self.experiment.prepared(size), hps) for size in (base, large)]
        return FailedTransfer(
            tree=settings.raw,
            best=self.best,
            base=base,
            large=large,
            parameters=plan.parameters,
            rows=rows,
            attention=(heads[0], heads[1]) if heads[0] and heads[1] else None,
            distances_to_divergence=(
                distance_to_divergence(curves[0]),
                distance_to_divergence(curves[1]),
            ),
            below_eps=eps,
        )


def _prescribed(prepared: PreparedSpec, eta: float, best: Log2Hps) -> object:
    """All that a scheme says of a model at one rate (log2)."""
    hps = {name: 2.0**value for name, value in {**best, "eta": eta}.items()}
    return prepared.scales(hps), prepared.buffers(hps)


def _head(prepared: PreparedSpec, hps: dict[str, float]) -> AttentionScale | None:
    """The first attention's head size and scale."""
    for op in prepared.scaled_ops:
        if op.kind == "attention":
            logit = prepared.scheme.scale_op(op, hps)["logit"]
            return AttentionScale(head_size=op.geometry["head_size"], logit=logit)
    return None
