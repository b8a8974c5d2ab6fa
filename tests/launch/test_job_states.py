"""What is removed from a study's folder, and what others may still need."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper.engine import checkpoint
from sweeper.engine.batched import BatchedTrials
from sweeper.engine.jobs import TrainTrials
from sweeper.engine.train import Execution, train
from sweeper.errors import SweeperError
from sweeper.files import write_json
from sweeper.launch.job import Control, Job, JobFailure, JobOutcome, Leave, write_job
from sweeper.launch.job_states import cancel_jobs, job_states
from sweeper.launch.job_states import tidy as tidy_jobs
from sweeper.launch.slurm import Slurm
from sweeper.records import to_json
from sweeper.trial import Trial
from tests.engine.tiny_trials import corpus, trial

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
