"""A study's folder between processes: what killed ones left in it, and a request to end."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from sweeper.files import remove_leftovers, write_json
from sweeper.launch.job import trials_of
from sweeper.launch.slurm.arrays import arrays
from sweeper.lock import CANCEL_FILE


def tidy(folder: Path, is_finished: Callable[[str], bool]) -> bool:
    """Remove jobs whose trials are all finished, by key, or that nobody can read.

    Jobs for trials without a result stay. Half-written files go once no job is left that might be
    writing them; whether that is so is returned.
    """
    for job_dir in list((folder / "jobs").glob("*/")):
        if all(is_finished(trial.key) for trial in trials_of(job_dir)):
            shutil.rmtree(job_dir, ignore_errors=True)
            _forget_arrays(folder, job_dir)
    idle = not list((folder / "jobs").glob("*/"))
    if idle:
        remove_leftovers(folder)
    return idle


def _forget_arrays(folder: Path, job_dir: Path) -> None:
    """Remove arrays of which the job that was in `job_dir` was the last."""
    for array in arrays(folder):
        job_dirs = {member.job_dir for member in array.members}
        if job_dir in job_dirs and not any(other.exists() for other in job_dirs):
            shutil.rmtree(array.folder, ignore_errors=True)


def request_cancel(folder: Path) -> None:
    """Ask the driver of the sweep in `folder` to end."""
    write_json(folder / CANCEL_FILE, {"at": time.time()})


def cancel_requested(folder: Path) -> bool:
    """Whether the driver of the sweep in `folder` should end.

    A driver that takes the study's lock removes what was asked of an earlier one (lock.py).
    """
    return (folder / CANCEL_FILE).exists()
