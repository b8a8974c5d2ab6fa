"""A corpus that does to its process what bad luck or a bad model would do."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from sweeper.data.corpus import Batch, TokenCorpus
from sweeper.errors import BadInput
from tests.training.tiny_trials import corpus

WAYS: dict[str, Callable[[], object]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "exit": lambda: os._exit(7),
    "hang": lambda: time.sleep(1000),
    "refuse": lambda: _raise(BadInput("this text is not to be read")),
    "fail": lambda: _raise(ValueError("not this one")),
    "slow": lambda: time.sleep(0.1),
}


def _raise(error: Exception) -> None:
    raise error


@dataclass(frozen=True, kw_only=True)
class Deadly(TokenCorpus):
    """Does `how` when the batch of `seed` at step `at` (-1: any) is asked for; `once` or always.

    Every batch that is given is noted in `calls`, a line each: seed, step, process, threads.
    """

    how: str = ""
    seed: int = -1
    at: int = -1
    once: Path | None = None
    calls: Path | None = None

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Batch:
        if self.how and self.seed in (-1, seed) and self.at in (-1, step) and self._again():
            WAYS[self.how]()
        if self.calls is not None:
            with self.calls.open("a") as file:
                file.write(f"{seed} {step} {os.getpid()} {torch.get_num_threads()}\n")
        return super().batch(seed, step, batch_size, seq_len)

    def _again(self) -> bool:
        if self.once is None:
            return True
        try:
            self.once.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def deadly(
    folder: Path,
    how: str = "",
    *,
    seed: int = -1,
    at: int = -1,
    once: bool = False,
) -> Deadly:
    """One over the tests' tokens; `once` among all processes."""
    plain = corpus(folder)
    return Deadly(
        path=plain.path,
        digest=plain.digest,
        classes=plain.classes,
        heldout_fraction=plain.heldout_fraction,
        how=how,
        seed=seed,
        at=at,
        once=folder / "done-once" if once else None,
        calls=folder / "calls",
    )


def calls(folder: Path) -> list[tuple[int, ...]]:
    """What `deadly` corpora of `folder` have noted: (seed, step, process, threads)."""
    path = folder / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [tuple(map(int, line.split())) for line in lines]
