"""A study's jobs on a cluster: what `sweeper status` says of them, and `sweeper cancel`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sweeper.commands.output import DONE, Output, find_study
from sweeper.errors import SweeperError
from sweeper.launch import arrays
from sweeper.launch.scheduler import ACTIVE, WAITING
from sweeper.lock import holder


def jobs_state(folder: Path) -> dict[str, Any]:
    """The study's jobs, their trials by what becomes of them, and why nothing is known if so."""
    try:
        jobs, trouble = arrays.states(folder), None
    except SweeperError as error:
        jobs, trouble = [], str(error)
    counts = Counter[str]()
    for job in jobs:
        counts[_word(job.state)] += job.trials
    return {"jobs": [asdict(job) for job in jobs], "job_trials": dict(counts), "trouble": trouble}


def _word(state: str) -> str:
    """What a job's trials do, in one word."""
    word = state.split(" ")[0].upper()
    if word == "FINISHED":
        return "finished"
    if word in WAITING:
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
        share = f", {100 * job['share']:.0f} % done" if job["state"] == "running" else ""
        trials = f"{job['trials']} trial{'s' * (job['trials'] != 1)}"
        output.say(f"  {job['id']} {job['state']}{node}{since}: {trials}{share}")


def cancel(name: str | None, root: Path, output: Output) -> int:
    """End exactly this study's jobs. Results stay, and checkpoints, from which a search goes on."""
    found = find_study(name, root)
    count, driver = arrays.cancel(root / found), holder(root / found)
    output.say(f"Study {found}: {count} jobs were cancelled")
    if driver is not None and count:
        output.say(f"Its driver ({driver}) ends by itself.")
    output.document({"study": found, "cancelled": count})
    return DONE
