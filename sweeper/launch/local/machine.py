"""How a machine is shared out among workers: its GPUs, its cores, its threads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.launch.executor import Machine


@dataclass(frozen=True, kw_only=True, eq=False)
class WorkerSlot:
    """What one worker has of the machine: threads, and the environment that pins its device."""

    threads: int
    env: Mapping[str, str] = field(default_factory=dict)


def cores() -> int:
    """Cores that this process may use: its affinity, and its control group's share of time."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        count = os.cpu_count() or 1
    return max(1, min([count, *map(round, _cpu_quotas())]))


def _cpu_quotas(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> list[float]:
    """Limits in cores that the control group, or one above it, sets (cgroup v2 and v1)."""
    folders = {root, root / "cpu"}
    with suppress(OSError, ValueError):
        for line in membership.read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            top = root / "cpu" if controllers else root
            if not controllers or "cpu" in controllers.split(","):
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


def worker_slots(machine: Machine, workers: int) -> list[WorkerSlot]:
    """Slots of so many workers: each pinned to a GPU where there are any, threads shared out."""
    threads = max(1, min(machine.threads, cores() // workers))
    if not machine.gpus:
        return [WorkerSlot(threads=threads) for _ in range(workers)]
    names = [machine.gpus[index % len(machine.gpus)] for index in range(workers)]
    return [WorkerSlot(threads=threads, env={"CUDA_VISIBLE_DEVICES": name}) for name in names]
