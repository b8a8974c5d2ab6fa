"""Ctrl-C in a process that goes on."""

import importlib
import signal
import sys
import time
from pathlib import Path

import pytest

from sweeper.api.interrupt import whole_imports


@pytest.mark.parametrize("rest", [60, 0], ids=["work follows", "nothing follows"])
def test_an_import_comes_to_its_end_and_no_ctrl_c_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: int
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    raised = "import signal\nsignal.raise_signal(signal.SIGINT)\n"
    (tmp_path / "nb_half.py").write_text(f"{raised}whole = True\n")
    importlib.invalidate_caches()
    before, began = signal.getsignal(signal.SIGINT), time.monotonic()

    def work() -> None:
        with whole_imports():
            importlib.import_module("nb_half")
            if rest:
                time.sleep(rest)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert sys.modules.pop("nb_half").whole and time.monotonic() - began < 30
    assert signal.getsignal(signal.SIGINT) is before
