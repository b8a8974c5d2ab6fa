import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts/bench/growth.py"


@pytest.mark.long
def test_a_thousand_trials_are_measured(tmp_path: Path) -> None:
    """The script checks itself that every trial is recorded, read, replayed and mirrored."""
    out = tmp_path / "growth.json"
    command = [sys.executable, SCRIPT, "--quick", "--out", out]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    (row,) = json.loads(out.read_text())["rows"]
    assert row["trials"] == 1000 and row["files"] == 1
    assert row["record_128_ms"] > 0 and row["read_s"] > 0 and row["read_peak_MB"] > 10
    assert "record 128 ms" in done.stdout and done.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["growth.json"]


@pytest.mark.long
def test_commands_on_a_large_study_are_measured(tmp_path: Path) -> None:
    """Every command succeeds on it, and the resumed search trains the one trial that is left."""
    out = tmp_path / "study.json"
    command = [sys.executable, SCRIPT.with_name("study.py"), "--sizes", "50", "--out", out]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    row = json.loads(out.read_text())["rows"]["50"]
    assert set(row) == {"status", "report", "resume", "search again"}
    assert [name for name in row if "CPU s to the first trial" in row[name]] == ["resume"]
    assert "| status | 50 |" in done.stdout
