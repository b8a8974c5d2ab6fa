from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas
import pytest

import sweeper as package
from tests.cli.driver import Run, assert_refused
from tests.evidence.rates.test_decision import frame


def test_a_table_of_two_sizes_tells_the_rate_and_the_batch(sweeper: Run, tmp_path: Path) -> None:
    frame((4, 5, 6, 7, 8, 9)).to_csv(tmp_path / "runs.csv", index=False)
    asked = ("judge", "runs.csv", "--to-params", "8e8", "--to-tokens", "4e10")
    answer = sweeper(*asked)
    assert answer.code == 0
    folder = tmp_path / "runs/judged/runs"
    document = json.loads((folder / "rates.json").read_text())
    assert document["answer"] == document["code"] == "predicted"
    assert (folder / "rates.html").exists()
    assert_refused(sweeper(*asked, "--axis", "width"), "--to-params")
    assert_refused(sweeper("judge", "runs.csv", "--to-width", "64", "--to-tokens", "1e9"), "params")


def test_a_ladder_over_batch_tells_the_critical_one(sweeper: Run, tmp_path: Path) -> None:
    generator, rows = np.random.default_rng(1), []
    for batch in (8, 16, 32, 64, 128, 256):
        for seed in range(2):
            at = np.arange(0, 6000, 25)
            losses = 2.5 + 8 * ((at + 1) / (1 + 60 / batch)) ** -0.35
            losses += generator.normal(0, 0.01, len(at))
            shared = {"batch_size": batch, "seed": seed, "run": f"{batch}-{seed}"}
            rows += [{**shared, "step": s, "loss": v} for s, v in zip(at, losses, strict=True)]
    table = pandas.DataFrame(rows)
    table.to_csv(tmp_path / "curves.csv", index=False)
    document = sweeper("judge", "curves.csv", "--axis", "batch", "--json").document
    results = document["critical_batch"]
    assert document["answer"] == results["code"] == "critical" and results["runs"] == 12
    assert results["batch"]["low"] <= 60 <= results["batch"]["high"] < 75
    assert [batch for batch, _ in results["points"][::2]] == results["batches"]
    page = (tmp_path / "runs/judged/curves/critical.html").read_text()
    assert page.count("<svg") == 1 and "How large a batch?" in page
    assert (tmp_path / "runs/judged/curves/critical.png").exists()
    assert any("no verdict on the learning rate" in note for note in document["notes"])
    few = sweeper("judge", "curves.csv", "--axis", "batch", "--where", "batch_size < 20")
    assert_refused(few, "eta")
    answer = package.judge(table.assign(lr=0.001), axis="batch")
    assert answer.answer == "critical" and "critical batch" in answer.text
    with pytest.raises(package.BadInput, match="batch_size=COLUMN"):
        package.judge(table.drop(columns="batch_size"), axis="batch")
