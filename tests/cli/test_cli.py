import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from sweeper.cli import app, verb
from sweeper.cli.options import verb_first
from sweeper.errors import SweeperError
from sweeper.verbs import search, status
from tests.cli.driver import SIZES, TINY, Run, assert_refused, make_workplace, tree


class TestHelp:
    def test_loads_little(self) -> None:
        script = (
            "import sys\nfrom sweeper.cli.app import app\n"
            "try: app(['--help'])\nexcept SystemExit: pass\n"
            "heavy = 'torch optuna wandb hydra omegaconf numpy matplotlib jinja2 sqlite3 yaml'\n"
            "heavy += ' sweeper.files'\n"
            "print([name for name in heavy.split() if name in sys.modules], file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.stderr.strip() == "[]" and "--help" in done.stdout

    def test_no_verb_at_all_gets_it_and_is_refused(self, sweeper: Run) -> None:
        answer = sweeper()
        assert answer.code == 2 and answer.out == sweeper("-h").out and answer.err == ""

    def test_what_is_refused_loads_no_torch(self, study: Path) -> None:
        to = ["--to-width", "64", "--study", "a"]
        script = "import sys\nfrom sweeper.cli.app import app\n"
        for argv in (["search"], ["transfer", *to], ["explain", *to]):
            for wrong in ("train.stepz=3", "--nope"):
                script += f"try: app({[*argv, wrong]})\n"
                script += "except SystemExit as end: assert end.code == 2\n"
        script += "print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == "False", done
        assert done.stderr.count("train.stepz=3") == 3, done

    def test_without_configs_it_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sweeper.registry.__file__", "/nope/sweeper/registry.py")
        assert app._choices().startswith("the configs are missing: ")


class Tied(nn.Module):
    """Reads 65 words, by a head that is the embedding's matrix; gives logits and loss."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(65, width), nn.Linear(width, width)
        self.head = nn.Linear(width, 65, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(torch.tanh(self.body(self.words(x))))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def test_explain_sees_the_words_of_a_tied_head_and_proposes_no_check_that_fails(
    sweeper: Run, tmp_path: Path
) -> None:
    model = [f"model._target_={__name__}.Tied", "model.width=16", "parameterization=mup"]
    answer = sweeper("explain", "--to-width", "64", *model, "--json")
    assert answer.code == 0 and not answer.document["next"]
    assert answer.document["parameters"] and tree(tmp_path) == ["text.txt"]


class TestErrors:
    """What a verb may raise, and how the command ends."""

    @pytest.fixture
    def raises(self, monkeypatch: pytest.MonkeyPatch, sweeper: Run) -> Callable[..., object]:
        def run(error: BaseException, *words: str) -> object:
            def fail(*_: object, **__: object) -> int:
                raise error

            monkeypatch.setattr(search, "search", fail)
            monkeypatch.setattr(status, "status", fail)
            return sweeper(*(words or ("search",)))

        return run

    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (OSError(28, "No space left on device"), "No space left on device"),
            (PermissionError(13, "Permission denied", "a/b"), "Permission denied: a/b"),
            (OSError("odd"), "odd"),
            (MemoryError(), "out of memory"),
            (SweeperError("no luck"), "no luck"),
        ],
    )
    def test_the_machine_is_at_fault(self, raises: Run, error: Exception, said: str) -> None:
        answer = raises(error)
        assert_refused(answer, code=1)
        assert answer.err == f"Error: {said}\n"

    def test_a_bug_keeps_its_traceback(self, raises: Run) -> None:
        answer = raises(ZeroDivisionError("what"))
        assert answer.code == 1 and answer.out == ""
        assert answer.err.startswith("Traceback") and "ZeroDivisionError: what\n" in answer.err
        assert answer.err.splitlines()[-1].startswith("Error: this was not foreseen")

    def test_one_does_not_go_on_watching(self, raises: Run) -> None:
        answer = raises(KeyboardInterrupt(), "status", "--watch")
        assert (answer.code, answer.err) == (130, "Stopped watching.\n")

    def test_a_reader_that_has_enough_is_no_error(self, raises: Run) -> None:
        assert raises(BrokenPipeError(32, "Broken pipe")).err == ""

    @pytest.mark.parametrize(
        "error",
        [
            SweeperError("'study.storage=mysql://me:s3cret@host/d' cannot be read"),
            OSError(5, "mysql://me:s3cret@host/d?x=1 is gone"),
            RuntimeError("a\npostgresql://me:s3cret@host/d\nb"),
        ],
    )
    def test_no_password_is_told(self, raises: Run, error: Exception) -> None:
        answer = raises(error)
        assert "s3cret" not in answer.err and "me:***@host" in answer.err


@pytest.mark.parametrize(
    "word",
    [
        "study.storage='mysql://me:s3cret@host/d",
        "study.storag=mysql://me:s3cret@host/d",
        "+x=mysql://me:s3cret@host/d",
        "study.name=mysql://me:s3cret@host/d",
        "study.storage=[mysql://me:s3cret@host/d]",
        "study.storage='mysql://host/d?password=s3cret'",
    ],
)
def test_a_refused_storage_does_not_tell_its_password(sweeper: Run, word: str) -> None:
    answer = sweeper("search", *TINY, word)
    assert_refused(answer)
    assert "s3cret" not in answer.err and "***" in answer.err


@pytest.mark.parametrize("columns", ["0", "wide", "40"])
def test_any_width_of_the_terminal(
    sweeper: Run, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert_refused(sweeper("status"), "there is no study in runs yet")


def test_streams_take_every_word(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", narrow)
    app._open_streams()
    with sys.stdout:
        print("to nobody")
    print("±", file=sys.stderr, flush=True)
    assert narrow.buffer.getvalue() == b"?\n"  # type: ignore[attr-defined]


def test_terminate_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_open_streams", lambda: None)
    old = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(app, "app", lambda words: os.kill(os.getpid(), signal.SIGTERM))
    try:
        with pytest.raises(SystemExit) as ended:
            app.main()
    finally:
        signal.signal(signal.SIGTERM, old)
    assert ended.value.code == 130


# Verbs as commands: each is made when it is asked for, and loads what it needs.


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


def test_a_command_is_made_once_and_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "VERBS", {"one": cache(made := Mock())})
    group: Any = app.CommandGroup(name="all")
    assert group.list_commands(None) == ["one"] and not made.called
    assert group.get_command(None, "one") is group.get_command(None, "one")
    assert group.get_command(None, "two") is None and made.call_count == 1


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


@pytest.mark.parametrize(("module", "said"), [("typer", ""), ("numpy", "Stopped.\n")])
def test_ctrl_c_while_modules_are_imported_ends_it_plainly(
    module: str, said: str, tmp_path: Path
) -> None:
    pressed = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)"
    (tmp_path / f"{module}.py").write_text(pressed)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    argv = [sys.executable, "-m", "sweeper", "judge", "-"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


def test_a_closed_stdin_is_an_empty_one() -> None:
    argv = ["sh", "-c", '"$0" -m sweeper judge - <&-', sys.executable]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.endswith("is empty\n")
