"""`sweeper check`: the coordinate check, the scale report, and the rules' table."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from sweeper.check.judge import CoordinateCheck, sentence
from sweeper.check.rules import rule_table
from sweeper.cli.coordinates import (
    check_batch,
    check_record,
    known_check,
    measured,
    run_check,
)
from sweeper.cli.shared import check_model
from sweeper.cli.transfer import planned_optimum
from sweeper.config.compose import Tree
from sweeper.config.settings import Experiment, Settings, resolve
from sweeper.config.studies import Invocation
from sweeper.engine.measurements import OperandScale
from sweeper.errors import BadInput, ConfigError
from sweeper.files import private_folder, write_json
from sweeper.records import from_json, to_json
from sweeper.registry import TARGET
from sweeper.report import checks as show
from sweeper.report.drawing import save
from sweeper.report.next import NextCommand, again, next_of
from sweeper.report.output import DONE, NOT_VALIDATED, Output
from sweeper.report.study_page import write_report
from sweeper.stats.ladder import MODEL_AXES, Size
from sweeper.study.folder import StudyFolder, configs
from sweeper.study.setup import provenance
from sweeper.study.study import Study
from sweeper.sweep.experiment import open_experiment, short_run
from sweeper.trial import Log2Hps, defaults


@dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """What `sweeper check` is asked for; neither `scales` nor `rules`: the coordinate check."""

    scales: bool = False
    rules: bool = False
    strict: bool = False
    folder: Path | None = None

    @property
    def coordinates(self) -> bool:
        """Whether the coordinate check is asked for."""
        return not (self.scales or self.rules)


def _by_engine(settings: Settings) -> str:
    """The check of a command's model that needs no script, where its plan knows the model."""
    model, rules = (settings.plugin_spec(group).name for group in ("model", "parameterization"))
    if "." not in model or rules == "own":
        return ""
    words = [f"model.{TARGET}={model}", f"parameterization={rules}"]
    words += [f"model.width={settings.base.width}", f"model.depth={settings.base.depth}"]
    words += [f"train.seq_len={settings.raw['train']['seq_len']}"]
    return f". Or check the model alone, trained by sweeper: sweeper check {shlex.join(words)}"


def check(tree: Tree, request: CheckRequest, invocation: Invocation, output: Output) -> int:
    """Run what is asked for; exit code 3 under --strict unless the coordinate check passes.

    `tree` is the configuration that the `invocation` gives: of a study, at its optimum.
    """
    settings = resolve(tree)
    if request.strict and not request.coordinates:
        raise BadInput("--strict judges the coordinate check: leave --scales and --rules out")
    if not request.coordinates and not settings.runner.measures("scales"):
        raise BadInput("--scales and --rules measure in sweeper's own engine: runner=engine")
    if request.coordinates and not settings.runner.measures("coordinates"):
        raise ConfigError(
            "runner.uses",
            list(settings.raw["runner"].get("uses", ())),
            "[watch]: call sweeper.watch(model) in the script, once the model has its initial "
            f"weights, and add 'runner.uses=[watch]'{_by_engine(settings)}",
        )
    climbed = settings.ladders()
    # Not over batch and steps: the check's runs have a batch and steps of their own.
    ladders: dict[str, list[Size]] = {
        axis: [size.model_size for size in climbed[axis]]
        for axis in ("width", "depth", *MODEL_AXES)
        if axis in climbed
    }
    if request.coordinates and not ladders:
        raise BadInput(
            "there is no ladder to check: give transfer.widths or transfer.depths a value that is "
            "not the base's, as in transfer.widths=[32,64,128]"
        )
    document: dict[str, Any] = {}
    places, pictures = dict[str, Path](), dict[str, Path]()
    checks: list[CoordinateCheck] = []
    if request.rules:
        rows = rule_table()
        document["rules"] = [to_json(row) for row in rows]
        write_json(_make_folder(settings, request) / "rules.json", document["rules"])
        output.show(show.rules_table(rows))
    if request.scales or request.coordinates:
        experiment = open_experiment(settings)
        check_model(experiment, output)
        log2_hps = defaults(settings.space)
        if invocation.study is not None:
            log2_hps = planned_optimum(experiment, Study.read(settings.folder), output)
        if settings.check.eta is not None:
            log2_hps = Log2Hps({**log2_hps, "eta": settings.check.eta})
        if request.coordinates:
            check_batch(experiment)
        folder = _make_folder(settings, request)
        output.within(settings.folder if request.folder is None else folder)
        if request.scales:
            document["scales"] = _report_scales(experiment, log2_hps, folder, output)
        else:
            # The check that came with a plan, where it was over these very widths.
            known = known_check(experiment, log2_hps, [StudyFolder(settings.folder).plans_check])
            widths = [size.width for size in ladders.get("width", ())]
            if known and ladders.keys() == {"width"} and widths == list(known.sizes):
                checks = [known]
            else:
                checks = run_check(experiment, log2_hps, ladders, folder, output)
            command = provenance()["command"]
            document["check"] = to_json(check_record(experiment, log2_hps, checks, command))
            write_json(folder / "check.json", document["check"])
            output.show(*show.coordinates(checks, settings.check))
            for axis in checks:
                picture, _ = save(show.coordinate_figure(axis), folder / f"coordinates-{axis.axis}")
                pictures.setdefault("curves", picture)
        if request.folder is None and StudyFolder(settings.folder).config.is_file():
            places["report"] = write_report(settings.folder)
    places |= {
        name: (request.folder or StudyFolder(settings.folder).check) / f"{name}.json"
        for name in document
    }
    places |= pictures
    answer = " ".join(sentence(axis, settings.check) for axis in checks)
    if not checks:
        subjects = ["the operands of every matrix product"] * request.scales
        subjects += ["every printed learning-rate rule"] * request.rules
        answer = f"Measured {' and '.join(subjects)}."
    output.end(answer, places, document, _after_check(settings, checks, invocation))
    passed = all(axis.answer == "pass" for axis in checks)
    return NOT_VALIDATED if request.strict and not passed else DONE


def _report_scales(
    experiment: Experiment, log2_hps: Log2Hps, folder: Path, output: Output
) -> list[Any]:
    """Train the base for some steps, and show the operands of all matrix products; their record."""
    rule, base = experiment.settings.check, experiment.settings.base
    trial = short_run(experiment, base, log2_hps, rule.seed, "scales", steps=rule.scale_steps)
    record: list[Any] = measured(experiment, folder, [trial], output)[trial.key]
    operands = [from_json(OperandScale, operand) for operand in record]
    if not operands:
        raise BadInput("no matrix product was seen: the model has no Linear and no Attention")
    write_json(folder / "scales.json", record)
    output.show(show.scale_table(operands))
    save(show.scale_figure(operands), folder / "scales")
    return record


def _make_folder(settings: Settings, request: CheckRequest) -> Path:
    """The folder to write to, made before anything is trained; BadInput when it cannot be."""
    folder = request.folder or StudyFolder(settings.folder).check
    try:
        if request.folder is None:
            private_folder(settings.folder)
        private_folder(folder)
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"{folder} cannot be made ({reason}): give another --folder") from error
    return folder


def _after_check(
    settings: Settings, checks: Sequence[CoordinateCheck], invocation: Invocation
) -> NextCommand | None:
    """The command after a check: the search, the study's next, or what shows or settles a fault."""
    failing = {axis.axis: max(axis.sizes) for axis in checks if axis.answer == "fail"}
    if failing:
        size = _failed_size(settings.base, failing)
        why = "to see what is prescribed there"
        return again(invocation, "explain", settings, *size, why=why)
    for doubtful in (axis for axis in checks if axis.answer == "cannot say"):
        settled = doubtful.settled_by(settings.check)
        changes = [settled] if settled else []
        why = "to settle what cannot be said yet"
        return again(invocation, "check", settings, *changes, why=why)
    if not checks:
        return again(invocation, "check", settings, why="to check the coordinates")
    if invocation.study is not None:
        return next_of(settings.folder)
    # Of a model that a script of one's own trains already, not a search of another engine.
    if settings.raw["runner"].get("command") is None and (folder := _study_of_command(settings)):
        return next_of(folder)
    # The learning rate alone, where nobody asked for a search of hours.
    asked = ("search=", "experiment=", "size=")
    changes = [] if any(word.startswith(asked) for word in invocation.overrides) else ["search=lr"]
    return again(invocation, "search", settings, *changes, why="to search the base size")


def _study_of_command(settings: Settings) -> Path | None:
    """The newest study beside this one that trains its model by a command; None without."""
    found = []
    for path in configs(settings.root):
        try:
            kept = yaml.safe_load(path.read_text(encoding="utf-8"))
            same = kept["model"][TARGET] == settings.plugin_spec("model").name
            if same and kept["runner"].get("command"):
                found.append((path.stat().st_mtime, path.parent))
        except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, AttributeError):
            continue
    return max(found)[1] if found else None


def _failed_size(base: Size, failing: Mapping[str, int]) -> list[str]:
    """The options for the size to explain, given the largest size along every axis that fails.

    Explain compares with the base, so a failure at the base or below is explained at 4 times it.
    """
    sizes, asked = asdict(base), failing.keys() & {"width", "depth"}
    for axis in asked or ("width",):
        largest = failing.get(axis, 0)
        sizes[axis] = largest if largest > sizes[axis] else 4 * sizes[axis]
    options = ["--to-width", str(sizes["width"])]
    return options + ["--to-depth", str(sizes["depth"])] * ("depth" in asked)
