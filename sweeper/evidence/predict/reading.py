"""What a study trained, as a law of the loss takes it, and the loss of a larger run by it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sweeper.config.settings import Experiment
from sweeper.engine.branches import trunk_key
from sweeper.errors import BadInput, Call, ConfigError, Keyword
from sweeper.evidence.predict.band import LEAST_POINTS, Curves, TrainingCourse, fit_band
from sweeper.evidence.predict.decision import (
    LossQuestion,
    NoLossLaw,
    Prediction,
    RunsSource,
    SizeChoice,
    predict_runs,
)
from sweeper.evidence.runs.loss_runs import LossRuns
from sweeper.evidence.runs.trained import final_runs
from sweeper.schedule import OWN, PLACEHOLDERS, name_of
from sweeper.stats.ladder import LadderSize, Size
from sweeper.study.folder import StudyFolder
from sweeper.study.lock import live_holder
from sweeper.study.runs_table import by_design
from sweeper.study.searched import config_text, takes
from sweeper.study.setup import command_line, trials_of
from sweeper.study.study import StudyRecord
from sweeper.sweep.study_replay import example_length, token_unit
from sweeper.table import counted
from sweeper.trial import Result, Trial

BUSY = "the study is being trained now: predict again when that has ended"


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What the runs that there are predict: `prediction`, or why they allow no law.

    `runs` are what the law rests on, `left_out` how many others there are, by why. `horizons` are
    the numbers of steps that were trained.
    """

    folder: Path
    runs: LossRuns
    prediction: Prediction | NoLossLaw
    left_out: Mapping[str, int]
    horizons: Sequence[int] = ()
    scales: Scales
    size: Size
    study: StudyRecord


def predict_trained(
    experiment: Experiment,
    target: Size | None,
    question: LossQuestion,
    *,
    where: str = "",
) -> Predicted:
    """Fit the law of what a study has trained, each size at its best eta. Trains nothing."""
    settings = experiment.settings
    scales = Scales(experiment, settings.ladder_base)
    if question.flops is not None and scales.unit == "steps":
        why = "left out: its command takes no {batch_size}, so that FLOPs are not known here"
        raise ConfigError(Keyword("flops"), question.flops, why)
    study, size = StudyRecord.read(settings.folder), target or settings.base
    trained, others, of_another_setup = final_runs(study, where)
    left_out = {why: len(results) for why, results in others.items()}
    if of_another_setup:
        left_out["of another setup"] = of_another_setup
    runs = law_runs_of(trained, scales)
    asked, name, base = question, "law", scales.base
    if question.flops is not None:
        name = f"flops-{question.flops:.3g}"
    if target is not None:
        tokens = question.tokens or float(base.steps * scales.per_step(base.batch_size))
        asked = replace(question, params=scales.params(size), tokens=tokens)
        name = f"w{size.width}-d{size.depth}"
    lines = sorted(f"{result.key} {result.objective!r}" for result in trained)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    prediction = predict_runs(
        runs,
        asked,
        RunsSource(source=str(study.folder), sha256=digest, where=where),
        notes=[BUSY] if live_holder(study.folder) else [],
        flops_known=scales.flops_known,
        left_out=[(counted(count, "run"), why) for why, count in left_out.items()],
        command=command_line(),
        choose=lambda params, tokens: scales.choice(params, tokens, size.depth),
    )
    if isinstance(prediction, Prediction):
        prediction = _with_band(prediction, study, trained, runs, scales)
    return Predicted(
        folder=StudyFolder(study.folder).target(name).path,
        runs=runs,
        prediction=prediction,
        left_out=left_out,
        horizons=sorted({result.steps for result in trained}),
        scales=scales,
        size=size,
        study=study,
    )


def _with_band(
    prediction: Prediction,
    study: StudyRecord,
    trained: Sequence[Result],
    runs: LossRuns,
    scales: Scales,
) -> Prediction:
    if (aim := prediction.aim) is None:
        return prediction
    long = np.array([len(result.curve) >= LEAST_POINTS for result in trained])
    if not long.any():
        return replace(prediction, no_band=f"no run kept a curve of {LEAST_POINTS} points or more")
    runs = runs.only(long)
    trained = [result for result, kept in zip(trained, long, strict=True) if kept]
    longest = max(trained, key=lambda result: result.steps).trial.train
    # A command that takes no schedule has one of its own.
    config = config_text(study.folder)
    takes_schedule = any(takes(config, name) for name in PLACEHOLDERS)
    cells = [(round(n), round(d)) for n, d in zip(runs.params, runs.tokens, strict=True)]
    cell = np.unique(cells, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    # LossRuns that differ from those in eta alone show what an eta that is off does to a curve.
    pairs, octaves = [], set[float]()
    for result in by_design(trials_of(study).current):
        if result.status != "complete" or "eta" not in result.trial.log2_hps:
            continue
        for twin in trained:
            change = _eta_change(result.trial, twin.trial)
            if change is not None and len(result.curve) >= LEAST_POINTS:
                octaves.add(round(abs(change), 6))
                pairs.append((result.curve, twin.curve, change))
    # An optimum is known to half a step of the grid, evenly, and sizes need not share one.
    etas = [result.trial.log2_hps.get("eta", 0.0) for result in trained]
    apart = math.hypot(min(octaves) / math.sqrt(12), float(np.std(etas))) if octaves else 0.0
    try:
        band = fit_band(
            Curves(
                np.log(runs.params),
                np.log(runs.tokens),
                cell,
                [result.curve for result in trained],
                [result.steps for result in trained],
                runs.loss,
                pairs,
                apart,
            ),
            TrainingCourse(
                steps=max(1, round(aim.tokens / scales.per_step(longest.batch_size))),
                warmup=longest.warmup,
                window=longest.objective_window,
                schedule=name_of(longest.schedule) if takes_schedule else OWN,
                lr=longest.lr_factors(range(longest.steps)),
            ),
            math.log(aim.params),
            math.log(aim.tokens),
        )
    except ValueError as error:
        return replace(prediction, no_band=str(error))
    return replace(prediction, band=band)


def _eta_change(trial: Trial, other: Trial) -> float | None:
    same = trial.spec == other.spec and trial.seed == other.seed
    mine, theirs = dict(trial.log2_hps), dict(other.log2_hps)
    change = mine.pop("eta", 0.0) - theirs.pop("eta", 0.0)
    alike = same and mine == theirs and trial.choices == other.choices
    return change if alike and 0 < abs(change) <= 1 else None


class Scales:
    """Parameters and FLOPs of a study's models: counted, or of commands width x width x depth."""

    def __init__(self, experiment: Experiment, base: LadderSize) -> None:
        self.experiment, self.base = experiment, base
        self.counted = not experiment.settings.scaled_by_user
        runner = experiment.settings.runner
        self.length, self.unit = example_length(experiment) or 1, token_unit(experiment)
        # The batch and the sequence of a command that takes neither are its own affair.
        if not runner.takes("batch_size"):
            self.length, self.unit = 1, "steps"
        ours = self.unit == "examples" and runner.takes("data")
        self.flops_known = self.counted and (self.unit == "tokens" or ours)
        self._counts: dict[tuple[int, int], float] = {}

    def per_step(self, batch: int) -> int:
        """Tokens of a step, or of what stands for them."""
        return 1 if self.unit == "steps" else batch * self.length

    def params(self, size: Size) -> float:
        """All parameters of a model of `size`."""
        key = size.width, size.depth
        if key not in self._counts:
            self._counts[key] = (
                float(self.experiment.prepared(size).parameters())
                if self.counted
                else float(size.width**2 * size.depth)
            )
        return self._counts[key]

    def flops(self, size: LadderSize, tokens: float) -> float:
        """FLOPs of a whole run, of the `tokens` that it sees; in proportion if not known."""
        if self.counted:
            prepared = self.experiment.prepared(size)
            flops = float(prepared.flops())
            return flops if self.flops_known else flops / prepared.tokens() * tokens
        return 6.0 * self.params(size) * tokens

    def choice(self, params: float, tokens: float, depth: int) -> SizeChoice | None:
        """The width whose model has `params` parameters at `depth`, and the steps of `tokens`."""
        base = self.base
        # For a depth, parameters are a polynomial of the second degree in the width.
        widths = [base.width, 2 * base.width, 4 * base.width]
        counts = [self.params(Size(width=width, depth=depth)) for width in widths]
        curve = np.polyfit(widths, counts, 2)
        curve[-1] -= params
        roots = [float(root.real) for root in np.roots(curve) if abs(root.imag) < 1e-6 * abs(root)]
        wanted = max(roots, default=0.0)
        if wanted < 1:
            return None
        step = min(base.width, 64)
        width = max(step, step * round(wanted / step))
        steps = max(1, round(tokens / self.per_step(base.batch_size)))
        return SizeChoice(width=width, depth=depth, steps=steps)


def law_runs_of(trained: Sequence[Result], scales: Scales) -> LossRuns:
    """The runs of a study as points of a law; BadInput where there is none that serves."""
    if not trained:
        raise BadInput("the study has no finished run: ", Call("search"), " makes them")
    params, tokens, flops, labels, trunks, seconds = [], [], [], [], [], []
    for result in trained:
        spec = result.trial.spec
        size = LadderSize(
            width=spec.width,
            depth=spec.depth,
            batch_size=spec.train.batch_size,
            steps=spec.train.steps,
        )
        seen = float(size.steps * scales.per_step(size.batch_size))
        params.append(scales.params(size))
        tokens.append(seen)
        flops.append(scales.flops(size, seen))
        labels.append(f"{size}, seed {result.trial.seed}")
        # Horizons that are branches of one trunk are points of one training.
        trunks.append(trunk_key(result.trial) if scales.counted else "")
        # A branch took what its trunk did not.
        seconds.append(math.nan if trunks[-1] else result.seconds)
    losses = np.array([result.objective for result in trained])
    if not (losses > 0).all():
        raise BadInput("a law of losses needs positive ones: the study's objective is no such loss")
    cells = [t or f"{n}\0{d}" for n, d, t in zip(params, tokens, trunks, strict=True)]
    cluster = np.unique(cells, return_inverse=True)[1].reshape(-1).astype(np.int64)
    runs = LossRuns(np.array(params), np.array(tokens), losses, np.array(flops), cluster, labels)
    return replace(runs, unit=scales.unit, seconds=np.array(seconds))
