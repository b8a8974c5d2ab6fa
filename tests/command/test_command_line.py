"""The words that a trial runs: nested arguments, torchrun, files of arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sweeper.command.template import PORTS, CommandLine, launched, port_of
from sweeper.errors import ConfigError

VALUES: dict[str, Any] = {"eta": 0.5, "width": 64, "dir": "d", "nodes": 1, "tasks": 2, "port": 1}


def test_nested_arguments_and_lists_are_filled() -> None:
    line = CommandLine(
        command=("x",),
        arguments={"optimizer": {"lr": "{eta}"}, "betas": ["{eta}", 0.9], "on": True},
    )
    argv = line.argv(VALUES, resumed=False)
    assert argv == ["x", "--optimizer.lr=0.5", "--betas=[0.5, 0.9]", "--on=True"]
    assert line.names == {"eta"}
    with pytest.raises(ConfigError, match=r"arguments.optimizer.lr=.*no such placeholder"):
        line.check(["lr"])


def test_an_argument_without_a_value_is_named() -> None:
    line = CommandLine(command=("x",), arguments={"heads": ["{width//128}"]})
    with pytest.raises(ConfigError, match=r"^arguments\.heads='{width//128}'.*0 at width 64"):
        line.argv(VALUES, resumed=False)


def test_a_key_is_a_value_or_a_mapping() -> None:
    line = CommandLine(command=("x",), arguments={"a": 1, "a.b": 2})
    with pytest.raises(ConfigError, match=r"arguments\.a=1"):
        _ = line.names


def test_a_file_of_arguments_is_written_when_it_is_run(tmp_path: Path) -> None:
    line = CommandLine(command=("x",), style="json", arguments={"a": {"b": "{width}"}})
    values = {**VALUES, "dir": str(tmp_path)}
    argv = line.argv(values, resumed=False, write=False)
    assert argv[1] == str(tmp_path / "arguments.json") and not list(tmp_path.iterdir())
    line.argv(values, resumed=False)
    assert json.loads((tmp_path / "arguments.json").read_text()) == {"a": {"b": 64}}


def test_torchrun_takes_the_place_of_python() -> None:
    one = launched(["python3", "train.py", "--x"], VALUES, ["--max-restarts=0"])
    assert one[1:] == [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        *("--max-restarts=0", "train.py", "--x"),
    ]
    assert launched(["./run"], VALUES)[-2:] == ["--no-python", "./run"]


def test_on_several_nodes_srun_starts_it_once_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    argv = launched(["python", "t.py"], {**VALUES, "nodes": 2, "port": 23456})
    assert argv[:2] == ["srun", "--overlap"] and "--nodes=2" in argv and "--nnodes=2" in argv
    assert any(word.startswith("--rdzv-endpoint=") and word.endswith(":23456") for word in argv)


def test_ports_follow_from_keys() -> None:
    ports = {port_of(f"{key:032x}"[::-1]) for key in range(100)}
    assert len(ports) > 90 and all(port in PORTS for port in ports)
