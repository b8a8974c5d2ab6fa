"""What a trial costs beside its training: sweeper and others, one after the other in one run.

    python scripts/bench/orchestration.py --peers ENVIRONMENTS --out orchestration.json

Every side searches six hyperparameters with a trivial objective, in a process of its own; what is
shown is the median of `--repeats`. Peers need `--peers`, a folder for environments of their own:
it is filled once, from pip's index, and used again. Without it only bare Optuna is measured.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import os
import pstats
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from findings import Findings
from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
PEERS = Path(__file__).resolve().with_name("peers")
sys.path[:0] = [str(ROOT), str(PEERS)]
LIMIT = 900
"""Seconds after which a side is given up."""
HYDRA = ["hydra-core>=1.3.8,<1.4", "omegaconf<2.4"]
ENVIRONMENTS: dict[str, list[list[str]]] = {
    "base": [["optuna", "submitit", *HYDRA, "hydra-submitit-launcher"]],
    "hydra-optuna": [["hydra-optuna-sweeper", *HYDRA]],
    "ray": [["ray[tune]"]],
    # Without what its model-based searchers need: hundreds of megabytes.
    "syne-tune": [
        ["--no-deps", "syne-tune"],
        ["numpy", "pandas", "dill", "sortedcontainers", "typing_extensions", "psutil"],
    ],
}
"""Environments of the peers: what each is given, one call of pip after the other."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One system in one way of use. `slow` ones get fewer trials."""

    name: str
    words: tuple[str, ...] = ()
    script: str = ""
    kind: str = ""
    env: str = "base"
    slow: bool = False
    trains: bool = False
    worker: bool = False


TEXT = "data=text data.path={folder}/text.txt"
TINY = "model=mlp model.width=8 model.depth=1 data=digits train.steps=1 train.batch_size=1"
TINY += " search.step=0.125"  # few hyperparameters change anything: as many points all the same


def _own(name: str, words: str, **more: Any) -> Side:
    return Side(name=f"sweeper, {name}", words=tuple(words.split()), **more)


OWN = {
    "batch": _own("batches of 64", f"search=random runner.batched_trials=64 {TEXT}"),
    "single": _own("one at a time", f"search=random runner.batched_trials=1 {TEXT}"),
    "tpe": _own("TPE, one at a time", f"search=tpe search.batch=1 runner.batched_trials=1 {TEXT}"),
    "batch-mlp": _own(
        "batches of 64, a step of an MLP",
        f"search=random runner.batched_trials=64 runner.device=cpu {TINY}",
        trains=True,
    ),
    "single-mlp": _own(
        "one at a time, a step of an MLP",
        f"search=random runner.batched_trials=1 runner.device=cpu {TINY}",
        trains=True,
    ),
    "worker-mlp": _own(
        "in a warm worker process, a step of an MLP",
        "search=random launcher=local launcher.workers=1 runner.batched_trials=1"
        f" runner.device=cpu {TINY}",
        trains=True,
        worker=True,
    ),
}
"""Our sides. Where nothing is trained, everything else is done: batches, results with curves of
100 points, records on the disk, the copy for Optuna, progress."""
BASELINE = "Optuna on SQLite, random"
OTHERS = [
    Side(name="Optuna in memory, random", script="optuna_study", kind="memory-random"),
    Side(name="Optuna in memory, TPE", script="optuna_study", kind="memory-tpe"),
    Side(name="Optuna's journal file, random", script="optuna_study", kind="journal-random"),
    Side(name="Optuna's journal file, TPE", script="optuna_study", kind="journal-tpe"),
    Side(name=BASELINE, script="optuna_study", kind="sqlite-random"),
    Side(name="Optuna on SQLite, TPE", script="optuna_study", kind="sqlite-tpe"),
    Side(name="Hydra --multirun", script="hydra_sweep", kind="basic", slow=True),
    Side(
        name="hydra-optuna-sweeper",
        script="hydra_sweep",
        kind="optuna",
        env="hydra-optuna",
        slow=True,
    ),
    Side(
        name="hydra-submitit-launcher, local, all at once",
        script="hydra_sweep",
        kind="submitit",
        slow=True,
    ),
    Side(name="submitit local, result()", script="submitit_jobs", kind="result", slow=True),
    Side(name="submitit local, own polling", script="submitit_jobs", kind="poll", slow=True),
    Side(name="Ray Tune", script="ray_tune", kind="random", env="ray", slow=True),
    Side(
        name="Syne Tune, local back-end",
        script="syne_tune_local",
        kind="random",
        env="syne-tune",
        slow=True,
    ),
]


def instant(batched: Any, execution: Any, control: Any, *_: Any) -> list[Any]:
    """In place of training: a result with a full curve for every trial, at once."""
    from sweeper.trial import Result

    results = []
    for trial in batched.trials:
        value = 3 + sum(hp * hp for hp in trial.log2_hps.values())
        curve = tuple(round(value * (1 + 0.37 / step), 5) for step in range(1, 101))
        results.append(
            Result(
                trial=trial,
                status="complete",
                objective=value,
                heldout=value,
                curve=curve,
                seconds=0.001,
                steps=1000,
                finished_at=time.time(),
            )
        )
    control.progress(1.0)
    return results


def run_own(side: Side, trials: int, folder: Path, profiled: bool) -> dict[str, Any]:
    """Our own search, in this process: `sweeper search` without its last page.

    A worker's time is that between the first and the last result: what starting it takes is part
    of the cold start.
    """
    from common import age

    from sweeper.config.compose import compose_tree
    from sweeper.config.settings import resolve
    from sweeper.report.output import Output
    from sweeper.report.present import OutputWatcher
    from sweeper.report.progress_bar import SweepProgress
    from sweeper.study.lock import StudyLock
    from sweeper.study.study import StudyRecord
    from sweeper.sweep.base_search import run_search
    from sweeper.sweep.experiment import open_experiment

    (folder / "text.txt").write_text("All happy families are alike. " * 3000)
    words = [word.format(folder=folder) for word in side.words]
    words += [
        f"root={folder / 'runs'}",
        "study=bench",
        f"search.runs={trials}",
        "search.fresh_seeds=0",
    ]
    settings = resolve(compose_tree(words, None))
    bench = open_experiment(settings)
    bench.prepared(settings.base)
    quiet = Console(file=io.StringIO())
    ends: list[float] = []
    finished = SweepProgress.finished

    def stamp(monitor: SweepProgress, result: Any) -> None:
        finished(monitor, result)
        ends.append(time.perf_counter())

    profile = cProfile.Profile()
    training = nullcontext() if side.trains else patch("sweeper.engine.jobs.train", instant)
    with (
        StudyLock(settings.folder),
        StudyRecord.open(settings.folder) as study,
        training,
        patch.object(SweepProgress, "finished", stamp),
    ):
        cold, start = age(), time.perf_counter()
        with profile if profiled else nullcontext():
            watcher = OutputWatcher(Output(people=quiet, watchers=quiet))
            run_search(bench, study, watcher, wait=True)
        seconds = time.perf_counter() - start
        results = study.results()
    errors = [result.error for result in results if result.error] + study.notices
    if len(results) != trials or errors:
        sys.exit(f"{len(results)} of {trials} trials: {' '.join(errors[:1])}")
    if side.worker:
        cold, seconds = cold + ends[0] - start, (ends[-1] - ends[0]) * trials / (trials - 1)
    if profiled:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(25)
    found = {"version": "sweeper", "trials": trials, "ms": 1000 * seconds / trials}
    trained = sum(result.seconds for result in results) if side.trains else 0.0
    return found | {"cold_s": cold, "training_ms": 1000 * trained / trials}


def prepared(env: str, folder: Path, say: Callable[[str], None]) -> Path:
    """The Python of a peers' environment, which is made if it is not there yet."""
    place = folder / env
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not (place / "ready").exists():
        say(f"making the environment {place}")
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=True)
        for packages in ENVIRONMENTS[env]:
            command = [str(python), "-m", "pip", "install", "-q", *packages]
            _run(command, dict(os.environ))
        listed = _run([str(python), "-m", "pip", "list", "--format=freeze"], dict(os.environ))
        if any(line.startswith("torch==") for line in listed.splitlines()):
            raise RuntimeError("it drags torch in, which this benchmark has no use for")
        (place / "ready").write_text(listed)
    return python


def _run(command: list[str], env: dict[str, str]) -> str:
    """Output of a command; RuntimeError with the last line of its errors."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=LIMIT)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"it took more than {LIMIT} s") from error
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(last[-1].strip() if last else f"exit code {done.returncode}")
    return done.stdout


def measured(key: str, side: Side, options: argparse.Namespace, say: Any) -> dict[str, Any]:
    """One measurement of a side, in a process and a folder of its own."""
    count = options.slow_trials if side.slow else options.trials
    with tempfile.TemporaryDirectory(prefix="orchestration-") as folder:
        env = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
        if side.script:
            python = prepared(side.env, options.peers, say) if options.peers else sys.executable
            script = str(PEERS / f"{side.script}.py")
            command = [str(python), script, side.kind, str(count), folder]
            env |= {"PYTHONPATH": str(PEERS), "SYNETUNE_FOLDER": folder}
            env |= {"RAY_AIR_NEW_OUTPUT": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        else:
            env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
            command = [sys.executable, __file__, "--side", key, "--trials", str(count)]
            command += ["--folder", folder]
        found: dict[str, Any] = json.loads(_run(command, env).splitlines()[-1])
    return found


def left_out(side: Side, options: argparse.Namespace) -> str:
    """Why a side is not measured; empty when it is."""
    if side.script and not options.peers and side.script != "optuna_study":
        return "no --peers"
    return ""


def repeated(
    sides: list[tuple[str, Side]], options: argparse.Namespace, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Medians of all repeats, or why there are none.

    All sides are measured before any is again, so that a machine that is busy at times is busy
    for all of them.
    """
    rows = [{"side": k, "name": s.name, "failed": left_out(s, options)} for k, s in sides]
    runs: dict[str, list[dict[str, Any]]] = {key: [] for key, _ in sides}
    for _ in range(options.repeats):
        for (key, side), row in zip(sides, rows, strict=True):
            if not row["failed"]:
                try:
                    runs[key].append(measured(key, side, options, say))
                except (RuntimeError, ValueError, IndexError, OSError) as error:
                    row["failed"] = f"{error}"[:200] or type(error).__name__
            told = row["failed"] or f"{runs[key][-1]['ms']:.2f} ms"
            say(f"{side.name}: {told}")
    return [row if row["failed"] else row | medians(runs[row["side"]]) for row in rows]


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What is shown of a side's runs; `net_ms` is the time without the training."""
    runs = [{"training_ms": 0.0, **run} for run in runs]
    runs = [run | {"net_ms": run["ms"] - run["training_ms"]} for run in runs]
    names = ("ms", "net_ms", "training_ms", "cold_s")
    found = {name: statistics.median(run[name] for run in runs) for name in names}
    return found | {"runs": runs, "version": runs[0]["version"], "trials": runs[0]["trials"]}


def goals(rows: dict[str, dict[str, Any]]) -> list[str]:
    """What was aimed at, and what was found."""
    nan = float("nan")

    def own(key: str) -> float:
        return float(rows.get(key, {}).get("net_ms", nan))

    aims = [
        ("under 2 ms a trial in a batch", own("batch"), 2.0),
        ("one at a time not above bare Optuna on SQLite", own("single"), own(BASELINE)),
        ("nor with TPE", own("tpe"), own("Optuna on SQLite, TPE")),
        ("under 15 ms with a warm process of its own", own("worker-mlp"), 15.0),
    ]
    found = []
    for words, value, most in aims:
        if value != value or most != most:
            verdict = "not measured"
        else:
            verdict = f"{'met' if value <= most else 'MISSED'}, {value:.2f} ms of {most:.2f} ms"
        found.append(f"Goal: {words}: {verdict}.")
    return found


def findings(rows: list[dict[str, Any]], options: argparse.Namespace) -> Findings:
    """The table: what is not training, and its ratio to bare Optuna's."""
    named = {row["side"]: row for row in rows} | {row["name"]: row for row in rows}
    optuna = named.get(BASELINE, {}).get("ms")
    shown = []
    for row in rows:
        if "ms" not in row:
            shown.append([row["name"], f"({row['failed']})", "", "", ""])
            continue
        net = row["net_ms"]
        trained = f"{row['training_ms']:.2f}" if row["training_ms"] else ""
        ratio = f"{net / optuna:.2f}" if optuna else ""
        shown.append([row["name"], f"{net:.2f}", trained, ratio, f"{row['cold_s']:.2f}"])
    return Findings(
        title="Overhead of a trial",
        columns=["", "ms a trial", "training, ms", "x Optuna on SQLite", "cold start, s"],
        rows=shown,
        notes=goals(named),
        record={"rows": rows, "repeats": options.repeats},
    )


def main(words: list[str] | None = None) -> None:
    """Measure all sides, print the table, write JSON and Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=320)
    parser.add_argument("--slow-trials", type=int, default=20, help="of peers that take long")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", type=Path, help="folder of the peers' environments")
    parser.add_argument("--only", default="", help="sides whose names contain this word")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--markdown", type=Path, help="where the table goes as Markdown")
    parser.add_argument("--profile", choices=OWN, help="profile one of our own sides, and stop")
    parser.add_argument("--side", choices=OWN, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.side:
        print(json.dumps(run_own(OWN[options.side], options.trials, options.folder, False)))
        return
    if options.profile:
        with tempfile.TemporaryDirectory() as folder:
            run_own(OWN[options.profile], options.trials, Path(folder), True)
        return
    if options.peers:
        options.peers = options.peers.absolute()
    console = Console(stderr=True)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False)

    sides = [*OWN.items(), *((side.name, side) for side in OTHERS)]
    rows = repeated([each for each in sides if options.only in each[1].name], options, say)
    findings(rows, options).tell(options.out, options.markdown)


if __name__ == "__main__":
    main()
