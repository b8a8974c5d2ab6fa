"""Losses of a run by step, as a command tells them: now and then, some anew after a restart."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sweeper.trainer.metrics import Reading


class Series:
    """Losses by step. A step that lies before the last one begins the run anew from there."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.steps: list[int] = []
        self.losses: list[float] = []
        self.counted = False

    def __len__(self) -> int:
        return len(self.losses)

    def add(self, readings: Iterable[Reading]) -> None:
        """Take readings in the order in which they were told; those without a step are counted."""
        for step, loss in readings:
            if step is None:
                self.counted = True
                step = len(self.steps)
            while self.steps and self.steps[-1] >= step:  # a resumed run tells some steps again
                self.steps.pop()
                self.losses.pop()
            self.steps.append(step)
            self.losses.append(loss)

    def last_step(self) -> int:
        """The last step that was told; -1 before the first."""
        return self.steps[-1] if self.steps else -1

    def finite(self) -> bool:
        """Whether every loss is a finite number."""
        return all(map(math.isfinite, self.losses))

    def dense(self, steps: int, *, whole: bool) -> NDArray[np.float64]:
        """A loss for every step up to the last told one, or of a `whole` run up to `steps`.

        A loss stands for the steps since the one told before. Counted ones are spread evenly over
        a whole run.
        """
        at = np.array(self.steps)
        if self.counted and whole:
            at = np.ceil((np.arange(len(at)) + 1) * steps / len(at)).astype(int) - 1
        last = steps - 1 if whole else min(int(at[-1]), steps - 1)
        places = np.minimum(np.searchsorted(at, np.arange(last + 1)), len(at) - 1)
        return np.array(self.losses, np.float64)[places]

    def exceeds(self, steps: int) -> bool:
        """Whether steps were told that lie beyond the run by more than one interval of telling."""
        if self.counted or not self.steps:
            return False
        return self.last_step() > steps + int(np.diff([0, *self.steps]).max())

    def reaches(self, steps: int, window: int) -> bool:
        """Whether the run came to its end: within the last stretch, or one interval of telling."""
        if self.counted or not self.steps:
            return bool(self.steps)
        interval = int(np.diff([0, *self.steps]).max())
        return self.last_step() >= steps - 1 - max(window, interval)
