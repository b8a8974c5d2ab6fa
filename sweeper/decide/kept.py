"""A study made of runs that were judged: it reports, compares and predicts, and trains nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from sweeper.decide.table_verdict import TableVerdict
from sweeper.decide.transfer import Verdict
from sweeper.decide.validation import Validation
from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.files import private_folder, write_json, write_summed
from sweeper.records import to_json
from sweeper.runs.condition import where_equal
from sweeper.runs.sizes import TokenSize
from sweeper.stats.ladder import LadderSize, SizeCurve
from sweeper.study.folder import StudyFolder
from sweeper.study.lock import StudyLock
from sweeper.study.setup import LADDER_PHASE, provenance, write_setup
from sweeper.study.study import SAVED, Study, check_study_name
from sweeper.trial import FORMAT, Log2Hps, PluginSpec, Result, TrainSettings, Trial, TrialSpec

NOT_NAMED = "not named"
"""What a table does not say of its runs."""


def saved_folder(root: Path, name: str) -> Path:
    """Where the runs are to be kept; ConfigError for a name that is taken or none."""
    try:
        check_study_name(name)
    except ConfigError as error:
        raise error.renamed(Keyword("save")) from error
    if (root / name).exists():
        raise ConfigError(
            Keyword("save"), name, f"a name that is not taken: there is {root / name}"
        )
    return root / name


def save_study(judged: TableVerdict, folder: Path) -> None:
    """Keep the runs that were judged, and the verdict, as a study in a new `folder`.

    A table of tokens has steps of one token each. BadInput where no runs were judged.
    """
    # A study has one ladder over a size, and these differ in another one.
    if judged.ladders:
        key = {judged.columns[role]: size for role, size in judged.ladders[0].key.items()}
        one = " keeps one ladder, as with "
        raise BadInput(Keyword("save", ...), one, where_equal(key))
    if not judged.curves:
        raise BadInput(
            Keyword("save", ...),
            " keeps runs, and this is a table of optima alone: one with the losses can be saved",
        )
    if judged.axis == "params":
        raise BadInput(Keyword("save", ...), " keeps no ladder along params: a study has none")
    curves = tuple(replace(curve, size=_steps_size(curve.size)) for curve in judged.curves)
    base = next(
        (_steps_size(s.size) for v in judged.axes for s in v.sizes if s.is_base), curves[0].size
    )
    specs = {curve.size: _spec(judged, curve.size, base) for curve in curves}
    record = Validation(
        log2_hps={"eta": judged.transferred_log2_eta},
        planned_log2=judged.transferred_log2_eta,
        axes=tuple(map(_steps_verdict, judged.axes)),
        trend=judged.trend,
        curves=curves,
        command=judged.command,
    )
    source = {"table": judged.source, "sha256": judged.sha256, "where": judged.where}
    config = {
        "format": FORMAT,
        SAVED: {**source, "axis": judged.axis, "columns": dict(judged.columns), **provenance()},
    }
    with StudyLock(folder), Study.open(folder) as study:
        study.record(list(_results(curves, specs)))
        write_setup(folder, specs[base])
        widest = max(curve.size.width for curve in curves)
        files = StudyFolder(folder)
        target = files.target(f"w{widest}")
        private_folder(files.transfer)
        private_folder(target.path)
        write_json(target.validation, to_json(record))
        # Last: a folder without it is no study yet.
        write_summed(files.config, yaml.safe_dump(config, sort_keys=False))


def _steps_size(size: LadderSize) -> LadderSize:
    if not isinstance(size, TokenSize):
        return size
    sizes = {key: value for key, value in asdict(size).items() if key != "tokens"}
    # A study has no tokens: a batch of one token makes steps of them, and the law of both is kept.
    return LadderSize(**{**sizes, "steps": size.tokens, "batch_size": 1})


def _steps_verdict(verdict: Verdict) -> Verdict:
    if verdict.axis != "tokens":
        return verdict
    sizes = tuple(replace(one, size=_steps_size(one.size)) for one in verdict.sizes)
    return replace(verdict, axis="steps", sizes=sizes)


def _spec(judged: TableVerdict, size: LadderSize, base: LadderSize) -> TrialSpec:
    """What a table says of its runs of one size."""
    experts: dict[str, Any] = dict(size.model_overrides())
    return TrialSpec(
        runner={"name": SAVED},
        parameterization=PluginSpec(name=judged.parameterization or NOT_NAMED),
        model=PluginSpec(name=NOT_NAMED, arguments=experts),
        width=size.width,
        depth=size.depth,
        base_width=base.width,
        base_depth=base.depth,
        optimizer=PluginSpec(name=NOT_NAMED),
        data={"sha256 of the table": judged.sha256},
        train=TrainSettings(steps=size.steps, batch_size=size.batch_size, seq_len=1),
    )


def _results(curves: tuple[SizeCurve, ...], specs: dict[LadderSize, TrialSpec]) -> Iterator[Result]:
    now = time.time()
    for curve in curves:
        spec = specs[curve.size]
        for value, losses in curve.losses.items():
            for seed, loss in enumerate(losses):
                trial = Trial(
                    log2_hps=Log2Hps({"eta": value}), seed=seed, phase=LADDER_PHASE, spec=spec
                )
                yield Result(
                    status="complete" if math.isfinite(loss) else "diverged",
                    objective=loss if math.isfinite(loss) else math.inf,
                    # What a table does not tell stays unknown: no time is foretold by such runs.
                    seconds=math.nan,
                    steps=spec.train.steps,
                    finished_at=now,
                    trial=trial,
                )
