"""The example in scripts/ runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_with_plan.py"


def test_the_example_learns() -> None:
    command = [sys.executable, str(SCRIPT), "--width", "64", "--steps", "40"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    losses = [float(line.split()[-1]) for line in found.splitlines() if line.startswith("step")]
    assert len(losses) == 5 and losses[-1] < 0.6 * losses[0]
    assert "Plan for width 64, depth 2, tuned at width 32, depth 2" in found
    # It scales its attention itself, and asks for no decay: nothing is left to the model.
    assert "weight decay:" not in found and "attention:" not in found
