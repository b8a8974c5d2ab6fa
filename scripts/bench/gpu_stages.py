"""What `gpu.py` runs in processes of their own: the machine, a profile, a whole search.

What is found goes to standard output, a JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TRAIN = "train.steps={} train.batch_size={} train.seq_len={}"
SEARCH = [
    "study=gpu_validation",
    "data=stdlib",
    "logger=none",
    "model.width=64",
    "search=independent",
]
SEARCH += TRAIN.format(2000, 16, 128).split()
FAKE_SEARCH = ["study=gpu_validation", "data=stdlib", "logger=none", "model.width=32", "search=lr"]
FAKE_SEARCH += [*TRAIN.format(4, 2, 16).split(), "search.seeds=1", "search.line.extend=0"]


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
        side = Batched(size, precision, device, Path(folder), int(count), "on")
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


def search(seconds: float, device: str) -> None:
    """A whole search with its defaults, and how many trials it finished until it was cut."""
    words = SEARCH if device == "cuda" else FAKE_SEARCH
    command = [sys.executable, "-m", "sweeper", "search", *words, f"runner.device={device}"]
    shutil.rmtree(
        "runs/gpu_validation", ignore_errors=True
    )  # an earlier validation's would be finished
    start, code = time.perf_counter(), None
    process = subprocess.Popen(command)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()  # it saves itself
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
    spent = round(time.perf_counter() - start, 1)
    files = Path("runs/gpu_validation/results").glob("*.jsonl")
    trials = sum(len(path.read_text().splitlines()) for path in files)
    print(json.dumps({"trials": trials, "seconds": spent, "exit": code}), flush=True)
    raise SystemExit(code or 0)


def main() -> None:
    """One stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=("machine", "profile", "search"))
    parser.add_argument("--device", required=True)
    parser.add_argument("--size", help="of a profile")
    parser.add_argument("--count", help="batched trials of a profile")
    parser.add_argument("--seconds", type=float, help="for a search")
    options = parser.parse_args()
    match options.stage:
        case "machine":
            machine(options.device)
        case "profile":
            profile(options.size, options.device, options.count)
        case "search":
            search(options.seconds, options.device)


if __name__ == "__main__":
    main()
