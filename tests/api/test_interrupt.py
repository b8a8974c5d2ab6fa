"""Ctrl-C in a process that goes on."""

from __future__ import annotations

import importlib
import signal
import sys
import time
from pathlib import Path

import pytest

from sweeper.api.interrupt import whole_imports


def test_an_import_comes_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    raised = "import signal\nsignal.raise_signal(signal.SIGINT)\n"
    (tmp_path / "nb_half.py").write_text(f"{raised}whole = True\n")

    def work() -> None:
        with whole_imports():
            importlib.import_module("nb_half")
            time.sleep(60)

    before, began = signal.getsignal(signal.SIGINT), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        work()
    assert sys.modules.pop("nb_half").whole and time.monotonic() - began < 30
    assert signal.getsignal(signal.SIGINT) is before


def test_a_ctrl_c_that_waits_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "nb_last.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")

    def work() -> None:
        with whole_imports():
            importlib.import_module("nb_last")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert sys.modules.pop("nb_last")
