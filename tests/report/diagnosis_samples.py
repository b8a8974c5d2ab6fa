"""What `sweeper diagnose` and `sweeper check` leave in a study's folder, made up."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from sweeper.records import to_json
from tests.report import samples, test_checks


def diagnosis() -> dict[str, Any]:
    """Three ablations: one explains the failure, one does not, one could not be tried."""
    before = samples.size_verdict(samples.curve(256, 2, 0.1), 0.1, 1.52, "fails")
    after = samples.size_verdict(samples.curve(256, 2, 1.5), 1.5, 1.52, "holds")

    def result(name: str, share: float, **also: Any) -> dict[str, Any]:
        made = {"name": name, "change": "c", "cause": "c", "overrides": {}, "evidence": ""}
        return {
            "ablation": made | {"evidence": also.get("evidence", "")},
            "explained": samples.estimate(share, 0.03),
            "before": before,
            "after": also.get("after"),
            "error": "",
            "sentence": f"with no {name}: so it is",
        }

    unknown = result("depth", 0.5)
    unknown["explained"] = {"value": float("nan"), "low": 0.0, "high": 1.0}
    return {
        "axis": "width",
        "answer": "fails",
        "todo": "",
        "conclusion": "The likeliest cause (decay): it is <decay>.",
        "results": [
            unknown,
            result("batch", 0.02, after=after),
            result("decay", 0.97, after=after, evidence="it shrinks"),
        ],
    }


def check() -> dict[str, Any]:
    return {
        "log2_hps": {"eta": -4.0},
        "rule": {"steps": 2, "seeds": 2, "batch": 4, "share": 0.25, "threshold": 0.25},
        "axes": [to_json(test_checks.sample())],
    }


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
