"""A study's jobs seen without their driver: how they stand, their end, what is left of them.

```
<study>/jobs/<id>/    a job in the hands of other processes (`launch.job`)
        <launcher>/   what a launcher keeps whose jobs outlive the driver (`executor.Scheduled`)
```
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sweeper.errors import Call, SweeperError
from sweeper.files import check_open, owner_of, remove_leftovers
from sweeper.launch.executor import JobState, Scheduled
from sweeper.launch.job import outcome_of, trials_of
from sweeper.records import import_target
from sweeper.registry import plugins


def schedulers(folder: Path) -> list[Scheduled]:
    """The launchers of conf/launcher, as classes, that a study's jobs were ever given to.

    No other is imported, and none for a study whose jobs end with their driver.
    """
    launchers = plugins().get("launcher", {})
    # A study that never saw a cluster must not import submitit.
    kinds: list[object] = [import_target(launchers[name]) for name in _used(folder)]
    return [kind for kind in kinds if isinstance(kind, Scheduled)]


def _used(folder: Path) -> list[str]:
    return [name for name in plugins().get("launcher", {}) if (folder / name).is_dir()]


def check_owner(folder: Path) -> None:
    """SweeperError where jobs in the study may be another user's.

    Asked before anything is made or removed: who is refused must leave nothing that closes the
    study to its owner, nor tidy up after jobs that are hidden and may run.
    """
    check_open(folder / "jobs")


def job_states(folder: Path) -> list[JobState]:
    """Jobs that go on without a driver; SweeperError when their scheduler does not answer.

    Also where they are another user's, and closed. Of other jobs the driver tells, while it lives.
    """
    return [state for scheduler in _known(folder) for state in scheduler.states(folder)]


def cancel_jobs(folder: Path) -> int:
    """End the jobs that go on without a driver; how many there were. Raises as `job_states`."""
    return sum(scheduler.cancel(folder) for scheduler in _known(folder))


def _known(folder: Path) -> list[Scheduled]:
    """Schedulers that were used; SweeperError for jobs that this user cannot read."""
    used = schedulers(folder)
    for path in (folder / name for name in ("jobs", *_used(folder)) if used):
        if path.exists() and not os.access(path, os.R_OK | os.X_OK):
            raise SweeperError(
                f"{path} is the user {owner_of(path)}'s, whose own ",
                Call("status"),
                " and ",
                Call("cancel"),
                " know of them",
            )
    return used


def tidy(folder: Path, is_finished: Callable[[str], bool]) -> bool:
    """Remove jobs whose trials are all finished, by key, that failed, or that nobody can read.

    Others for trials without a result stay. Those that failed are of another command: this one's
    were collected. Half-written files go once no job is left that might be
    writing them; whether that is so is returned.
    """
    removed = set[str]()  # jobs of no trials, which nobody can read, are finished too
    for job_dir in list((folder / "jobs").glob("*/")):
        outcome = outcome_of(job_dir)
        of_no_use = outcome is not None and outcome.failure is not None and not outcome.results
        if of_no_use or all(is_finished(trial.key) for trial in trials_of(job_dir)):
            shutil.rmtree(job_dir, ignore_errors=True)
            removed.add(job_dir.name)
    for scheduler in schedulers(folder) if removed else ():
        scheduler.forget(folder, removed)
    idle = not list((folder / "jobs").glob("*/"))
    if idle:
        remove_leftovers(folder)
        with suppress(OSError):  # logs of workers that died stay
            (folder / "jobs").rmdir()  # whoever goes on with a shared study makes it theirs
    return idle
