"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def until(true: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until `true()` is, and return it; AssertionError after so many seconds."""
    end = time.monotonic() + seconds
    while not (result := true()):
        assert time.monotonic() < end, f"{true} did not come true in {seconds} s"
        time.sleep(0.02)
    return result


def alive(pid: int) -> bool:
    """Whether a process runs: one that nobody has waited for is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
