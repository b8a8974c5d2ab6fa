"""How a machine is shared out among workers: its GPUs, its cores, its threads."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch

from sweeper.launch.pool import Seat


def cores() -> int:
    """Cores that this process may use: its affinity, and its control group's share of time."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        count = os.cpu_count() or 1
    return max(1, min([count, *map(round, _quotas())]))


def _quotas(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> list[float]:
    """Limits in cores that the control group, or one above it, sets (cgroup v2 and v1)."""
    folders = {root, root / "cpu"}
    with suppress(OSError, ValueError):
        for line in own.read_text().splitlines():
            _, kinds, name = line.split(":", 2)
            top = root / "cpu" if kinds else root
            if not kinds or "cpu" in kinds.split(","):
                path = top / name.lstrip("/")
                folders |= {path, *(p for p in path.parents if p.is_relative_to(top))}
    quotas = []
    for folder in folders:
        with suppress(OSError, ValueError):
            limit, period = (folder / "cpu.max").read_text().split()
            quotas.append(int(limit) / int(period))
        with suppress(OSError, ValueError):
            limit, period = ((folder / f"cpu.cfs_{n}_us").read_text() for n in ("quota", "period"))
            quotas.append(int(limit) / int(period))
    return [quota for quota in quotas if quota > 0]


def gpus(device: str) -> list[str]:
    """What CUDA_VISIBLE_DEVICES should be for each GPU that `device` ("cuda" or "cuda:i") names."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    names = visible.split(",")[:count] if visible else [str(index) for index in range(count)]
    _, _, index = device.partition(":")
    return [names[int(index)]] if index else names


def on_gpus(device: str, workers: int | None) -> list[Seat]:
    """Seats of `workers` (None: one a GPU), each pinned to a GPU, threads shared out."""
    names = gpus(device)
    return [
        Seat(threads=share, env={"CUDA_VISIBLE_DEVICES": names[index % len(names)].strip()})
        for index, share in enumerate(shared(workers or len(names)))
    ]


def on_cpu(workers: int) -> list[Seat]:
    """Seats of `workers` that share the cores."""
    return [Seat(threads=share) for share in shared(workers)]


def shared(workers: int) -> list[int]:
    """Threads of each of `workers`, at least one."""
    return [max(1, min(torch.get_num_threads(), cores() // workers))] * workers
