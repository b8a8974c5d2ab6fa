"""How long work will still take: the pace of late, and an estimate that does not jump."""

from __future__ import annotations

import math
from collections import deque

SETTLING = 60.0
"""Seconds in which an estimate follows what is seen by about two thirds; in less while young."""
EARLIEST = 5.0
"""Seconds of work before anything is estimated."""
POINTS = 512
"""So many moments are remembered."""


class Pace:
    """Estimates the time left from work done by time, in any unit of work.

    The rate is that of the later half of the time: what a start cost, such as compiling, is soon
    no part of it. The estimated end moves towards what the rate says, and does not jump.
    """

    def __init__(self, start: float) -> None:
        """`start` is when the work began, in seconds of the clock that `left` is told."""
        self._start = start
        self._points = deque([(start, 0.0)], maxlen=POINTS)
        self._end = math.nan
        self._told = self._first = start

    def left(self, now: float, done: float, remaining: float) -> float | None:
        """Seconds that `remaining` work takes when `done` is done; None while nobody can say."""
        self._points.append((now, done))
        if remaining <= 0 and done > 0:
            return 0.0
        rate = self._rate(now, done)
        if rate <= 0 or now - self._start < EARLIEST:
            self._end = math.nan
            return None
        seen, passed = now + remaining / rate, now - self._told
        if math.isnan(self._end):
            self._end, self._first = seen, now
        elif passed > 0:
            settling = min(SETTLING, (now - self._first) / 4)
            self._end += (1.0 - math.exp(-passed / settling)) * (seen - self._end)
        self._told = now
        return max(0.0, self._end - now)

    def _rate(self, now: float, done: float) -> float:
        """Work a second since half of the time ago, or from the start where none was done since."""
        middle = self._start + (now - self._start) / 2
        for time, before in (self._last_until(middle), (self._start, 0.0)):
            if now > time and done > before:
                return (done - before) / (now - time)
        return 0.0

    def _last_until(self, moment: float) -> tuple[float, float]:
        """The last point before or at a moment; those before it are forgotten."""
        while len(self._points) > 1 and self._points[1][0] <= moment:
            self._points.popleft()
        return self._points[0]
