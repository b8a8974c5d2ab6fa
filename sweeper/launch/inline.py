"""Train in this process, one pack after the other."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import torch

from sweeper.data.corpus import Corpus
from sweeper.errors import ConfigError, SweeperError
from sweeper.launch.launcher import Watch
from sweeper.training.pack import Pack
from sweeper.training.packing import Measured, measure, split, step_seconds
from sweeper.training.train import train
from sweeper.trial import Result, Trial, digest

_MEASURED: dict[str, Measured] = {}
"""Pack sizes found by this process, by setup and device."""


def resolve_device(name: str) -> str:
    """`name`, or for "auto" the GPU when there is one; ConfigError when it cannot be had."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError("device", name, "auto, cpu, or a device that torch can use") from error
    return name


@dataclass(frozen=True, kw_only=True)
class Inline:
    """The simplest launcher: no other process, one device.

    `pack` is the number of trials trained as one model, "auto" to measure it. `compile` is
    "auto" (on a GPU, where a pack is long enough to earn the compile time back), "on" or "off".
    """

    device: str = "auto"
    pack: int | Literal["auto"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"

    def __post_init__(self) -> None:
        """Refuse an impossible pack size."""
        if self.pack != "auto" and self.pack < 1:
            raise ConfigError("pack", self.pack, "auto, or at least 1")

    def precision(self) -> str:
        """Bfloat16 autocast on a GPU, float32 elsewhere."""
        return "bfloat16" if resolve_device(self.device).startswith("cuda") else "float32"

    def run(self, trials: Sequence[Trial], corpus: Corpus, watch: Watch) -> Iterator[Result]:
        """Pack trials of equal setup, largest packs that pay; see `Launcher`."""
        for _, group in groupby(trials, key=lambda trial: digest(trial.setup)):
            same = tuple(group)
            for part in split(same, self._size(same, corpus)):
                yield from self._train(Pack(trials=same[part], corpus=corpus), watch)

    def estimate(self, trials: Sequence[Trial], corpus: Corpus) -> tuple[int, float]:
        """Pack size and seconds of a trial's step; measured once a setup, and again for more."""
        pack = Pack(trials=tuple(trials), corpus=corpus)
        if self.pack != "auto":
            part = Pack(trials=pack.trials[: self.pack], corpus=corpus)
            return self.pack, step_seconds(part, self._device()) / len(part.trials)
        key = f"{digest(trials[0].setup)} {self._device()}"
        measured = _MEASURED.get(key)
        if measured is None or (measured.open and len(trials) >= 2 * measured.size):
            measured = _MEASURED[key] = measure(pack, self._device())
        return measured.size, measured.seconds

    def _size(self, trials: tuple[Trial, ...], corpus: Corpus) -> int:
        if self.pack != "auto":
            return self.pack
        try:
            return self.estimate(trials, corpus)[0] if len(trials) > 1 else 1
        except (RuntimeError, ValueError, ArithmeticError):
            return 1  # what cannot be trained fails by itself, trial by trial, with its reason

    def _device(self) -> str:
        return resolve_device(self.device)

    def _compiled(self) -> bool:
        return self.compile == "on" or (self.compile == "auto" and self._device() != "cpu")

    def _train(self, pack: Pack, watch: Watch) -> Iterator[Result]:
        """One pack; out of memory halves it, and any other error fails its trials one by one."""
        count, told = len(pack.trials), [0.0]

        def progress(share: float) -> None:
            watch((share - told[0]) * count)
            told[0] = share

        try:
            results = train(
                pack, device=self._device(), compiled=self._compiled(), progress=progress
            )
            yield from results
            return
        except SweeperError:
            raise
        except (RuntimeError, ValueError, ArithmeticError) as error:
            watch(-told[0] * count)
            if count == 1:
                yield _failed(pack.trials[0], error)
                return
        for part in split(pack.trials, -(-count // 2)):
            half = Pack(trials=pack.trials[part], corpus=pack.corpus)
            yield from self._train(half, watch)


def _failed(trial: Trial, error: Exception) -> Result:
    """The result of a trial that could not be trained, with the reason."""
    return Result(
        trial=trial,
        status="failed",
        objective=math.nan,
        heldout=math.nan,
        finished_at=time.time(),
        error=f"{type(error).__name__}: {error}"[:2000],
    )
