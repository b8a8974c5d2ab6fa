"""The losses of a run by step, as they come, cut into the stretches of its band."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sweeper.errors import BadInput, Call, ConfigError, Keyword, Text
from sweeper.evidence.predict.band import Band
from sweeper.evidence.predict.decision import Prediction
from sweeper.evidence.predict.earlier import Expectation
from sweeper.files import RECORD_ERRORS, parse_record, read_bounded
from sweeper.records import from_json
from sweeper.stats.estimate import Array

Expected = Prediction | Expectation
"""What a run is held against: a prediction, or earlier runs."""
Places = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
NOT_NUMBERS = 3
"""Readings in a row that are no numbers of a run that diverged; fewer are a logger's slip."""
MOST_BACK = 20
"""Times that steps go back, and once in so many readings at least: more are two writers."""


def read_prediction(path: str | PathLike[str]) -> Prediction:
    """The prediction in a file; BadInput where it is none, or says nothing of the way there."""
    try:
        record = parse_record(read_bounded(Path(path)))
        prediction = from_json(Prediction, record)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}: ", Call("predict"), " writes it") from error
    except RECORD_ERRORS as error:
        raise BadInput(f"{path} is no prediction of ", Call("predict"), f": {error}") from error
    check_followed(prediction, str(path))
    return prediction


def check_followed(prediction: Expected, name: str = "the prediction") -> Band:
    """The band to follow; BadInput where there is none."""
    if prediction.prediction is None:
        raise BadInput(
            f"{name} says nothing of a run: give ", Call("predict"), " its size and tokens"
        )
    if prediction.band is None:
        why = prediction.no_band or "it was made from a table, which has no training curves"
        raise BadInput(f"{name} has no band to follow: {why}")
    return prediction.band


def is_a(kind: type, value: object) -> bool:
    """Whether it is a number of that kind; True is a whole number to Python, and a mistake here."""
    return isinstance(value, kind) and not isinstance(value, bool)


def number_of(name: str, value: Any) -> float:
    """A number, or what holds one, such as a tensor; ConfigError for a text and the like."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        number = float(value)
        # A step that is none cannot be placed; a loss that is none is a reading, of divergence.
        if name == "step" and not math.isfinite(number):
            raise ValueError
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(name, value, "a number, as in watch.update(step, loss.item())") from error
    return number


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that befell the run between two steps, in words."""

    kind: str
    step: int
    until: int
    text: str


class Stretches(NamedTuple):
    """Stretches with readings: places in the band, mean losses, numbers of readings, mean steps."""

    at: Places
    losses: Array
    counts: Array
    middles: Array


class Readings:
    """Losses of a run of so many `steps` by step; what a resumed run left behind is forgotten."""

    def __init__(self, steps: int, edges: Array) -> None:
        self.steps, self.begins = steps, np.round(edges * steps).astype(int)
        self.at, self.losses = array("q"), array("d")
        self.events: list[Event] = []
        self.bad: list[int] = []
        """Steps of the first readings in a row, up to the present one, that are no numbers."""
        self.trouble: Text = ()
        self._back = 0

    def take(self, step: int, loss: float) -> bool:
        """Take a reading; whether a stretch began with it, or it says that the run diverged."""
        if step < 0 or step > self.steps + self.steps / (len(self.begins) - 1):
            self.trouble = (
                f"it reports step {step:,} of {self.steps:,}: give the steps of the run with ",
                Keyword("steps", ...),
                ", and let its log count steps",
            )
            return True
        if self.at and step < self.at[-1]:
            self._resume(step)
            if self.trouble:
                return True
        # Sums of losses whose square overflows may do so, too.
        if not (loss > 0 and math.isfinite(loss * loss)):
            if not self.bad:
                self.note("not a number", step, step, f"the loss is {loss:g}")
            is_known = len(self.bad) == NOT_NUMBERS
            self.bad = [*self.bad, step][:NOT_NUMBERS]
            return len(self.bad) == NOT_NUMBERS and not is_known
        self.bad.clear()
        last = self.at[-1] if self.at else -1
        before, now = np.searchsorted(self.begins[:-1], [last, step], "right")
        self.at.append(step)
        self.losses.append(loss)
        return bool(now > before)

    def note(self, kind: str, step: int, until: int, text: str) -> None:
        """Keep an event, of the last ones: mostly of steps that go back."""
        self.events.append(Event(kind=kind, step=step, until=until, text=text))
        del self.events[:-MOST_BACK]

    def _resume(self, step: int) -> None:
        self._back += 1
        # Both in number and in share: a short log with a few resumes is none of two writers.
        if self._back > max(MOST_BACK, len(self.at) / MOST_BACK):
            self.trouble = (
                f"steps go back {self._back} times among {len(self.at):,} readings: two runs, or "
                "several ranks, write into it. Name one, as in ",
                Keyword("metric", "rank0.*loss (?P<loss>...)"),
            )
            return
        last, kept = self.at[-1], bisect_left(self.at, step)
        what = "begun anew" if kept == 0 else "resumed"
        self.note(what, step, last, f"after step {last:,} comes step {step:,}")
        del self.at[kept:], self.losses[kept:]
        self.bad.clear()

    @property
    def ended(self) -> bool:
        """Whether the last reading was taken: as long after it as before it there is no other."""
        interval = self.at[-1] - self.at[-2] if len(self.at) > 1 else 0
        return bool(self.at) and self.at[-1] >= self.steps - max(interval, 1)

    def stretches(self, *, whole: bool = False) -> Stretches:
        """The stretches that are over; with `whole`, the last one too where half of it is there."""
        steps, losses = np.array(self.at, np.int64), np.array(self.losses)
        index = np.searchsorted(self.begins[1:-1], steps, "right")
        if len(steps):
            begin, end = self.begins[index[-1] : index[-1] + 2]
            if not (whole and steps[-1] >= begin + (end - begin) / 2):
                is_over = index < index[-1]
                steps, losses, index = steps[is_over], losses[is_over], index[is_over]
        at, place, counts = np.unique(index, return_inverse=True, return_counts=True)
        means, middles = (
            np.bincount(place, values, len(at)) / counts for values in (losses, steps + 0.5)
        )
        return Stretches(at, means, counts.astype(float), middles)

    def last(self, share: float) -> Array:
        """The losses of the last share of the run's steps, at least the last one."""
        first = bisect_left(self.at, math.floor((1 - share) * self.steps))
        return np.array(self.losses[min(first, len(self.at) - 1) :])
