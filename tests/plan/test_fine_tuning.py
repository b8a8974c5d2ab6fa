"""The recipes of docs/plan.md for loaded weights."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sweeper
from tests.documents import blocks

PAGE = Path(__file__).parents[2] / "docs" / "plan.md"


def test_loaded_weights_stay_and_the_plan_trains_what_the_table_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = (b.text for b in blocks(PAGE.read_text()) if "class LoRA" in b.text)
    classes, calls, recipes = code.partition("full, plan = ")
    names: dict[str, Any] = {"torch": torch, "nn": nn, "sweeper": sweeper}
    exec(classes, names)
    start = names["Net"](512)
    torch.save(start.body.state_dict(), tmp_path / "body.pt")
    monkeypatch.chdir(tmp_path)
    exec(calls + recipes, names)
    drawn = {"full": set[str](), "headed": {"head"}, "probe": {"head"}, "adapted": {"head", "A"}}
    trained = {"full": {"body", "head"}, "headed": {"body", "head"}, "probe": {"head"}}
    for kind, fresh in drawn.items():
        model = names[kind]
        params = {id(p): name for name, p in model.named_parameters()}
        groups = {params[id(p)] for g in names[f"{kind}_groups"] for p in g["params"]}
        assert {n.partition(".")[0] for n in groups} == trained.get(kind, {"head", "A", "B"})
        for name, value in model.body.state_dict().items():
            assert torch.equal(value, start.body.state_dict()[name])
        # What is drawn has the plan's deviation, and torch's own layers have no biases of 0.
        assert (model.head.bias.abs().max() == 0) == ("head" in fresh)
        torch.optim.AdamW(names[f"{kind}_groups"])
    deviation = names["adapted"].A.weight.std().item()
    assert deviation == pytest.approx(names["plan"].absorbed()[-2].init_std, rel=0.1)
    assert not names["adapted"].B.weight.any()


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
