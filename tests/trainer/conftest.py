from functools import partial
from pathlib import Path

import pytest

from tests.commands.driver import Run, call, make_workplace
from tests.layout import without_layout


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, the current one."""
    monkeypatch.chdir(make_workplace(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


@pytest.fixture
def sweeper(workplace: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in `workplace`, in this process, its figures not laid out."""

    def run(*words: str):
        with without_layout():
            return partial(call, capsys)(*words)

    return run
