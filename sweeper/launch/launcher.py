"""What the loop asks of a launcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from sweeper.data.corpus import Corpus
from sweeper.trial import Result, Trial

Watch = Callable[[float], None]
"""Told the trials' worth of work that was just done on packs not finished (may be below 1)."""


class Launcher(Protocol):
    """Runs trials, packing those of one setup, and yields each result when it is known."""

    def precision(self) -> str:
        """What `train.precision=auto` stands for on this launcher's devices."""
        ...

    def estimate(self, trials: Sequence[Trial], corpus: Corpus) -> tuple[int, float]:
        """Trials to a pack and seconds of one trial's step, measured with `trials` of one setup."""
        ...

    def run(self, trials: Sequence[Trial], corpus: Corpus, watch: Watch) -> Iterator[Result]:
        """Results in the order in which they finish; a trial that fails is a failed result."""
        ...
