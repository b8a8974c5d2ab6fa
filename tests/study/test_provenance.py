import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from sweeper.study import setup as module
from sweeper.study.setup import PACKAGES, asked, git_commit, provenance


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def git(*words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_names_versions_machine_command_and_date() -> None:
    with asked(["sweeper", "search", 'data.path="a b"']):
        found = provenance()
    assert found["command"] == """sweeper search 'data.path="a b"'"""
    assert found.keys() >= {"sweeper", "python", "machine", "git", *PACKAGES}
    assert all(found[name] != "unknown" for name in PACKAGES)
    assert datetime.fromisoformat(found["date"]).tzinfo is not None


def test_a_package_that_is_not_there_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACKAGES", ("nope-nope",))
    assert provenance()["nope-nope"] == "unknown"


@pytest.mark.parametrize(
    "word",
    [
        "study.storage=mysql://me:s3cret@host/d",
        "study.storage='postgresql+psycopg://me:s3cret@host/d'",
        "study.storage=mysql://host/d?password=s3cret",
    ],
)
def test_the_command_keeps_no_password(word: str) -> None:
    with asked(["sweeper", "search", word, "model.width=16"]):
        command = provenance()["command"]
    assert "s3cret" not in command and "***" in command
    assert command.startswith("sweeper search ") and command.endswith(" model.width=16")


def test_the_commit(folder: Path) -> None:
    assert git_commit() is None, "this is no repository"
    git("init")
    assert git_commit() is None, "it has no commit"
    (folder / "a").touch()
    git("add", "a")
    git("commit", "-m", "one")
    commit = git("rev-parse", "HEAD")
    assert len(commit) == 40 and git_commit() == provenance()["git"] == commit
    (folder / "b").touch()
    assert git_commit() == f"{commit}+changes"
    assert provenance()["git"] == commit, "what runs was read before the change"


def test_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert git_commit() is None


def test_a_git_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(words: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(words, 10)

    monkeypatch.setattr("subprocess.run", hang)
    assert git_commit() is None
