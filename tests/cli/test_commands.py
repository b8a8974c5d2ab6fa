"""Verbs as commands: each is made when it is asked for, and loads what it needs."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sweeper.cli import commands, verb
from sweeper.cli.options import verb_first
from tests.cli.driver import SIZES, TINY, make_workplace


def loaded(script: str, folder: Path) -> set[str]:
    """The modules that a script has loaded that `folder` is the current one of."""
    program = f"import atexit, sys\natexit.register(lambda: print('\\n', *sys.modules))\n{script}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def run(*words: str) -> str:
    return f"import sys\nfrom sweeper.cli.app import main\nsys.argv = {['sweeper', *words]}\nmain()"


TRAINING = {"torch", "sympy", "hydra", "omegaconf"}
DRAWING = {"matplotlib", "jinja2", "pandas", "scipy"}


def test_to_its_first_trial_a_search_loads_what_it_needs(tmp_path: Path) -> None:
    """No figures, no compiler, no Slurm."""
    stop = (
        "from sweeper.study.study import StudyRecord\n"
        "StudyRecord.record = lambda *_, **__: sys.exit()\n"
    )
    argv = ["launcher=inline", "runner.compile=off"]
    modules = loaded(stop + run("search", *TINY, *argv), make_workplace(tmp_path))
    assert "torch" in modules
    others = {"torch._dynamo", "torch._inductor", "submitit", "transformers"}
    assert not modules & (DRAWING | others)


def test_reading_verbs_load_no_torch(study: Path, workplace: Path) -> None:
    # In one process, from the one that may load least to the one that may load most.
    sizes = [(name, 1e8 * 2**i) for name in ("adamw", "muon") for i in range(3)]
    rows = [f"{name},{n:g},{20 * n:g},{3 - n / 1e9 - (name == 'muon') / 50}" for name, n in sizes]
    (workplace / "runs.csv").write_text("\n".join(["optimizer,params,tokens,loss", *rows]))
    argv = ["runs.csv", "--by", "optimizer", "--baseline", "adamw", "--to-params", "1e9"]
    script, heavy = "", sorted(TRAINING | DRAWING | {"optuna", "sqlite3"})
    for words, none in ((["status", "a"], heavy), (["report", "a"], sorted(TRAINING))):
        script += run(*words).replace("main()", "try: main()\nexcept SystemExit: pass\n")
        script += f"assert not [name for name in {none} if name in sys.modules]\n"
    script += run("compare", *argv, "--to-tokens", "2e10")
    assert "torch" not in loaded(script, workplace)


@pytest.mark.long
def test_explain_loads_no_figures(tmp_path: Path) -> None:
    modules = loaded(run("explain", "--to-width", "64", *SIZES), make_workplace(tmp_path))
    assert modules & (DRAWING | {"optuna", "torch._dynamo", "submitit"}) == set()


def test_a_command_is_made_once_and_when_it_is_asked_for() -> None:
    made = Mock()
    verbs = commands.Verbs()
    verbs.declared["one"] = cache(made)
    assert list(verbs) == ["one"] and len(verbs) == 1 and not made.called
    assert verbs["one"] is verbs["one"] and verbs.get("two") is None and made.call_count == 1


def test_a_verb_s_first_context_may_be_without_a_parent(capsys: pytest.CaptureFixture[str]) -> None:
    """As where a documentation's command is only parsed: it decides the words that ask for help."""
    declared: Any = commands.VERBS.declared["status"]
    command = declared.__wrapped__()
    command.make_context("status", [])
    command.get_help(command.make_context("status", []))
    assert "-h" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("--json status a", "status --json a"),
        ("--root=a --trust explain --json", "explain --root=a --trust --json"),
        ("--verbose --root status cancel", "cancel --verbose --root status"),
        ("status --root a", "status --root a"),
        ("--root", "--root"),
        ("--json --help", "--help --json"),
    ],
)
def test_options_of_every_verb_stand_before_it_too(
    monkeypatch: pytest.MonkeyPatch, typed: str, kept: str
) -> None:
    monkeypatch.setattr("sys.argv", ["sweeper", *typed.split()])
    assert verb.typed() == kept.split() == verb_first(kept.split())


def test_a_shell_proposes_them_behind_the_verb() -> None:
    """The help of a verb hides them."""
    env = {"_SWEEPER_COMPLETE": "complete_bash", "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-c", "from sweeper.cli.app import app\napp(prog_name='sweeper')"],
        capture_output=True,
        text=True,
        env={**os.environ, **env, "COMP_WORDS": "sweeper --json status --ro"},
    )
    assert done.stdout.split() == ["--root"], done
