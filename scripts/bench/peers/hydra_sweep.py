"""Hydra's multirun: `hydra_sweep.py {basic|optuna|submitit} TRIALS FOLDER`.

A trial's time is what more trials cost more than one does, which is the cold start.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from common import NAMES, tell

kind, trials, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
PACKAGES = {"basic": "core", "optuna": "optuna-sweeper", "submitit": "submitit-launcher"}


def words(count: int) -> list[str]:
    """The command's overrides for a sweep of `count` trials."""
    if kind == "optuna":
        ranges = [f"{name}=tag(log, interval(0.125, 8))" for name in NAMES]
        sweep = [f"hydra.sweeper.n_trials={count}", "hydra.sweeper.n_jobs=1"]
        return ["hydra/sweeper=optuna", "hydra/sweeper/sampler=random", *sweep, *ranges]
    points = ",".join(f"{0.125 + 7 * i / count:.6g}" for i in range(count))
    launcher = ["hydra/launcher=submitit_local"] if kind == "submitit" else []
    return [*launcher, f"eta={points}"]


def seconds(count: int) -> float:
    """Of the whole command."""
    app, runs = Path(__file__).with_name("hydra_app.py"), folder / str(count)
    command = [sys.executable, str(app), "-m", f"hydra.sweep.dir={runs}", *words(count)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        sys.exit(done.stderr)
    taken = time.perf_counter() - start
    assert sum(path.is_dir() and path.name.isdecimal() for path in runs.iterdir()) == count
    return taken


cold = seconds(1)
tell(f"hydra-{PACKAGES[kind]}", trials, (seconds(trials + 1) - cold), cold)
