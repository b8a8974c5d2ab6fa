"""How a study's costs grow with its trials: recording, opening, reading, replaying, files, memory.

Run `python scripts/bench/growth.py --out growth.json`; `--quick` is a check of seconds. Every
size is measured in processes of its own, so that one's peak memory is not another's.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sweeper.search.random_grid import RandomGridStrategy
from sweeper.search.strategy import History
from sweeper.study.study import StudyRecord
from sweeper.trial import Axis, PluginSpec, Point, Result, TrainSettings, Trial, TrialSpec

SPACE = {name: Axis(low=-4, high=4) for name in ("eta", *(f"alpha_{i}" for i in range(6)))}
SPEC = TrialSpec(
    runner={"name": "engine", "numerics": 0},
    parameterization=PluginSpec(name="umup", arguments={"scaled_embedding_lr": True}),
    model=PluginSpec(name="llama", arguments={"head_size": 16, "ffn_ratio": 2.75}),
    width=64,
    depth=4,
    base_width=32,
    base_depth=2,
    optimizer=PluginSpec(name="adamw", arguments={"beta1": 0.9, "beta2": 0.95, "eps": 1e-8}),
    data={"digest": "0123456789abcdef" * 4, "classes": 256, "heldout_fraction": 0.05},
    train=TrainSettings(steps=1000, batch_size=16, seq_len=256),
)
CURVE = 100
EXTRA = {1: 50, 16: 20, 64: 8, 128: 4}
"""Trials to a batch: batches that are recorded into the study once it has its size."""


def search(size: int) -> RandomGridStrategy:
    """A random search of `size` runs."""
    return RandomGridStrategy(runs=size)


def trial(point: Point) -> Trial:
    """The trial of a point; all have one specification, as in a search."""
    return Trial(spec=SPEC, log2_hps=point.log2_hps, seed=point.seed, phase=point.phase)


def make(point: Point, number: int) -> Result:
    """A made-up result with a full curve."""
    noise = random.Random(number)
    curve = tuple(round(3 + noise.random(), 5) for _ in range(CURVE))
    return Result(
        trial=trial(point),
        status="complete",
        objective=curve[-1],
        heldout=curve[-2],
        curve=curve,
        seconds=1.5,
        steps=1000,
        finished_at=1.7e9 + number,
    )


def fill(folder: Path, size: int, extra: int) -> dict[str, float]:
    """Make a study of `size` trials in batches of 128, then time batches of every size in it."""
    points = search(size + extra).propose(SPACE, History())
    made: dict[str, float] = {}
    with StudyRecord.open(folder) as study:
        start = time.perf_counter()
        for first in range(0, size, 128):
            ends = range(first, min(first + 128, size))
            study.record([make(points[i], i) for i in ends])
        made["fill_s"] = time.perf_counter() - start
        for batch, batches in EXTRA.items():
            left = points[len(study) :]
            new = [make(point, len(study) + i) for i, point in enumerate(left[: batch * batches])]
            start = time.perf_counter()
            for first in range(0, len(new), batch):
                study.record(new[first : first + batch])
            made[f"record_{batch}_ms"] = (time.perf_counter() - start) / len(new) * 1e3
        assert not study.notices, study.notices
    files = [path for path in folder.glob("results/*") if path.is_file()]
    made |= {"files": len(files), "results_MB": sum(p.stat().st_size for p in files) / 1e6}
    return made | {"journal_MB": (folder / "study.journal").stat().st_size / 1e6}


def reopen(folder: Path, size: int, extra: int) -> dict[str, float]:
    """Open the study as its driver does, mirror included."""
    start = time.perf_counter()
    with StudyRecord.open(folder) as study:
        taken = time.perf_counter() - start
        assert len(study) == size + extra and not study.notices
    return {"open_s": taken}


def remirror(folder: Path, size: int, extra: int) -> dict[str, float]:
    """Open the study without its journal: the mirror is made anew."""
    (folder / "study.journal").unlink()
    taken = reopen(folder, size, extra)["open_s"]
    lines = (folder / "study.journal").read_bytes().count(b"\n")
    assert lines == 1 + size + extra, "one creates the study, each other is a trial"
    return {"remirror_s": taken}


def read(folder: Path, size: int, extra: int) -> dict[str, float]:
    """Read the study as `sweeper status` does, then replay its search."""
    start = time.perf_counter()
    study = StudyRecord.read(folder)
    read_s = time.perf_counter() - start
    assert len(study) == size + extra
    start = time.perf_counter()
    history = History()
    for point in search(size).propose(SPACE, history):
        found = study.get(trial(point).key)
        assert found is not None
        history.add(found)
    assert not search(size).propose(SPACE, history)
    return {"read_s": read_s, "replay_s": time.perf_counter() - start}


PARTS: dict[str, Callable[[Path, int, int], dict[str, float]]] = {
    part.__name__: part for part in (fill, reopen, read, remirror)
}


def measure(size: int) -> dict[str, float]:
    """All that is measured of a study of `size` trials."""
    root = Path(tempfile.mkdtemp(prefix="growth-"))
    row: dict[str, float] = {"trials": size}
    try:
        for part in PARTS:
            words = [sys.executable, __file__, "--part", part, "--folder", str(root / "study")]
            words += ["--sizes", str(size)]
            text = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
            row |= json.loads(text)
    finally:
        shutil.rmtree(root)
    return row


def run_part(part: str, folder: Path, size: int) -> dict[str, float]:
    """One part, in this process, with all the time and the most memory that it needed."""
    extra = sum(batch * batches for batch, batches in EXTRA.items())
    found = PARTS[part](folder, size, extra)
    unit = 1e6 if sys.platform == "darwin" else 1e3
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    return found | {f"{part}_cpu_s": time.process_time(), f"{part}_peak_MB": peak}


def table(rows: list[dict[str, float]]) -> Table:
    """One row a quantity, one column a size."""
    shown = Table("", *(f"{row['trials']:,}" for row in rows), title="A study's growth, by trials")
    for name in rows[0]:
        if name != "trials":
            shown.add_row(name.replace("_", " "), *(f"{row[name]:,.4g}" for row in rows))
    return shown


def main(words: list[str] | None = None) -> None:
    """Measure, print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--quick", action="store_true", help="1,000 trials only")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.part:
        print(json.dumps(run_part(given.part, given.folder, given.sizes[0])))
        return
    rows = [measure(size) for size in ([1_000] if given.quick else given.sizes)]
    Console().print(table(rows))
    if given.out:
        document: dict[str, Any] = {"cores": os.cpu_count(), "curve_points": CURVE, "rows": rows}
        given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
