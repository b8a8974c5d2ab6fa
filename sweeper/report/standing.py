"""Where a study stands and what was cancelled of it, as people and programs read it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sweeper.errors import SHELL, Call, Keyword, Text, as_text, spelled
from sweeper.report.next import Next, next_of
from sweeper.report.sections import Item, Sentence, Shown
from sweeper.report.sentences import failure_notes
from sweeper.report.trials import ladder_table
from sweeper.search.fresh import is_final
from sweeper.study.folder import StudyFolder
from sweeper.study.setup import failures_of
from sweeper.sweep.progress import Jobs, Snapshot
from sweeper.table import Column, Table, counted, duration, listed
from sweeper.verbs.cancel import CancelAnswer
from sweeper.verbs.requests import StatusRequest
from sweeper.verbs.status import StatusAnswer


def presented(answer: StatusAnswer | CancelAnswer) -> Shown:
    """Where a study stands, or what was cancelled of it."""
    return _cancelled(answer) if isinstance(answer, CancelAnswer) else _stands(answer)


def _stands(answer: StatusAnswer) -> Shown:
    damaged = list[str]()
    next_command = next_of(answer.folder, damaged)
    if next_command and answer.driver is None and answer.in_jobs:
        # Nothing was stopped: jobs of a cluster outlive their driver.
        next_command = replace(next_command, why="to collect them, and go on")
    notes = _notes(answer)
    # The next command reads some documents that the status has read: what is damaged is said once.
    notes += [(note,) for note in damaged if (note,) not in notes]
    page = StudyFolder(answer.folder).report
    others = Sentence(f"Other studies: {listed(answer.others)}")
    return Shown(
        items=[*_items(answer), *[others] * bool(answer.others)],
        notes=notes,
        answer=_standing(answer, goes_on=next_command is not None),
        places={"report": page} if page.is_file() else {"study": answer.folder},
        document=_record(answer, notes),
        next=(next_command,) if next_command else (),
    )


def looked(answer: StatusAnswer, *, live: bool) -> Sequence[Item]:
    """What a watch shows at a look, `live` or in lines."""
    end = _standing(answer, goes_on=False)
    waiting = " Waiting for one to start; Ctrl-C ends it." * answer.waits
    notes = (Sentence(("Note: ", *note)) for note in _notes(answer))
    return [*_items(answer), *notes, Sentence((*end, waiting))]


def _items(answer: StatusAnswer) -> list[Item]:
    trials, searched = answer.trials, answer.searched
    counts = ", ".join(f"{count} {status}" for status, count in answer.counts.items())
    waiting = answer.jobs.trials.get("finished", 0) * (answer.driver is None)
    uncollected = f"{waiting} finished in jobs, not collected yet" * bool(waiting)
    trials_so_far = "; ".join(filter(None, (counts, uncollected))) or "no trials yet"
    lines = [f"Study {answer.folder.name}: {trials_so_far}"]
    if phases := ", ".join(f"{phase} {count}" for phase, count in _phases(answer).items()):
        lines.append(f"Trials by phase: {phases}")
    if trials.others:
        lines.append(f"  of other setups: {trials.others} trials, which count no more")
    objective = searched.conclusion.objective if searched else math.nan
    if searched and math.isfinite(objective):
        loss = f"{objective:.4f} nats ({searched.conclusion.basis})"
        lines.append(f"{searched.conclusion.loss_name} of the best configuration: {loss}")
    elif searched and searched.conclusion.untrained:
        lines.append(f"No answer: {searched.conclusion.untrained}")
    elif math.isfinite(best := _best(answer)):
        lines.append(f"Least loss of one trial: {best:.4f} nats")
    items: list[Item] = [Sentence(line) for line in lines]
    items += jobs_items(answer.jobs)
    progress = answer.progress
    if progress is not None and progress.ladder is not None and progress.ladder.points:
        items.append(ladder_table(progress.ladder))
    return items


MOST_JOBS = 20
"""A cluster may hold hundreds of one study, alike but for their numbers."""


def jobs_items(jobs: Jobs) -> list[Item]:
    """A row a job, or why nothing is known of them."""
    items = list[Item]()
    if jobs.trouble:
        items.append(Sentence(f"Jobs: nothing is known of them: {jobs.trouble}"))
    if not jobs.states:
        return items
    counts = ", ".join(f"{count} {stage}" for stage, count in jobs.trials.items())
    columns = [Column(name, left=True) for name in ("job", "state", "on", "since")]
    table = Table(
        f"Jobs: {len(jobs.states)}; their trials: {counts}",
        [*columns, Column("trials"), Column("done", form=".0%")],
    )
    for job in jobs.states[:MOST_JOBS]:
        done = job.fraction if job.stage == "running" else None
        table.add(job.id, job.state, job.node, job.since, job.trials, done)
    troubles = Counter((job.stage, job.error) for job in jobs.states if job.error)
    failures = [Sentence(f"{count} {stage}: {text}") for (stage, text), count in troubles.items()]
    if (more := len(jobs.states) - MOST_JOBS) > 0:
        failures.append(Sentence((f"{more} more: ", Keyword("json"), " lists all jobs")))
    return [*items, table, *failures]


def _notes(answer: StatusAnswer) -> list[Text]:
    notes = list(map(as_text, answer.notices))
    searched, trials = answer.searched, answer.trials
    if answer.lacks and searched is not None:
        notes.append(
            (
                f"search.json is drawn from {searched.conclusion.runs} trials, and the results "
                f"hold {len(trials.searched)} of them: others were lost, or are of another setup. ",
                Call("search"),
                " trains them again",
            )
        )
    runner = trials.current[-1].trial.spec.runner if trials.current else {}
    return [*notes, *map(as_text, failure_notes(failures_of(trials.current, runner)))]


def _standing(answer: StatusAnswer, *, goes_on: bool) -> Text:
    driver, progress = answer.driver, answer.progress
    if driver is not None:
        if progress is None:
            return (f"Running ({driver}): starting",)
        remaining = "" if progress.left is None else f", about {duration(progress.left)} left"
        return (f"Running ({driver}): {progress.where()}: {_count(progress)}{remaining}",)
    counts = answer.jobs.trials
    for what, stages in (("go on", ("running", "queued")), ("have ended", ("finished", "failed"))):
        if in_jobs := [f"{counts[stage]} {stage}" for stage in stages if stage in counts]:
            return (
                f"No driver is running; trials in jobs {what}: {', '.join(in_jobs)}. The same "
                "command collects them.",
            )
    if (stopped := answer.stopped) and goes_on:
        return (f"No driver is running; {stopped.where()} was stopped at {_count(stopped)}.",)
    if answer.searched is not None and answer.searched.finished:
        return ("No driver is running; the search is finished.",)
    return (
        "No driver is running; the search is not finished: run the same ",
        Call("search"),
        " command again to go on.",
    )


def _count(progress: Snapshot) -> str:
    return f"{progress.done}/{progress.total} trials"


def _phases(answer: StatusAnswer) -> dict[str, int]:
    return dict(Counter(result.trial.phase for result in answer.trials.current))


def _best(answer: StatusAnswer) -> float:
    losses = [r.objective for r in answer.trials.searched if not is_final(r)]
    return min((loss for loss in losses if not math.isnan(loss)), default=math.inf)


def _record(answer: StatusAnswer, notes: Sequence[Text]) -> dict[str, Any]:
    conclusion = answer.searched.conclusion if answer.searched else None
    return {
        "study": answer.folder.name,
        "folder": str(answer.folder),
        "trials": answer.counts,
        "phases": _phases(answer),
        "other_setups": answer.trials.others,
        "best": _best(answer),
        "objective": conclusion.objective if conclusion else math.nan,
        "error": conclusion.error if conclusion else math.nan,
        "seeds": conclusion.seeds if conclusion else None,
        "fresh_seeds": conclusion.fresh_seeds if conclusion else None,
        "basis": conclusion.basis if conclusion else "",
        "loss_name": conclusion.loss_name if conclusion else "",
        "notes": [spelled(note, SHELL) for note in notes],
        "driver": None if answer.driver is None else str(answer.driver),
        "progress": answer.progress,
        "stopped": answer.stopped,
        "jobs": answer.jobs.states,
        "job_trials": answer.jobs.trials,
        "trouble": answer.jobs.trouble,
        "search_finished": answer.searched is not None and answer.searched.finished,
    }


def _cancelled(answer: CancelAnswer) -> Shown:
    study, count = answer.folder.name, answer.cancelled
    items, next_command = list[Item](), None
    if answer.driver is not None:
        items.append(Sentence(f"Its driver ({answer.driver}) ends by itself."))
        request = StatusRequest(study=study, root=answer.folder.parent)
        next_command = Next(request, "to see it end")
    elif answer.ended:
        processes = f"{answer.ended} processes that a killed driver's commands had left were ended."
        items.append(Sentence(processes))
    next_command = next_command or next_of(answer.folder)
    finished = counted(answer.finished, "trial")
    kept = f"; {finished} had finished in jobs, and the same command collects them"
    kept, were = kept * bool(answer.finished), "was" if count == 1 else "were"
    return Shown(
        items=items,
        answer=f"Study {study}: {counted(count, 'job')} {were} cancelled{kept}.",
        places={"study": answer.folder},
        document={"study": study, "cancelled": count, "finished": answer.finished},
        next=(next_command,) if next_command else (),
    )
