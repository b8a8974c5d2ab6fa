"""What `sweeper diagnose` and `sweeper check` leave in a study's folder, made up."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from sweeper.check.judge import CheckRecord, CheckRule
from sweeper.decide.diagnosis import Diagnosis
from sweeper.records import from_json, to_json
from sweeper.report.sentences_diagnosis import worded_diagnosis
from sweeper.stats.ladder import Size
from tests.report import samples, test_checks


def diagnosis() -> dict[str, Any]:
    """Three ablations: one explains the failure, one does not, one could not be tried."""
    before = samples.size_verdict(samples.curve(256, 2, 0.1), 0.1, 1.52, "fails")
    after = samples.size_verdict(samples.curve(256, 2, 1.5), 1.5, 1.52, "holds")

    def result(name: str, share: float, **also: Any) -> dict[str, Any]:
        cause = f"it is <{name}>"
        made = {"name": name, "change": f"no {name}", "cause": cause, "overrides": {}}
        return {
            "ablation": made | {"evidence": also.get("evidence", "")},
            "explained": samples.estimate(share, 0.03),
            "before": before,
            "after": also.get("after"),
            "error": "",
        }

    unknown = result("depth", 0.5) | {"error": "it is gone"}
    unknown["explained"] = {"value": float("nan"), "low": 0.0, "high": 1.0}
    record = {
        "axis": "width",
        "answer": "fails",
        "todo": "",
        "results": [
            result("decay", 0.97, after=after, evidence="it shrinks"),
            result("batch", 0.02, after=after),
            unknown,
        ],
    }
    plain: dict[str, Any] = to_json(worded_diagnosis(from_json(Diagnosis, to_json(record))))
    return plain


def check() -> dict[str, Any]:
    record = CheckRecord(
        measured=4,
        parameterization="mup",
        optimizer="adamw",
        base=Size(width=16, depth=2),
        spec="",
        log2_hps={"eta": -4.0},
        rule=CheckRule(steps=2, seeds=2, batch=4, share=0.25, threshold=0.25),
        axes=(test_checks.sample(),),
    )
    plain: dict[str, Any] = to_json(record)
    return plain


def scales() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = to_json([asdict(one) for one in test_checks.SCALES])
    return found


RECORDS = {
    "transfer/diagnosis-width.json": diagnosis,
    "check/check.json": check,
    "check/scales.json": scales,
}


def add(folder: Path) -> Path:
    """All of them in the study's `folder`."""
    for name, record in RECORDS.items():
        samples.write(folder / name, record())
    return folder
