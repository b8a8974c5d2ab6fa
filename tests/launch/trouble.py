"""What bad luck or a bad model does to a process; and a note of every step that is done."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sweeper.errors import BadInput

WAYS: dict[str, Callable[[], object]] = {
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "exit": lambda: os._exit(7),
    "hang": lambda: time.sleep(1000),
    "refuse": lambda: refuse("this text is not to be read"),
    "slow": lambda: time.sleep(0.1),
}


def refuse(what: str) -> None:
    raise BadInput(what)


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Does `how` when a trial of `seed` comes to step `at` (-1: any); `once` or always.

    Every step that is come to is noted in `calls`, a line each: seed, step, process.
    """

    how: str = ""
    seed: int = -1
    at: int = -1
    once: Path | None = None
    calls: Path | None = None

    def meet(self, seed: int, step: int) -> None:
        if self.seed in (-1, seed) and self.at in (-1, step) and self.how and self._again():
            WAYS[self.how]()
        if self.calls is not None:
            with self.calls.open("a") as file:
                file.write(f"{seed} {step} {os.getpid()}\n")

    def _again(self) -> bool:
        if self.once is None:
            return True
        try:
            self.once.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def trouble(
    folder: Path, how: str = "", *, seed: int = -1, at: int = -1, once: bool = False
) -> Trouble:
    done = folder / "done-once" if once else None
    return Trouble(how=how, seed=seed, at=at, once=done, calls=folder / "calls")


def calls(folder: Path) -> list[tuple[int, ...]]:
    path = folder / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [tuple(map(int, line.split())) for line in lines]
