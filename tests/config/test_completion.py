import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.config.completion import complete_override, complete_study
from sweeper.registry import conf_folder
from tests.cli.driver import make_workplace

COMMAND = Path(sys.executable).with_name("sweeper")

PARAMETERIZATIONS = sorted(
    path.stem for path in (conf_folder() / "parameterization").glob("*.yaml")
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the studies alpha and beta, and a user's own option."""
    make_workplace(tmp_path)
    for path in ("runs/alpha/config.yaml", "runs/beta/config.yaml", "else/gamma/config.yaml"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).touch()
    (tmp_path / "my/search").mkdir(parents=True)
    (tmp_path / "my/search/mine.yaml").write_text("_target_: my.Search\nburn_in: 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("_SWEEPER_COMPLETE", raising=False)
    return tmp_path


class TestOverrides:
    def test_nothing_typed_gets_groups_and_sections(self) -> None:
        found = complete_override("")
        assert {"parameterization=", "search=", "train.", "transfer.", "root=", "study="} <= set(
            found
        )
        assert not any(word.partition("=")[2] for word in found) and len(found) < 40

    def test_a_group_gets_its_options(self) -> None:
        assert complete_override("parameterization=") == [
            f"parameterization={option}" for option in PARAMETERIZATIONS
        ]
        assert complete_override("parameterization=mu") == ["parameterization=mup"]
        assert complete_override("parameterization=x") == []

    def test_keys_come_with_their_default_so_that_no_space_follows(self) -> None:
        assert complete_override("train.ste") == ["train.steps=", "train.steps=1000"]
        assert complete_override("model.wid") == ["model.width=", "model.width=64"]
        assert "transfer.widths=[32,64,128,256]" in complete_override("transfer.w")
        assert "study.storage=null" in complete_override("study.st")
        assert complete_override("data.pa") == ["data.path=", "data.path=null"]
        assert not [word for word in complete_override("model.") if "_target_" in word]

    def test_few_values_are_all_told(self) -> None:
        assert complete_override("transfer.corr") == [
            *("transfer.correct=", "transfer.correct=false", "transfer.correct=true"),
        ]
        precisions = complete_override("train.precision=")
        assert {"train.precision=auto", "train.precision=bfloat16"} <= set(precisions)
        assert len(precisions) == 7, "each once, and the key"
        assert "search.prune=halving" in complete_override("search.prune=h")
        assert "runner.compile=off" in complete_override("runner.comp")
        assert "runner.batched_trials=auto" in complete_override("runner.batched_trials=")
        assert "parameterization.decay=scaled" in complete_override("parameterization.decay=")
        assert "optimizer.nesterov=true" in complete_override("optimizer.nest")

    def test_studies_are_options_of_study(self) -> None:
        assert complete_override("study=") == ["study=", "study=alpha", "study=beta"]

    def test_the_users_options_and_keys(self) -> None:
        my = Path("my")
        assert complete_override("search=m", my) == ["search=mine"]
        assert complete_override("search.bu", my) == ["search.burn_in=", "search.burn_in=3"]

    def test_never_complains(self, folder: Path) -> None:
        (folder / "my/search/broken.yaml").write_text("{{{")
        (folder / "my/search/list.yaml").write_text("- 1")
        (folder / "my/search/bytes.yaml").write_bytes(b"\xff\x00")
        assert "search=broken" in complete_override("search=", Path("my"))
        assert complete_override("search=", Path("nope")) == []

    @pytest.mark.parametrize("join", ["\n", " "])
    @pytest.mark.parametrize(
        ("words", "found"),
        [
            (["sweeper", "search", "parameterization", "="], PARAMETERIZATIONS),
            (["sweeper", "search", "a", "=", "1", "search", "=", "in"], ["independent"]),
            (["sweeper", "search", "train.ste"], ["train.steps=", "train.steps=1000"]),
            (["sweeper", "search", "train.steps", "="], ["1000"]),
            (["sweeper", "search", "data.path", "=", "te"], []),
        ],
    )
    def test_bash_hands_over_pieces(
        self, words: list[str], found: list[str], join: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("_SWEEPER_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", join.join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        assert complete_override(words[-1]) == found


def test_studies() -> None:
    assert complete_study("") == ["alpha", "beta"]
    assert complete_study("a") == ["alpha"]
    assert complete_study("", Path("else")) == ["gamma"]
    assert complete_study("", Path("nope")) == []


@pytest.mark.parametrize(
    ("shell", "words", "found"),
    [
        ("zsh", "sweeper search parameterization=mu", {"parameterization=mup"}),
        ("zsh", "sweeper search --config-dir my search=m", {"search=mine"}),
        ("zsh", "sweeper transfer --study ", {"alpha", "beta"}),
        ("zsh", "sweeper status --root else ", {"gamma"}),
        ("fish", "sweeper search search=t", {"search=tpe"}),
        ("fish", "sweeper report a", {"alpha"}),
    ],
)
def test_other_shells_hand_over_the_line(shell: str, words: str, found: set[str]) -> None:
    env = {
        "_SWEEPER_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    answer = subprocess.run(
        [COMMAND], env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    given = set(re.findall(r"[\w=]+", answer.stdout.replace("_arguments", "")))
    assert found <= given and "stdlib" not in answer.stdout
    assert answer.stderr == ""


class Bash:
    """An interactive bash on a terminal of its own, with completion installed."""

    def __init__(self) -> None:
        self.fd, terminal = pty.openpty()
        path = f"{COMMAND.parent}:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            env={**os.environ, "PS1": "$ ", "TERM": "dumb", "PATH": path, "HISTFILE": ""},
        )
        os.close(terminal)
        self.type("bind 'set bell-style none'; bind 'set page-completions off'\n", "$ ")
        self.type('eval "$(_SWEEPER_COMPLETE=source_bash sweeper)"; echo rea""dy\n', "ready")

    def type(self, keys: str, until: str) -> str:
        """Send `keys`; what the terminal shows until `until` does, and then no more comes."""
        os.write(self.fd, keys.encode())
        shown, deadline = "", time.monotonic() + 20
        while time.monotonic() < deadline:
            ready = select.select([self.fd], [], [], 0.15)[0]
            if ready:
                shown += os.read(self.fd, 4096).decode()
            elif until in shown:
                return shown
        raise AssertionError(f"{until!r} did not come: {shown!r}")

    def tab(self, line: str, until: str, tabs: int = 1) -> str:
        """What the terminal shows of `line` after pressing the tabulator."""
        shown = self.type(line + "\t" * tabs, until)
        self.type("\x15\necho $((40+2))\n", "42")
        return shown

    def close(self) -> None:
        os.write(self.fd, b"\x15exit\n")
        self.process.wait()
        os.close(self.fd)


@pytest.fixture
def bash(folder: Path) -> Iterator[Bash]:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash here")
    shell = Bash()
    yield shell
    shell.close()


@pytest.mark.slow
def test_a_real_bash_completes(bash: Bash) -> None:
    assert bash.tab("sweeper sea", "search ").endswith("sweeper search ")
    shown = bash.tab("sweeper search parameterization=", "umup", tabs=2)
    assert {"mup", "standard", "umup"} <= set(shown.split())
    shown = bash.tab("sweeper search parameterization=u", "umup ")
    assert shown.endswith("parameterization=umup ")
    shown = bash.tab("sweeper search train.st", "steps=")
    assert shown.endswith("train.steps="), "a space would end the word"
    shown = bash.tab("sweeper search --config-dir my search=m", "mine ")
    assert shown.endswith("search=mine ")
    assert bash.tab("sweeper transfer --study al", "alpha ").endswith("--study alpha ")
    assert bash.tab("sweeper search data.path=te", "text.txt ").endswith("data.path=text.txt ")


@pytest.mark.slow
def test_a_real_zsh_loads_the_script() -> None:
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh here")
    script = 'autoload -Uz compinit; compinit -u; eval "$(_SWEEPER_COMPLETE=source_zsh sweeper)"'
    path = f"{COMMAND.parent}:{os.environ['PATH']}"
    answer = subprocess.run(
        ["zsh", "-f", "-c", f"{script}; print $_comps[sweeper]"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert "_sweeper_completion" in answer.stdout
