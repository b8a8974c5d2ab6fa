"""Milliseconds per trial and step: trials packed as one model, against a process a trial.

Every side trains the same u-muP decoder with AdamW on the same batches, in one run, one side after
the other: a plain loop with torch's own AdamW, eager and compiled; N such processes that share
the device; and packs of K trials, eager and compiled. Ratios are against one compiled process
and against the best number of processes.

    python scripts/bench/packing.py --sizes s0,s1 --packs 1,2,4,8 --processes 2 --out packing.json
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

from sweeper.data.corpus import TokenCorpus
from sweeper.train_settings import TrainSettings
from sweeper.training.pack import Compile, Pack, PackRun
from sweeper.training.precision import quiet_attention
from sweeper.trial import Log2Hps, PluginSpec, Trial, TrialSpec

SIZES = {  # width, depth, vocabulary, sequence, batch
    "s0": (32, 2, 256, 64, 8),
    "s1": (64, 2, 256, 128, 16),
    "s2": (128, 4, 256, 256, 32),
    "s3": (256, 4, 256, 256, 64),
    "s4": (256, 4, 32000, 256, 64),
}
HPS = ("eta", "alpha_attn", "alpha_ffn_act", "alpha_residual")
HPS += ("alpha_residual_attn_ratio", "alpha_loss_softmax")
READY, GO = "ready", "go"


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


def plain(
    size: str, precision: str, device: str, folder: Path, compiled: bool
) -> Callable[[], Any]:
    """A step of what everyone writes: a module, autocast, torch's AdamW."""
    run = PackRun(Pack(trials=(trial(size, precision, 0),), corpus=corpus(folder, SIZES[size][2])))
    with torch.device(device):
        model = run.prepared.model()
    weights = {name: value[0].detach() for name, value in (run.params | run.buffers).items()}
    model.load_state_dict(weights, strict=False, assign=False)
    for name, value in model.named_buffers():
        if name in weights:
            value.copy_(weights[name])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device != "cpu")
    train, data = run.prepared.train, run.pack.corpus
    call = torch.compile(model) if compiled else model
    count = [0]

    def step() -> torch.Tensor:
        x, y = data.batch(0, count[0], train.batch_size, train.seq_len)
        count[0] += 1
        with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            loss: torch.Tensor = call(
                torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
            )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def packed(
    size: str, precision: str, device: str, folder: Path, count: int, compile: Compile
) -> Callable[[], Any]:
    """A step of a pack of `count`."""
    trials = tuple(trial(size, precision, seed) for seed in range(count))
    run = PackRun(
        Pack(trials=trials, corpus=corpus(folder, SIZES[size][2])), device, compile=compile
    )
    return run.step


def worker(options: argparse.Namespace) -> None:
    """One of N processes: says when it is ready, then steps until it is told the time is up."""
    torch.set_num_threads(options.threads)
    size, folder = options.sizes, Path(options.folder)
    step = plain(size, options.precision, options.device, folder, compiled=False)
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
    for one in workers:
        if one.stdout.readline().strip() != READY:
            return float("nan")
    for one in workers:
        one.stdin.write(f"{GO}\n")
        one.stdin.flush()
    rates = [json.loads(one.stdout.readline()) for one in workers]
    for one in workers:
        one.wait()
    return 1 / sum(rates)


def measure(options: argparse.Namespace, size: str, folder: Path, say: Console) -> dict[str, Any]:
    """All sides at one size; seconds per trial and step."""
    found: dict[str, Any] = {"size": size, "shape": SIZES[size]}
    common = (size, options.precision, options.device, folder)

    def timed(name: str, make: Callable[[], Callable[[], Any]], trials: int = 1) -> float:
        try:
            with quiet_attention():
                value = seconds_a_step(make(), options.device, options.seconds) / trials
        except torch.OutOfMemoryError:
            value = float("nan")
        torch._dynamo.reset()
        say.print(f"  {size} {name}: {1000 * value:.4f} ms", highlight=False)
        return value

    found["eager"] = timed("one process, eager", lambda: plain(*common, compiled=False))
    if options.compile:
        found["compiled"] = timed("one process, compiled", lambda: plain(*common, compiled=True))
    found["processes"] = {}
    for count in options.processes:
        found["processes"][count] = value = shared(options, size, folder, count)
        say.print(f"  {size} {count} processes: {1000 * value:.4f} ms", highlight=False)
    modes: list[Compile] = ["off", "on"] if options.compile else ["off"]
    for mode in modes:
        name = "packed compiled" if mode == "on" else "packed"
        found[name] = {}
        for count in options.packs:
            found[name][count] = timed(
                f"{name}, K={count}",
                lambda count=count, mode=mode: packed(*common, count, mode),  # type: ignore[misc]
                count,
            )
    return found


def summary(found: list[dict[str, Any]]) -> Table:
    """Best of every side, and the ratios."""
    table = Table(title="ms per trial and step")
    for name in ("proxy", "eager", "compiled", "processes", "packed", "x compiled", "x processes"):
        table.add_column(name, justify="right")
    for row in found:
        best = min(
            (value, f"K={count}{', compiled' * (side == 'packed compiled')}")
            for side in ("packed", "packed compiled")
            for count, value in row.get(side, {}).items()
            if value == value
        )
        shared_best = min(((v, n) for n, v in row["processes"].items()), default=(None, None))
        alone = row.get("compiled", row["eager"])

        def ms(value: float | None, note: object = "") -> str:
            return "" if value is None else f"{1000 * value:.3f} {note}".strip()

        table.add_row(
            f"{row['size']} {row['shape']}",
            ms(row["eager"]),
            ms(row.get("compiled")),
            ms(shared_best[0], f"({shared_best[1]})"),
            ms(best[0], f"({best[1]})"),
            f"{alone / best[0]:.1f}",
            "" if shared_best[0] is None else f"{shared_best[0] / best[0]:.1f}",
        )
    return table


def main() -> None:
    """Parse, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--sizes", default="s0,s1")
    parser.add_argument("--packs", default="1,2,4,8,16")
    parser.add_argument("--processes", default="2")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timed steps a side")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.precision = options.precision or ("float32" if options.device == "cpu" else "bfloat16")
    warnings.filterwarnings("ignore")
    if options.worker:
        worker(options)
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    options.packs = [int(word) for word in options.packs.split(",")]
    options.processes = [int(word) for word in options.processes.split(",") if word]
    say = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        found = [measure(options, size, Path(folder), say) for size in options.sizes.split(",")]
    Console().print(summary(found))
    record = {"device": options.device, "torch": torch.__version__, "sizes": found}
    record |= {"threads": torch.get_num_threads(), "precision": options.precision}
    if options.device != "cpu":
        record["name"] = torch.cuda.get_device_name()
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
