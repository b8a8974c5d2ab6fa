"""How long torch's threads spin, waiting for their next work, before they sleep."""

from __future__ import annotations

import os
import time
from pathlib import Path

SPIN = "GOMP_SPINCOUNT"
IDLE, BUSY = "20001", "1001"
"""Odd values, by which ours are told from the user's."""
LOOKS = 3


def set_spin() -> None:
    """Before torch is loaded: spin briefly where others want the cores; the user's word counts.

    Threads that spin against others are the slower the longer they do (six times, with libgomp's
    own 300,000 beside one busy core of two); those that sleep between the operations of a small
    model are, too (half the speed with 1,000 on two idle cores).
    """
    if not {SPIN, "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ[SPIN] = BUSY if _wanted() > _cores() else IDLE


def without_ours(environment: dict[str, str]) -> dict[str, str]:
    """An environment for a user's command: how its threads wait is its own affair."""
    return {k: v for k, v in environment.items() if k != SPIN or v not in (IDLE, BUSY)}


def _cores() -> int:
    return os.cpu_count() or 1


def _wanted() -> int:
    """Cores that torch's threads and whatever runs beside this process would take."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _cores()
    return own + _beside()


def _beside() -> int:
    """Threads beside this one that run or want to, at the quietest of some looks."""
    least = _look()
    for _ in range(LOOKS - 1):
        if not least:
            break
        time.sleep(0.001)
        least = min(least, _look())
    return least


def _look() -> int:
    """Threads of the machine that run or want to, but for this one; 0 where it is not told."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        return 0
