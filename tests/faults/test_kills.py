"""Processes that are killed at random, again and again, and two drivers of one study at once."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress

import pytest

from sweeper.launch.local import MAX_FALSE_STARTS
from tests.cli.driver import assert_refused
from tests.faults.harness import (
    LAUNCHERS,
    LOCAL,
    SEEDS,
    WORDS,
    Harness,
    Outcomes,
    assert_whole,
    outcomes,
    recorded,
    until,
)

pytestmark = pytest.mark.faults
LONGEST = {"inline": 2.5, "local": 8.0}
"""Seconds within which a driver is killed."""


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_driver_is_killed_again_and_again(
    harness: Harness, expected: Outcomes, launcher: str, seed: int
) -> None:
    """Half of the kills wait for a new result, so that every run of the tests sees some."""
    generator, words = random.Random(seed), ["search", *WORDS, *LAUNCHERS[launcher]]
    kept: set[str] = set()
    for kill in range(2 + generator.randrange(3)):
        driver, before = harness.start(*words), len(kept)
        if kill % 2:
            until(lambda d=driver, n=before: recorded(harness.study) > n or not d.lives(), 60)  # type: ignore[misc]
            time.sleep(generator.uniform(0.0, 0.3))
        else:
            driver.lives(generator.uniform(0.0, LONGEST[launcher]))
        driver.kill()
        now = set(outcomes(harness.study)) if harness.study.is_dir() else set()
        assert kept <= now, "what was recorded is safe"
        kept = now
    answer = harness.run(*words)
    assert answer.code == 0 and not answer.crashed, answer
    assert_whole(harness, expected)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_workers_are_killed_at_random(harness: Harness, expected: Outcomes, seed: int) -> None:
    """Never so often in a row that none becomes ready: that is no accident, and ends the run."""
    generator = random.Random(seed)
    more = [*LOCAL, "launcher.retries=9"]
    driver, kills, in_a_row, before = harness.start("search", *WORDS, *more), 0, 0, 0
    while driver.lives(generator.uniform(0.1, 1.5)):
        workers, now = harness.workers(), recorded(harness.study)
        # Earlier results say nothing of the workers that are starting now.
        in_a_row, before = (0, now) if now > before else (in_a_row, before)
        if workers and in_a_row < MAX_FALSE_STARTS - 1:
            with suppress(ProcessLookupError):
                os.kill(generator.choice(workers), signal.SIGKILL)
            kills, in_a_row = kills + 1, in_a_row + 1
    answer = driver.wait()
    assert answer.code == 0 and kills, answer
    assert_whole(harness, expected)


@pytest.mark.parametrize("first", LAUNCHERS)
def test_a_second_driver_is_refused(harness: Harness, expected: Outcomes, first: str) -> None:
    words = ["search", *WORDS]
    driver = harness.start(*words, *LAUNCHERS[first])
    until(lambda: (harness.study / "config.yaml").exists())
    for second in LAUNCHERS.values():
        refused = harness.run(*words, *second)
        if driver.lives():
            assert_refused(refused, "study a already has a driver: ", f"process {driver.pid} on")
    assert driver.wait().code == 0
    assert_whole(harness, expected)
