"""What a script asks of its trial."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sweeper
import sweeper as package
from sweeper.command.in_script import FILE, STEPS
from tests.golden import Golden
from tests.refusals import refused

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
    with refused(golden):
        _ = trial.plan


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
    with refused(golden):
        sweeper.current_trial()


def test_it_imports_nothing_heavy(folder: Path) -> None:
    code = "import sys, sweeper; sweeper.current_trial().report(0, 1.0); "
    code += "print({'torch', 'numpy', 'optuna'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_outside_of_a_check_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILE, raising=False)
    model = nn.Linear(2, 2)
    assert package.watch(model) is model and not model._forward_pre_hooks


def test_what_it_measures_is_the_change_on_the_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "watched.json"
    monkeypatch.setenv(FILE, str(path))
    monkeypatch.setenv(STEPS, "2")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    first, before = torch.randn(5, 3), [p.detach().clone() for p in model.parameters()]
    package.watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        for _ in range(2):  # two parts of a batch: one step of the optimizer
            model(first if step == 0 else torch.randn(5, 3)).square().mean().backward()
        after = [p.detach().clone() for p in model.parameters()]
        if step < 2:
            optimizer.step()
            optimizer.zero_grad()
    assert model.training and not model._forward_pre_hooks
    measured: dict[str, Any] = {row["name"]: row for row in json.loads(path.read_text())}
    assert measured.keys() == {"0", "1", "2"} and measured["0"]["entries"] == 20
    start, end = (first @ w[0].T + w[1] for w in (before, after))
    expected = float((end - start).square().mean().sqrt())
    assert measured["0"]["changes"][-1] == pytest.approx(expected, rel=1e-5)
    by_matrix = float((first @ (after[0] - before[0]).T).square().mean().sqrt())
    assert measured["0"]["direct_changes"][-1] == pytest.approx(by_matrix, rel=1e-5)
    assert measured["1"]["changes"] == pytest.approx(measured["0"]["changes"], rel=1e-5)
