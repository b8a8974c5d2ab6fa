import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import load_script

FOLDER = Path(__file__).parents[1] / "scripts/bench"


def run(script: str, *words: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(FOLDER.parents[1])}
    command = [sys.executable, str(FOLDER / script), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, in its compiler
@pytest.mark.parametrize(
    "script",
    [
        *("follow.py", "gpu.py", "growth.py", "orchestration.py", "batching.py", "pruning.py"),
        *("search.py", "study.py", "verdict.py"),
        pytest.param("traffic.py", marks=pytest.mark.long),  # it loads torch's compiler
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


@pytest.mark.long
def test_the_validation_on_a_gpu_runs_to_its_end_without_one(tmp_path: Path) -> None:
    """Every stage, on a CPU; what cannot be validated there is said."""
    printed = run("gpu.py", "--fake", "--out", str(tmp_path), "--deadline", "400")
    assert "nothing is validated" in printed and "FAILED" not in printed
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    stages = {record["stage"]: record for record in records if "stage" in record}
    searches = ["search-lr", "search-default", "search-own"]
    assert [*stages] == ["machine", "tests", *searches, "peer", "time-tiny", "profile-tiny"]
    assert all(stage["exit"] == 0 for stage in stages.values())
    [times] = [record["times"] for record in records if "times" in record]
    assert times["batched-compiled"]["2"] > 0 and times["processes"]["2"] > 0
    assert all(stages[name]["found"][-1]["trials"] >= 7 for name in searches)
    assert [line["peer"] for line in stages["peer"]["found"]] == ["lr", "default"]
    assert "| tiny |" in (tmp_path / "table.md").read_text()


@pytest.fixture
def validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [*sys.path])
    gpu = load_script("bench/gpu.py")
    options = argparse.Namespace(out=tmp_path, fake=False, deadline=60.0, wheels=None, skip=[])
    made = gpu.Validation(options)
    made.gpu = gpu
    return made


def stage(validation: Any, name: str, shell: str, limit: float = 30.0) -> Any:
    return validation.gpu.Stage(name=name, command=["sh", "-c", shell], limit=limit)


def test_a_stage_that_fails_or_hangs_is_told_and_stops_no_other(validation: Any) -> None:
    hangs = stage(validation, "hangs", """echo '{"a": 1}'; sleep 60""", 0.4)
    validation.run(hangs, stage(validation, "fails", "exit 3"))
    validation.run(stage(validation, "works", """echo '{"b": 2}'"""))
    results = {record["stage"]: (record["exit"], record["found"]) for record in validation.records}
    assert results == {"hangs": (None, [{"a": 1}]), "fails": (3, []), "works": (0, [{"b": 2}])}
    assert validation.gpu.verdict(validation) == 1


def test_a_size_whose_batch_was_not_timed_is_told(validation: Any) -> None:
    """It may have been too large for the device, which is no failure of `batching.py`."""
    validation.keep({"times": {"size": "s1", "batched-compiled": {"336": float("nan")}}})
    assert validation.gpu.verdict(validation) == 1
    validation.records[0]["times"]["batched-compiled"]["336"] = 0.1
    assert validation.gpu.verdict(validation) == 0


@pytest.mark.parametrize(
    ("closing", "code"),
    [
        ("10 passed, 400 deselected in 9.1s\n[W] a library's last word", 0),
        ("10 passed, 400 deselected in 9.1s", 0),
        ("9 passed, 1 skipped in 9.1s", 1),
        ("10 skipped, 400 deselected in 2.6s", 1),
    ],
)
def test_gpu_tests_must_have_run(validation: Any, closing: str, code: int) -> None:
    validation.run(stage(validation, "tests", f"cat <<END\n{closing}\nEND"))
    assert validation.gpu.verdict(validation) == code


def test_the_sides_of_a_search_are_judged_by_most_trials_not_by_the_worst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    spread = load_script("bench/search.py").spread
    assert spread([5e-8] * 86 + [0.03] * 14, "cpu") == pytest.approx(
        {"median": 5e-8, "far": 0.14, "worst": 0.03, "alike": True}
    )
    assert not spread([5e-8] * 70 + [0.002] * 30, "cpu")["alike"]  # too many are far apart
    assert not spread([1e-4] * 100, "cpu")["alike"]  # all of them a little
    assert not spread([5e-8] * 70 + [float("inf")] * 30, "cpu")["alike"]  # diverged on one side
