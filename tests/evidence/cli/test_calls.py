from __future__ import annotations

import shutil
from pathlib import Path

import sweeper
from sweeper.evidence.predict.decision import NoLossLaw


def test_studies_are_compared_and_a_loss_is_predicted(study: Path) -> None:
    shutil.copytree(study, study.parent / "b")
    answer = sweeper.compare("a", sweeper.open_study("b"), ignore=("data", "model", "train"))
    assert answer.answer == "cannot say" and "a" in repr(answer)
    assert answer.document["variants"][0]["name"] == "b"
    planned = sweeper.transfer("a", 64, horizons=True, dry_run=True)
    assert planned.document["sizes"]


def test_too_few_runs_of_a_table_are_no_error() -> None:
    table = {"params": [1e6, 2e6], "tokens": [2e7, 4e7], "loss": [3.0, 2.8]}
    few = sweeper.predict(table)
    assert isinstance(few, NoLossLaw) and few.answer == "cannot say yet" and few.prediction is None
