"""What a job that runs is told, and what it tells: the seam between training and launching."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Leave(Exception):
    """A job saved itself and left, as it was asked to; it goes on from there later."""


@dataclass(frozen=True, kw_only=True)
class Control:
    """The ears and the mouth of a job.

    `progress` takes the fraction of the job that is done, `notify` a sentence for the user.
    `should_leave` is asked at every step: where it is true, the job saves itself and raises
    `Leave`.
    """

    progress: Callable[[float], None] = lambda fraction: None
    notify: Callable[[str], None] = lambda sentence: None
    should_leave: Callable[[], bool] = lambda: False

    def leave_if_asked(self) -> None:
        """Once a step, for work that saves nothing: it starts anew later. Raises `Leave`.

        Asking is also a sign of life to the process that started this one.
        """
        if self.should_leave():
            raise Leave


UNCONTROLLED = Control()
"""Nobody listens, and nobody asks to leave."""
