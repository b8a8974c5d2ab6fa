"""The command that a trial runs: nested arguments, torchrun, files of arguments."""

import json
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import typer
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from sweeper.cli.app import app
from sweeper.command.command_runner import (
    OPTIONS,
    Command,
    CommandRunner,
    clips_scales,
    reports_no_loss,
    unknown_to_script,
)
from sweeper.command.template import PORTS, Style, float_text, port_of, styled, under_torchrun
from tests.command.commands import command, trial
from tests.refusals import raises_config_error

VALUES: dict[str, Any] = {"eta": 0.5, "width": 64, "dir": "d", "nodes": 1, "tasks": 2, "port": 1}


def test_nested_arguments_and_lists_are_filled() -> None:
    line = Command(
        command=("x",),
        arguments={"optimizer": {"lr": "{eta}"}, "betas": ["{eta}", 0.9], "on": True},
    )
    argv = line.filled(VALUES, resumed=False)
    assert argv == ["x", "--optimizer.lr=0.5", "--betas=[0.5, 0.9]", "--on=True"]
    assert line.names == {"eta"}
    with raises_config_error("arguments.optimizer.lr", "{eta}"):
        line.check_use(["lr"], scaled_by_user=True)


def test_what_cannot_be_filled_is_named() -> None:
    line = Command(command=("x",), arguments={"heads": ["{width//128}"]})
    with raises_config_error("arguments.heads", "{width//128}"):
        line.filled(VALUES, resumed=False)
    with raises_config_error("arguments.a", 1):  # a key is a value or a mapping
        Command(command=("x",), arguments={"a": 1, "a.b": 2})


def test_a_file_of_arguments_is_written_when_it_is_run(tmp_path: Path) -> None:
    line = Command(command=("x",), style="json", arguments={"a": {"b": "{width}"}})
    values = {**VALUES, "dir": str(tmp_path)}
    argv = line.filled(values, resumed=False, write=False)
    assert argv[1] == str(tmp_path / "arguments.json") and not list(tmp_path.iterdir())
    line.filled(values, resumed=False)
    assert json.loads((tmp_path / "arguments.json").read_text()) == {"a": {"b": 64}}


def test_torchrun_takes_the_place_of_python() -> None:
    argv = under_torchrun(["python3", "train.py", "--x"], VALUES, ["--max-restarts=0"])
    assert argv[1:] == [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        *("--max-restarts=0", "train.py", "--x"),
    ]
    assert under_torchrun(["./run"], VALUES)[-2:] == ["--no-python", "./run"]


def test_on_several_nodes_srun_starts_it_once_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    argv = under_torchrun(["python", "t.py"], {**VALUES, "nodes": 2, "port": 23456})
    assert argv[:2] == ["srun", "--overlap"] and "--nodes=2" in argv and "--nnodes=2" in argv
    assert any(word.startswith("--rdzv-endpoint=") and word.endswith(":23456") for word in argv)


def test_ports_follow_from_keys() -> None:
    ports = {port_of(f"{key:032x}"[::-1]) for key in range(100)}
    assert len(ports) > 90 and all(port in PORTS for port in ports)


# Arguments as each trainer takes them, read back by what would read them.


ARGUMENTS: dict[str, Any] = {
    "lr": 1e-05,
    "model.width": 64,
    "name": "gpt",
    "on": True,
    "off": False,
}
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def test_flags(tmp_path: Path) -> None:
    assert styled("equals", ARGUMENTS, tmp_path) == [
        *("--lr=1e-05", "--model.width=64", "--name=gpt", "--on=True", "--off=False")
    ]
    assert styled("spaces", ARGUMENTS | {"sizes": [1, 2]}, tmp_path) == [
        *("--lr", "1e-05", "--model.width", "64", "--name", "gpt", "--on", "--sizes", "1", "2")
    ]
    assert styled("hydra", ARGUMENTS | {"sizes": [1, 2], "none": None}, tmp_path) == [
        *("lr=1.0e-05", "model.width=64", "name=gpt", "on=true", "off=false", "sizes=[1, 2]"),
        "none=null",
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("style", "read"), [("json", json.loads), ("yaml", yaml.safe_load), ("toml", tomllib.loads)]
)
def test_files(style: Style, read: Any, tmp_path: Path) -> None:
    (path,) = styled(style, ARGUMENTS, tmp_path)
    nested = {"lr": 1e-05, "model": {"width": 64}, "name": "gpt", "on": True, "off": False}
    assert read(Path(path).read_text()) == nested
    assert not styled(style, {}, tmp_path)


@given(FINITE)
def test_floats_are_floats_to_whoever_reads_them(value: float) -> None:
    """PyYAML takes 1e-05 for a text."""
    assert yaml.safe_load(float_text("yaml")(value)) == value
    assert float(float_text("equals")(value)) == value
    parsed = OverridesParser.create().parse_override(f"lr={float_text('hydra')(value)}").value()
    assert isinstance(parsed, float) and parsed == value


# Words of sweeper's own behind `--` are noted, and those that the script takes are not.


PARSER = (
    'parser.add_argument("--lr"); parser.add_argument("--new_setup"); parser.add_argument("{}")'
)
READ_ELSEWHERE, PROGRAM = "from options import parse", "\0lr"


@pytest.mark.parametrize(
    ("argv", "script", "noted"),
    [
        *((argv, PARSER, argv[:1]) for argv in (
            ["--dry-run"], ["--study=a"], ["--to-width", "100"], ["search=lr"], ["train.steps=9"],
            ["+launcher.sbatch={a: b}"], [r"metric=loss (?P<loss>\S+)"],
        )),
        (["launcher.workers=2"], PARSER.format("workers"), ["launcher.workers=2"]),
        (["launcher.workers=2", "train.steps=3"], READ_ELSEWHERE, ["launcher.workers=2"]),
        # What the script mentions, with dashes or underscores, is its own.
        (["--dry-run"], PARSER.format("dry_run"), []),
        (["--root=x"], PARSER.format("root"), []),
        (["train.steps=5"], PARSER.format("steps"), []),
        (["--new-setup"], PARSER, []),
        # Where it could be wrong nothing is said.
        (["--root={dir}"], PARSER, []),
        (["--batch=3", "data.path=x", "search"], PARSER, []),
        (["--study", "x"], READ_ELSEWHERE, []),
        (["search=lr"], "import hydra  # reads lr", []),
        (["--study", "x"], PROGRAM, []),
        # But an option that would train is.
        (["--dry-run", "--study"], READ_ELSEWHERE, ["--dry-run"]),
        (["--dry-run"], PROGRAM, ["--dry-run"]),
    ],
)  # fmt: skip
def test_words_of_sweepers_behind_the_dashes_are_noted(
    argv: list[str], script: str, noted: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(script)
    runner = {"command": ["python", "train.py", "--lr={eta}", *argv], "cwd": str(tmp_path)}
    tree = {"runner": runner, "train": {"steps": 9}, "search": {}}
    tree["launcher"] = {"workers": None}
    assert unknown_to_script(tree) == noted


def test_a_module_and_no_command_are_looked_at_too() -> None:
    module = {"command": ["python", "-m", "trainer", "--lr={eta}", "--dry-run"]}
    assert unknown_to_script({"runner": module}) == ["--dry-run"]
    assert unknown_to_script({"runner": {}}) == []


def test_all_options_of_both_verbs_are_known() -> None:
    group: Any = typer.main.get_command(app)
    verbs = [group.get_command(None, verb) for verb in ("search", "transfer")]
    taken = {name for verb in verbs for p in verb.params for name in p.opts}
    assert {f"--{name}" for name in OPTIONS} == {n for n in taken if n.startswith("--")}


@pytest.mark.parametrize(
    ("script", "metric", "is_noted"),
    [
        ("print('loss', 2.0)", None, True),
        ("print('loss', 2.0)", r"loss (?P<loss>\\S+)", False),
        ("open(os.environ['SWEEPER_REPORT'], 'a')", None, False),
        ("sweeper.current_trial().report(1, 2.0)", None, False),
        ("", None, False),
    ],
)
def test_a_loss_that_nothing_finds_is_noted(
    tmp_path: Path, script: str, metric: str | None, is_noted: bool
) -> None:
    (tmp_path / "train.py").write_text(script)
    runner = {"command": ["python", "train.py"], "cwd": str(tmp_path), "metric": metric}
    assert reports_no_loss({"runner": runner}) is is_noted


@pytest.mark.parametrize(
    ("words", "script", "noted"),
    [
        ([], "nn.utils.clip_grad_norm_(p, a.grad_clip)", "(grad_clip, clip_grad_norm_)"),
        (["--grad-clip=0"], "clip_grad_norm_(p, a.grad_clip)", ""),
        (["--training.max_norm=1"], "", "(max_norm)"),
        (["--width={width}"], "crowd, word", ""),
    ],
)
def test_clipping_that_undoes_a_plan_is_noted(
    words: list[str], script: str, noted: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(script)
    runner = {"command": ["python", "train.py", *words], "cwd": str(tmp_path)}
    note = clips_scales({"runner": runner})
    assert noted in note and bool(noted) is bool(note)


def test_a_trial_without_gpus_is_given_none(tmp_path: Path) -> None:
    """And no group of none, whose CUDA_VISIBLE_DEVICES would be empty."""
    for gpus in (0, None):
        settings = Command(command=("python", "train.py"), gpus=gpus)
        assert CommandRunner(settings, tmp_path).machine().gpus == ()


def test_one_trial_of_every_size_comes_first(tmp_path: Path) -> None:
    made = command("x")
    trials = [trial(made, width=width, eta=eta) for width in (8, 16, 32) for eta in range(3)]
    executor = Mock(layouts=range(1, 5))
    batches = CommandRunner(made, tmp_path).batches(trials, executor)
    executor.use.assert_called_once_with(4)  # as many at a time as fit
    order = [(batch[0].width, batch[0].log2_hps["eta"]) for batch in batches]
    assert order[:3] == [(8, 0), (16, 0), (32, 0)]
    assert order[3:] == [(width, eta) for width in (8, 16, 32) for eta in (1, 2)]
