"""`sweeper status`, `sweeper report` and `sweeper cancel`: they train nothing."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from sweeper.command.process import end_marked
from sweeper.decide.documents import Documents
from sweeper.errors import BadInput, SweeperError
from sweeper.launch.folder import cancel_jobs, job_states
from sweeper.report.answer import Sentence
from sweeper.report.ladder import ladder_table
from sweeper.report.next import NextCommand, next_of, stopped_at
from sweeper.report.output import DONE, Output, failures
from sweeper.study.folder import StudyFolder, read_document, studies
from sweeper.study.lock import Holder, live_holder, request_cancel
from sweeper.study.searched import read_searched
from sweeper.study.setup import trials_of
from sweeper.study.study import Study, find_study, is_saved
from sweeper.sweep.progress import Snapshot
from sweeper.table import Column, Table, counted, duration

STARTS_WITHIN = 20.0
"""Seconds for which `--watch` waits on a terminal for a driver that was just typed."""


def status(name: str | None, root: Path, output: Output, *, watch: bool = False) -> int:
    """Where a study stands; with `watch`, until its driver and its jobs end."""
    # Who watches at a terminal has often just typed the command in another one.
    until = time.monotonic() + STARTS_WITHIN * (watch and output.people.is_terminal)
    study = _appeared(name, root, output, until)
    told = None
    while True:
        state = study_state(root / study)
        driver = state["driver"]
        notes = list[str]()
        next_command = next_of(root / study, notes)
        state["notes"] += [note for note in notes if note not in state["notes"]]
        end = _standing(root / study, state, goes_on=next_command is not None)
        runs = driver is not None or bool({"queued", "running"} & state["job_trials"].keys())
        until = 0.0 if runs else until
        goes_on = watch and (runs or time.monotonic() < until)
        # A file gets what is new, and what stands at the end; a terminal, what is left, too.
        done = state["progress"] and state["progress"].done
        news = (state["trials"], state["job_trials"], done)
        if news != told or output.people.is_terminal or not goes_on:
            told = news
            if watch:
                output.people.clear()
            _show(study, state, output)
            if goes_on:
                output.say(end if runs else f"{end} Waiting for one to start; Ctrl-C ends it.")
                output.flush()
        if not goes_on:
            break
        # A driver's progress is a file; without one only a scheduler's queue is asked, and seldom.
        time.sleep(10 if runs and not driver else 2)
    others = [other for other in studies(root) if other != study]
    if others and name is None:
        output.say(_others(others, None if output.verbose else output.people.width))
    page = StudyFolder(root / study).report
    places = {"report": page} if page.is_file() else {"study": root / study}
    output.end(end, places, {"study": study, **state}, next_command)
    return DONE


def _appeared(name: str | None, root: Path, output: Output, until: float) -> str:
    """The study's name, once there is one; BadInput where there is none `until` then."""
    is_told = False
    while True:
        try:
            return find_study(name, root)
        except BadInput:
            if time.monotonic() >= until:
                raise
        if not is_told:
            output.tell(f"Waiting for the study to appear in {root}; Ctrl-C ends it.")
            is_told = True
        time.sleep(0.5)


def _show(study: str, state: dict[str, Any], output: Output) -> None:
    """Trials, losses, jobs, and the ladder as it fills."""
    counts = ", ".join(f"{count} {status}" for status, count in state["trials"].items())
    output.say(f"Study {study}: {counts or 'no trials yet'}")
    if phases := ", ".join(f"{phase} {count}" for phase, count in state["phases"].items()):
        output.show(Sentence(f"Trials by phase: {phases}"))
    if state["other_setups"]:
        output.say(f"  of other setups: {state['other_setups']} trials, which count no more")
    if state["diagnosed"]:
        output.say(f"  of the diagnosis: {state['diagnosed']} trials, each with one thing changed")
    if math.isfinite(state["objective"]):
        loss = f"{state['objective']:.4f} nats ({state['basis']})"
        output.say(f"{state['loss_name']} of the best configuration: {loss}")
    elif math.isfinite(state["best"]):
        output.say(f"Least loss of one trial: {state['best']:.4f} nats")
    output.notes(state["notes"])
    show_jobs(state, output)
    progress = state["progress"]
    if progress is not None and progress.ladder is not None and progress.ladder.points:
        output.show(ladder_table(progress.ladder))


def _standing(folder: Path, state: dict[str, Any], *, goes_on: bool) -> str:
    """What runs, or what was stopped or has ended; `goes_on`: a command for that is known."""
    driver, progress = state["driver"], state["progress"]
    if driver is not None:
        if progress is None:
            return f"Running ({driver}): starting"
        left = "" if progress.left is None else f", about {duration(progress.left)} left"
        return f"Running ({driver}): {progress.where()}: {_count(progress)}{left}"
    if is_saved(folder):
        return "Saved from a table's runs by `sweeper judge`: nothing in it can be continued."
    jobs = state["job_trials"]
    if in_jobs := {stage: jobs[stage] for stage in ("running", "queued") if stage in jobs}:
        counts = ", ".join(f"{count} {stage}" for stage, count in in_jobs.items())
        return (
            f"No driver is running; trials go on in jobs: {counts}. The same command collects them."
        )
    if (stopped := state["stopped"]) and goes_on:
        return f"No driver is running; {stopped.where()} was stopped at {_count(stopped)}."
    again = "not finished: run the same `sweeper search` command again to go on"
    return f"No driver is running; the search is {'finished' * state['search_finished'] or again}."


def _count(progress: Snapshot) -> str:
    return f"{progress.done}/{progress.total} trials"


def _others(names: Sequence[str], width: int | None) -> str:
    """The other studies in a line of `width`, as many as it has room for; None: all of them."""
    line = "Other studies: "
    for count, name in enumerate(names):
        left = f"and {len(names) - count} more (--verbose)"
        more = f"{name}, " if count < len(names) - 1 else name
        if width is not None and count and cell_len(line + more + left) > width:
            return line + left
        line += more
    return line


def study_state(folder: Path) -> dict[str, Any]:
    """Trials by status, the live driver, and the last progress, of one study."""
    study, driver = Study.read(folder, curves=False), live_holder(folder)
    trials = trials_of(study)
    results = trials.current
    notes = [*study.notices]
    progress = driver_progress(folder, driver, notes)
    losses = [result.objective for result in trials.searched]
    searched = read_searched(folder, notes)
    runs = searched.conclusion.runs if searched else 0
    # While a driver runs its record may be ahead of the files that were just read.
    if driver is None and runs > len(trials.searched):
        notes.append(
            f"{StudyFolder(folder).search.name} is drawn from {runs} trials, and the results hold "
            f"{len(trials.searched)} of them: others were lost, or are of another "
            "setup. `sweeper search` trains them again"
        )
    runner = results[-1].trial.spec.runner if results else {}
    return {
        "folder": str(folder),
        "trials": dict(Counter(result.status for result in results)),
        "phases": dict(Counter(result.trial.phase for result in results)),
        "other_setups": trials.others - trials.diagnosed,
        "diagnosed": trials.diagnosed,
        "best": min((loss for loss in losses if not math.isnan(loss)), default=math.inf),
        "objective": searched.conclusion.objective if searched else math.nan,
        "error": searched.conclusion.error if searched else math.nan,
        "seeds": searched.conclusion.seeds if searched else None,
        "fresh_seeds": searched.conclusion.fresh_seeds if searched else None,
        "basis": searched.conclusion.basis if searched else "",
        "loss_name": searched.conclusion.loss_name if searched else "",
        "notes": [*notes, *failures(results, runner)],
        "driver": None if driver is None else str(driver),
        "progress": progress,
        "stopped": stopped_at(folder, notes),
        **jobs_state(folder, progress),
        "search_finished": searched is not None and searched.finished,
    }


def report(name: str | None, root: Path, output: Output, csv: Path | None = None) -> int:
    """Write the study's page anew; with `csv`, the runs of its latest validation too."""
    # matplotlib and Jinja2 are for the page alone.
    from sweeper.report.live import EVERY, is_live
    from sweeper.report.page import headline, write_report

    folder = root / find_study(name, root)
    if csv is not None:
        from sweeper.runs.study import write_runs

        count = write_runs(folder, csv)
        output.say(f"{counted(count, 'run')} of its validation: {csv}")
    documents = Documents.read(folder)
    # A page that its driver keeps writing goes on renewing itself.
    runs = is_live(StudyFolder(folder).report) and live_holder(folder) is not None
    path = write_report(folder, documents, live=EVERY if runs else 0.0)
    output.notes(documents.notices)
    document = {"study": folder.name, "report": str(path)}
    document |= {"csv": str(csv)} if csv is not None else {}
    headlined = f"Study {folder.name}: {headline(documents)}."
    output.end(headlined, {"report": path}, document, next_of(folder))
    return DONE


def serve_reports(study: str | None, root: Path, port: int | None, output: Output) -> int:
    """Serve the pages of all studies in `root` until Ctrl-C, that of a `study` named first."""
    from sweeper.report.serve import PORT, serve

    if study is not None:
        find_study(study, root)
    elif not root.is_dir():
        raise BadInput(f"there is no folder {root}: --root DIR names that of the studies")

    def tell(address: str) -> None:
        output.say(f"Studies of {root}: {address} (on this machine alone; Ctrl-C ends it)")
        # Now, since there is no end at which to say it.
        output.flush()
        output.document({"address": address, "root": str(root)})
        sys.stdout.flush()

    try:
        serve(root, PORT if port is None else port, study, tell)
    except KeyboardInterrupt:
        output.tell("Stopped serving.")
    return DONE


def driver_progress(folder: Path, driver: Holder | None, notes: list[str]) -> Snapshot | None:
    """What the live driver last said of itself; None without one. `notes` gets what is damaged.

    What an earlier driver left is not this one's progress.
    """
    path = StudyFolder(folder).progress
    if driver is None:
        return None
    progress = read_document(path, Snapshot, notes)
    return progress if progress and progress.updated >= driver.started else None


def jobs_state(folder: Path, progress: Snapshot | None = None) -> dict[str, Any]:
    """The study's jobs, their trials by what becomes of them, and why nothing is known if so.

    A scheduler is asked for its jobs; of others the driver tells, in its `progress`.
    """
    trouble = None
    try:
        jobs = list(job_states(folder))
    except SweeperError as error:
        jobs, trouble = [], str(error)
    if not jobs and trouble is None:
        jobs = list(progress.jobs) if progress else []
    counts = Counter[str]()
    for job in jobs:
        counts[job.stage] += job.trials
    return {"jobs": jobs, "job_trials": dict(counts), "trouble": trouble}


def show_jobs(state: dict[str, Any], output: Output) -> None:
    """The jobs, a row each."""
    if state["trouble"]:
        output.say(f"Jobs: nothing is known of them: {state['trouble']}")
    if not state["jobs"]:
        return
    counts = ", ".join(f"{count} {stage}" for stage, count in state["job_trials"].items())
    left = [Column(name, left=True) for name in ("job", "state", "on", "since")]
    table = Table(
        f"Jobs: {len(state['jobs'])}; their trials: {counts}",
        [*left, Column("trials"), Column("done", form=".0%")],
    )
    for job in state["jobs"]:
        done = job.fraction if job.stage == "running" else None
        table.add(job.id, job.state, job.node, job.since, job.trials, done)
    output.show(table)
    for error, count in Counter(job.error for job in state["jobs"] if job.error).items():
        output.say(f"{count} failed: {error}")


def cancel(name: str | None, root: Path, output: Output) -> int:
    """End exactly this study's jobs. Results stay, and checkpoints, from which a search goes on."""
    study = find_study(name, root)
    folder = root / study
    # Counted before anything ends: afterwards nobody tells of them.
    driver = live_holder(folder)
    jobs = len(jobs_state(folder, driver_progress(folder, driver, []))["jobs"])
    # The driver first, or it would submit again what is cancelled under it.
    if driver is not None:
        request_cancel(folder)
    on_cluster = cancel_jobs(folder)
    # Jobs on a cluster were cancelled there and then; all others end with their driver.
    count = on_cluster or (jobs if driver is not None else 0)
    next_command = None
    if driver is not None:
        output.say(f"Its driver ({driver}) ends by itself.")
        next_command = NextCommand.of("status", study=study, root=root, why="to see it end")
    # What ends with its job on this machine was left by nobody.
    elif not on_cluster and (left := end_marked(f"{folder.absolute() / 'trials'}/")):
        output.say(f"{left} processes that a killed driver's commands had left were ended.")
    cancelled = f"Study {study}: {count} {'job was' if count == 1 else 'jobs were'} cancelled."
    document = {"study": study, "cancelled": count}
    output.end(cancelled, {"study": folder}, document, next_command or next_of(folder))
    return DONE
