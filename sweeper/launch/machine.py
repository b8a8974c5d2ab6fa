"""This machine and how it is shared: GPUs, cores, torch's threads, memory; where modules lie."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeper.launch.executor import Machine


def visible_gpus(device: str) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES should be for each GPU that `device` ("cuda" or "cuda:i") names."""
    if not device.startswith("cuda"):
        return ()
    import torch  # takes seconds, which a study on a CPU need not wait

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    names = visible.split(",")[:count] if visible else [str(index) for index in range(count)]
    _, _, index = device.partition(":")
    return tuple(name.strip() for name in ([names[int(index)]] if index else names))


def has_gpus() -> bool:
    """Whether a GPU's driver is here; torch, which counts GPUs, takes seconds to import."""
    return any(Path("/dev", name).exists() for name in ("nvidiactl", "kfd", "dxg"))


@dataclass(frozen=True, kw_only=True, eq=False)
class WorkerSlot:
    """What one worker has of the machine: threads, and the environment that says so."""

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
            # "0::/user.slice" in v2, "4:cpu,cpuacct:/docker/1f3a" in v1.
            _, controllers, name = line.split(":", 2)
            top = root / "cpu" if controllers else root
            if not controllers or "cpu" in controllers.split(","):
                path = top / name.lstrip("/")
                folders |= {path, *(p for p in path.parents if p.is_relative_to(top))}
    quotas = []
    for folder in folders:
        # v2: "200000 100000" is two cores' time, "max 100000" no limit (a ValueError here).
        with suppress(OSError, ValueError):
            limit, period = (folder / "cpu.max").read_text().split()
            quotas.append(int(limit) / int(period))
        # v1: the same in two files, -1 without a limit.
        with suppress(OSError, ValueError):
            limit, period = ((folder / f"cpu.cfs_{n}_us").read_text() for n in ("quota", "period"))
            quotas.append(int(limit) / int(period))
    return [quota for quota in quotas if quota > 0]


def worker_slots(machine: Machine, workers: int) -> list[WorkerSlot]:
    """Slots of so many workers: each pinned to a GPU where there are any, threads shared out."""
    # More threads than cores cost more than they bring: OpenMP's wait for each other at every loop.
    threads = max(1, min(machine.threads, cores() // workers))
    env = {THREADS: str(threads)}
    if (own := users_threads()) is not None:
        threads, env = own, {}
    if not machine.gpus:
        return [WorkerSlot(threads=threads, env=env) for _ in range(workers)]
    names = [machine.gpus[index % len(machine.gpus)] for index in range(workers)]
    return [WorkerSlot(threads=threads, env=env | {"CUDA_VISIBLE_DEVICES": n}) for n in names]


THREADS = "OMP_NUM_THREADS"


def users_threads() -> int | None:
    """The number of threads that the user has set for a process; None where they set none."""
    # OpenMP takes a list, a number for each level of nesting.
    first = os.environ.get(THREADS, "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


BLAS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def set_blas_threads() -> None:
    """Before NumPy is loaded, where nothing trains: one thread; the user's settings count.

    On matrices of some hundred rows a second one spins for more time than it saves: three times
    the processor's in a prediction of a thousand runs, beside other work.
    """
    if not {*BLAS, THREADS} & os.environ.keys():
        os.environ.update(dict.fromkeys(BLAS, "1"))


SPIN = "GOMP_SPINCOUNT"
IDLE, BUSY = "20001", "1001"
"""Odd values, by which ours are told from the user's."""
LOOKS = 3
"""So often it is looked at what else the machine runs."""


def set_spin() -> None:
    """Before torch is loaded: spin briefly where others want the cores; the user's setting counts.

    Threads that spin against others are the slower the longer they do (six times, with libgomp's
    own 300,000 beside one busy core of two); those that sleep between the operations of a small
    model are, too (half the speed with 1,000 on two idle cores).
    """
    if {SPIN, "OMP_WAIT_POLICY"} & os.environ.keys():
        return
    count = os.cpu_count() or 1
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
    # The quietest of some looks counts: what runs for a moment is no load.
    others = _others()
    for _ in range(LOOKS - 1):
        if others:
            time.sleep(0.001)
            others = min(others, _others())
    os.environ[SPIN] = BUSY if threads + others > count else IDLE


def without_our_spin(environment: dict[str, str]) -> dict[str, str]:
    """`environment` without what `set_spin` put there: a user's command chooses for itself."""
    return {k: v for k, v in environment.items() if k != SPIN or v not in (IDLE, BUSY)}


def _others() -> int:
    """Threads of the machine that run or want to, but for this one; 0 where nothing says it."""
    try:  # "0.52 0.58 0.59 3/1204 7321": 3 of 1204 threads run or wait for a core, this one too
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        return 0


_USUALLY, RARELY = gc.get_threshold(), (100_000, 10, 10)


def collect_rarely() -> None:
    """While a process loads and reads: that stays, and is gone over a thousand times in vain.

    Of `explain` this is a sixth of its time, and the last two collections of a Python that ends
    another one: `gc.freeze` spares them.
    """
    gc.set_threshold(*RARELY)


def collect_as_usual() -> None:
    """From here on: circular garbage may hold the tensors of a training run."""
    if gc.get_threshold() == RARELY:
        gc.freeze()  # what was loaded so far stays: no collection goes over it
        gc.set_threshold(*_USUALLY)


LOOKUPS = ("sweeper.records", "sweeper.launch.code")
"""What imports a class by its name, and what reads the files that it needs."""
COMPILER = "torch._dynamo.symbolic_convert"
"""It imports in the place of what it compiles."""


@dataclass(frozen=True)
class FolderModules:
    """Finds modules in a folder for who looks a user's class up, and for the folder's own files.

    What a library tries to import is not looked for there: a `numexpr.py` beside a table is none of
    pandas', which runs whatever has that name.
    """

    folder: Path

    def find_spec(self, name: str, path: Sequence[str] | None, _: Any = None) -> ModuleSpec | None:
        """What the import system asks for a module that is nowhere else; see `MetaPathFinder`."""
        frame = sys._getframe(1)
        while frame.f_back and str(frame.f_globals.get("__name__")).startswith("importlib"):
            frame = frame.f_back
        importer: Mapping[str, Any] = frame.f_globals
        if importer.get("__name__") == COMPILER:
            importer = getattr(frame.f_locals.get("self"), "f_globals", importer)
        if path is None and (importer.get("__name__") in LOOKUPS or self._holds(importer)):
            return PathFinder.find_spec(name, [str(self.folder)])
        return None

    def _holds(self, importer: Mapping[str, Any]) -> bool:
        file = Path(importer.get("__file__") or "/").resolve()
        if not file.is_relative_to(self.folder):
            return False
        from sweeper.launch.code import is_user_file

        return is_user_file(file)


def find_users_modules() -> None:
    """From here on a model of the user's own is found in the folder worked in, behind all else."""
    with suppress(FileNotFoundError):  # it may be gone
        sys.meta_path.append(FolderModules(Path.cwd().resolve()))
