from pathlib import Path

import pytest

from sweeper.search.optuna.recording import OptunaStudy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "first"


@pytest.fixture
def unmirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OptunaStudy, "start", lambda self: None)
    monkeypatch.setattr(OptunaStudy, "tell", lambda self, results: None)
