"""Files of a study that are damaged while nobody looks."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from sweeper.engine.checkpoint import saved_keys
from tests.cli.driver import rewrite_results
from tests.faults.harness import (
    LAUNCHERS,
    SLOW,
    WORDS,
    Harness,
    Outcomes,
    assert_whole,
    outcomes,
    recorded,
)
from tests.waiting import until

pytestmark = pytest.mark.faults


def unfinished(study: Path) -> list[Path]:
    recorded_keys, unfinished_paths = outcomes(study).keys(), []
    for path in study.glob("checkpoints/*.checkpoint"):
        with suppress(ValueError):
            if not recorded_keys >= set(saved_keys(path)):
                unfinished_paths.append(path)
    return unfinished_paths


def stopped_within_a_batch(harness: Harness, launcher: str) -> list[Path]:
    driver = harness.start("search", *SLOW, *LAUNCHERS[launcher])
    until(lambda: recorded(harness.study) >= 2 and unfinished(harness.study))
    driver.kill()
    until(lambda: not harness.processes(), 15)
    checkpoints = unfinished(harness.study)
    assert checkpoints
    return checkpoints


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_damaged_files_cost_their_trials_time_alone(
    harness: Harness, expected: Outcomes, launcher: str
) -> None:
    checkpoints = stopped_within_a_batch(harness, launcher)
    for path in checkpoints:
        os.truncate(path, path.stat().st_size // 2)
    jobs = list(harness.study.glob("jobs/*/"))
    assert (launcher == "local") == bool(jobs)
    for own in jobs:
        (own / "job.json").write_text('{"trials": [')
        (own / "result-0.json").write_text('{"attempt": 0, "results": [')
        (own / "result-7.json").write_bytes(b"\xff" * 99)
    rewrite_results(harness.study, lambda lines: [lines[0][: len(lines[0]) // 2], *lines[1:]])
    (harness.study / "search.json").write_text("{")
    (harness.study / "study.journal").write_bytes(b"rubbish" * 999)
    answer = harness.run("search", *WORDS, *LAUNCHERS[launcher])
    assert answer.code == 0, answer
    assert answer.out.count("Note: the result file") == 1
    assert "study.journal, was damaged" in answer.out
    assert_whole(harness, expected)


def test_a_damaged_checkpoint_of_a_known_batch_is_told(
    harness: Harness, expected: Outcomes
) -> None:
    """It still says whose it is, so that the same batch is trained, and from its beginning."""
    (path,) = stopped_within_a_batch(harness, "inline")
    whole = path.read_bytes()
    damaged = whole.replace(rb"\"format\":", rb"\"fxrmat\":")
    assert damaged != whole
    path.write_bytes(damaged)
    answer = harness.run("search", *WORDS)
    assert answer.code == 0
    assert f"{path.name} cannot be used: 'format'; its trials begin anew\n" in answer.out
    assert_whole(harness, expected)
