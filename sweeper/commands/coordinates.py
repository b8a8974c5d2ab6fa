"""The runs behind a coordinate check, and their judgement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sweeper.commands.experiment import progress, short_run
from sweeper.commands.output import Output
from sweeper.errors import BadInput
from sweeper.measure.coordinates import ModuleMeasurement
from sweeper.scaling.spec import LOGITS
from sweeper.settings import Experiment
from sweeper.sweep import measure_trials
from sweeper.training.prepare import prepare
from sweeper.transfer.coordinates import CoordinateCheck, check_coordinates
from sweeper.transfer.ladder import Size
from sweeper.trial import Log2Hps, Trial, named

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

    def repeated(run: Sequence[ModuleMeasurement]) -> bool:
        logits = next((one for one in run if one.name == LOGITS), None)
        if logits is None or logits.direct_changes:
            return logits is None
        numbers = (logits.entries, logits.rms, logits.changes)
        modules = (one for one in run if one is not logits)
        return any((one.entries, one.rms, one.changes) == numbers for one in modules)

    if not all(repeated(run) for of_size in runs.values() for run in of_size):
        return runs
    return {
        size: [[one for one in run if one.name != LOGITS] for run in of_size]
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
            [ModuleMeasurement.from_json(module) for module in results[trial.key]]
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
    own = experiment.settings.own
    scheme = None if own else prepare(trials[sizes[0]][0].spec).scheme
    return [
        check_coordinates(
            axis, {size: runs[size] for size in ladder}, rule, getattr(scheme, "intended", {})
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
        "axes": [one.to_json() for one in checks],
    }
