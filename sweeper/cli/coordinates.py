"""The runs behind a coordinate check: those of `sweeper check`, and the quick one of a plan."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sweeper.check.judge import CheckRule, CoordinateCheck, ModuleCheck, Slope, check_coordinates
from sweeper.cli.next import Invocation, NextCommand
from sweeper.cli.output import Output
from sweeper.cli.shared import progress, short_run
from sweeper.config.settings import Experiment, Settings, check_model_size
from sweeper.engine.measure import ModuleMeasurement
from sweeper.engine.prepare import prepare
from sweeper.errors import BadInput, SweeperError
from sweeper.files import RECORD_ERRORS, private_folder, try_json, write_json
from sweeper.records import from_json, to_json
from sweeper.scaling.spec import LOGITS
from sweeper.sweep.sweep import measure_trials
from sweeper.trial import Log2Hps, Trial, named
from sweeper.verdict.ladder import LADDER_AXES, MODEL_AXES, Size

MEASURED = 4
"""Raised where a check measures or judges something else: an earlier record is none of it then."""


def check_batch(experiment: Experiment) -> None:
    """BadInput when the data cannot fill the check's batch."""
    try:
        experiment.corpus.check(
            experiment.settings.check.batch, experiment.settings.raw["train"]["seq_len"]
        )
    except BadInput as error:
        raise BadInput(f"check.batch: {error}") from error


def check_trials(
    experiment: Experiment, log2_hps: Log2Hps, sizes: Sequence[Size]
) -> dict[Size, list[Trial]]:
    """The runs of a coordinate check, by size: one for each of `check.seeds`."""
    rule = experiment.settings.check
    seeds = range(rule.seed, rule.seed + rule.seeds)
    # A constant fraction of eta, as in a warm-up: the first steps of a run, not its end.
    slower = Log2Hps({**log2_hps, "eta": log2_hps["eta"] + math.log2(rule.share)})
    train = {"steps": rule.steps, "batch_size": rule.batch, "warmup": 0.0, "final_lr": 1.0}
    return {
        size: [short_run(experiment, size, slower, seed, "coordinates", **train) for seed in seeds]
        for size in sizes
    }


Measured = Mapping[Size, Sequence[Sequence[ModuleMeasurement]]]


def _without_repeated_logits(runs: Measured) -> Measured:
    """The runs without the logits where they are what a module returned, in all of them."""
    # The head's own row says the same, and says how much of it the head's weights made.

    def repeated(run: Sequence[ModuleMeasurement]) -> bool:
        logits = next((module for module in run if module.name == LOGITS), None)
        if logits is None or logits.direct_changes:
            return logits is None
        numbers = (logits.entries, logits.rms, logits.changes)
        modules = (module for module in run if module is not logits)
        return any((m.entries, m.rms, m.changes) == numbers for m in modules)

    # In some runs alone, they stay in all: a module that not all sizes have is not judged.
    if not all(repeated(run) for of_size in runs.values() for run in of_size):
        return runs
    return {
        size: [[module for module in run if module.name != LOGITS] for run in of_size]
        for size, of_size in runs.items()
    }


def run_check(
    experiment: Experiment,
    log2_hps: Log2Hps,
    ladders: Mapping[str, Sequence[Size]],
    folder: Path,
    output: Output,
) -> list[CoordinateCheck]:
    """Train the runs of every ladder, and judge them."""
    rule = experiment.settings.check
    sizes = sorted({size for ladder in ladders.values() for size in ladder})
    trials = check_trials(experiment, log2_hps, sizes)
    for size in sizes:
        output.tell(f"check: {size}, {rule.seeds} runs of {rule.steps} steps")
    results = measured(experiment, folder, [t for runs in trials.values() for t in runs], output)
    runs: Measured = {
        size: [
            [from_json(ModuleMeasurement, module) for module in results[trial.key]]
            for trial in of_size
        ]
        for size, of_size in trials.items()
    }
    runs = _without_repeated_logits(runs)
    if not all(any(m.entries for m in run) for of_size in runs.values() for run in of_size):
        raise BadInput(
            "no module's output was seen: the check reads what the modules within the model "
            "return, so put its parameters into modules of their own"
        )
    scaled_by_user = experiment.settings.scaled_by_user
    parameterization = (
        None if scaled_by_user else prepare(trials[sizes[0]][0].spec).parameterization
    )
    return [
        check_coordinates(
            axis,
            {size: runs[size] for size in ladder},
            rule,
            getattr(parameterization, "intended", {}),
        )
        for axis, ladder in ladders.items()
    ]


def measured(
    experiment: Experiment, folder: Path, trials: Sequence[Trial], output: Output
) -> dict[str, Any]:
    """What runs measure, by their keys; they are trained where the launcher trains everything."""
    try:
        with progress(experiment.settings, output, "check", len(trials), folder) as listener:
            results = measure_trials(experiment, folder, trials, listener, output.tell)
    finally:
        (folder / "progress.json").unlink(missing_ok=True)
    return {key: result.measurements for key, result in results.items()}


def check_record(
    experiment: Experiment, log2_hps: Log2Hps, checks: Sequence[CoordinateCheck]
) -> dict[str, Any]:
    """The content of check.json; `spec` is the digest of what was checked, at the base."""
    settings = experiment.settings
    rule = asdict(settings.check)
    rule["log2_eta"] = rule.pop("eta")
    return {
        "measured": MEASURED,
        "parameterization": settings.plugin_spec("parameterization").name,
        "optimizer": settings.plugin_spec("optimizer").name,
        "base": asdict(settings.base),
        "spec": experiment.spec(settings.base).digest,
        "log2_hps": named(settings.space, log2_hps),
        "rule": rule,
        "axes": [to_json(check) for check in checks],
    }


# The coordinate check that comes with a plan: small widths, one sentence.


SIZES = 3
"""So many of the ladder's widths are checked, the smallest."""
MAX_SECONDS = 300.0
"""What would take longer is left to `sweeper check`."""
LAUNCHERS = ("inline", "local")
"""Launchers that start jobs at once; others may let them wait in a queue."""
RECORD = "transfer.json"
"""What a plan's check found, beside `check.json` of `sweeper check`."""

OTHER = ("axes", "rule")
"""Of a check's record, what is not compared as it is."""


def quick_check(
    experiment: Experiment, log2_hps: Log2Hps, invocation: Invocation, output: Output
) -> CoordinateCheck | None:
    """Check small widths, or read what an earlier check of the same found; say it in a sentence.

    None, and a note, where it cannot be run or would take minutes. A command for the
    configuration of the `invocation` shows all modules.
    """
    settings = experiment.settings
    if settings.check.eta is not None:
        log2_hps = Log2Hps({**log2_hps, "eta": settings.check.eta})
    found = _known(experiment, log2_hps, ("check.json", RECORD))
    if found is None:
        try:
            found = _run(experiment, log2_hps, output)
        except SweeperError as error:
            command = _all_modules(settings, invocation, [size.width for size in _widths(settings)])
            output.notes([f"the coordinate check was not run: {error}; {command} runs it"])
            return None
    command = _all_modules(settings, invocation, found.sizes)
    output.say(f"{sentence(found, settings.check)} All modules: {command}")
    return found


def beside_plan(
    experiment: Experiment, log2_hps: Log2Hps, ladders: Mapping[str, Sequence[Size]]
) -> list[CoordinateCheck]:
    """The check that came with a plan, where `ladders` are what it was over; else none."""
    known = _known(experiment, log2_hps, (RECORD,))
    if known is None or ladders.keys() != {"width"}:
        return []
    return [known] if [size.width for size in ladders["width"]] == list(known.sizes) else []


def _all_modules(settings: Settings, invocation: Invocation, widths: Sequence[int]) -> NextCommand:
    """The command that shows all modules of a check over `widths`, and checks nothing else."""
    others = settings.transfer.ladders(settings.ladder_base).keys() & {"depth", *MODEL_AXES}
    known_eta = settings.transfer.eta if settings.check.eta is None else None
    changes = [] if known_eta is None else [f"check.eta={known_eta:g}"]
    changes.append(f"transfer.widths=[{','.join(map(str, widths))}]")
    changes += [f"transfer.{LADDER_AXES[axis]}=[]" for axis in LADDER_AXES if axis in others]
    why = "to see all modules"
    return invocation.again("check", settings, *changes, without=["transfer.check"], why=why)


def _known(
    experiment: Experiment, log2_hps: Log2Hps, names: Sequence[str]
) -> CoordinateCheck | None:
    """The check over the width that an earlier command made of this configuration, if any."""
    asked = check_record(experiment, log2_hps, ())

    def rule(record: Mapping[str, Any]) -> dict[str, Any]:
        found = record.get("rule")  # its eta is in `log2_hps`, wherever it came from
        return {k: v for k, v in found.items() if k != "log2_eta"} if type(found) is dict else {}

    for name in names:
        record = try_json(experiment.settings.folder / "check" / name)
        if any(record.get(key) != value for key, value in asked.items() if key not in OTHER):
            continue
        if rule(record) != rule(asked):
            continue
        try:
            axes = [from_json(CoordinateCheck, axis) for axis in record["axes"]]
        except RECORD_ERRORS:
            continue
        if over_width := [axis for axis in axes if axis.axis == "width"]:
            return over_width[0]
    return None


def _run(experiment: Experiment, log2_hps: Log2Hps, output: Output) -> CoordinateCheck:
    """Train the runs; SweeperError where they cannot be trained or would take too long."""
    settings = experiment.settings
    if (launcher := settings.plugin_spec("launcher").name) not in LAUNCHERS:
        raise SweeperError(f"jobs of launcher={launcher} may have to wait")
    check_batch(experiment)
    sizes = _widths(settings)
    for size in sizes:
        check_model_size(settings, size)
    folder = settings.folder / "check"
    private_folder(folder)
    trials = check_trials(experiment, log2_hps, sizes)
    # One run of the largest size is timed, and all are taken to be as long: an upper bound.
    start = time.perf_counter()
    measured(experiment, folder, trials[sizes[-1]][:1], output)
    seconds = (time.perf_counter() - start) * sum(map(len, trials.values()))
    if seconds > MAX_SECONDS:
        raise SweeperError(f"it might take {seconds / 60:.0f} minutes")
    (found,) = run_check(experiment, log2_hps, {"width": sizes}, folder, output)
    write_json(folder / RECORD, check_record(experiment, log2_hps, [found]))
    return found


def _widths(settings: Settings) -> list[Size]:
    """The smallest widths of the ladder, or the base's and its double, at the base's depth."""
    base = settings.base
    ladder = settings.transfer.ladders(settings.ladder_base).get("width", ())
    widths = [size.width for size in ladder] or [base.width, 2 * base.width]
    return [Size(width=width, depth=base.depth) for width in widths[:SIZES]]


def sentence(check: CoordinateCheck, rule: CheckRule) -> str:
    """The answer, and the module that it rests on."""
    sizes = ", ".join(map(str, check.sizes))
    start = f"Coordinate check over {check.axis} {sizes}: "
    if check.answer == "pass":
        return f"{start}pass."
    module, slope = _culprit(check)
    if check.answer == "cannot say":
        if check.unseen:
            return f"{start}cannot say: {check.todo(rule)}."
        others = sum(module.answer == check.answer for module in check.modules) - 1
        more = f" and {others} more module{'s' * (others > 1)}" if others else ""
        why = f"{module.name}{more} ({slope.reason})"
        return f"{start}cannot say yet for {why}; {check.todo(rule)}."
    what = {
        "output": "its output at initialization",
        "change": f"the change of its output by step {slope.step}",
        "direct": "the change that its own parameters make",
    }[slope.quantity]
    if slope.reason not in ("grows", "vanishes"):
        return f"{start}fail at {module.name}: {what} is {slope.reason}."
    power = f"{check.axis}^{slope.slope.value:.2f}"
    theory = f", theory's is {check.axis}^{slope.expected:g}" if slope.expected else ""
    return f"{start}fail at {module.name}: {what} {slope.reason} as {power}{theory}."


def _culprit(check: CoordinateCheck) -> tuple[ModuleCheck, Slope]:
    """The module where a failure begins, else the worst one, and the slope that shows it."""
    at_fault = [module for module in check.modules if module.answer == check.answer]
    for module in at_fault:
        direct = [s for s in module.slopes if s.quantity == "direct" and s.answer == "fail"]
        if module.name in check.origins and direct:
            return module, direct[0]
    worst = max(at_fault, key=lambda module: module.worst.deviation)
    return worst, worst.worst


def summary(check: CoordinateCheck | None, rule: CheckRule) -> dict[str, object] | None:
    """For the command's document: the answer, and where it begins."""
    if check is None:
        return None
    record = asdict(check)
    return {key: record[key] for key in ("axis", "sizes", "answer", "origins")} | {
        "sentence": sentence(check, rule)
    }
