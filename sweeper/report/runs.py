"""The runs of a study's validation as a table, a row a run, from which the same verdict follows."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from sweeper.decide.validation import Validation, newest_validation
from sweeper.errors import BadInput
from sweeper.files import try_json, write_atomically
from sweeper.runs.source import Source
from sweeper.stats.ladder import LADDER_AXES, LadderSize, Size
from sweeper.study.folder import StudyFolder
from sweeper.study.searched import config_text
from sweeper.study.setup import trials_of
from sweeper.study.study import Study
from sweeper.trial import Result

RULE = ("seeds", "step", "span", "extend", "max_shift", "max_loss_gap", "correct")
"""Settings of `transfer` that a verdict and its advice rest on."""


def write_runs(folder: Path, path: Path) -> int:
    """Write the runs of the latest validation of eta in the study's `folder`; how many.

    BadInput where nothing was validated.
    """
    validation = newest_validation(folder, strict=True)
    if validation is None or not validation.curves:
        raise BadInput(
            f"{folder.name} has no validation whose runs could be written: "
            f"sweeper transfer --study {folder.name} --to-width N --validate makes one"
        )
    rows = runs_of(validation, _settings(folder))
    text = StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())
    return len(rows)


def study_source(folder: Path, where: str = "", axis: str | None = None) -> Source:
    """The runs of a study of ours for `judge`: those of its latest validation, else all trials.

    Columns are those that `sweeper judge` knows: sizes, log2 eta, seed, loss, and what the verdict
    took as given: the base, the transferred value, the parameterization, `transfer.*`. Of several
    ladders that over `axis`, or the first.
    """
    validation = newest_validation(folder, strict=True)
    if validation is not None and validation.curves:
        ladders = [verdict.axis for verdict in validation.axes]
        said = "runs of the study's latest validation"
        if len(ladders) > 1 and (axis or ladders[0]) in ladders:
            axis = axis or ladders[0]
            validation = replace(validation, curves=tuple(validation.ladder(axis)))
            others = ", ".join(f"--axis {other}" for other in ladders if other != axis)
            said += f", of its ladder over {axis} ({others}: another)"
        rows = runs_of(validation, _settings(folder))
    else:
        rows = trials_table(trials_of(Study.read(folder)).current)
        said = "trials of the study, which was not validated"
        if not rows:
            raise BadInput(f"the study in {folder} has no trials yet")
    source = Source.of_frame(rows, where, str(folder))
    return replace(source, notes=(said,))


def trials_table(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A row a trial: its sizes, log2 eta, what else was searched (as it is used), seed, loss."""
    rows = []
    for result in results:
        trial, spec = result.trial, result.trial.spec
        size = LadderSize.of(
            Size(width=spec.width, depth=spec.depth), spec.model.arguments, asdict(spec.train)
        )
        others = {key: value for key, value in trial.values.items() if key != "eta"}
        eta = {"log2_eta": trial.log2_hps["eta"]} if "eta" in trial.log2_hps else {}
        sizes = {key: value for key in LADDER_AXES if (value := getattr(size, key))}
        outcome = {"seed": trial.seed, "loss": result.objective, "status": result.status}
        rows.append({**sizes, **eta, **others, **outcome})
    return rows


def runs_of(validation: Validation, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row a run of a validation, each with the study's `settings`."""
    bases = {size.size for verdict in validation.axes for size in verdict.sizes if size.is_base}
    rows = []
    for curve in validation.curves:
        # 0 is an axis that the model does not have, such as experts.
        sizes = {key: size for key in LADDER_AXES if (size := getattr(curve.size, key))}
        for value, losses in sorted(curve.losses.items()):
            # Seeds by their place: a point's losses are kept in the order of its seeds.
            for seed, loss in enumerate(losses):
                rows.append(
                    {
                        **sizes,
                        "base": curve.size in bases,
                        "transferred_log2_eta": validation.planned_log2,
                        "planned_log2": curve.planned_log2,
                        "log2_eta": value,
                        "eta": 2.0**value,
                        "seed": seed,
                        "loss": loss,
                        **settings,
                    }
                )
    return rows


def _settings(folder: Path) -> dict[str, Any]:
    """The study's name, parameterization and thresholds; what is not legible is left out."""
    settings: dict[str, Any] = {"study": folder.name}
    search = try_json(StudyFolder(folder).search)
    if kind := search.get("parameterization"):
        settings["parameterization"] = kind.get("name") if isinstance(kind, dict) else str(kind)
    try:
        rule = yaml.safe_load(config_text(folder))["transfer"]
    except (yaml.YAMLError, KeyError, TypeError):
        return settings
    return settings | {
        f"transfer.{key}": float(rule[key])
        for key in RULE
        if isinstance(rule.get(key), int | float)
    }
