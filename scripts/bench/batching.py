"""Milliseconds per trial and step: trials batched as one model, against a process a trial.

Every side trains the same u-muP decoder with AdamW on the same batches, in one run, one side after
the other: a plain loop with torch's own AdamW, eager and compiled; N such processes that share
the device; and K batched trials, launched one operation after the other, as a graph of the GPU, and
compiled, as a graph there. Ratios are against one compiled process
and against the best number of processes. What is called compiled was compiled, whole, or the side
has failed and says why. `--out` is written after every number.

    python scripts/bench/batching.py --sizes s0,s1 --batched 1,2,4,8 --processes 2 --out a.json
    python scripts/bench/batching.py --sizes s1,s3 --batched s1=336,s3=16 --sides batched-compiled
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch._dynamo.utils import counters

from sweeper.data.corpus import TokenCorpus
from sweeper.engine.batched import BatchedRun, BatchedTrials, Feed
from sweeper.engine.graph import GRAPH
from sweeper.engine.program import quiet_attention
from sweeper.trial import Log2Hps, PluginSpec, TrainSettings, Trial, TrialSpec

SIZES = {  # width, depth, vocabulary, sequence, batch
    "tiny": (16, 1, 64, 8, 2),
    "s0": (32, 2, 256, 64, 8),
    "s1": (64, 2, 256, 128, 16),
    "s2": (128, 4, 256, 256, 32),
    "s3": (256, 4, 256, 256, 64),
    "s4": (256, 4, 32000, 256, 64),
}
HPS = ("eta", "alpha_attn", "alpha_ffn_act", "alpha_residual")
HPS += ("alpha_residual_attn_ratio", "alpha_loss_softmax")
SIDES = ("eager", "compiled", "processes", "batched", "batched-graph", "batched-compiled")
READY, GO = "ready", "go"


class NotCompiledError(Exception):
    """A side that should have been compiled was not, or not whole."""


def corpus(folder: Path, classes: int) -> TokenCorpus:
    """Random tokens: speed does not depend on what they say."""
    path = folder / f"tokens-{classes}.npy"
    if not path.exists():
        tokens = np.random.default_rng(0).integers(0, classes, 1_000_000)
        np.save(path, tokens.astype(np.uint16))
    return TokenCorpus(path=path, digest="0" * 64, classes=classes, heldout_fraction=0.1)


def trial(size: str, precision: str, seed: int) -> Trial:
    """Trials that differ in learning rate and seed."""
    width, depth, classes, seq_len, batch = SIZES[size]
    spec = TrialSpec(
        runner={"name": "engine", "numerics": 0},
        parameterization=PluginSpec(name="umup"),
        model=PluginSpec(name="llama", arguments={"head_size": min(32, width), "ffn_ratio": 4}),
        width=width,
        depth=depth,
        base_width=width,
        base_depth=depth,
        optimizer=PluginSpec(name="adamw"),
        data={"digest": "0" * 64, "classes": classes, "heldout_fraction": 0.1},
        train=TrainSettings(steps=2000, batch_size=batch, seq_len=seq_len, precision=precision),
    )
    log2_hps = Log2Hps(dict.fromkeys(HPS, 0.0) | {"eta": -seed / 64})
    return Trial(spec=spec, log2_hps=log2_hps, seed=seed % 3)


def seconds_a_step(step: Callable[[], object], device: str, least: float) -> float:
    """Median seconds of a step, of blocks of steps that last `least` seconds together."""

    def block(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            step()
        if device != "cpu":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    block(3)  # compiling, warming caches
    count = max(2, round(least / 5 / max(block(2), 1e-5)))
    return statistics.median(block(count) for _ in range(5))


class Plain:
    """What everyone writes: a module, autocast, torch's AdamW; batches lie on the device."""

    def __init__(
        self, size: str, precision: str, device: str, folder: Path, compiled: bool
    ) -> None:
        """With our initial weights, so that the losses can be compared."""
        batched = BatchedTrials(
            trials=(trial(size, precision, 0),), corpus=corpus(folder, SIZES[size][2])
        )
        run = BatchedRun(batched)
        with torch.device(device):
            self.model = run.prepared.model()
        weights = {name: value[0].detach() for name, value in (run.params | run.buffers).items()}
        self.model.load_state_dict(weights, strict=False, assign=False)
        for name, value in self.model.named_buffers():
            if name in weights:
                value.copy_(weights[name])
        fused = device != "cpu"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=fused)
        self.feed = Feed(
            batched.corpus, run.prepared.train, [0], torch.device(device), torch.float32
        )
        self.call: Callable[..., Any] = torch.compile(self.model) if compiled else self.model
        self.compiled, self.count = compiled, 0
        self.casts = torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16")

    def step(self) -> torch.Tensor:
        """Forward, backward, update."""
        x, y = self.feed.batch(self.count)
        self.count += 1
        with self.casts:
            loss: torch.Tensor = self.call(x[0], y[0])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def check(self) -> None:
        """NotCompiledError where a graph broke; what does not compile at all has raised."""
        if self.compiled and (not counters["stats"]["unique_graphs"] or counters["graph_break"]):
            raise NotCompiledError(f"graph breaks: {dict(counters['graph_break'])}")


class Batched:
    """`count` trials as one model."""

    def __init__(
        self, size: str, precision: str, device: str, folder: Path, count: int, side: str
    ) -> None:
        """Compiled from the first step on, a graph of the GPU, or neither, as `side` says."""
        trials = tuple(trial(size, precision, seed) for seed in range(count))
        batched = BatchedTrials(trials=trials, corpus=corpus(folder, SIZES[size][2]))
        self.compiled = side == "batched-compiled"
        self.run = BatchedRun(batched, device, compile="on" if self.compiled else "off")
        self.step = self.run.step
        # The program is that of all sides.
        self.run.program.unsupported.pop(GRAPH, None)
        self.refused = {GRAPH: "not asked for"} if side == "batched" else {}
        self.run.program.unsupported |= self.refused

    def check(self) -> None:
        """NotCompiledError with the reason where a part runs otherwise after all."""
        unsupported = self.run.program.unsupported
        if unsupported != self.refused or self.compiled != self.run.compiled:
            raise NotCompiledError("; ".join(f"{k}: {v}" for k, v in unsupported.items()) or "off")


def worker(options: argparse.Namespace) -> None:
    """One of N processes: says when it is ready, then steps until it is told the time is up."""
    torch.set_num_threads(options.threads)
    size, folder = options.sizes, Path(options.folder)
    step = Plain(size, options.precision, options.device, folder, compiled=False).step
    for _ in range(4):
        step()
    print(READY, flush=True)
    sys.stdin.readline()
    steps, end = 0, time.perf_counter() + options.seconds
    while time.perf_counter() < end:
        step()
        steps += 1
        if options.device != "cpu" and steps % 8 == 0:
            torch.cuda.synchronize()
    if options.device != "cpu":
        torch.cuda.synchronize()
    print(json.dumps(steps / (options.seconds + time.perf_counter() - end)), flush=True)


def shared(options: argparse.Namespace, size: str, folder: Path, count: int) -> float:
    """Seconds per trial and step of `count` eager processes at once."""
    threads = max(1, len(os.sched_getaffinity(0)) // count) if options.device == "cpu" else 1
    command = [sys.executable, __file__, "--worker", "--sizes", size, "--folder", str(folder)]
    command += ["--device", options.device, "--precision", options.precision]
    command += ["--threads", str(threads), "--seconds", str(options.seconds)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, **pipes) for _ in range(count)]  # type: ignore[call-overload]
    # All are waited for: what one lacks tells nothing of the others, which must not go on.
    if [one.stdout.readline().strip() for one in workers] != [READY] * count:
        for one in workers:
            one.kill()
            one.wait()
        return float("nan")
    for one in workers:
        one.stdin.write(f"{GO}\n")
        one.stdin.flush()
    rates = [json.loads(one.stdout.readline()) for one in workers]
    for one in workers:
        one.wait()
    return 1 / sum(rates)


def measure(
    options: argparse.Namespace, size: str, folder: Path, say: Console, save: Callable[[], None]
) -> dict[str, Any]:
    """All sides at one size: seconds per trial and step, saved after each; NaN where one fails."""
    found: dict[str, Any] = {"size": size, "shape": SIZES[size], "failures": {}}
    options.found.append(found)
    common = (size, options.precision, options.device, folder)

    def timed(name: str, make: Callable[[], Plain | Batched], trials: int = 1) -> float:
        counters.clear()
        try:
            with quiet_attention():
                side = make()
                value = seconds_a_step(side.step, options.device, options.seconds) / trials
                side.check()
        except (torch.OutOfMemoryError, NotCompiledError, RuntimeError) as error:
            value = float("nan")
            found["failures"][name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            say.print(f"  {size} {name}: {found['failures'][name]}", highlight=False, markup=False)
        torch._dynamo.reset()
        say.print(f"  {size} {name}: {1000 * value:.4f} ms", highlight=False)
        return value

    for side in ("eager", "compiled"):
        if side in options.sides:
            compiled = side == "compiled"
            found[side] = timed(
                f"one process, {side}",
                lambda compiled=compiled: Plain(*common, compiled=compiled),  # type: ignore[misc]
            )
            save()
    found["processes"] = {}
    for count in options.processes if "processes" in options.sides else ():
        found["processes"][count] = value = shared(options, size, folder, count)
        say.print(f"  {size} {count} processes: {1000 * value:.4f} ms", highlight=False)
        save()
    for side in [each for each in options.sides if each.startswith("batched")]:
        found[side] = {}
        for count in options.batched[size]:
            found[side][count] = timed(
                f"{side}, K={count}",
                lambda count=count, side=side: Batched(*common, count, side),  # type: ignore[misc]
                count,
            )
            save()
    return found


def summary(found: list[dict[str, Any]]) -> Table:
    """Best of every side, and the ratios."""
    table = Table(title="ms per trial and step")
    for name in ("proxy", "eager", "compiled", "processes", "batched", "x compiled", "x processes"):
        table.add_column(name, justify="right")
    for row in found:
        best = min(
            (
                (value, f"K={count}{side.removeprefix('batched').replace('-', ', ')}")
                for side in SIDES[3:]
                for count, value in row.get(side, {}).items()
                if value == value
            ),
            default=(None, None),
        )
        shared_best = min(((v, n) for n, v in row["processes"].items()), default=(None, None))
        alone = row.get("compiled", row.get("eager"))

        def ms(value: float | None, note: object = "") -> str:
            return "" if value is None else f"{1000 * value:.3f} {note}".strip()

        def ratio(value: float | None, best: float | None = best[0]) -> str:
            return "" if value is None or best is None else f"{value / best:.1f}"

        table.add_row(
            f"{row['size']} {row['shape']}",
            ms(row.get("eager")),
            ms(row.get("compiled")),
            ms(shared_best[0], f"({shared_best[1]})"),
            ms(best[0], f"({best[1]})"),
            ratio(alone),
            ratio(shared_best[0]),
        )
    return table


def counts_of(words: str, sizes: list[str]) -> dict[str, list[int]]:
    """Numbers of batched trials of every size: "1,2,4" for all of them, or "s0=512,s1=336"."""
    found: dict[str, list[int]] = {size: [] for size in sizes}
    for word in words.split(","):
        size, _, count = word.rpartition("=")
        for one in [size] if size else sizes:
            found.setdefault(one, []).append(int(count))
    return found


def main(words: list[str] | None = None) -> None:
    """Parse, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--sizes", default="s0,s1")
    parser.add_argument("--batched", default="1,2,4,8,16", help="of all sizes, or s0=512,s1=336")
    parser.add_argument("--sides", default=",".join(SIDES), help="of %(default)s")
    parser.add_argument("--processes", default="2")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timed steps a side")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    options.precision = options.precision or ("float32" if options.device == "cpu" else "bfloat16")
    warnings.filterwarnings("ignore")
    if options.worker:
        worker(options)
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    sizes = options.sizes.split(",")
    options.batched, options.sides = counts_of(options.batched, sizes), options.sides.split(",")
    if unknown := {*options.sides} - {*SIDES} | {*sizes} - {*SIZES}:
        known = f"sides are {', '.join(SIDES)}, sizes {', '.join(SIZES)}"
        parser.error(f"{', '.join(sorted(unknown))}: {known}")
    options.processes = [int(word) for word in options.processes.split(",") if word]
    say, options.found = Console(stderr=True), []
    record = {"device": options.device, "torch": torch.__version__, "sizes": options.found}
    record |= {"threads": torch.get_num_threads(), "precision": options.precision}
    if options.device != "cpu":
        record["name"] = torch.cuda.get_device_name()

    def save() -> None:
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(record, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            measure(options, size, Path(folder), say, save)
    save()
    Console().print(summary(options.found))
    # More trials than fit are no failure.
    reasons = [reason for row in options.found for reason in row["failures"].values()]
    raise SystemExit(int(any(not reason.startswith("OutOfMemory") for reason in reasons)))


if __name__ == "__main__":
    main()
