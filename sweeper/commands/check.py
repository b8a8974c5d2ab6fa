"""`sweeper check`: the coordinate check, the scale report, and the rules' table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweeper.commands.experiment import check_model, open_experiment, progress, short_run
from sweeper.commands.output import DONE, NOT_PROVEN, Output
from sweeper.commands.transfer import load_study, optimum
from sweeper.config import compose_tree
from sweeper.errors import BadInput
from sweeper.files import private_folder, write_json
from sweeper.measure.coordinates import ModuleMeasurement
from sweeper.measure.scales import OperandScale
from sweeper.report import coordinates as show
from sweeper.report.page import write_report
from sweeper.report.plots import save
from sweeper.settings import Experiment, Settings, resolve
from sweeper.study import Study
from sweeper.sweep import measure_trials
from sweeper.training.prepare import prepare
from sweeper.transfer.coordinates import CoordinateCheck, check_coordinates
from sweeper.transfer.ladder import Size
from sweeper.transfer.rules import rule_table
from sweeper.trial import Log2Hps, Trial, defaults


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What `sweeper check` is asked for; neither `scales` nor `rules`: the coordinate check."""

    scales: bool = False
    rules: bool = False
    strict: bool = False
    folder: Path | None = None

    @property
    def coordinates(self) -> bool:
        """Whether the coordinate check is asked for."""
        return not (self.scales or self.rules)


def check(
    study: str | None,
    wanted: Wanted,
    words: Sequence[str],
    config_dir: Path | None,
    output: Output,
) -> int:
    """Run what is wanted; exit code 3 under --strict unless the coordinate check passes."""
    if wanted.strict and not wanted.coordinates:
        raise BadInput("--strict judges the coordinate check: leave --scales and --rules out")
    if study is not None:
        settings = load_study(study, words, config_dir)
    else:
        settings = resolve(compose_tree(words, config_dir))
    document: dict[str, Any] = {}
    checks: list[CoordinateCheck] = []
    ladders = _ladders(settings) if wanted.coordinates else {}
    if wanted.rules:
        document["rules"] = _rules(_made(settings, wanted), output)
    if wanted.scales or wanted.coordinates:
        experiment = open_experiment(settings)
        check_model(experiment, output)
        hps = _hps(experiment, output, of_study=study is not None)
        if wanted.scales:
            document["scales"] = _scales(experiment, hps, _made(settings, wanted), output)
        else:
            _check_batch(experiment)
            folder = _made(settings, wanted)
            checks = _coordinates(experiment, hps, ladders, folder, output)
            document["check"] = _record(settings, hps, checks)
            _write(folder, checks, document["check"], settings.check.threshold, output)
        if wanted.folder is None and (settings.folder / "config.yaml").is_file():
            output.say(f"Report: {write_report(settings.folder)}")
    output.document(document)
    passed = all(one.answer == "pass" for one in checks)
    return NOT_PROVEN if wanted.strict and not passed else DONE


def _made(settings: Settings, wanted: Wanted) -> Path:
    """The folder to write to, made before anything is trained; BadInput when it cannot be."""
    folder = wanted.folder or settings.folder / "check"
    try:
        if wanted.folder is None:
            private_folder(settings.folder)
        private_folder(folder)
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"{folder} cannot be made ({reason}): give another --folder") from error
    return folder


def _check_batch(experiment: Experiment) -> None:
    """BadInput when the data cannot fill the check's batch."""
    try:
        experiment.corpus.check(
            experiment.settings.check.batch, experiment.settings.raw["train"]["seq_len"]
        )
    except BadInput as error:
        raise BadInput(f"check.batch: {error}") from error


def _hps(experiment: Experiment, output: Output, *, of_study: bool) -> Log2Hps:
    """Hyperparameters (log2): the study's optimum or the space's defaults, and `check.eta`."""
    settings = experiment.settings
    log2_hps = defaults(settings.space)
    if of_study:
        log2_hps = optimum(experiment, Study.read(settings.folder), output).best_log2
    if settings.check.eta is not None:
        log2_hps = Log2Hps({**log2_hps, "eta": settings.check.eta})
    return log2_hps


def _ladders(settings: Settings) -> dict[str, list[Size]]:
    """The sizes to check by axis; BadInput without any beside the base."""
    climbed = settings.transfer.ladders(settings.ladder_base)
    ladders = {
        axis: [Size(width=size.width, depth=size.depth) for size in climbed[axis]]
        for axis in ("width", "depth")
        if axis in climbed
    }
    if not ladders:
        raise BadInput(
            "there is no ladder to check: give transfer.widths or transfer.depths a value that is "
            "not the base's, as in transfer.widths=[32,64,128]"
        )
    return ladders


def _coordinates(
    experiment: Experiment,
    log2_hps: Log2Hps,
    ladders: Mapping[str, Sequence[Size]],
    folder: Path,
    output: Output,
) -> list[CoordinateCheck]:
    """Train the runs of every ladder, and judge them."""
    rule = experiment.settings.check
    sizes = sorted({size for ladder in ladders.values() for size in ladder})
    seeds = range(rule.seed, rule.seed + rule.seeds)
    # A constant fraction of eta, as in a warm-up: the first steps of a run, not its end.
    slower = Log2Hps({**log2_hps, "eta": log2_hps["eta"] + math.log2(rule.share)})
    train = {"steps": rule.steps, "batch_size": rule.batch, "warmup": 0.0, "final_lr": 1.0}
    trials = {
        size: [short_run(experiment, size, slower, seed, "coordinates", **train) for seed in seeds]
        for size in sizes
    }
    for size in sizes:
        output.tell(f"check: {size}, {rule.seeds} runs of {rule.steps} steps")
    measured = _measured(experiment, folder, [t for runs in trials.values() for t in runs], output)
    runs = {
        size: [
            [ModuleMeasurement.from_json(module) for module in measured[trial.key]]
            for trial in of_size
        ]
        for size, of_size in trials.items()
    }
    if not all(run for of_size in runs.values() for run in of_size):
        raise BadInput(
            "no module's output was seen: the check reads what the modules within the model "
            "return, so put its parameters into modules of their own"
        )
    scheme = prepare(trials[sizes[0]][0].spec).scheme
    return [
        check_coordinates(
            axis, {size: runs[size] for size in ladder}, rule, getattr(scheme, "intended", {})
        )
        for axis, ladder in ladders.items()
    ]


def _measured(
    experiment: Experiment, folder: Path, trials: Sequence[Trial], output: Output
) -> dict[str, Any]:
    """What runs measure, by their keys; they are trained where the launcher trains everything."""
    try:
        with progress(experiment.settings, output, "check", len(trials), folder) as listener:
            results = measure_trials(experiment, folder, trials, listener, output.tell)
    finally:
        (folder / "progress.json").unlink(missing_ok=True)
    return {key: result.measurements for key, result in results.items()}


def _record(
    settings: Settings, log2_hps: Log2Hps, checks: Sequence[CoordinateCheck]
) -> dict[str, Any]:
    """The content of check.json."""
    rule = asdict(settings.check)
    rule["log2_eta"] = rule.pop("eta")
    return {
        "parameterization": settings.plugin_spec("parameterization").name,
        "optimizer": settings.plugin_spec("optimizer").name,
        "base": asdict(settings.base),
        "log2_hps": dict(log2_hps),
        "rule": rule,
        "axes": [one.to_json() for one in checks],
    }


def _write(
    folder: Path,
    checks: Sequence[CoordinateCheck],
    record: Mapping[str, Any],
    threshold: float,
    output: Output,
) -> None:
    """check.json, the pictures, and the tables."""
    write_json(folder / "check.json", record)
    for one in checks:
        show.coordinates(output.people, one, threshold)
        picture, _ = save(show.coordinate_figure(one), folder / f"coordinates-{one.axis}")
        output.say(f"Curves: {picture}")
    output.say(f"Check: {folder / 'check.json'}")


def _scales(
    experiment: Experiment, log2_hps: Log2Hps, folder: Path, output: Output
) -> list[dict[str, Any]]:
    """Train one run of the base size; scales.json, its picture, and the table."""
    rule, base = experiment.settings.check, experiment.settings.base
    trial = short_run(experiment, base, log2_hps, rule.seed, "scales", steps=rule.scale_steps)
    record: list[dict[str, Any]] = _measured(experiment, folder, [trial], output)[trial.key]
    operands = [OperandScale.from_json(operand) for operand in record]
    if not operands:
        raise BadInput("no matrix product was seen: the model has no Linear and no Attention")
    write_json(folder / "scales.json", record)
    show.scales(output.people, operands)
    picture, _ = save(show.scale_figure(operands), folder / "scales")
    output.say(f"Picture: {picture}")
    output.say(f"Scales: {folder / 'scales.json'}")
    return record


def _rules(folder: Path, output: Output) -> list[dict[str, Any]]:
    """rules.json, and the table."""
    rows = rule_table()
    record = [row.to_json() for row in rows]
    write_json(folder / "rules.json", record)
    show.rules(output.people, rows)
    output.say(f"Rules: {folder / 'rules.json'}")
    return record
