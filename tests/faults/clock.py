"""A clock that jumps: `time.time` of this process, by the environment's SWEEPER_TEST_CLOCK.

It holds `after:jump` in seconds, separated by commas: from `after` seconds past the process's first
look on, the clock is `jump` seconds off. As `sitecustomize` it reaches processes that are started
anew, such as workers and jobs.
"""

import os
import time

VARIABLE = "SWEEPER_TEST_CLOCK"


def install() -> None:
    """Take the place of the clock, where the environment says so."""
    jumps = [
        tuple(map(float, part.split(":")))
        for part in os.environ.get(VARIABLE, "").split(",")
        if part
    ]
    if not jumps:
        return
    true, begun = time.time, time.monotonic()

    def jumping() -> float:
        past = time.monotonic() - begun
        return true() + next((off for after, off in reversed(jumps) if past >= after), 0.0)

    time.time = jumping
