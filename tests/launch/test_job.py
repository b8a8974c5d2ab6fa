"""A job's files: what is written is read back, and of what is damaged nothing is believed."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.engine.jobs import TrainTrials
from sweeper.engine.train import Execution
from sweeper.errors import SweeperError
from sweeper.files import write_json
from sweeper.launch.job import (
    Job,
    JobFailure,
    JobOutcome,
    Resources,
    failed,
    outcome_of,
    read_job,
    trials_of,
    write_job,
)
from sweeper.records import to_json
from sweeper.trial import Result, Trial
from tests.engine.tiny_trials import corpus, trial

WHERE = corpus(Path(tempfile.mkdtemp()))
TRIALS = [trial(seed=seed) for seed in range(6)]
SEEDS = st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True)


def job(seeds: list[int], **resources: int) -> Job:
    trials = tuple(TRIALS[seed] for seed in seeds)
    task = TrainTrials(trials=trials, corpus=WHERE, execution=Execution())
    return Job(task=task, resources=Resources(**resources))


@given(SEEDS, st.integers(1, 8), st.booleans())
def test_a_job_is_read_as_it_was_written(seeds: list[int], nodes: int, sync: bool) -> None:
    made = job(seeds, nodes=nodes)
    with tempfile.TemporaryDirectory() as folder:
        place = write_job(Path(folder), made, sync=sync)
        assert place.name == made.id and read_job(place) == made
        assert trials_of(place) == made.trials


@given(SEEDS, SEEDS)
def test_a_job_s_name_follows_from_its_trials_and_their_order_alone(
    first: list[int], second: list[int]
) -> None:
    assert (job(first).id == job(second).id) == (first == second)
    assert job(first).id == job(first, nodes=2).id


@given(data=st.data())
def test_a_job_s_file_that_is_cut_short_is_no_job(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = write_job(Path(folder), job([0, 1])) / "job.json"
        text = place.read_bytes().rstrip()
        place.write_bytes(text[: data.draw(st.integers(0, len(text) - 1))])
        with pytest.raises(SweeperError):
            read_job(place.parent)
        assert trials_of(place.parent) == ()


def test_a_job_of_another_format_is_none(tmp_path: Path) -> None:
    path = write_job(tmp_path, job([0])) / "job.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(SweeperError):
        read_job(path.parent)
    assert trials_of(path.parent) == ()


@given(
    attempts=st.permutations(range(5)), count=st.integers(0, 5), damaged=st.sets(st.integers(0, 4))
)
def test_the_newest_whole_attempt_counts_whenever_it_was_written(
    attempts: list[int], count: int, damaged: set[int]
) -> None:
    written = attempts[:count]
    with tempfile.TemporaryDirectory() as folder:
        for attempt in written:
            path = Path(folder) / f"result-{attempt}.json"
            result = Result(trial=TRIALS[0], status="complete", objective=float(attempt))
            write_json(path, to_json(JobOutcome(results=(result,), attempt=attempt)))
            if attempt in damaged:
                path.write_bytes(path.read_bytes()[:-9] if attempt % 2 else b'{"results": [{}]}')
        outcome = outcome_of(Path(folder))
    whole = set(written) - damaged
    assert (outcome and outcome.attempt) == (max(whole) if whole else None)
    assert not outcome or outcome.results[0].objective == outcome.attempt


@given(SEEDS, st.text(max_size=50))
def test_a_failure_is_one_result_a_trial(seeds: list[int], reason: str) -> None:
    reason *= 100  # beyond what the record keeps
    trials: list[Trial] = [replace(TRIALS[0], seed=seed) for seed in seeds]
    outcome = failed(trials, reason)
    assert [result.trial for result in outcome] == trials
    assert {result.status for result in outcome} == {"failed"}
    assert all(reason.startswith(result.error) for result in outcome)
    assert str(JobFailure(reason="why", details="what")) == "why:\nwhat"
