"""What all peers share: the objective, and how a measurement is told. Python alone is needed."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from importlib.metadata import version

NAMES = ("eta", "alpha_attn", "alpha_ffn_act", "alpha_residual", "alpha_ratio", "alpha_loss")
LOW, HIGH = 0.125, 8.0


def objective(values: Mapping[str, float]) -> float:
    """A bowl over the logarithms: nothing worth naming as training."""
    return sum(math.log2(values[name]) ** 2 for name in NAMES)


def age() -> float:
    """Seconds since this process was started (Linux; elsewhere since Python was up)."""
    try:
        with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
            ticks = int(stat.read().rsplit(")", 1)[1].split()[19])
            return float(uptime.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except OSError:
        return time.process_time()


def tell(package: str, trials: int, seconds: float, cold: float) -> None:
    """Print the measurement: milliseconds a trial, and seconds before the first could begin."""
    record = {"version": f"{package} {version(package)}", "trials": trials}
    print(json.dumps(record | {"ms": 1000 * seconds / trials, "cold_s": cold}))
