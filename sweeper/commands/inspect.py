"""`sweeper status` and `sweeper report`: they read a study and train nothing."""

from __future__ import annotations

import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

from sweeper.catalog import studies
from sweeper.commands.jobs import driver_progress, jobs_state, show_jobs
from sweeper.commands.output import DONE, Output, failures, find_study
from sweeper.files import try_json
from sweeper.lock import live_holder
from sweeper.report.progress import duration
from sweeper.study import Study


def status(name: str | None, root: Path, output: Output, *, watch: bool = False) -> int:
    """Where a study stands; with `watch`, until its driver and its jobs end."""
    found = find_study(name, root)
    while True:
        state = study_state(root / found)
        if watch:
            output.people.clear()
        _show_state(found, state, output)
        waiting = {"queued", "running"} & state["job_trials"].keys()
        if not watch or (state["driver"] is None and not waiting):
            break
        time.sleep(2 if state["driver"] else 10)
    others = [other for other in studies(root) if other != found]
    if others and name is None:
        output.say(f"Other studies: {', '.join(others)}")
    output.document({"study": found, **state})
    return DONE


def study_state(folder: Path) -> dict[str, Any]:
    """Trials by status, the live driver, and the last progress, of one study."""
    study, driver = Study.read(folder), live_holder(folder)
    results = study.results()
    progress = driver_progress(folder, driver)
    # Trials of a transfer's ladder are of other sizes: their losses say nothing of the search.
    losses = [r.objective for r in results if r.trial.phase != "validate"]
    return {
        "folder": str(folder),
        "trials": dict(Counter(result.status for result in results)),
        "phases": dict(Counter(result.trial.phase for result in results)),
        "best": min((loss for loss in losses if not math.isnan(loss)), default=math.inf),
        "notes": [*study.notices, *failures(results)],
        "driver": None if driver is None else str(driver),
        "progress": progress or None,
        **jobs_state(folder, progress),
        "search_finished": bool(try_json(folder / "search.json").get("finished")),
    }


def _show_state(name: str, state: dict[str, Any], output: Output) -> None:
    counts = ", ".join(f"{count} {word}" for word, count in state["trials"].items())
    output.say(f"Study {name}: {counts or 'no trials yet'}")
    for phase, count in state["phases"].items():
        output.say(f"  {phase}: {count} trials")
    if math.isfinite(state["best"]):
        output.say(f"Best training loss of the search: {state['best']:.4f} nats")
    output.notes(state["notes"])
    show_jobs(state, output)
    running = state["progress"]
    if state["driver"] is None:
        output.say(f"No driver is running; the search is {_finished(state)}.")
    elif running is None:
        output.say(f"Running ({state['driver']}): starting")
    else:
        left = running.get("left")
        words = "" if left is None else f", about {duration(float(left))} left"
        count = f"{running['done']}/{running['total']} trials"
        where = ": ".join(dict.fromkeys([running["job"], running["phase"]]))
        output.say(f"Running ({state['driver']}): {where}: {count}{words}")


def _finished(state: dict[str, Any]) -> str:
    if state["search_finished"]:
        return "finished"
    return "not finished: run the same `sweeper search` command again to go on"


def report(name: str | None, root: Path, output: Output) -> int:
    """Write the study's page anew."""
    # matplotlib and Jinja2 are for the page alone.
    from sweeper.report.page import write_report

    path = write_report(root / find_study(name, root))
    output.say(f"Report: {path}")
    output.document({"study": path.parent.name, "report": str(path)})
    return DONE
