"""Every command that the documentation shows is one: run where it is cheap, else parsed.

A block that trains, or needs what is not here, has `<!-- parsed: REASON -->` above it. Its commands
go through the command line's own parser, and their settings through the real configuration.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from sweeper.config.command_line import with_user_command
from sweeper.config.compose import compose_tree
from sweeper.errors import BadInput
from sweeper.registry import build_plugin
from tests.cli.driver import call
from tests.command_lines import USAGE_ERROR, VERBS, compose, parse
from tests.documents import PAGES, ROOT, Command, blocks, commands, scripts, words_of

pytestmark = pytest.mark.usefixtures("shipped")
COMMANDS = {page: list(commands(page)) for page in PAGES}
RUN = [command for page in PAGES for command in COMMANDS[page] if not command.mark]
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
        "train": {"Net": Model, "GPT": Model},
        "my_laws": {"Halving": lambda: None},
    }.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(ROOT / "scripts")


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
    answer = call(capsys, *with_user_command(command.words))
    assert answer.code == (2 if refused else 0), answer.err
    lines = [" ".join(line.split()) for line in command.output.splitlines()]
    printed = " ".join((answer.err if refused else answer.out).split())
    assert all(line in printed for line in lines if line != "..."), printed


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


def texts_of(page: str, language: str, holds: str = "") -> str:
    """The blocks of a page in this language that have `holds` in them, one below the other."""
    every = blocks((ROOT / "docs" / page).read_text(encoding="utf-8"))
    return "\n".join(b.text for b in every if b.language == language and holds in b.text)


def test_rates_initial_weights_and_losses_are_those_of_mup_as_the_page_says() -> None:
    pytest.importorskip("mup")
    text = texts_of("coming-from.md", "python", "theirs")
    assert text.count("assert ") == 1
    module = ModuleType("coming_from")
    exec(compile(text, "coming-from.md", "exec"), vars(module))


def test_arrays_of_ones_own_are_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mydata")
    monkeypatch.setitem(sys.modules, "mydata", module)
    source_code = texts_of("your-model.md", "python", "# mydata.py")
    exec(compile(source_code, "mydata.py", "exec"), vars(module))
    x = np.arange(40 * 6, dtype=np.uint8).reshape(40, 6)
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(40) % 4)
    (tmp_path / "my" / "data").mkdir(parents=True)
    config = texts_of("your-model.md", "yaml", "mydata.Npz")
    (tmp_path / "my" / "data" / "npz.yaml").write_text(config)
    words = ["data=npz", f"data.path={tmp_path / 'mine.npz'}", "model=mlp"]
    source = build_plugin(compose_tree(words, config_dir=tmp_path / "my")["data"])
    corpus = source.prepare(tmp_path / "cache")
    assert (source.input_shape, corpus.classes, corpus.train_size) == ((6,), 4, 36)


def test_the_sheet_of_the_page_leads_to_its_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "changes.csv").write_text(texts_of("compare.md", "csv"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    cases = [
        c for c in COMMANDS[ROOT / "docs" / "compare.md"] if "changes.csv" in c.words and c.output
    ]
    assert [c.output.startswith("Error: ") for c in cases] == [True, True, False]
    for command in cases:
        answer = call(capsys, *command.words)
        assert answer.code == (2 if command.output.startswith("Error: ") else 0), answer.err
        printed = re.sub(r"[─\s]+", " ", answer.out + answer.err)
        for line in re.sub(r"─+", "", command.output).splitlines():
            assert " ".join(line.split()) in printed, (line, printed)
