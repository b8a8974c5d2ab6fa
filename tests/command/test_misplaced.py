"""Words of sweeper's own behind `--` are noted, and those that the script takes are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from sweeper.cli.app import app
from sweeper.command.runner import OPTIONS, misplaced, tells_no_loss

PARSER = (
    'parser.add_argument("--lr"); parser.add_argument("--new_setup"); parser.add_argument("{}")'
)


def noted(folder: Path, *words: str, script: str = PARSER) -> list[str]:
    """What is noted of a command with these words beside --lr={eta}."""
    (folder / "train.py").write_text(script)
    command = ["python", "train.py", "--lr={eta}", *words]
    runner = {"command": command, "cwd": str(folder)}
    return misplaced({"runner": runner, "train": {"steps": 9}, "search": {}, "launcher": {}})


@pytest.mark.parametrize(
    "word", ["--dry-run", "--study=a", "--to-width", "search=lr", "train.steps=100"]
)
def test_a_word_of_sweepers_alone_is_noted(tmp_path: Path, word: str) -> None:
    assert noted(tmp_path, word, "100") == [word]


@pytest.mark.parametrize("word", ["--dry-run", "--study", "--root=x", "train.steps=5", "search=lr"])
def test_a_word_that_the_script_mentions_is_its_own(tmp_path: Path, word: str) -> None:
    name = word.lstrip("-").partition("=")[0].rpartition(".")[2].replace("-", "_")
    assert noted(tmp_path, word, script=PARSER.format(name)) == []


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (["--new-setup"], PARSER),
        (["--root={dir}"], PARSER),
        (["--batch=3", "data.path=x", "search"], PARSER),
        (["--study", "x"], "from options import parse"),
        (["search=lr"], "import hydra  # reads lr"),
        (["--study", "x"], "\0lr"),
    ],
)
def test_nothing_is_said_where_it_could_be_wrong(
    tmp_path: Path, words: list[str], script: str
) -> None:
    assert noted(tmp_path, *words, script=script) == []


def test_without_a_command_there_is_nothing_to_note() -> None:
    assert misplaced({"runner": {}}) == []


def test_all_options_of_both_verbs_are_known() -> None:
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    taken = {name for verb in ("search", "transfer") for p in verbs[verb].params for name in p.opts}
    assert {f"--{name}" for name in OPTIONS} == {n for n in taken if n.startswith("--")}


@pytest.mark.parametrize(
    ("script", "metric", "told"),
    [
        ("print('loss', 2.0)", None, True),
        ("print('loss', 2.0)", r"loss (?P<loss>\\S+)", False),
        ("open(os.environ['SWEEPER_REPORT'], 'a')", None, False),
        ("sweeper.current_trial().report(1, 2.0)", None, False),
        ("", None, False),
    ],
)
def test_a_loss_that_nothing_finds_is_noted(
    tmp_path: Path, script: str, metric: str | None, told: bool
) -> None:
    (tmp_path / "train.py").write_text(script)
    runner = {"command": ["python", "train.py"], "cwd": str(tmp_path), "metric": metric}
    assert tells_no_loss({"runner": runner}) is told
