"""What processes that were killed leave in a study's folder, and nobody needs any more."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sweeper.files import remove_leftovers
from sweeper.launch.arrays import arrays
from sweeper.launch.job import trials_of
from sweeper.training.checkpoint import SUFFIX, saved_keys


def tidy(folder: Path, known: Callable[[str], bool]) -> None:
    """Remove jobs and checkpoints of trials that are all `known` by key, or that none can read.

    Jobs that wait or run for trials without a result stay. Half-written files go once no job is
    left that might be writing them. For the study's driver, when a sweep is done.
    """
    for path in (folder / "checkpoints").glob(f"*{SUFFIX}"):
        if all(known(key) for key in _checkpointed(path)):
            with suppress(OSError):
                path.unlink()
    for own in list((folder / "jobs").glob("*/")):
        if all(known(trial.key) for trial in trials_of(own)):
            shutil.rmtree(own, ignore_errors=True)
            _forget_arrays(folder, own)
    if not list((folder / "jobs").glob("*/")):
        remove_leftovers(folder)
        for path in (folder / "checkpoints").glob(".*"):  # safetensors has names of its own
            with suppress(OSError):
                path.unlink()


def _checkpointed(path: Path) -> list[str]:
    """Keys of the trials of a checkpoint; none when it is damaged."""
    try:
        return saved_keys(path)
    except ValueError:
        return []


def _forget_arrays(folder: Path, own: Path) -> None:
    """Remove arrays of which the job that was in `own` was the last."""
    for array in arrays(folder):
        jobs = {member.own for member in array.members}
        if own in jobs and not any(job.exists() for job in jobs):
            shutil.rmtree(array.folder, ignore_errors=True)
