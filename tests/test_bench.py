import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts import load_script

FOLDER = Path(__file__).parents[1] / "scripts/bench"


def run(script: str, *words: str) -> str:
    """What a benchmark prints, with this repository's package."""
    env = {**os.environ, "PYTHONPATH": str(FOLDER.parents[1])}
    command = [sys.executable, str(FOLDER / script), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, in its compiler
@pytest.mark.parametrize(
    "script",
    [
        "growth.py",
        "orchestration.py",
        "packing.py",
        "pruning.py",
        "search.py",
        "traffic.py",
        "verdict.py",
    ],
)
def test_says_how_it_is_used(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        load_script(f"bench/{script}").main()
    assert not ended.value.code and "usage" in capsys.readouterr().out


def test_our_own_orchestration_is_timed_and_what_cannot_be_is_said(tmp_path: Path) -> None:
    out, table = tmp_path / "a/found.json", tmp_path / "found.md"
    words = ["--trials", "5", "--repeats", "1", "--only", "64, a step", "--out", str(out)]
    printed = run("orchestration.py", *words, "--markdown", str(table))
    (mlp,) = json.loads(out.read_text())["rows"]
    assert mlp["trials"] == 5 and 0 < mlp["training_ms"] < mlp["ms"]
    assert "Optuna on SQLite: not measured" in printed
    assert "| sweeper, packs of 64, a step of an MLP |" in table.read_text()


def test_a_side_that_trains_nothing_does_everything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    orchestration = load_script("bench/orchestration.py")
    pack = orchestration.run_own(orchestration.OWN["pack"], 5, tmp_path, False)
    assert pack["trials"] == 5 and pack["ms"] > 0 and pack["training_ms"] == 0


def test_the_verdict_s_errors_are_counted(tmp_path: Path) -> None:
    out, table = tmp_path / "found.json", tmp_path / "found.md"
    words = ["--count", "3", "--only", "parabolas", "--workers", "1", "--out", str(out)]
    assert "wrong answers" in run("verdict.py", *words, "--markdown", str(table))
    (scenario,) = json.loads(out.read_text())["scenarios"]
    assert {sum(counts.values()) for counts in scenario["answers"].values()} == {3}
    assert scenario["held"]["optimum"][1] <= 24 and "| parabolas |" in table.read_text()


@pytest.mark.slow
def test_a_whole_search_trains_the_same_trials_on_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    out, text = tmp_path / "found.json", tmp_path / "text.txt"
    text.write_text("All happy families are alike. " * 3000)
    words = ["--widths", "16", "--depth", "1", "--steps", "3", "--eta-points", "2"]
    words += ["--runs", "15", "--processes", "1"]
    words += ["--batch-size", "2", "--seq-len", "16", "--device", "cpu", "--out", str(out)]
    small = ["model.head_size=8", "transfer.widths=[16,32]", "data=text", f"data.path={text}"]
    small += ["search.seeds=1", "search.eta.extend=0", "search.lines.extend=0"]
    load_script("bench/search.py").main([*words, *small])
    (row,) = json.loads(out.read_text())["rows"]
    assert row["trials"] == row["peer_trials"] == sum(row["phases"]) and row["ours"] > 0
    assert row["difference"][0] < 1e-3 and "extrapolated" not in capsys.readouterr().out
