"""The example in scripts/ runs."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_with_plan.py"


def test_the_example_learns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--width", "64", "--steps", "40"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr().out
    losses = [float(line.split()[-1]) for line in printed.splitlines() if line.startswith("step")]
    assert len(losses) == 5 and losses[-1] < 0.6 * losses[0]
    assert "Plan for width 64, depth 2, tuned at width 32, depth 2" in printed
    # It scales its attention itself, and asks for no decay: nothing is left to the model.
    assert "weight decay:" not in printed and "attention:" not in printed
