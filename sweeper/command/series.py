"""Losses by step, as a run reports them: now and then, some anew after a restart."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sweeper.command.reading import Reading

LEAST_GROWTH = 3
"""Losses by which a growth is told from one that scatters."""


class Series:
    """Losses by step. A step that lies before the last one begins the run anew from there.

    `returns` counts how often it did; the losses are `counted` where the source tells no steps.
    """

    def __init__(self) -> None:
        self.steps, self.losses = array("q"), array("d")
        self.counted, self.returns = False, 0
        self._not_finite = 0

    @classmethod
    def of(cls, steps: NDArray[np.float64], losses: NDArray[np.float64]) -> Series:
        """Take ascending whole `steps` and the `losses` there, of one length."""
        series = cls()
        series.steps.frombytes(steps.astype(np.int64).tobytes())
        series.losses.frombytes(losses.astype(np.float64).tobytes())
        series._not_finite = int((~np.isfinite(losses)).sum())
        return series

    def __len__(self) -> int:
        return len(self.losses)

    def add(self, readings: Iterable[Reading]) -> None:
        """Take readings in the order of their reports; those without a step are counted."""
        for reading in readings:
            step, loss = reading.step, reading.loss
            if step is None:
                self.counted = True
                step = len(self.steps)
            self.returns += bool(self.steps) and step < self.steps[-1]
            while self.steps and self.steps[-1] >= step:  # a resumed run tells some steps again
                self.steps.pop()
                self._not_finite -= not math.isfinite(self.losses.pop())
            self.steps.append(step)
            self.losses.append(loss)
            self._not_finite += not math.isfinite(loss)

    def last_step(self) -> int:
        """The last step that was reported; -1 before the first."""
        return self.steps[-1] if self.steps else -1

    def first_step(self) -> int:
        """The first step that was reported; -1 before it."""
        return self.steps[0] if self.steps else -1

    def finite(self) -> bool:
        """Whether every loss is a finite number."""
        return not self._not_finite

    def grew(self) -> bool:
        """Whether the losses went up to their end, and further than they scatter."""
        count = len(self.losses)
        if count < LEAST_GROWTH:
            return False
        losses = np.array(self.losses)
        part = max(1, min(5, count // 4))
        first, last, least = losses[:part].mean(), losses[-part:].mean(), losses.min()
        # Of a loss below zero, such as a log-density, no share says how far it went.
        far = 0.25 * least if least > 0 else 0.25 * np.ptp(losses)
        return bool(last > first and last - least > far)

    def dense(self, steps: int, *, whole: bool) -> NDArray[np.float64]:
        """A loss for every step up to the last reported one, or of a `whole` run up to `steps`.

        A loss stands for the steps since the one before. Counted ones are spread evenly over
        a whole run.
        """
        at = np.array(self.steps)
        if self.counted and whole:
            # The i-th of n losses stands at the end of the i-th of n equal parts of the run.
            at = np.ceil((np.arange(len(at)) + 1) * steps / len(at)).astype(int) - 1
        last = steps - 1 if whole else min(int(at[-1]), steps - 1)
        # Each step has the loss of the next report; steps behind the last have that of the last.
        places = np.minimum(np.searchsorted(at, np.arange(last + 1)), len(at) - 1)
        return np.array(self.losses, np.float64)[places]

    def exceeds(self, steps: int) -> bool:
        """Whether steps were reported that lie beyond the run by more than one interval."""
        if self.counted or not self.steps:
            return False
        return self.last_step() > steps + int(np.diff([0, *self.steps]).max())

    def reaches(self, steps: int, window: int) -> bool:
        """Whether the run came to its end: within the last stretch, or one interval of reports."""
        if self.counted or not self.steps:
            return bool(self.steps)
        interval = int(np.diff([0, *self.steps]).max())
        return self.last_step() >= steps - 1 - max(window, interval)
