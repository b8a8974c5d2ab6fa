"""What a source has is said where it lacks what was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sweeper.command.metrics import held
from tests.command.commands import command, run
from tests.study.wandb_files import read_whole


def test_the_log_says_itself_what_it_has(tmp_path: Path) -> None:
    assert held("loss (?P<loss>.*)", tmp_path) == ""


@pytest.mark.parametrize("spec", ["jsonl:a.jsonl:loss", "csv:a.csv:loss", "tensorboard:loss"])
def test_a_file_that_is_not_there(tmp_path: Path, spec: str) -> None:
    said = held(spec, tmp_path)
    assert "{dir}" in said and ("is not there" in said or "there is no" in said)


def test_keys_and_columns(tmp_path: Path) -> None:
    rows = [{"old": 1}, {"step": 1, "train_loss": 2.0}]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + "bye\n")
    said = held("jsonl:a.jsonl:loss", tmp_path)
    assert said == "a.jsonl has no loss; keys in its last line: step, train_loss"
    (tmp_path / "a.csv").write_text("step, train/loss\n1,2.0\n")
    assert held("csv:a.csv:loss", tmp_path) == "a.csv has no loss; columns: step, train/loss"
    (tmp_path / "b.csv").write_text("step,loss\n1,none\n")
    assert held("csv:b.csv:loss", tmp_path) == "b.csv has loss, but no number under it"


def test_many_names_are_cut(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",".join(f"c{n}" for n in range(99)) + "\n")
    assert held("csv:a.csv:loss", tmp_path).endswith("c19, ...")


def test_tensorboard_s_tags(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path / "runs") as writer:
        writer.add_scalar("train/loss", 2.5, 10)
    assert held("tensorboard:loss", tmp_path) == "the event file has no loss; tags: train/loss"


def test_wandb_s_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=tmp_path, project="p") as logged:
        logged.log({"train/loss": 2.5}, step=3)
    (path,) = tmp_path.glob("**/*.wandb")
    read_whole(path)
    assert held("wandb:loss", tmp_path) == "the offline run has no loss; keys: train/loss"


def test_a_run_without_a_loss_says_what_is_there(tmp_path: Path) -> None:
    outcome, _ = run(command(metric="jsonl:own.jsonl:lost", words=("--how=stale",)), tmp_path)
    assert "own.jsonl has no lost; keys in its last line: step, loss" in str(outcome.failure)
    outcome, _ = run(command(metric=None), tmp_path)
    assert "SWEEPER_REPORT" in str(outcome.failure) and "add 'metric=" in str(outcome.failure)
