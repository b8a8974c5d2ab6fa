"""The GPT of docs/your-trainer.md, whose edits suffice, and the README's script; by a plan, too."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sweeper import plan_for
from tests.documents import ROOT, blocks
from tests.scripts import load_script

NAMES = ("before", "train")
Losses = Callable[..., dict[int, float]]


def test_each_line_of_the_page_is_one_of_the_two_scripts() -> None:
    folder = ROOT / "scripts/examples/gpt"
    before, after = ({*(folder / f"{name}.py").read_text().splitlines()} for name in NAMES)
    page = (ROOT / "docs/your-trainer.md").read_text()
    (lines,) = (block.text.splitlines() for block in blocks(page) if block.language == "diff")
    indents = {line[:1] + line[1:].strip() for line in lines}
    assert {line[1:] for line in indents if line[0] == "-"} <= {b.strip() for b in before - after}
    assert {line[1:] for line in indents if line[0] == "+"} <= {a.strip() for a in after - before}
    assert sum(line.startswith("@@") for line in lines) == 6


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Losses:
    """What a script prints when it is run, its losses by step."""

    def run(script: str, *argv: str) -> dict[int, float]:
        monkeypatch.setattr(sys, "argv", ["train.py", *argv])
        load_script(f"examples/{script}.py").main()
        lines = re.findall(r"step (?P<step>\d+) loss (?P<loss>\S+)", capsys.readouterr().out)
        return {int(step): float(loss) for step, loss in lines}

    return run


def test_after_the_edits_nothing_is_left_to_the_model_and_it_trains(
    tmp_path: Path, losses: Losses
) -> None:
    plans = []
    for name in NAMES:
        module = load_script(f"examples/gpt/{name}.py")
        tokens = torch.zeros(2, module.CONTEXT, dtype=torch.long)
        sizes = [{"width": width, "depth": 2} for width in (32, 64)]
        plans.append(plan_for(module.GPT, *sizes, "mup", {"eta": 2**-7}, inputs=(tokens, tokens)))
    assert [len(plan.needs) for plan in plans] == [2, 0]
    plans[1].save(tmp_path / "plan.json")
    for name, how in zip(NAMES, ("--lr=0.001", f"--plan={tmp_path / 'plan.json'}"), strict=True):
        first, last = losses(f"gpt/{name}", "--width=64", "--steps=11", how).values()
        assert last < first


def test_the_readme_s_script_learns_with_and_without_a_plan(tmp_path: Path, losses: Losses) -> None:
    module = load_script("examples/plain/train.py")
    tokens, sizes = torch.zeros(2, module.CONTEXT, dtype=torch.long), ({"width": 16}, {"width": 32})
    plan_for(module.Net, *sizes, "mup", {"eta": 2**-6}, inputs=(tokens,)).save(tmp_path / "plan")
    usual = ("plain/train", "--width=32", "--steps=4")
    plain, planned = losses(*usual, "--lr=0.01"), losses(*usual, f"--plan={tmp_path / 'plan'}")
    assert [*plain] == [*planned] == [0, 1, 2, 3] and plain != planned
    assert plain[3] < plain[0] and planned[3] < planned[0]
