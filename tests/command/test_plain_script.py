"""The README's training script, by itself and by a plan."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from sweeper import plan_for
from sweeper.records import to_json
from tests.scripts import load_script

STEPS = 4


def losses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *argv: str
) -> list[float]:
    """Those that the script prints."""
    monkeypatch.setattr(sys, "argv", ["train.py", "--width=32", f"--steps={STEPS}", *argv])
    load_script("examples/plain/train.py").main()
    lines = re.findall(r"step (?P<step>\d+) loss (?P<loss>\S+)", capsys.readouterr().out)
    assert [int(step) for step, _ in lines] == list(range(STEPS))
    return [float(loss) for _, loss in lines]


def test_it_learns_with_and_without_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load_script("examples/plain/train.py")
    plain = losses(monkeypatch, capsys, "--lr=0.01")
    tokens = torch.zeros(2, module.CONTEXT, dtype=torch.long)
    plan = plan_for(
        module.Net, {"width": 16}, {"width": 32}, "mup", {"eta": 2**-6}, inputs=(tokens,)
    )
    (tmp_path / "plan.json").write_text(json.dumps(to_json(plan)))
    planned = losses(monkeypatch, capsys, f"--plan={tmp_path / 'plan.json'}")
    assert plain[-1] < plain[0] and planned[-1] < planned[0] and plain != planned
