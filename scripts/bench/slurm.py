"""What the driver of launcher=slurm costs: a search of one-trial jobs on a throw-away cluster.

Starts `scripts/slurm_local.sh` (root, slurm-wlm, munge), trains N trivial trials as N jobs, and
tells the time, the driver's CPU and memory, and how long after a job's end the driver knew.

    python scripts/bench/slurm.py --jobs 100 --out slurm.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

SCRIPT = Path(__file__).parents[1] / "slurm_local.sh"
TRIVIAL = (
    "data=text",
    "search=random",
    "model.width=16",
    "model.head_size=8",
    "model.depth=1",
    "train.steps=1",
    "train.batch_size=2",
    "train.seq_len=8",
    "train.heldout_batches=1",
    "launcher=slurm",
    "launcher.gpus=0",
    "launcher.cpus=1",
    "runner.batched_trials=1",
    "launcher.time=10",
    "launcher.warn=30",
    "runner.compile=off",
)


def search(folder: Path, jobs: int, poll: float) -> dict[str, Any]:
    """The search through the loop itself; when each result was made, and when it was recorded."""
    from sweeper.config.compose import compose_tree
    from sweeper.config.settings import resolve
    from sweeper.report.output import Output
    from sweeper.report.present import OutputWatcher
    from sweeper.study.lock import StudyLock
    from sweeper.study.study import StudyRecord
    from sweeper.sweep.experiment import open_experiment, progress_of
    from sweeper.sweep.sweep import Sweep

    (folder / "text.txt").write_text("All happy families are alike. " * 300)
    words = [*TRIVIAL, f"data.path={folder / 'text.txt'}", f"root={folder / 'runs'}", "study=bench"]
    words += [f"search.runs={jobs}", f"launcher.poll={poll}", f"launcher.jobs={jobs}"]
    words.append("search.fresh_seeds=0")
    settings = resolve(compose_tree(words, None))
    bench, known, quiet = open_experiment(settings), dict[str, float](), Console(quiet=True)
    with StudyLock(settings.folder), StudyRecord.open(settings.folder) as study:
        record = study.record

        def recorded(results: Any, *given: Any) -> None:
            record(results, *given)
            known.update((result.key, time.time()) for result in results)

        study.record = recorded  # type: ignore[method-assign]
        cpu, start = time.process_time(), time.perf_counter()
        watcher = OutputWatcher(Output(people=quiet, watchers=quiet))
        with progress_of(settings, watcher, "search", jobs) as monitor:
            Sweep(bench, study, monitor).search(lambda conclusion, finished: None)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        late = sorted(known[result.key] - result.finished_at for result in study.results())
        states = [result.status for result in study.results()]
    return {
        "jobs": jobs,
        "poll": poll,
        "results": len(states),
        "failed": states.count("failed"),
        "seconds": seconds,
        "driver_cpu_ms": 1000 * cpu / jobs,
        "driver_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "known_after_s": {"median": statistics.median(late), "most": late[-1]},
    }


def main() -> None:
    """Start the cluster, search, stop it, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--poll", type=float, default=2.0, help="seconds between looks")
    parser.add_argument("--slots", type=int, default=1, help="jobs that a node runs at a time")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # munge wants its socket where others could reach it
        env = {"SLURM_LOCAL_DIR": str(folder / "slurm"), "SLURM_LOCAL_CPUS": str(options.slots)}
        env["SLURM_LOCAL_ARRAY"] = str(options.jobs + 1)
        os.environ.update(env, SLURM_CONF=str(folder / "slurm/slurm.conf"), OMP_NUM_THREADS="1")
        os.environ["PATH"] += ":/usr/sbin:/sbin"
        subprocess.run([SCRIPT, "up", "2"], check=True)
        try:
            found = search(folder, options.jobs, options.poll)
        finally:
            subprocess.run([SCRIPT, "down"], check=False)
    table = Table("", "measured", title="launcher=slurm, one trivial trial a job")
    for key, value in found.items():
        table.add_row(key, json.dumps(value))
    Console().print(table)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
