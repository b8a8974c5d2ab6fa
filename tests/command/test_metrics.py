"""Losses from every source, as far as it is written when it is read."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from sweeper.command.metrics import Lines, check_source, make_source
from sweeper.errors import ConfigError

LINE = r"step (?P<step>\d+): loss (?P<loss>\S+)"


def test_a_pattern_finds_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    source = make_source(LINE, tmp_path, log)
    assert source.read() == []
    log.write_text("begin\nstep 1: loss 2.5, ok\rstep 2: loss nan\nstep 3: lo")
    (first, second) = source.read()
    assert first == (1, 2.5)
    assert second[0] == 2 and math.isnan(second[1])
    with log.open("a") as file:
        file.write("ss 1.5")
    assert source.read() == []
    assert source.read(ended=True) == [(3, 1.5)]


def test_a_pattern_may_tell_no_step(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("{'loss': '2.5', 'epoch': 1}\n{'loss': 1.5}\nloss: none\n")
    source = make_source(r"'loss': '?(?P<loss>[^,'}]+)", tmp_path, log)
    assert source.read() == [(None, 2.5), (None, 1.5)]


def test_a_flood_is_read_in_parts_and_long_lines_are_cut(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(b"x" * 9_000_000 + b"\n" + b"step 1: loss 2\n")
    source = make_source(LINE, tmp_path, log)
    assert source.read() == []
    assert source.read(ended=True) == [(1, 2.0)]


def test_a_file_that_is_begun_anew_is_read_anew(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "log")
    lines.path.write_text("one\ntwo\n")
    assert lines.read() == ["one", "two"]
    lines.path.write_text("three\n")
    assert lines.read() == ["three"]


def test_rows_of_json_and_of_a_table(tmp_path: Path) -> None:
    rows = [{"iter": 0, "loss": 2.5}, {"iter": 1, "val": 3}, {"iter": 2, "loss": "nan"}]
    (tmp_path / "m.jsonl").write_text("no json\n" + "\n".join(map(json.dumps, rows)) + "\n[1]\n")
    source = make_source("jsonl:m.jsonl:loss", tmp_path, tmp_path / "log")
    (first, second) = source.read(ended=True)
    assert first == (0, 2.5) and second[0] == 2 and math.isnan(second[1])

    table = make_source("csv:m.csv:train/loss", tmp_path, tmp_path / "log")
    with (tmp_path / "m.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["step", "train/loss"], [1, 2.5], [2, ""], [3, 1.5]])
    assert table.read(ended=True) == [(1, 2.5), (3, 1.5)]


def test_tensorboard_s_event_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    source = make_source("tensorboard:train/loss", tmp_path, tmp_path / "log")
    assert source.read() == []
    with SummaryWriter(tmp_path / "runs") as writer:
        writer.add_scalar("train/loss", 2.5, 10)
        writer.add_scalar("train/lr", 1.0, 10)
        writer.flush()
        assert source.read() == [(10, 2.5)]
        writer.add_scalar("train/loss", 1.5, 20)
    assert source.read(ended=True) == [(20, 1.5)]


def test_an_offline_run_of_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    source = make_source("wandb:train/loss", tmp_path, tmp_path / "log")
    with wandb.init(mode="offline", dir=tmp_path, project="p") as run:
        run.log({"train/loss": 2.5}, step=3)
        run.log({"other": 1.0}, step=4)
        run.log({"train/loss": float("nan")}, step=5)
    (first, second) = source.read(ended=True)
    assert first == (3, 2.5) and second[0] == 5 and math.isnan(second[1])
    assert source.read(ended=True) == []


@pytest.mark.parametrize(
    "spec",
    [
        "loss (",
        r"loss (\S+)",
        r"loss (?P<los>\S+)",
        "jsonl:loss",
        "csv::loss",
        "csv:file:",
        "tensorboard:",
        "",
    ],
)
def test_what_cannot_be_read_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="metric="):
        check_source("metric", spec)
