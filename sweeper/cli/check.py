"""`sweeper check`: the coordinate check, the scale report, and the rules' table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.check.judge import CheckRule, CoordinateCheck
from sweeper.check.rules import rule_table
from sweeper.cli.coordinates import (
    beside_plan,
    check_batch,
    check_record,
    measured,
    run_check,
    sentence,
)
from sweeper.cli.next import next_of
from sweeper.cli.output import DONE, NOT_PROVEN, Output
from sweeper.cli.shared import Typed, check_model, open_experiment, short_run
from sweeper.cli.transfer import planned_optimum
from sweeper.config.compose import Tree
from sweeper.config.settings import Experiment, Settings, resolve
from sweeper.engine.operand_scales import OperandScale
from sweeper.errors import BadInput, ConfigError
from sweeper.files import private_folder, write_json
from sweeper.records import from_json, to_json
from sweeper.report import checks as show
from sweeper.report.drawing import save
from sweeper.report.page import write_report
from sweeper.study.study import Study
from sweeper.trial import Log2Hps, defaults
from sweeper.verdict.ladder import MODEL_AXES, Size


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


def check(tree: Tree, wanted: Wanted, output: Output, typed: Typed) -> int:
    """Run what is wanted; exit code 3 under --strict unless the coordinate check passes.

    `typed` is how `tree` was given; of a study: at its optimum.
    """
    if wanted.strict and not wanted.coordinates:
        raise BadInput("--strict judges the coordinate check: leave --scales and --rules out")
    settings = resolve(tree)
    _check_measurable(settings, wanted)
    document: dict[str, Any] = {}
    places: dict[str, Path] = {}
    checks: list[CoordinateCheck] = []
    ladders = _ladders(settings) if wanted.coordinates else {}
    if wanted.rules:
        document["rules"] = _rules(_made(settings, wanted), output)
    if wanted.scales or wanted.coordinates:
        experiment = open_experiment(settings)
        check_model(experiment, output)
        hps = _hps(experiment, output, of_study=typed.of_study)
        if wanted.scales:
            document["scales"] = _scales(experiment, hps, _made(settings, wanted), output)
        else:
            check_batch(experiment)
            folder = _made(settings, wanted)
            checks = beside_plan(experiment, hps, ladders)
            checks = checks or run_check(experiment, hps, ladders, folder, output)
            document["check"] = check_record(experiment, hps, checks)
            _write(folder, checks, document["check"], settings.check, output)
        if wanted.folder is None and (settings.folder / "config.yaml").is_file():
            places["report"] = write_report(settings.folder)
    places |= {
        name: (wanted.folder or settings.folder / "check") / f"{name}.json" for name in document
    }
    output.end(_found(checks, wanted, settings.check), places, _following(settings, checks, typed))
    output.document(document)
    passed = all(one.answer == "pass" for one in checks)
    return NOT_PROVEN if wanted.strict and not passed else DONE


def _found(checks: Sequence[CoordinateCheck], wanted: Wanted, rule: CheckRule) -> str:
    """What was found, in a line."""
    if checks:
        return " ".join(sentence(one, rule) for one in checks)
    names = {"the operands of every matrix product": wanted.scales}
    names |= {"every printed learning-rate rule": wanted.rules}
    return f"Measured {' and '.join(name for name, asked in names.items() if asked)}."


def _following(settings: Settings, checks: Sequence[CoordinateCheck], typed: Typed) -> str:
    """The command after a check: the search, the study's next, or what shows or settles a fault."""
    answers = {one.answer for one in checks}
    if "fail" in answers:
        failing = {one.axis: max(one.sizes) for one in checks if one.answer == "fail"}
        return typed.again("explain", settings, *_failed_size(settings.base, failing))
    if "cannot say" in answers:
        doubtful = next(one for one in checks if one.answer == "cannot say")
        settled = doubtful.settled_by(settings.check)
        return typed.again("check", settings, *([settled] if settled else []))
    if not checks:
        return typed.again("check", settings)
    return next_of(settings.folder) if typed.of_study else typed.again("search", settings)


def _failed_size(base: Size, failing: Mapping[str, int]) -> list[str]:
    """The size to explain, given the largest size along every axis that fails."""
    asked = {axis: size for axis, size in failing.items() if axis in ("width", "depth")}
    sizes = {"width": base.width, "depth": base.depth}
    for axis in asked or ("width",):
        largest = asked.get(axis, 0)
        sizes[axis] = largest if largest > sizes[axis] else 4 * sizes[axis]
    words = ["--to-width", str(sizes["width"])]
    return words + ["--to-depth", str(sizes["depth"])] * ("depth" in asked)


def _check_measurable(settings: Settings, wanted: Wanted) -> None:
    """Refuse what the runner's trials cannot measure."""
    if (wanted.scales or wanted.rules) and not settings.runner.measures("scales"):
        raise BadInput("--scales and --rules measure in sweeper's own engine: runner=engine")
    if wanted.coordinates and not settings.runner.measures("coordinates"):
        raise ConfigError(
            "runner.uses",
            list(settings.raw["runner"].get("uses", ())),
            "[watch]: call sweeper.watch(model) in the script, once the model has its initial "
            "weights, and add runner.uses=[watch]",
        )


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


def _hps(experiment: Experiment, output: Output, *, of_study: bool) -> Log2Hps:
    """Hyperparameters (log2): the study's optimum or the space's defaults, and `check.eta`."""
    settings = experiment.settings
    log2_hps = defaults(settings.space)
    if of_study:
        log2_hps = planned_optimum(experiment, Study.read(settings.folder), output)
    if settings.check.eta is not None:
        log2_hps = Log2Hps({**log2_hps, "eta": settings.check.eta})
    return log2_hps


def _ladders(settings: Settings) -> dict[str, list[Size]]:
    """The sizes to check by axis; BadInput without any beside the base."""
    climbed = settings.transfer.ladders(settings.ladder_base)
    ladders: dict[str, list[Size]] = {
        axis: [size.model_size for size in climbed[axis]]
        for axis in ("width", "depth", *MODEL_AXES)
        if axis in climbed
    }
    if not ladders:
        raise BadInput(
            "there is no ladder to check: give transfer.widths or transfer.depths a value that is "
            "not the base's, as in transfer.widths=[32,64,128]"
        )
    return ladders


def _write(
    folder: Path,
    checks: Sequence[CoordinateCheck],
    record: Mapping[str, Any],
    rule: CheckRule,
    output: Output,
) -> None:
    """check.json, the pictures, and the tables."""
    write_json(folder / "check.json", record)
    for one in checks:
        show.coordinates(output.people, one, rule)
        picture, _ = save(show.coordinate_figure(one), folder / f"coordinates-{one.axis}")
        output.say(f"Curves: {picture}")


def _scales(
    experiment: Experiment, log2_hps: Log2Hps, folder: Path, output: Output
) -> list[dict[str, Any]]:
    """Train one run of the base size; scales.json, its picture, and the table."""
    rule, base = experiment.settings.check, experiment.settings.base
    trial = short_run(experiment, base, log2_hps, rule.seed, "scales", steps=rule.scale_steps)
    record: list[dict[str, Any]] = measured(experiment, folder, [trial], output)[trial.key]
    operands = [from_json(OperandScale, operand) for operand in record]
    if not operands:
        raise BadInput("no matrix product was seen: the model has no Linear and no Attention")
    write_json(folder / "scales.json", record)
    show.scale_table(operands).print(output.people)
    picture, _ = save(show.scale_figure(operands), folder / "scales")
    output.say(f"Picture: {picture}")
    return record


def _rules(folder: Path, output: Output) -> list[dict[str, Any]]:
    """rules.json, and the table."""
    rows = rule_table()
    record = [to_json(row) for row in rows]
    write_json(folder / "rules.json", record)
    show.rules(output.people, rows)
    return record
