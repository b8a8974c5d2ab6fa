"""What a script asks of its trial."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sweeper
from sweeper.errors import BadInput
from tests.golden import Golden

RECORD = {"trial": "k", "hyperparameters": {"eta": 0.5}, "width": 64, "seed": 3, "dir": "d"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "trial.json").write_text(json.dumps(RECORD))
    monkeypatch.setenv("SWEEPER_TRIAL", str(tmp_path / "trial.json"))
    return tmp_path


def test_values_sizes_and_reports(
    folder: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    trial = sweeper.current_trial()
    assert (trial.values, trial.sizes, trial.folder) == (
        {"eta": 0.5},
        {"width": 64, "seed": 3},
        folder,
    )
    trial.report(0, 2.5)
    trial.report(1, float("nan"), heldout=2.0)
    monkeypatch.setenv("RANK", "1")
    trial.report(2, 1.0)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 0, "loss": 2.5}, {"step": 1, "loss": "nan", "heldout": 2.0}]
    with pytest.raises(BadInput) as caught:
        _ = trial.plan
    golden.says(caught)


def test_it_hears_that_it_should_stop(folder: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        trial = sweeper.current_trial()
        assert not trial.stopping()
        os.kill(os.getpid(), signal.SIGTERM)
        assert trial.stopping()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_of_a_trial_it_says_so(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.delenv("SWEEPER_TRIAL", raising=False)
    with pytest.raises(BadInput) as caught:
        sweeper.current_trial()
    golden.says(caught)


def test_it_imports_nothing_heavy(folder: Path) -> None:
    code = "import sys, sweeper; sweeper.current_trial().report(0, 1.0); "
    code += "print({'torch', 'numpy', 'optuna'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
