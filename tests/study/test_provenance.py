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


def git(*arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *who, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_names_versions_machine_command_and_date(monkeypatch: pytest.MonkeyPatch) -> None:
    with asked(["sweeper", "search", 'data.path="a b"']):
        record = provenance()
    assert record["command"] == """sweeper search 'data.path="a b"'"""
    assert record.keys() >= {"sweeper", "python", "machine", "git", *PACKAGES}
    assert all(record[name] != "unknown" for name in PACKAGES)
    assert datetime.fromisoformat(record["date"]).tzinfo is not None
    monkeypatch.setattr(module, "PACKAGES", ("nope-nope",))
    assert provenance()["nope-nope"] == "unknown"


def test_the_command_keeps_no_password() -> None:
    word = "study.storage='postgresql+psycopg://me:s3cret@host/d'"
    with asked(["sweeper", "search", word, "model.width=16"]):
        command = provenance()["command"]
    assert "s3cret" not in command and "***" in command
    assert command.startswith("sweeper search ") and command.endswith(" model.width=16")


def commit_now() -> str | None:
    git_commit.cache_clear()
    return git_commit(Path.cwd())


def test_the_commit(folder: Path) -> None:
    assert commit_now() is None, "this is no repository"
    git("init")
    assert commit_now() is None, "it has no commit"
    (folder / "a").touch()
    git("add", "a")
    git("commit", "-m", "one")
    commit = git("rev-parse", "HEAD")
    assert len(commit) == 40 and commit_now() == provenance()["git"] == commit
    (folder / "b").touch()
    assert provenance()["git"] == commit, "what runs was read before the change"
    assert commit_now() == f"{commit}+changes"


def test_without_git_and_with_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        assert commit_now() is None

    def hang(arguments: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(arguments, 10)

    monkeypatch.setattr("subprocess.run", hang)
    assert commit_now() is None
