"""How verbs of the wing end on a terminal: no broken row, nothing cut."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.cli.driver import Run
from tests.evidence.made import prediction
from tests.evidence.made import run as course
from tests.evidence.runs.grids import runs

Screens = dict[int, str]


def test_a_table_of_runs_judged_and_predicted(workplace: Path, ends: Run, screen: Screens) -> None:
    runs().to_csv("runs.csv", index=False)
    columns = ["--columns", "width=n_embd,eta=lr,loss=val_loss,seed=seed"]
    ends("judge", "runs.csv", *columns, "--to-width", "4096")
    assert "loss gap" in screen[80] and "shift" in screen[80]


def test_a_run_that_is_followed(workplace: Path, ends: Run, screen: Screens) -> None:
    prediction().write(workplace / "transfer/w64")

    def follow(losses: np.ndarray) -> str:
        rows = [json.dumps({"step": s, "loss": loss}) for s, loss in enumerate(losses.tolist())]
        (workplace / "log.jsonl").write_text("\n".join(rows) + "\n")
        file = "transfer/w64/prediction.json"
        ends("follow", "--prediction", file, "--metric", "jsonl:log.jsonl:loss", "--once")
        return screen[80]

    text = follow(course(1))
    assert " predicted, the mean" in text and ": not reached" in text and "|" not in text
    assert ": reached" in follow(course(1)[:600] * np.exp(0.08 * (np.arange(600) >= 300)))
