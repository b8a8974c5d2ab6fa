"""A job's files: what is written is read back, and of what is damaged nothing is believed."""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.engine import checkpoint
from sweeper.engine.batched import BatchedTrials
from sweeper.engine.jobs import TrainTrials
from sweeper.engine.train import Execution, train
from sweeper.errors import SweeperError
from sweeper.files import write_json
from sweeper.launch.job import (
    Control,
    Job,
    JobFailure,
    JobOutcome,
    Leave,
    Resources,
    failed,
    outcome_of,
    read_job,
    trials_of,
    write_job,
)
from sweeper.launch.job_states import cancel_jobs, job_states
from sweeper.launch.job_states import tidy as tidy_jobs
from sweeper.launch.slurm import Slurm
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


ONE, OTHER = trial(), trial(seed=1)


def tidy(folder: Path, is_finished: Callable[[str], bool]) -> None:
    """Remove the launcher's files, then the engine's: a sweep does so at its end."""
    idle = tidy_jobs(folder, is_finished)
    checkpoint.tidy(folder / "checkpoints", is_finished, idle=idle)


def save(folder: Path, saved: Trial) -> None:
    """Leave a checkpoint of `one` after its first step."""
    batched = BatchedTrials(trials=(saved,), corpus=corpus(folder))
    execution = Execution(checkpoints=folder / "checkpoints")
    with pytest.raises(Leave):
        train(batched, execution, Control(should_leave=lambda: True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two checkpoints, a damaged one, and two files that were written half-way."""
    for each in (ONE, OTHER):
        save(tmp_path, each)
    (tmp_path / "checkpoints/.0123.tmp").write_bytes(b"half")
    (tmp_path / "checkpoints/.safetensors").write_bytes(b"half")
    (tmp_path / f"checkpoints/damaged{checkpoint.SUFFIX}").write_bytes(b"half")
    return tmp_path


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoints").iterdir()}


def test_what_no_batch_goes_on_from_is_removed(folder: Path) -> None:
    tidy(folder, lambda key: key == ONE.key)
    assert checkpoint.saved_batches(folder / "checkpoints", [ONE, OTHER]) == [(OTHER,)]
    assert names(folder) == {checkpoint.path_of(Path(), [OTHER]).name}


def test_a_job_may_still_be_writing(folder: Path) -> None:
    batched = BatchedTrials(trials=(OTHER,), corpus=corpus(folder))
    job_dir = write_job(
        folder / "jobs",
        Job(task=TrainTrials(trials=(OTHER,), corpus=batched.corpus, execution=Execution())),
    )
    tidy(folder, lambda key: key == ONE.key)
    assert job_dir.is_dir() and {".0123.tmp", ".safetensors"} <= names(folder)
    # What failed of a command that is asked for no more leaves nothing to collect.
    outcome = JobOutcome(failure=JobFailure(reason="exit code 1", retry=False))
    write_json(job_dir / "result-0.json", to_json(outcome))
    tidy(folder, lambda key: False)
    assert not job_dir.exists()
    tidy(folder, lambda key: True)
    assert not names(folder)


def test_a_job_that_was_never_written_is_removed(folder: Path) -> None:
    (folder / "jobs/empty").mkdir(parents=True)
    tidy(folder, lambda key: False)
    assert not list(folder.glob("jobs/*"))


def test_a_folder_without_any_is_left_alone(tmp_path: Path) -> None:
    tidy(tmp_path, lambda key: True)
    assert not list(tmp_path.iterdir())


def test_jobs_that_are_closed_to_this_user_are_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who hands a shared study over removes what no job is in: `status` must not be silent."""
    (tmp_path / "slurm").mkdir()
    assert job_states(tmp_path) == []
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "slurm")
    for ask in (job_states, cancel_jobs):
        with pytest.raises(SweeperError, match=r"slurm is the user .*'s, whose own `sweeper"):
            ask(tmp_path)
    with pytest.raises(SweeperError, match=r"rm -r .*slurm"):
        Slurm().check(tmp_path)
