"""The GPT of docs/your-trainer.md: the page's edits are those of its two scripts, and suffice."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from sweeper import plan_for
from tests.documents import ROOT, blocks
from tests.scripts import load_script

NAMES = ("before", "train")


def test_each_line_of_the_page_is_one_of_the_two_scripts() -> None:
    folder = ROOT / "scripts/examples/gpt"
    before, after = ({*(folder / f"{name}.py").read_text().splitlines()} for name in NAMES)
    page = (ROOT / "docs/your-trainer.md").read_text()
    (lines,) = (block.text.splitlines() for block in blocks(page) if block.language == "diff")
    indents = {line[:1] + line[1:].strip() for line in lines}
    assert {line[1:] for line in indents if line[0] == "-"} <= {b.strip() for b in before - after}
    assert {line[1:] for line in indents if line[0] == "+"} <= {a.strip() for a in after - before}
    assert sum(line.startswith("@@") for line in lines) == 6


def test_after_the_edits_nothing_is_left_to_the_model_and_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = []
    for name in NAMES:
        module = load_script(f"examples/gpt/{name}.py")
        tokens = torch.zeros(2, module.CONTEXT, dtype=torch.long)
        sizes = [{"width": width, "depth": 2} for width in (32, 64)]
        plans.append(plan_for(module.GPT, *sizes, "mup", {"eta": 2**-7}, inputs=(tokens, tokens)))
    assert [len(plan.needs) for plan in plans] == [2, 0]
    plans[1].save(tmp_path / "plan.json")
    for argv in (["--lr=0.001"], [f"--plan={tmp_path / 'plan.json'}"]):
        monkeypatch.setattr(sys, "argv", ["train.py", "--width=64", "--steps=11", *argv])
        load_script(f"examples/gpt/{NAMES['plan' in argv[0]]}.py").main()
        first, last = re.findall(r"step \d+ loss (\S+)", capsys.readouterr().out)
        assert float(last) < float(first)
