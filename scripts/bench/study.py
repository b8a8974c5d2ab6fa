"""What the verbs cost on a study of many trials, and beside many studies.

Run `python scripts/bench/study.py --sizes 1000 20000 --markdown study.md`. The study is made by the
package's own writer: a random search of our model, whose first runs are trained and whose others
get made-up results, but for one. So is a validated ladder of as many runs, all made up, and a
twin of it. Each command then runs in a process of its own. `--studies 2000` puts so many studies
under the root.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from sweeper.cli.app import app

if TYPE_CHECKING:
    from sweeper.trial import Result, Trial

# What else is needed is imported where it is: `status` and `report` are measured in this process,
# and take up no torch.

CURVE = 100
SEARCH = [
    *("search=random", "study=many", "data=text", "data.path=text.txt", "runner.device=cpu"),
    *("train.steps=100", "train.batch_size=2", "train.seq_len=16", "train.heldout_batches=1"),
    *("model.width=16", "model.head_size=8", "model.depth=1", "runner.batched_trials=1"),
    "launcher=inline",
]
LADDER = [word for word in SEARCH if not word.startswith(("search=", "study="))]
LADDER += ["search=lr", "study=ladder", "search.fresh_seeds=0", "transfer.check=false"]
WIDTHS = [16, 24, 32, 48]
COMMANDS = {
    "status": ["status", "many"],
    "report": ["report", "many"],
    "status of a ladder": ["status", "ladder"],
    "judge": ["judge", "runs/ladder"],
    "compare": ["compare", "ladder", "twin"],
    "predict": ["predict", "--study", "ladder", "--to-width", "64"],
    "resume": ["search", *SEARCH],
    "search again": ["search", *SEARCH],
}


def made_up(trial: Trial, number: int) -> Result:
    """A result with a full curve, which falls to a bowl around the middle of the space."""
    from sweeper.trial import Result

    noise = random.Random(number)
    lowest = 3 + sum(value**2 for value in trial.log2_hps.values()) / 100
    curve = tuple(round(lowest + 2 / (1 + i) + noise.gauss(0, 0.01), 5) for i in range(CURVE))
    return Result(
        trial=trial,
        status="complete",
        objective=curve[-1],
        heldout=curve[-1],
        curve=curve,
        seconds=1.5,
        steps=100,
        finished_at=1.7e9 + number,
    )


def call(*words: str) -> None:
    """A command in this process."""
    with patch.object(sys, "argv", ["sweeper", *words]):
        try:
            app(list(words), prog_name="sweeper")
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"{words} ended with {ended.code}") from ended


def fill(size: int) -> None:
    """A study of `size` trials but one, in this folder."""
    from sweeper.config.compose import compose_tree
    from sweeper.config.settings import resolve
    from sweeper.study.lock import StudyLock
    from sweeper.study.study import StudyRecord
    from sweeper.sweep.experiment import open_experiment
    from sweeper.sweep.study_replay import Replay

    fill_ladder(size)
    call("search", *SEARCH, "search.runs=2")
    experiment = open_experiment(resolve(compose_tree([*SEARCH, f"search.runs={size}"], None)))
    folder = experiment.settings.folder
    with StudyLock(folder), StudyRecord.open(folder) as study:
        missing = Replay(experiment, study.get).missing()[:-1]
        for first in range(0, len(missing), 128):
            ends = range(first, min(first + 128, len(missing)))
            study.record([made_up(missing[i], i) for i in ends])


def fill_ladder(size: int) -> None:
    """A validated study of about `size` trials, and a twin."""
    from sweeper.engine.jobs import TrainTrials
    from sweeper.launch.job import Control, JobOutcome

    def run(task: TrainTrials, _: Control) -> JobOutcome:
        return JobOutcome(results=tuple(made_up(trial, trial.seed) for trial in task.trials))

    with patch.object(TrainTrials, "run", run):
        call("search", *LADDER)
        seeds = max(2, size // (9 * len(WIDTHS)))
        words = ["--study", "ladder", "--to-width", "64", "--validate", f"transfer.seeds={seeds}"]
        call("transfer", *words, f"transfer.widths={WIDTHS}", "runner.batched_trials=64")
    shutil.copytree("runs/ladder", "runs/twin")


def fill_root(studies: int) -> None:
    """So many small studies under the root."""
    words = [word for word in SEARCH if not word.startswith("study=")]
    call("search", *words, "study=s0", "search.runs=2", "search.fresh_seeds=0")
    for number in range(1, studies):
        shutil.copytree("runs/s0", f"runs/s{number}")


def measured(verb: str, size: int) -> dict[str, float]:
    """Run one command here: its seconds, CPU seconds and most memory, and when it first trained."""
    start, trained = time.perf_counter(), list[float]()
    words = COMMANDS[verb]
    if words[0] == "search":
        from sweeper.sweep.loop import Loop

        submit = Loop._submit

        def first(loop: Loop, batch: tuple[Trial, ...]) -> None:
            trained.append(time.process_time())
            submit(loop, batch)

        with patch.object(Loop, "_submit", first):
            call(*words, f"search.runs={size}")
    else:
        call(*words)
    unit = 1e6 if sys.platform == "darwin" else 1e3
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    found = {"s": time.perf_counter() - start, "CPU s": time.process_time(), "peak MB": peak}
    return found | ({"CPU s to the first trial": trained[0]} if trained else {})


def measure(size: int, studies: int) -> dict[str, dict[str, float]]:
    """What every command costs on a study of `size` trials."""
    root = Path(tempfile.mkdtemp(prefix="study-"))
    found = {}
    try:
        for part in ("fill", *COMMANDS):
            words = [sys.executable, __file__, "--part", part, "--sizes", str(size)]
            words += ["--studies", str(studies)]
            done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, cwd=root)
            if part != "fill":
                found[part] = json.loads(done.stdout.splitlines()[-1])
                print(size, part, found[part], file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(root)
    return found


def table(rows: dict[int, dict[str, dict[str, float]]]) -> str:
    """Markdown: a row a command and a size."""
    lines = [
        "| command | trials | CPU s | to the first trial, CPU s | peak MB |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for command in COMMANDS:
        for size, row in rows.items():
            found = row[command]
            first = found.get("CPU s to the first trial")
            start = "" if first is None else f"{first:.1f}"
            lines.append(
                f"| {command} | {size:,} | {found['CPU s']:.1f} | {start} | "
                f"{found['peak MB']:.0f} |"
            )
    return "\n".join(lines) + "\n"


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 20_000])
    parser.add_argument("--studies", type=int, default=0, help="beside it, under the same root")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--markdown", type=Path, help="where the table goes")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.part == "fill":
        Path("text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 100)
        if given.studies:
            fill_root(given.studies)
        return fill(given.sizes[0])
    if given.part:
        print(json.dumps(measured(given.part, given.sizes[0])))
        return None
    rows = {size: measure(size, given.studies) for size in given.sizes}
    print(table(rows))
    if given.markdown:
        given.markdown.write_text(table(rows))
    if given.out:
        document = {"cores": os.cpu_count(), "curve_points": CURVE, "rows": rows}
        given.out.write_text(json.dumps(document, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
