"""The runs of a study's validation as a table, a row a run, from which the same verdict follows."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from sweeper.errors import BadInput
from sweeper.files import try_json, write_atomically
from sweeper.report.documents import Document, is_curve_of, planned_value
from sweeper.verdict.ladder import LADDER_AXES

RULE = ("seeds", "step", "span", "extend", "max_shift", "max_loss_gap", "correct")
"""Settings of `transfer` that a verdict and its advice rest on."""


def write_runs(folder: Path, path: Path) -> int:
    """Write the runs of the latest validation of eta in the study's `folder`; how many.

    Columns are those that `sweeper judge` knows: sizes, log2 eta, seed, loss, and what the verdict
    took as given: the base, the transferred value, the parameterization, `transfer.*`. BadInput
    where nothing was validated.
    """
    records = sorted(
        (folder / "transfer").glob("*/validation.json"), key=lambda one: one.stat().st_mtime_ns
    )
    record = try_json(records[-1]) if records else {}
    if not record.get("curves"):
        raise BadInput(
            f"{folder.name} has no validation whose runs could be written: "
            f"sweeper transfer --study {folder.name} --to-width N --validate makes one"
        )
    rows = runs_of(record, _settings(folder))
    text = StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())
    return len(rows)


def runs_of(record: Document, settings: Document) -> list[dict[str, Any]]:
    """A row a run of a validation's `record`, each with the study's `settings`."""
    sizes = [size for axis in record["axes"] for size in axis["sizes"]]
    rows = []
    for curve in record["curves"]:
        known = next((size for size in sizes if is_curve_of(size["size"], curve)), {})
        shared = {key: curve[key] for key in LADDER_AXES if curve.get(key)}
        shared["base"] = bool(known.get("is_base"))
        shared["transferred_log2_eta"] = planned_value(record)
        shared["planned_log2"] = float(known.get("planned_log2") or 0.0)
        for point in curve["points"]:
            value = float(point["log2_eta"])
            for seed, loss in enumerate(point["losses"]):
                rows.append(
                    {
                        **shared,
                        "log2_eta": value,
                        "eta": 2.0**value,
                        "seed": seed,
                        "loss": float(loss),
                        **settings,
                    }
                )
    return rows


def _settings(folder: Path) -> dict[str, Any]:
    """The study's name, parameterization and thresholds; what is not legible is left out."""
    found: dict[str, Any] = {"study": folder.name}
    search = try_json(folder / "search.json")
    if kind := search.get("parameterization"):
        found["parameterization"] = kind.get("name") if isinstance(kind, dict) else str(kind)
    try:
        rule = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["transfer"]
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return found
    return found | {
        f"transfer.{key}": float(rule[key])
        for key in RULE
        if isinstance(rule.get(key), int | float)
    }
