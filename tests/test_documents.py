"""Every command that the documentation shows is one: run where it is cheap, else parsed.

A block that trains, or needs what is not here, has `<!-- parsed: REASON -->` above it. Its commands
go through the command line's own parser, and their settings through the real configuration.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from sweeper.check.judge import CheckRule
from sweeper.cli.app import app
from sweeper.config.command_line import with_command
from sweeper.config.compose import compose_tree
from sweeper.config.settings import StudySettings, checked_plugin
from sweeper.data.corpus import Source
from sweeper.engine.optimizers.optimizer import Optimizer
from sweeper.errors import BadInput, key_prefix
from sweeper.export.exporter import build_exporter
from sweeper.launch.executor import Launcher
from sweeper.launch.runner import RunnerSettings
from sweeper.laws.law import Law
from sweeper.models.fp8 import Fp8
from sweeper.records import call_checked
from sweeper.search.strategy import Strategy
from sweeper.study.logs.log import Logger
from sweeper.trial import TrainSettings
from sweeper.verdict.ladder import LadderRule
from tests.cli.driver import call
from tests.documents import PAGES, ROOT, Command, commands, scripts, words_of

COMMANDS = {page: list(commands(page)) for page in PAGES}
RUN = [command for page in PAGES for command in COMMANDS[page] if not command.mark]
USAGE_ERROR: Any = typer.BadParameter.__base__
VERBS: Any = typer.main.get_command(app)
PLUGINS: dict[str, Any] = {
    "optimizer": Optimizer,
    "search": Strategy,
    "runner": RunnerSettings,
    "launcher": Launcher,
    "data": Source,
    "logger": Logger,
    "fp8": Fp8,
    "law": Law,
}
SECTIONS: dict[str, Any] = {
    "study": StudySettings,
    "train": TrainSettings,
    "transfer": LadderRule,
    "check": CheckRule,
}
MAKEFILE = (ROOT / "Makefile").read_text()


@pytest.fixture
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of the reader's own that the pages speak of."""
    from torch import nn

    class Model(nn.Module):
        def __init__(self, *, width: int, depth: int) -> None:
            super().__init__()

    for name, content in {
        "nano": {"build": Model},
        "mymodel": {"build": Model},
        "mine": {"build": Model},
        "train": {"Net": Model},
        "my_laws": {"Halving": lambda: None},
    }.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(ROOT / "scripts")


def parse(words: Sequence[str]) -> dict[str, Any]:
    """A verb's options and arguments, checked; typer's error or BadInput for what is refused."""
    verb, *rest = with_command(words)
    assert verb in VERBS.commands, f"there is no verb {verb}"
    values = VERBS.commands[verb].make_context(verb, list(rest)).params
    if verb == "export":
        options = dict(word.split("=", 1) for word in values["options"] or [])
        build_exporter(values["to"], {key: yaml_value(text) for key, text in options.items()})
    elif "overrides" in values:
        compose(tuple(values["overrides"] or ()))
    return dict(values)


def yaml_value(text: str) -> object:
    """An option's value as `export` reads it."""
    return {"true": True, "false": False}.get(text, text)


@cache
def compose(words: tuple[str, ...]) -> None:
    """Compose settings, and check their values; BadInput for what is refused.

    The model alone is not built: that takes a second, and every search's own test does it.
    """
    tree = compose_tree(words)
    for group, kind in PLUGINS.items():
        if not str(tree[group]["_target_"]).startswith("my_laws."):
            with key_prefix(group):
                checked_plugin(tree[group], kind)
    if tree["train"]["precision"] == "auto":  # the runner decides what it is
        tree["train"]["precision"] = "float32"
    for section, kind in SECTIONS.items():
        with key_prefix(section):
            call_checked(kind, tree[section], {})


@pytest.mark.usefixtures("_own_modules")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_is_one(page: Path) -> None:
    for command in COMMANDS[page]:
        bare = command.mark == "inline" and len(command.words) == 1  # a verb's name
        if bare:
            assert command.words[0] in VERBS.commands, str(command)
        elif not command.output.startswith("Error: "):
            try:
                parse(command.words)
            except Exception as error:
                pytest.fail(f"{command}: sweeper {' '.join(command.words)}\n{error}")


@pytest.mark.parametrize("command", RUN, ids=str)
def test_what_is_not_marked_runs_as_shown(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = command.output.startswith("Error: ")
    cheap = refused or command.words[0] == "explain"
    assert cheap, f"{command} trains: put <!-- parsed: minutes --> above its block"
    answer = call(capsys, *with_command(command.words))
    assert answer.code == (2 if refused else 0), answer.err
    shown = [" ".join(line.split()) for line in command.output.splitlines()]
    printed = " ".join((answer.err if refused else answer.out).split())
    assert all(line in printed for line in shown if line != "..."), printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_script_and_target_of_make_exists(page: Path) -> None:
    for program, *words in scripts(page):
        if program == "make":
            target = next(word for word in words if "=" not in word)
            assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"{page}: make {target}"
            continue
        assert (ROOT / program).is_file(), f"{page}: {program}"
        beside = "".join(path.read_text() for path in (ROOT / program).parent.glob("*.py"))
        for flag in (word.partition("=")[0] for word in words if word.startswith("--")):
            assert f'"{flag}"' in beside, f"{page}: {program} has no {flag}"
        if program.startswith("scripts/figures/"):
            compose(tuple(word for word in words if "=" in word))


@pytest.mark.parametrize(
    "line", ["search model.widht=64", "search --nope", "searhc", "transfer --to-width 64 law=jont"]
)
def test_a_misspelt_one_is_noticed(line: str) -> None:
    with pytest.raises((BadInput, AssertionError, USAGE_ERROR)):
        parse(words_of(line))


def test_they_are_there() -> None:
    assert sum(map(len, COMMANDS.values())) > 90 and len(RUN) >= 3
