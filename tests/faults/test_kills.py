"""Processes that are killed at random, again and again, and two drivers of one study at once."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from contextlib import suppress

import pytest

from sweeper.launch.executor import MAX_FALSE_STARTS
from tests.cli.driver import assert_refused
from tests.faults.harness import (
    LAUNCHERS,
    LOCAL,
    MEASURED,
    SEEDS,
    WORDS,
    Harness,
    Outcomes,
    assert_whole,
    forget,
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


INDEPENDENT = ["search=independent", "search.runs=12", "search.seeds=1", "search.combine_seeds=2"]


@pytest.mark.parametrize("search", ["lr", "independent"])
def test_batches_of_a_measured_size_are_the_same_after_kills(harness: Harness, search: str) -> None:
    """In float32, where another batch rounds otherwise; and so where a search is repeated."""
    words = ["search", *MEASURED]
    if search == "independent":
        words = [word for word in words if not word.startswith("search")]
        words = ["search", *words, *INDEPENDENT, "parameterization=umup"]
    answer = harness.run(*words)
    assert answer.code == 0, answer
    undisturbed = outcomes(harness.study)
    record = (harness.study / "batches.jsonl").read_text().splitlines(keepends=True)
    assert any('"keys"' in line and line.count('", "') > 1 for line in record), "no two together"
    shutil.rmtree(harness.study / "results")
    answer = harness.run(*words)
    assert answer.code == 0 and outcomes(harness.study) == undisturbed, "repeated"

    generator = random.Random(search)
    for _ in range(max(2, SEEDS // 10)):
        forget(harness.study)
        harness.study.mkdir(parents=True)
        # Another study, of the same sizes: what was formed is not known to it.
        sizes = [line for line in record if '"measured"' in line]
        (harness.study / "batches.jsonl").write_text("".join(sizes))
        for _ in range(3):
            driver = harness.start(*words)
            driver.lives(generator.uniform(0.5, 5.0))
            driver.kill()
        answer = harness.run(*words)
        assert answer.code == 0, answer
        assert_whole(harness, undisturbed)


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
