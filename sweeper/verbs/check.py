"""Check a model: the coordinate check, scales of operands, kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.check.judge import CheckRecord, CoordinateCheck
from sweeper.check.recursion import KernelRow, kernel_rows
from sweeper.config.command_line import with_place
from sweeper.config.settings import Experiment, Settings, resolve
from sweeper.config.studies import Invocation, tree_of
from sweeper.engine.kernels import KernelMeasurement
from sweeper.engine.measurements import OperandScale
from sweeper.errors import BadInput, Call, ConfigError, Keyword
from sweeper.files import private_folder, write_json
from sweeper.records import from_json, to_json
from sweeper.registry import TARGET
from sweeper.stats.ladder import MODEL_AXES, Size
from sweeper.study.folder import StudyFolder
from sweeper.study.setup import provenance
from sweeper.study.study import StudyRecord
from sweeper.study.watcher import Watcher
from sweeper.sweep.coordinates import check_batch, check_record, known_check, measured, run_check
from sweeper.sweep.experiment import check_model, open_experiment, short_run
from sweeper.sweep.optimum import planned_optimum
from sweeper.trial import Log2Hps, defaults
from sweeper.verbs.answer import Outcome, VerbAnswer
from sweeper.verbs.requests import CheckRequest


@dataclass(frozen=True, kw_only=True)
class CheckAnswer(VerbAnswer):
    """What was measured, as far as it was asked for: `operands`, `kernels`, or `record`.

    All is written to `folder`, which lies in the study. `unfinished` is the number of trials of
    the study's search where that is not at its end.
    """

    settings: Settings
    invocation: Invocation
    folder: Path
    operands: Sequence[OperandScale] = ()
    kernels: Sequence[KernelRow] = ()
    record: CheckRecord | None = None
    unfinished: int = 0

    @property
    def checks(self) -> Sequence[CoordinateCheck]:
        """The coordinate check along every axis."""
        return self.record.axes if self.record else ()


def check(request: CheckRequest, watcher: Watcher) -> CheckAnswer:
    """Measure what is asked for; NOT_VALIDATED if strict, unless the coordinate check passes."""
    placed = with_place(request.overrides, None, request.root)
    tree, invocation = tree_of(request.study, placed, request.config_dir, trust=request.trust)
    settings, ladders = resolve(tree, placed), dict[str, list[Size]]()
    _check_asked(request, settings)
    if not (request.scales or request.kernels):
        ladders = _ladders(settings)
    operands, kernels = list[OperandScale](), list[KernelRow]()
    record, notes, unfinished = None, list[str](), 0
    folder = StudyFolder(settings.folder).check
    experiment = open_experiment(settings)
    check_model(experiment, watcher)
    log2_hps = defaults(settings.space)
    if invocation.study is not None:
        study = StudyRecord.read(settings.folder)
        planned = planned_optimum(experiment, study)
        log2_hps, unfinished = planned.conclusion.best_log2, planned.unfinished
        notes += study.notices
    if settings.check.eta is not None:
        log2_hps = Log2Hps({**log2_hps, "eta": settings.check.eta})
    if ladders:
        check_batch(experiment)
    _make_folder(settings, folder)
    if request.scales:
        operands = _scales(experiment, log2_hps, folder, watcher)
    if request.kernels:
        kernels = _kernels(experiment, log2_hps, folder, watcher)
    if ladders:
        record = _coordinates(experiment, log2_hps, ladders, folder, watcher)
        write_json(folder / "check.json", to_json(record))
    passed = record is not None and all(axis.answer == "pass" for axis in record.axes)
    return CheckAnswer(
        outcome=Outcome.NOT_VALIDATED if request.strict and not passed else Outcome.DONE,
        notes=tuple((note,) for note in notes),
        settings=settings,
        invocation=invocation,
        folder=folder,
        operands=operands,
        kernels=kernels,
        record=record,
        unfinished=unfinished,
    )


def _check_asked(request: CheckRequest, settings: Settings) -> None:
    scales, kernels = Keyword("scales"), Keyword("kernels")
    coordinates = not (request.scales or request.kernels)
    if request.strict and not coordinates:
        what = " judges the coordinate check: leave "
        raise BadInput(Keyword("strict"), what, scales, " and ", kernels, " out")
    if not coordinates and not settings.runner.measures("scales"):
        engine = "sweeper's own engine: runner=engine"
        raise BadInput(scales, " and ", kernels, f" measure in {engine}")
    if coordinates and not settings.runner.measures("coordinates"):
        raise ConfigError(
            "runner.uses",
            list(settings.raw["runner"].get("uses", ())),
            (
                "[watch]: call sweeper.watch(model) in the script, once the model has its initial "
                "weights, and add 'runner.uses=[watch]'",
                *_by_engine(settings),
            ),
        )


def _by_engine(settings: Settings) -> tuple[str | Call, ...]:
    """The check of a command's model that needs no script, where its plan knows the model."""
    model, rules = (settings.plugin_spec(group).name for group in ("model", "parameterization"))
    if "." not in model or rules == "own":
        return ()
    settings_text = [f"model.{TARGET}={model}", f"parameterization={rules}"]
    settings_text += [f"model.width={settings.base.width}", f"model.depth={settings.base.depth}"]
    settings_text += [f"train.seq_len={settings.raw['train']['seq_len']}"]
    return ". Or check the model alone, trained by sweeper: ", Call("check", *settings_text)


def _ladders(settings: Settings) -> dict[str, list[Size]]:
    climbed = settings.ladders()
    # Not over batch and steps: the check's runs have a batch and steps of their own.
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


def _coordinates(
    experiment: Experiment,
    log2_hps: Log2Hps,
    ladders: Mapping[str, Sequence[Size]],
    folder: Path,
    watcher: Watcher,
) -> CheckRecord:
    # The check that came with a plan, where it was over these very widths.
    kept = StudyFolder(experiment.settings.folder).plans_check
    earlier = known_check(experiment, log2_hps, [kept])
    widths = [size.width for size in ladders.get("width", ())]
    if earlier and ladders.keys() == {"width"} and widths == list(earlier.sizes):
        checks = [earlier]
    else:
        checks = run_check(experiment, log2_hps, ladders, folder, watcher)
    return check_record(experiment, log2_hps, checks, provenance()["command"])


def _scales(
    experiment: Experiment, log2_hps: Log2Hps, folder: Path, watcher: Watcher
) -> list[OperandScale]:
    rule, base = experiment.settings.check, experiment.settings.base
    trial = short_run(experiment, base, log2_hps, rule.seed, "scales", steps=rule.scale_steps)
    record: list[Any] = measured(experiment, folder, [trial], watcher)[trial.key]
    operands = [from_json(OperandScale, operand) for operand in record]
    if not operands:
        raise BadInput("no matrix product was seen: the model has no Linear and no Attention")
    write_json(folder / "scales.json", record)
    return operands


def _kernels(
    experiment: Experiment, log2_hps: Log2Hps, folder: Path, watcher: Watcher
) -> list[KernelRow]:
    rule, base = experiment.settings.check, experiment.settings.base
    trials = [
        short_run(experiment, base, log2_hps, seed, "kernels", steps=1)
        for seed in range(rule.seed, rule.seed + rule.seeds)
    ]
    records = measured(experiment, folder, trials, watcher)
    rows = kernel_rows([from_json(KernelMeasurement, records[trial.key]) for trial in trials])
    write_json(folder / "kernels.json", [to_json(row) for row in rows])
    return rows


def _make_folder(settings: Settings, folder: Path) -> None:
    try:
        private_folder(settings.folder)
        private_folder(folder)
    except OSError as error:
        another = Keyword("root", ...)
        reason = f"{folder} cannot be made ({error.strerror or error}): give another "
        raise BadInput(reason, another) from error
