"""What `sweeper check` leaves in a study's folder, made up."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from sweeper.check.judge import CheckRecord, CheckRule
from sweeper.records import to_json
from sweeper.stats.ladder import Size
from tests.report import samples, test_checks


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
    result: list[dict[str, Any]] = to_json([asdict(each) for each in test_checks.SCALES])
    return result


RECORDS = {"check/check.json": check, "check/scales.json": scales}


def add(folder: Path) -> Path:
    for name, record in RECORDS.items():
        samples.write(folder / name, record())
    return folder
