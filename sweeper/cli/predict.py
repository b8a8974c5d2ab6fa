"""`sweeper predict`: what a large run will reach, by the law of the runs that there are."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sweeper.decide.loss import (
    LossQuestion,
    Prediction,
    Proposed,
    SizeChoice,
    TooFewRuns,
    predict_runs,
)
from sweeper.errors import SHELL, BadInput, ConfigError, Keyword, as_text, spelled
from sweeper.records import to_json
from sweeper.report.output import DONE, Output
from sweeper.runs.loss_runs import (
    Design,
    LossRuns,
    Rungs,
    law_notes,
    law_runs,
    loss_runs_of,
)
from sweeper.runs.read import read
from sweeper.runs.study import final_runs
from sweeper.schedule import OWN, PLACEHOLDERS, name_of
from sweeper.study.folder import StudyFolder, TargetFolder
from sweeper.study.searched import config_text
from sweeper.study.setup import command_line
from sweeper.table import counted

if TYPE_CHECKING:
    from sweeper.config.compose import Tree
    from sweeper.config.settings import Experiment
    from sweeper.config.studies import Invocation
    from sweeper.report.next import NextCommand
    from sweeper.stats.ladder import LadderSize, Size
    from sweeper.study.study import Study
    from sweeper.trial import Log2Hps, Result, Trial


def predict_table(
    path: Path,
    columns: str,
    where: str,
    question: LossQuestion,
    output: Output,
    out: Path | None,
    root: Path,
) -> int:
    """Fit the law of a table's runs, show and write the prediction. Trains nothing."""
    table = law_runs(read(path, columns=columns, where=where, root=root))
    runs = loss_runs_of(table)
    roles = ", ".join(f"{role} is {column!r}" for role, column in table.columns.items())
    output.tell(f"{counted(len(runs), 'run')} of {table.name}: {roles}")
    try:
        prediction = predict_runs(
            runs,
            question,
            source=table.name,
            sha256=table.sha256,
            where=where,
            columns=table.columns,
            notes=[spelled(as_text(note), SHELL) for note in law_notes(table, runs)],
            command=command_line(),
        )
    except TooFewRuns as few:
        return _too_few(few, output)
    name = "stdin" if str(path) == "-" else path.stem
    return _report(prediction, runs, out or root / "predictions" / name, output)


def _too_few(
    few: TooFewRuns, output: Output, unit: str = "tokens", again: NextCommand | None = None
) -> int:
    """No law can be fitted yet: an answer, and none that is written down."""
    from sweeper.report.prediction import settle_text

    if few.answer.settle:
        output.say(f"{settle_text(few.answer.settle, unit)}.")
    document = {key: value for key, value in to_json(few.answer).items() if value is not None}
    output.end(f"Cannot say yet: {few}. Nothing was written.", {}, document, again)
    return DONE


# The runs of a study.


@dataclass(frozen=True, kw_only=True)
class StudyTarget:
    """The run that is asked about, as a study's models have sizes; None: the base's."""

    width: int | None = None
    depth: int | None = None


def predict_study(
    tree: Tree,
    target: StudyTarget,
    question: LossQuestion,
    invocation: Invocation,
    output: Output,
    out: Path | None,
    *,
    where: str = "",
) -> int:
    """Fit the law of what a study has trained, each size at its best eta. Trains nothing."""
    from sweeper.stats.ladder import Size
    from sweeper.study.study import Study
    from sweeper.sweep.experiment import check_target, open_experiment, resolve_study

    settings = resolve_study(tree, invocation)
    output.within(settings.folder)
    size = Size(
        width=target.width or settings.base.width, depth=target.depth or settings.base.depth
    )
    check_target(settings, size)
    experiment = open_experiment(settings)
    scales = _Scales(experiment, settings.ladder_base)
    _check_units(scales, question)
    study = Study.read(settings.folder)

    def following(settle: Sequence[Proposed], horizons: Sequence[int]) -> NextCommand | None:
        return _next_of(scales, size, settle, horizons, question, invocation)

    return _predict_runs(
        study, scales, size, target, question, output, out, following=following, where=where
    )


def _check_units(scales: _Scales, question: LossQuestion) -> None:
    """ConfigError for a question in FLOPs about a command whose batch or sequence nobody knows."""
    for flag in ("flops", "flops_per_second"):
        if getattr(question, flag) is not None and scales.unit == "steps":
            why = "left out: its command takes no {batch_size}, so that FLOPs are not known here"
            raise ConfigError(Keyword(flag), getattr(question, flag), why)


def _next_of(
    scales: _Scales,
    size: Size,
    settle: Sequence[Proposed],
    horizons: Sequence[int],
    question: LossQuestion,
    invocation: Invocation,
) -> NextCommand | None:
    """What trains the runs that would tell, or plans the run; None where a law would be needed."""
    from sweeper.report.next import NextCommand

    assert scales.experiment is not None
    settings = scales.experiment.settings
    rule, base = settings.transfer, settings.ladder_base
    named = ["--to-width", str(size.width)]
    named += ["--to-depth", str(size.depth)] if size.depth != base.depth else []
    make = partial(
        NextCommand.of,
        "transfer",
        study=settings.name,
        root=settings.root,
        config_dir=invocation.config_dir,
    )
    choices = [run.choice for run in settle if run.choice]
    if not choices:
        if question.tokens is not None or question.flops is not None:
            return None
        return make(*named, why="to plan the run")
    widths = sorted({base.width, *rule.widths, *(c.width for c in choices)})
    steps = sorted({*horizons, *(c.steps for c in choices)})
    words = [
        *([f"--to-tokens={question.tokens:.0f}"] if question.tokens else []),
        "--predict",
        *invocation.overrides,
        f"transfer.widths=[{','.join(map(str, widths))}]",
        f"transfer.steps=[{','.join(map(str, steps))}]",
    ]
    return make(*named, *words, why="to train what would tell")


def predict_saved(
    folder: Path,
    target: StudyTarget,
    question: LossQuestion,
    output: Output,
    out: Path | None,
    *,
    where: str = "",
) -> int:
    """As `predict_study`, of a study that `sweeper judge` made of a table's runs."""
    from sweeper.stats.ladder import LadderSize, Size
    from sweeper.study.setup import read_setup
    from sweeper.study.study import Study

    if (spec := read_setup(folder)) is None:
        raise BadInput(f"{folder / 'setup.json'} is not there or damaged: judge the table again")
    train = {"batch_size": spec.train.batch_size, "steps": spec.train.steps}
    base = LadderSize.of(Size(width=spec.width, depth=spec.depth), spec.model.arguments, train)
    size = Size(width=target.width or base.width, depth=target.depth or base.depth)
    scales = _Scales(None, base, length=spec.train.seq_len)
    study = Study.read(folder)
    # A table of tokens was saved as steps of one token each: there they are known.
    of_tokens = _saved_axis(folder) == "tokens"
    notes = [] if of_tokens else [OF_EXAMPLES]
    return _predict_runs(study, scales, size, target, question, output, out, notes, where=where)


OF_EXAMPLES = (
    "the table does not say how long an example is: what is said of tokens counts examples, "
    "batch size x steps"
)


def _saved_axis(folder: Path) -> str:
    """The axis of the table that a study was made of; empty where it is not known."""
    import yaml  # type: ignore[import-untyped]

    from sweeper.study.study import SAVED

    kept = yaml.safe_load(config_text(folder))
    return str(kept.get(SAVED, {}).get("axis", ""))


def _predict_runs(
    study: Study,
    scales: _Scales,
    size: Size,
    target: StudyTarget,
    question: LossQuestion,
    output: Output,
    out: Path | None,
    notes: Sequence[str] = (),
    following: Callable[[Sequence[Proposed], Sequence[int]], NextCommand | None] | None = None,
    *,
    where: str = "",
) -> int:
    from sweeper.report.study_page import write_report
    from sweeper.study.lock import live_holder

    trained, others, of_another_setup = final_runs(study, where)
    left_out = {why: len(results) for why, results in others.items()}
    if of_another_setup:
        left_out["of another setup"] = of_another_setup
    runs = _as_runs(trained, scales)
    asked, name = question, "law"
    base = scales.base
    if question.flops is not None:
        name = f"flops-{question.flops:.3g}"
    if target.width is not None or target.depth is not None or question.tokens is not None:
        tokens = question.tokens or float(base.steps * scales.per_step(base.batch_size))
        asked = replace(question, params=scales.params(size), tokens=tokens)
        name = f"w{size.width}-d{size.depth}"
    digest = hashlib.sha256(
        "\n".join(sorted(f"{r.key} {r.objective!r}" for r in trained)).encode()
    ).hexdigest()
    horizons = sorted({result.steps for result in trained})

    def after(settle: Sequence[Proposed]) -> NextCommand | None:
        return following(settle, horizons) if following else None

    notes = [*notes]
    if live_holder(study.folder):
        notes.append("the study is being trained now: predict again when that has ended")
    try:
        prediction = predict_runs(
            runs,
            asked,
            notes=notes,
            flops_known=scales.flops_known,
            source=str(study.folder),
            sha256=digest,
            where=where,
            left_out=[(counted(count, "run"), why) for why, count in left_out.items()],
            command=command_line(),
            choose=lambda params, tokens: scales.choice(params, tokens, size.depth),
        )
    except TooFewRuns as few:
        return _too_few(few, output, scales.unit, after(few.answer.settle))
    prediction = _with_band(prediction, study, trained, runs, scales)
    if scales.counted:
        said = f"{counted(len(runs), 'run')} of {study.name}; params are all parameters"
        if scales.unit == "steps":
            said += ". Its command takes no {batch_size}: steps stand for tokens"
        output.tell(said)
    else:
        whose = (
            "a command's model" if scales.experiment is not None else "the model of a table's run"
        )
        output.tell(
            f"{counted(len(runs), 'run')} of {study.name}; what {whose} has of parameters is not "
            "known: width x width x depth stands for them, in the law and in what it says"
        )
    for why, count in left_out.items():
        output.tell(f"Left out: {counted(count, 'run')}, {why}")
    shown = [r for of_reason in others.values() for r in of_reason if _ended(r)]
    folder = out or StudyFolder(study.folder).target(name).path
    drawn = _as_runs(shown, scales) if shown else None
    again = after(prediction.settle)
    if not prediction.settle and TargetFolder(folder).plan.is_file():
        again = None
    code = _report(prediction, runs, folder, output, left_out=drawn, again=again)
    if folder.resolve().is_relative_to(study.folder.resolve()):
        write_report(study.folder)  # its page links the prediction's
    return code


def predict_ladder(
    tree: Tree,
    target: StudyTarget,
    question: LossQuestion,
    invocation: Invocation,
    output: Output,
    *,
    dry_run: bool,
) -> int:
    """Train what a law needs and the study lacks, sizes x steps at the planned eta; predict."""
    from sweeper.cli.shared import progress
    from sweeper.cli.transfer import check_storage_password, planned_optimum
    from sweeper.report.next import NextCommand
    from sweeper.report.sentences import failures
    from sweeper.stats.ladder import Size
    from sweeper.study.lock import StudyLock
    from sweeper.study.study import Study
    from sweeper.sweep.experiment import check_target, open_experiment, resolve_study
    from sweeper.sweep.sweep import Sweep

    settings = resolve_study(tree, invocation)
    output.within(settings.folder)
    width, depth = target.width or settings.base.width, target.depth or settings.base.depth
    check_target(settings, Size(width=width, depth=depth))
    with tempfile.TemporaryDirectory() as temporary:
        experiment = open_experiment(settings, Path(temporary) if dry_run else None)
        study = Study.read(settings.folder)
        trials = _rungs(experiment, planned_optimum(experiment, study, output))
        if dry_run:
            again = NextCommand.of(
                "transfer",
                *("--to-width", str(width)),
                *(["--to-depth", str(depth)] if depth != settings.base.depth else []),
                *([f"--to-tokens={question.tokens:.0f}"] if question.tokens else []),
                *("--predict", *invocation.overrides),
                study=settings.name,
                root=settings.root,
                config_dir=invocation.config_dir,
                why="to train them",
            )
            return _show_rungs(experiment, study, trials, again, output)
    check_storage_password(settings)
    with StudyLock(settings.folder), Study.open(settings.folder, settings.storage) as opened:
        with progress(settings, output, "predict", len(trials), known=opened.results()) as monitor:
            Sweep(experiment, opened, monitor).runs(trials)
        output.notes([*opened.notices, *failures(opened.results(), settings.identity)])
    return predict_study(tree, target, question, invocation, output, None)


def _rungs(experiment: Experiment, best: Log2Hps) -> list[Trial]:
    """Every size of the ladders over width and depth at every number of steps, as planned there.

    Without `transfer.steps` an eighth, a quarter and a half of a size's beside its own.
    """
    from sweeper.study.setup import LADDER_PHASE
    from sweeper.sweep.replay import planned_log2

    settings = experiment.settings
    rule, base = settings.transfer, settings.ladder_base
    models = {(base.width, base.depth)}
    models |= {(width, base.depth) for width in rule.widths}
    models |= {(base.width, depth) for depth in rule.depths}
    whole = [settings.with_steps(replace(base, width=w, depth=d)) for w, d in sorted(models)]
    return [
        experiment.trial(size, planned_log2(experiment, size, best), seed, LADDER_PHASE)
        for longest in whole
        for steps in sorted(
            {longest.steps, *(rule.steps or [max(1, longest.steps // part) for part in (8, 4, 2)])}
        )
        for size in [replace(longest, steps=steps)]
        for seed in range(rule.seeds)
    ]


def _show_rungs(
    experiment: Experiment,
    study: Study,
    trials: Sequence[Trial],
    again: NextCommand,
    output: Output,
) -> int:
    """Say what of the ladders is missing, and what that costs: `--dry-run`."""
    from sweeper.cli.cost import branches_text
    from sweeper.engine.branches import trunk_key
    from sweeper.report import console as show
    from sweeper.stats.ladder import LadderSize
    from sweeper.study.cost import Cost, flops_of
    from sweeper.sweep.experiment import run_time, shared_steps

    settings = experiment.settings
    missing = [t for t in trials if (r := study.get(t.key)) is None or r.status == "failed"]
    branches = shared_steps(settings, missing)
    depths = len({trial.spec.depth for trial in trials}) > 1
    rows = []
    for width, depth in dict.fromkeys((trial.spec.width, trial.spec.depth) for trial in trials):
        lacking = [t for t in missing if (t.spec.width, t.spec.depth) == (width, depth)]
        cost = Cost(trials=len(lacking), flops=0.0, seconds=0.0)
        if lacking:
            # A step of the longest is timed: of one model steps take equally long.
            longest = max((trial.spec for trial in lacking), key=lambda spec: spec.train.steps)
            size = LadderSize(
                width=width,
                depth=depth,
                batch_size=longest.train.batch_size,
                steps=longest.train.steps,
            )
            # What a run takes from a longer one is trained there.
            steps = sum(trial.spec.train.steps - branches.get(trial.key, 0) for trial in lacking)
            whole = steps / longest.train.steps
            seconds = whole * run_time(experiment, size, study.results())[1]
            cost = Cost(trials=len(lacking), flops=whole * flops_of(longest), seconds=seconds)
        rows.append((f"width {width}" + f", depth {depth}" * depths, cost))
    horizons = sorted({trial.spec.train.steps for trial in trials})
    facts = (
        f"Each size at {', '.join(map(str, horizons))} steps and the planned eta, "
        f"{settings.transfer.seeds} seed{'s' * (settings.transfer.seeds != 1)} each."
    ) + branches_text(missing, branches)
    command = settings.raw["runner"].get("command")
    if missing and len(horizons) > 1 and not command and not any(map(trunk_key, missing)):
        facts += " In a study with train.schedule=wsd shorter runs would branch off the longest."
    output.show(*show.dry_run("This would train", "size", rows, "runs", facts))
    costs = [
        {"size": name, "runs": cost.trials, "flops": cost.flops, "seconds": cost.seconds}
        for name, cost in rows
    ]
    answer = f"{len(missing)} of {len(trials)} runs are to be trained; nothing was written."
    document = {
        "study": settings.name,
        "branches": {"runs": len(branches), "steps": sum(branches.values())},
        "sizes": costs,
    }
    output.end(answer, {}, document, again)
    return DONE


def _with_band(
    prediction: Prediction, study: Study, trained: Sequence[Result], runs: LossRuns, scales: _Scales
) -> Prediction:
    """With the band of the run that is asked about, by the training curves of all `trained`."""
    from sweeper.decide.band import LEAST_POINTS, Course, Curves, fit_band
    from sweeper.study.searched import takes
    from sweeper.study.setup import trials_of

    best, aim = prediction.optimum, prediction.target
    if aim is not None:
        params, tokens = aim.params, aim.tokens
    elif best is not None:
        params, tokens = best.params.value, best.tokens.value
    else:
        return prediction
    long = np.array([len(result.curve) >= LEAST_POINTS for result in trained])
    if not long.any():
        return replace(prediction, no_band=f"no run kept a curve of {LEAST_POINTS} points or more")
    runs = runs.only(long)
    trained = [result for result, kept in zip(trained, long, strict=True) if kept]
    longest = max(trained, key=lambda result: result.steps).trial.train
    # A command that takes no schedule has one of its own.
    config = config_text(study.folder)
    known = any(takes(config, name) for name in PLACEHOLDERS)
    cells = [(round(n), round(d)) for n, d in zip(runs.params, runs.tokens, strict=True)]
    cell = np.unique(cells, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    # LossRuns that differ from those in eta alone show what an eta that is off does to a curve.
    pairs, octaves = [], set[float]()
    for result in trials_of(study).current:
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
            Course(
                steps=max(1, round(tokens / scales.per_step(longest.batch_size))),
                warmup=longest.warmup,
                window=longest.objective_window,
                schedule=name_of(longest.schedule) if known else OWN,
                lr=longest.lr_factors(range(longest.steps)),
            ),
            math.log(params),
            math.log(tokens),
        )
    except ValueError as error:
        return replace(prediction, no_band=str(error))
    return replace(prediction, band=band)


def _eta_change(trial: Trial, other: Trial) -> float | None:
    """By how many octaves the eta of a trial is higher, where that is all and at most one."""
    same = trial.spec == other.spec and trial.seed == other.seed
    mine, theirs = dict(trial.log2_hps), dict(other.log2_hps)
    change = mine.pop("eta", 0.0) - theirs.pop("eta", 0.0)
    alike = same and mine == theirs and trial.choices == other.choices
    return change if alike and 0 < abs(change) <= 1 else None


class _Scales:
    """Parameters and FLOPs of a study's models: counted, or of commands width x width x depth."""

    def __init__(
        self, experiment: Experiment | None, base: LadderSize, length: int | None = None
    ) -> None:
        """Of the models of `experiment`; None: of runs whose models nobody here can build.

        Examples have `length` tokens, if the experiment does not say it.
        """
        self.experiment, self.base = experiment, base
        self.counted = experiment is not None and not experiment.settings.scaled_by_user
        self.length, self.unit, self.flops_known = length or 1, "tokens", self.counted
        if experiment is not None:
            from sweeper.sweep.replay import example_length, token_unit

            runner = experiment.settings.runner
            self.length, self.unit = example_length(experiment) or 1, token_unit(experiment)
            # The batch and the sequence of a command that takes neither are its own affair.
            if not runner.takes("batch_size"):
                self.length, self.unit = 1, "steps"
            ours = self.unit == "examples" and runner.takes("data")
            self.flops_known &= self.unit == "tokens" or ours
        self._known: dict[tuple[int, int], float] = {}

    def per_step(self, batch: int) -> int:
        """Tokens of a step, or of what stands for them."""
        return 1 if self.unit == "steps" else batch * self.length

    def params(self, size: Size) -> float:
        """Of a model of `size`, all of them."""
        key = size.width, size.depth
        if key not in self._known:
            self._known[key] = (
                float(self.experiment.prepared(size).parameters())
                if self.experiment is not None and self.counted
                else float(size.width**2 * size.depth)
            )
        return self._known[key]

    def flops(self, size: LadderSize, tokens: float) -> float:
        """Of a whole run, for the `tokens` that it is said to see; in proportion if not known."""
        if self.experiment is not None and self.counted:
            prepared = self.experiment.prepared(size)
            flops = float(prepared.flops())
            return flops if self.flops_known else flops / prepared.tokens() * tokens
        return 6.0 * self.params(size) * tokens

    def choice(self, params: float, tokens: float, depth: int) -> SizeChoice | None:
        """The width whose model has `params` parameters at `depth`, and the steps of `tokens`."""
        from sweeper.stats.ladder import Size

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


def _as_runs(trained: Sequence[Result], scales: _Scales) -> LossRuns:
    from sweeper.engine.branches import trunk_key
    from sweeper.stats.ladder import LadderSize

    if not trained:
        raise BadInput("the study has no finished run: `sweeper search` makes them")
    params, tokens, flops, labels, trunks = [], [], [], [], []
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
    losses = np.array([result.objective for result in trained])
    if not (losses > 0).all():
        raise BadInput("a law of losses needs positive ones: the study's objective is no such loss")
    cells = [t or f"{n}\0{d}" for n, d, t in zip(params, tokens, trunks, strict=True)]
    cluster = np.unique(cells, return_inverse=True)[1].reshape(-1).astype(np.int64)
    found = LossRuns(np.array(params), np.array(tokens), losses, np.array(flops), cluster, labels)
    return replace(found, unit=scales.unit)


def _ended(result: Result) -> bool:
    """Whether a run has a loss at its end, which can be drawn."""
    whole = result.status == "complete" and result.steps >= result.trial.spec.train.steps
    return whole and 0 < result.objective < math.inf


def _report(
    prediction: Prediction,
    runs: LossRuns,
    folder: Path,
    output: Output,
    *,
    left_out: LossRuns | None = None,
    again: NextCommand | None = None,
) -> int:
    from sweeper.report.answer import Sentence
    from sweeper.report.prediction import (
        BACK_TEST,
        answer_text,
        band_text,
        reasons_text,
        tables,
        write_prediction,
    )

    rungs = Rungs.of(runs, Design.of(runs))
    prediction = prediction.dated(folder)
    if kept := prediction.keep_earlier(folder):
        output.notes([f"another prediction lay there, and is kept as {kept}"])
    places = write_prediction(prediction, runs, rungs, folder, left_out)
    output.within(folder)
    for table in tables(prediction):
        decides = table.title == BACK_TEST
        output.show(replace(table, detail=not decides))
    for line in reasons_text(prediction):
        output.show(Sentence(line))
    if band := band_text(prediction):
        output.show(Sentence(band, detail=True))
    output.notes(prediction.notes)
    if strays := prediction.inputs.strays:
        output.notes([f"far off the law, and counted less: {', '.join(strays)}"])
    output.say(f"SHA-256 of prediction.json: {prediction.sha256}", detail=True)
    # What --json prints is the file's content with its digest, which the file cannot hold itself.
    document = {**json.loads(prediction.text()), "sha256": prediction.sha256}
    output.end(answer_text(prediction), places, document, again)
    return DONE
