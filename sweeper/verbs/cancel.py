"""The end of exactly one study's jobs; results stay, and checkpoints, from which it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sweeper.command.process import end_marked
from sweeper.config.command_line import place_of
from sweeper.launch.job_states import cancel_jobs
from sweeper.study.folder import StudyFolder
from sweeper.study.lock import Holder, live_holder, request_cancel
from sweeper.study.study import find_study
from sweeper.study.watcher import Watcher
from sweeper.sweep.progress import Jobs, driver_progress
from sweeper.verbs.answer import VerbAnswer
from sweeper.verbs.requests import CancelRequest


@dataclass(frozen=True, kw_only=True)
class CancelAnswer(VerbAnswer):
    """How many jobs were `cancelled`, and the `driver` that is about to end by itself.

    So many trials had `finished` in jobs, and nobody has collected them yet. So many processes
    were `ended` that commands of a killed driver had left.
    """

    folder: Path
    cancelled: int
    driver: Holder | None
    ended: int = 0
    finished: int = 0


def cancel(request: CancelRequest, watcher: Watcher) -> CancelAnswer:
    """End the study's jobs, wherever they run."""
    name, root = place_of(request.name, request.study, request.root)
    folder = root / find_study(name, root)
    # Counted before anything ends: afterwards nobody tells of them.
    driver = live_holder(folder)
    jobs = Jobs.of(folder, driver_progress(folder, driver, []))
    # The driver first, or it would submit again what is cancelled under it.
    if driver is not None:
        request_cancel(folder)
    on_cluster = cancel_jobs(folder)
    ended = 0
    # What ends with its job on this machine was left by nobody.
    if driver is None and not on_cluster:
        ended = end_marked(f"{StudyFolder(folder.absolute()).trials}/")
    # Jobs on a cluster were cancelled there and then; all others end with their driver.
    count = on_cluster or (len(jobs.states) if driver is not None else 0)
    finished = jobs.trials.get("finished", 0)
    return CancelAnswer(
        folder=folder, cancelled=count, driver=driver, ended=ended, finished=finished
    )
