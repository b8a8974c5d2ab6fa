"""The runs behind a coordinate check: of whole ladders, and of a plan's small widths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.check.judge import CheckRecord, CoordinateCheck, check_coordinates
from sweeper.config.settings import Experiment, check_model_size
from sweeper.config.studies import Invocation
from sweeper.engine.measure import ModuleMeasurement
from sweeper.engine.prepare import prepare
from sweeper.errors import SHELL, BadInput, Call, SweeperError, Text
from sweeper.files import private_folder, write_json
from sweeper.records import from_json
from sweeper.scaling.spec import LOGITS
from sweeper.stats.ladder import LADDER_AXES, MODEL_AXES, Size
from sweeper.study.folder import StudyFolder, read_document
from sweeper.study.watcher import Watcher
from sweeper.sweep.experiment import progress_of, short_run
from sweeper.sweep.sweep import measure_trials
from sweeper.trial import Log2Hps, Trial, named


def check_batch(experiment: Experiment) -> None:
    """BadInput when the data cannot fill the check's batch."""
    settings = experiment.settings
    try:
        experiment.corpus.check(settings.check.batch, settings.raw["train"]["seq_len"])
    except BadInput as error:
        raise BadInput("check.batch: ", *error.args) from error


def run_check(
    experiment: Experiment,
    log2_hps: Log2Hps,
    ladders: Mapping[str, Sequence[Size]],
    folder: Path,
    watcher: Watcher,
    most: float = math.inf,
) -> list[CoordinateCheck]:
    """Train the runs of every ladder, and judge them; SweeperError as `measure_trials`."""
    rule = experiment.settings.check
    sizes = sorted({size for ladder in ladders.values() for size in ladder})
    # A constant fraction of eta, as in a warm-up: the first steps of a run, not its end.
    slower = Log2Hps({**log2_hps, "eta": log2_hps["eta"] + math.log2(rule.share)})
    train = {"steps": rule.steps, "batch_size": rule.batch, "warmup": 0.0, "final_lr": 1.0}
    seeds = range(rule.seed, rule.seed + rule.seeds)
    trials = {
        size: [short_run(experiment, size, slower, seed, "coordinates", **train) for seed in seeds]
        for size in sizes
    }
    for size in sizes:
        watcher.tell(f"check: {size}, {rule.seeds} runs of {rule.steps} steps")
    # The largest first: what is too large, or takes too long, is known at once.
    wanted = [trial for size in reversed(sizes) for trial in trials[size]]
    results = measured(experiment, folder, wanted, watcher, most)
    runs = {
        size: [
            [from_json(ModuleMeasurement, module) for module in results[trial.key]]
            for trial in of_size
        ]
        for size, of_size in trials.items()
    }

    def repeats_logits(run: Sequence[ModuleMeasurement]) -> bool:
        """Whether a module returned the logits: its row says the same, and what its weights did."""
        logits = next((module for module in run if module.name == LOGITS), None)
        if logits is None or logits.direct_changes:
            return logits is None
        numbers = (logits.entries, logits.rms, logits.changes)
        modules = (module for module in run if module is not logits)
        return any((m.entries, m.rms, m.changes) == numbers for m in modules)

    # In some runs alone, they stay in all: a module that not all sizes have is not judged.
    if all(repeats_logits(run) for of_size in runs.values() for run in of_size):
        # The same row once more for the logits says nothing.
        runs = {
            size: [[module for module in run if module.name != LOGITS] for run in of_size]
            for size, of_size in runs.items()
        }
    if not all(any(m.entries for m in run) for of_size in runs.values() for run in of_size):
        raise BadInput(
            "no module's output was seen: the check reads what the modules within the model "
            "return, so put its parameters into modules of their own"
        )
    scaled_by_user = experiment.settings.scaled_by_user
    parameterization = (
        None if scaled_by_user else prepare(trials[sizes[0]][0].spec).parameterization
    )
    # u-muP's changes of some roles shrink with the width by design, which is no failure.
    intended = getattr(parameterization, "intended", {})
    return [
        check_coordinates(axis, {size: runs[size] for size in ladder}, rule, intended)
        for axis, ladder in ladders.items()
    ]


def measured(
    experiment: Experiment,
    folder: Path,
    trials: Sequence[Trial],
    watcher: Watcher,
    most: float = math.inf,
) -> dict[str, Any]:
    """What runs measure, by their keys; they are trained where the launcher trains everything."""
    try:
        with progress_of(experiment.settings, watcher, "check", len(trials), folder) as listener:
            results = measure_trials(experiment, folder, trials, listener, watcher.tell, most=most)
    finally:
        StudyFolder(folder).progress.unlink(missing_ok=True)
    return {key: result.measurements for key, result in results.items()}


def check_record(
    experiment: Experiment,
    log2_hps: Log2Hps,
    checks: Sequence[CoordinateCheck] = (),
    command: str = "",
) -> CheckRecord:
    """What is kept of `checks`, whose modules the `command` shows."""
    settings = experiment.settings
    return CheckRecord(
        parameterization=settings.plugin_spec("parameterization").name,
        optimizer=settings.plugin_spec("optimizer").name,
        base=settings.base,
        spec=experiment.spec(settings.base).digest,
        log2_hps=named(settings.space, log2_hps),
        rule=settings.check,
        axes=tuple(checks),
        command=command,
    )


SIZES = 3
"""So many of the ladder's widths are checked, the smallest."""
MAX_SECONDS = 300.0
"""What would take longer is left to a check of its own."""
LAUNCHERS = ("inline", "local")
"""Launchers that start jobs at once; others may let them wait in a queue."""


@dataclass(frozen=True, kw_only=True)
class QuickCheck:
    """A check of small widths; None, and `why_not`, where it cannot be run or takes minutes."""

    call: Call
    check: CoordinateCheck | None = None
    why_not: Text = ()


def quick_check(
    experiment: Experiment, log2_hps: Log2Hps, invocation: Invocation, watcher: Watcher
) -> QuickCheck:
    """Check small widths, or read what an earlier check found; its call is for the `invocation`."""
    settings, files = experiment.settings, StudyFolder(experiment.settings.folder)
    if settings.check.eta is not None:
        log2_hps = Log2Hps({**log2_hps, "eta": settings.check.eta})
    ladders = settings.ladders()
    base, others = settings.base, ladders.keys() & {"depth", *MODEL_AXES}
    widths = [size.width for size in ladders.get("width", ())] or [base.width, 2 * base.width]
    widths = widths[:SIZES]
    check = known_check(experiment, log2_hps, files.checks())
    # The call that shows all modules of this check, and checks nothing else.
    known_eta = settings.transfer.eta if settings.check.eta is None else None
    changes = [] if known_eta is None else [f"check.eta={known_eta:g}"]
    changes.append(f"transfer.widths=[{','.join(map(str, check.sizes if check else widths))}]")
    changes += [f"transfer.{LADDER_AXES[axis]}=[]" for axis in LADDER_AXES if axis in others]
    call = invocation.call("check", settings.root, *changes, without=["transfer.check"])
    try:
        if check is None:
            if (launcher := settings.plugin_spec("launcher").name) not in LAUNCHERS:
                raise SweeperError(f"jobs of launcher={launcher} may have to wait")
            check_batch(experiment)
            sizes = [Size(width=width, depth=base.depth) for width in widths]
            for size in sizes:
                check_model_size(settings, size)
            folder = files.check
            private_folder(folder)
            ladder = {"width": sizes}
            (check,) = run_check(experiment, log2_hps, ladder, folder, watcher, most=MAX_SECONDS)
            record = check_record(experiment, log2_hps, [check], SHELL.call(call))
            write_json(files.plans_check, record)
    except SweeperError as error:
        return QuickCheck(call=call, why_not=error.args)
    return QuickCheck(call=call, check=check)


def known_check(
    experiment: Experiment, log2_hps: Log2Hps, paths: Iterable[Path]
) -> CoordinateCheck | None:
    """The check over the width that an earlier command made of this configuration, if any."""
    asked = check_record(experiment, log2_hps)
    for path in paths:
        # What cannot be read is measured again.
        record = read_document(path, CheckRecord, [])
        if record is not None and asked.of_the_same(record):
            for check in record.axes:
                if check.axis == "width":
                    return check
    return None
