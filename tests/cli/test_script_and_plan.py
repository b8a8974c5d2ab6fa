"""A search of a script that does not do what it is given ends early, and says what to write."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from sweeper.config.command_line import with_user_command
from sweeper.study.study import StudyRecord
from tests.cli.driver import Run
from tests.cli.test_own_command import searched
from tests.command.commands import METRIC

TRAIN = """
import sys, torch, sweeper
from planned_net import Net
plan = sweeper.TransferPlan.load(sys.argv[1])
model = Net(16, 1)
{use}
for step in range(10):
    tokens = torch.randint(256, (4, 8))
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    {schedule}
    optimizer.step()
    print(f"step {{step}}: loss {{loss.item()}}")
"""
NET = """
from torch import nn
def Net(width, depth):
    layers = nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 256)
    return nn.Sequential(nn.Embedding(256, width), *layers)
"""
USE = "plan.init_(model); optimizer = torch.optim.AdamW(plan.param_groups(model))"
FACTOR = "for group in optimizer.param_groups: group['lr'] = group['initial_lr'] * (1 - step / 20)"


@pytest.mark.parametrize(
    ("use", "schedule", "problem"),
    [
        (USE, FACTOR, ""),
        (USE, FACTOR.replace("group['initial_lr']", "1e-5"), "its highest rate is 1e-05 in all of"),
        (
            USE,
            "try:\n        optimizer.param_groups[0]['lr'] = 1; optimizer.step()\n    except: pass",
            "its rate is 1 at step 1, planned",
        ),
    ],
)
def test_a_script_that_does_not_train_by_its_plan(
    use: str,
    schedule: str,
    problem: str,
    sweeper: Run,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(workplace)
    (workplace / "planned_net.py").write_text(NET)
    (workplace / "train.py").write_text(TRAIN.format(use=use, schedule=schedule))
    asked = (
        "study=a",
        "launcher=inline",
        "search=lr",
        "search.line={points: 2, extend: 0}",
        "train.steps=10",
    )
    asked += (
        "parameterization=mup",
        "model._target_=planned_net.Net",
        "model.width=16",
        "model.depth=1",
    )
    asked += ("search.fresh_seeds=0", f"metric={METRIC}")
    argv = ["search", *asked, "--", sys.executable, "train.py", "{plan}"]
    answer = sweeper(*with_user_command(argv))
    assert answer.code == (1 if problem else 0), answer.text
    trained = StudyRecord.read(workplace / "runs/a").results()
    assert len(trained) == (1 if problem else 2) and problem in answer.err
    if problem:
        assert "the rest is not tried: the script does not train by its plan" in answer.err


def test_losses_that_do_not_depend_on_eta_end_the_search(sweeper: Run, workplace: Path) -> None:
    shutil.copy(Path(__file__).parents[1] / "command" / "script.py", workplace / "train.py")
    words = ("--lr=0.01", "--width={width}", "--steps={steps}", "--seed={seed}", "--dir={dir}")
    argv = searched("runner.uses=[eta]", "search.fresh_seeds=3", command=words)
    answer = sweeper(*argv)
    assert answer.code == 1 and "the script does not seem to train at eta" in answer.text
    assert (
        "transfer" not in answer.next and len(StudyRecord.read(workplace / "runs/a").results()) == 7
    )
    record = json.loads((workplace / "runs/a/search.json").read_text())
    assert "from 2^-10 to 2^-4" in record["untrained"]
    for verb in ("status", "report"):
        answer = sweeper(verb, "a")
        assert answer.code == 0 and "transfer" not in answer.next
        assert verb == "report" or "does not seem to train at eta" in answer.text
    page = (workplace / "runs/a/report.html").read_text()
    assert "does not seem to train at eta" in page
    refused = sweeper("transfer", "--study=a", "--to-width=64")
    assert refused.code == 1 and "does not seem to train at eta" in refused.err
