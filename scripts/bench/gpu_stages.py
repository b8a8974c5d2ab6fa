"""What `gpu.py` runs in processes of their own: the machine, profiles, whole searches.

What is found goes to standard output, a JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TRAIN = "train.steps={} train.batch_size={} train.seq_len={}"
SEARCHES = {
    "lr": ["search=lr"],
    "default": ["search=independent"],
    "own": ["search=lr", "model._target_=before.GPT", "parameterization=mup"],
}
"""Whole searches: of eta, the default, and of eta for a module as people write it (nanoGPT's)."""
OWN = Path(__file__).resolve().parents[1] / "examples" / "gpt"
LIKE_OURS = {"cpu": TRAIN.format(4, 2, 16), "cuda": TRAIN.format(2000, 16, 128)}
OF_OWN = {"cpu": LIKE_OURS["cpu"], "cuda": TRAIN.format(2000, 16, 64)}  # its context is 64
FAKE = ["model.width=32", "search=lr", "search.seeds=1", "search.line.extend=0"]


def machine(device: str) -> None:
    """The device, its software, and whether anything can be compiled for it."""
    import torch

    about: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version()}
    about["gcc"] = bool(shutil.which("gcc") or shutil.which("cc"))
    if device == "cuda":
        about |= {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        about["gigabytes"] = round(torch.cuda.get_device_properties(0).total_memory / 1e9)
    print(json.dumps(about), flush=True)
    x = torch.ones(64, device=device)
    total = torch.compile(lambda t: (t * 2 + 1).sum(), fullgraph=True)(x)
    print(json.dumps({"compiles": float(total) == 192.0}), flush=True)


def profile(size: str, device: str, count: str) -> None:
    """Three compiled steps of batched trials: launches, share of time at work, top kernels."""
    from batching import Batched
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    precision = "bfloat16" if device == "cuda" else "float32"
    kind = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    with tempfile.TemporaryDirectory() as folder:
        side = Batched(size, precision, device, Path(folder), int(count), "batched-compiled")
        for _ in range(4):
            side.step()
        start = time.perf_counter()
        with profiled(activities=[kind]) as found:
            for _ in range(3):
                side.step()
            if device == "cuda":
                import torch

                torch.cuda.synchronize()
            seconds = time.perf_counter() - start
        side.check()
    times: dict[str, list[float]] = {}
    for event in found.events() or []:
        # The host's part is told as well: a launch is not a kernel, and would count twice.
        if device == "cuda" and (event.device_type != DeviceType.CUDA or event.is_user_annotation):
            continue
        spent = event.device_time if device == "cuda" else event.self_cpu_time_total
        times.setdefault(event.name, []).append(spent / 1e6)
    top = sorted(times, key=lambda name: -sum(times[name]))[:12]
    busy = sum(map(sum, times.values()))
    print(
        json.dumps(
            {
                "size": size,
                "launches a step": round(sum(map(len, times.values())) / 3),
                "busy": round(min(1.0, busy / seconds), 3),
                "top": {name[:80]: round(1e3 * sum(times[name]) / 3, 3) for name in top},
            }
        )
    )


def words_of(kind: str, device: str) -> list[str]:
    """What a search is started with."""
    train = (OF_OWN if kind == "own" else LIKE_OURS)[device]
    words = [f"study=gpu_{kind}", "data=stdlib", "logger=none", "model.width=64", *train.split()]
    return [*words, *SEARCHES[kind], *(FAKE if device == "cpu" else ()), f"runner.device={device}"]


def search(kind: str, seconds: float, device: str) -> None:
    """A whole search, and how many trials it finished until it was cut."""
    command = [sys.executable, "-m", "sweeper", "search", *words_of(kind, device)]
    folder = Path(f"runs/gpu_{kind}")
    shutil.rmtree(folder, ignore_errors=True)  # an earlier validation's would be finished
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(OWN)]))
    start, code = time.perf_counter(), None
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()  # it saves itself
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
    spent = round(time.perf_counter() - start, 1)
    files = folder.glob("results/*.jsonl")
    trials = sum(len(path.read_text().splitlines()) for path in files)
    result = {"search": kind, "trials": trials, "seconds": spent, "exit": code}
    print(json.dumps(result), flush=True)
    raise SystemExit(code or 0)


def peer(device: str, processes: int) -> None:
    """What plain processes that Optuna feeds take for as many trials, of which each trains one."""
    from search import peer as trained

    from sweeper.config.compose import compose_tree
    from sweeper.config.settings import resolve
    from sweeper.study.study import StudyRecord
    from sweeper.sweep.experiment import open_experiment

    for kind in ("lr", "default"):
        settings = resolve(compose_tree(words_of(kind, device), None))
        results = StudyRecord.read(settings.folder).results()
        results = [result for result in results if result.status == "complete"]
        if kind == "lr":
            chosen, corpus = results[:processes], open_experiment(settings).corpus
            options = argparse.Namespace(device=device, processes=processes)
            with tempfile.TemporaryDirectory() as folder:
                seconds, _ = trained(chosen, corpus, options, Path(folder))
        found = {"peer": kind, "trials": len(results), "trained": len(chosen)}
        found["seconds"] = round(seconds * len(results) / len(chosen), 1)
        print(json.dumps(found), flush=True)


def main() -> None:
    """One stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=("machine", "profile", "search", "peer"))
    parser.add_argument("--device", required=True)
    parser.add_argument("--size", help="of a profile")
    parser.add_argument("--count", help="batched trials of a profile")
    parser.add_argument("--kind", choices=SEARCHES, help="of a search")
    parser.add_argument("--seconds", type=float, help="for a search")
    parser.add_argument("--processes", type=int, help="of the peer")
    options = parser.parse_args()
    match options.stage:
        case "machine":
            machine(options.device)
        case "profile":
            profile(options.size, options.device, options.count)
        case "search":
            search(options.kind, options.seconds, options.device)
        case "peer":
            peer(options.device, options.processes)


if __name__ == "__main__":
    main()
