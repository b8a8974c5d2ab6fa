"""What the loop asks of a launcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from sweeper.data.corpus import Corpus
from sweeper.search.prune import Pruner
from sweeper.trial import Result, Trial

Watch = Callable[[float], None]
"""Told the trials' worth of work that was just done on packs not finished (may be below 1)."""


def no_pruner(trial: Trial) -> Pruner | None:
    """Every trial trains to its end."""
    return None


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a launcher is given.

    `pending` names all trials that are wanted now and have no result, those that the launcher
    has in hand included: ask again whenever there is room, as results let a strategy name more.
    `folder` is the study's own, for checkpoints and job files. `tell` takes a sentence that the
    user should read. `pruner` gives the pruner for a pack of this trial's specification, or None.
    Without `wait`, a launcher that is `Scheduled` returns once all that is pending is submitted.
    """

    corpus: Corpus
    folder: Path
    pending: Callable[[], Sequence[Trial]]
    watch: Watch
    tell: Callable[[str], None]
    pruner: Callable[[Trial], Pruner | None] = no_pruner
    wait: bool = True


class Launcher(Protocol):
    """Runs trials, packing those of one specification, and yields results when they are known."""

    def precision(self) -> str:
        """What `train.precision=auto` stands for on this launcher's devices."""
        ...

    def estimate(self, trials: Sequence[Trial], corpus: Corpus) -> tuple[int, float]:
        """Trials to a pack and seconds of one trial's step, measured with `trials` alike."""
        ...

    def run(self, work: Work) -> Iterator[list[Result]]:
        """Train until nothing is pending: a pack's results at a time, as packs finish.

        What was yielded is recorded when the next is asked for. A trial that cannot be trained
        is a failed result, never an exception.
        """
        ...


@runtime_checkable
class Scheduled(Protocol):
    """A launcher whose jobs outlive their driver: they are those of a cluster's scheduler."""

    def check(self, folder: Path) -> None:
        """ConfigError, before anything is submitted, for what the cluster would never run."""
        ...

    def script(self, folder: Path, jobs: int) -> str:
        """The batch script of so many jobs of the study in `folder`; nothing is written or sent."""
        ...
