"""A study's jobs: what `sweeper status` says of them, and `sweeper cancel`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sweeper.commands.output import DONE, Output, find_study
from sweeper.errors import SweeperError
from sweeper.files import try_json
from sweeper.launch.cancel import request_cancel
from sweeper.launch.slurm import arrays
from sweeper.launch.slurm.scheduler import ACTIVE, WAITING
from sweeper.lock import Holder, live_holder


def driver_progress(folder: Path, driver: Holder | None) -> dict[str, Any]:
    """What the live driver last told of itself; empty without one.

    What an earlier driver left is not this one's progress.
    """
    progress = try_json(folder / "progress.json") if driver else {}
    return progress if driver and progress.get("updated", 0) >= driver.started else {}


def jobs_state(folder: Path, progress: dict[str, Any] | None = None) -> dict[str, Any]:
    """The study's jobs, their trials by what becomes of them, and why nothing is known if so.

    A scheduler is asked for its jobs; of others the driver tells, in its `progress`.
    """
    trouble = None
    try:
        jobs = [asdict(job) for job in arrays.states(folder)]
    except SweeperError as error:
        jobs, trouble = [], str(error)
    if not jobs and trouble is None:
        jobs = list((progress or {}).get("jobs", ()))
    counts = Counter[str]()
    for job in jobs:
        counts[_word(job["state"])] += job["trials"]
    return {"jobs": jobs, "job_trials": dict(counts), "trouble": trouble}


def _word(state: str) -> str:
    """What a job's trials do, in one word."""
    word = state.split(" ")[0].upper()
    if word == "FINISHED":
        return "finished"
    if word in WAITING or word == "SUBMITTED":
        return "queued"
    return "running" if word in ACTIVE else "ended"


def show_jobs(state: dict[str, Any], output: Output) -> None:
    """The jobs, a line each."""
    if state["trouble"]:
        output.say(f"Jobs: nothing is known, as Slurm does not answer: {state['trouble']}")
    counts = ", ".join(f"{count} {word}" for word, count in state["job_trials"].items())
    if state["jobs"]:
        output.say(f"Jobs: {len(state['jobs'])}, with trials {counts}")
    for job in state["jobs"]:
        node = f" on {job['node']}" if job["node"] else ""
        since = f" since {job['since']}" if job["since"] else ""
        done = f", {100 * job['fraction']:.0f} % done" if job["state"] == "running" else ""
        trials = f"{job['trials']} trial{'s' * (job['trials'] != 1)}"
        output.say(f"  {job['id']} {job['state']}{node}{since}: {trials}{done}")


def cancel(name: str | None, root: Path, output: Output) -> int:
    """End exactly this study's jobs. Results stay, and checkpoints, from which a search goes on."""
    study = find_study(name, root)
    folder = root / study
    driver = live_holder(folder)
    jobs = len(jobs_state(folder, driver_progress(folder, driver))["jobs"])
    if driver is not None:
        request_cancel(folder)
    on_cluster = arrays.cancel(folder)
    count = on_cluster or (jobs if driver is not None else 0)
    output.say(f"Study {study}: {count} jobs were cancelled")
    if driver is not None:
        output.say(f"Its driver ({driver}) ends by itself.")
    output.document({"study": study, "cancelled": count})
    return DONE
