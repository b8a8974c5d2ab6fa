from pathlib import Path

import pytest

from sweeper.search.optuna.recording import OptunaStudy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "first"


@pytest.fixture
def unmirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves Optuna out, for tests of the files alone."""
    monkeypatch.setattr(OptunaStudy, "start", lambda self: None)
    monkeypatch.setattr(OptunaStudy, "tell", lambda self, results: None)
