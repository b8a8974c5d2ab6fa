"""What a search found, or would cost, as people and programs read it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sweeper.config.settings import Settings
from sweeper.errors import Text
from sweeper.records import to_json
from sweeper.report import console
from sweeper.report.costs import trial_command
from sweeper.report.next import Next, again, first_transfer, search_on, the_same
from sweeper.report.sections import Item, Shown, Verbatim
from sweeper.report.sentences import diverged, failure_notes
from sweeper.report.study_page import written_page
from sweeper.study.setup import failures_of
from sweeper.sweep.base_search import Found, SearchCost
from sweeper.sweep.sweep import Submitted
from sweeper.sweep.warm_start import outside
from sweeper.table import counted, power
from sweeper.trial import Result
from sweeper.verbs.requests import SearchRequest
from sweeper.verbs.search import SearchAnswer


def presented(answer: SearchAnswer) -> Shown:
    """The best configuration, how many trials are in jobs, or what a search would take."""
    result = answer.result
    if isinstance(result, Found):
        return _found(answer, result)
    if isinstance(result, Submitted):
        folder, config_dir = answer.settings.folder, answer.invocation.config_dir
        collect = search_on(folder, why="to collect them, and go on", config_dir=config_dir)
        return queued_shown(answer.settings, result, collect, result.notices)
    return _cost(answer, result)


def _found(answer: SearchAnswer, result: Found) -> Shown:
    settings, conclusion = answer.settings, result.conclusion
    places, unwritten = written_page(settings.folder)
    beyond = outside(settings.space, conclusion.lines) if answer.source else []
    notes = [
        *(
            f"{each.name}: the answer of {answer.source}, {power(each.start)}, lies outside: the "
            f"optimum is {power(each.optimum)}, at the end of that answer's interval or beyond it"
            for each in beyond
        ),
        *result.notices,
        *unwritten,
        *failure_notes(failures_of(result.results, settings.identity)),
        *diverged(result.searched),
        *console.clip_note(result.searched),
        *console.accuracy_note(result.searched),
        *map(_lacking_note, result.lacking),
    ]
    unfinished = " Not finished: a neighbour of the best has no result." * bool(result.lacking)
    return Shown(
        items=console.conclusion(conclusion, settings.space),
        notes=notes,
        answer=f"{console.conclusion_text(conclusion)}{unfinished}",
        places=places,
        document={
            **result.record,
            **({"from": {"study": answer.source, "outside": beyond}} if answer.source else {}),
        },
        next=[_after(answer, result)],
        folder=settings.folder,
    )


def _lacking_note(lacking: tuple[str, Result]) -> str:
    name, neighbour = lacking
    value = neighbour.trial.values[name]
    there = f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
    return f"the search is not finished: {there}, beside the best, has no result, and may be better"


def _after(answer: SearchAnswer, result: Found) -> Next:
    settings, config_dir = answer.settings, answer.invocation.config_dir
    folder, finite = settings.folder, math.isfinite(result.conclusion.objective)
    if result.lacking:
        return search_on(folder, why="to train what has no result", config_dir=config_dir)
    if finite:
        return first_transfer(folder, settings.base.width, config_dir)
    if result.conclusion.untrained:
        return search_on(folder, why="once the script trains at eta", config_dir=config_dir)
    if all(each.status == "failed" for each in result.results):
        return search_on(folder, why="to try them again", config_dir=config_dir)
    # Every run diverged: the same range of eta, 2^-4 times as high.
    eta, ends = settings.space["eta"], ("low", "high", "default")
    axis = ",".join(f"{end}:{getattr(eta, end) - 4:g}" for end in ends)
    lower = f"parameterization.space.eta={{{axis}}}"
    return search_on(folder, lower, why="to search lower eta", config_dir=config_dir)


def queued_shown(
    settings: Settings, queued: Submitted, collect: Next, notes: Sequence[str | Text]
) -> Shown:
    """How many trials are left in a queue, and what goes on to `collect` them."""
    return Shown(
        notes=notes,
        answer=console.in_jobs(queued.submitted, queued.finished, queued.failed),
        places={"study": settings.folder},
        document={
            "study": settings.name,
            "finished": queued.finished,
            "submitted": queued.submitted,
        },
        next=[collect],
        folder=settings.folder,
    )


def _cost(answer: SearchAnswer, cost: SearchCost) -> Shown:
    settings, finished = answer.settings, cost.finished
    is_timed = not any(math.isnan(phase.seconds) for _, phase in cost.phases)
    facts = (
        f"{'' if cost.parameters is None else f'{cost.parameters:,} parameters a trial, '}"
        f"{cost.steps} steps. Points that phases share are trained once; a line that ends at "
        f"its optimum is extended. Time: {'measured' if is_timed else 'not known'} "
        f"here, {counted(cost.per_job, 'trial')} a job."
        f"{f' Of these trials, {finished} are finished already.' if finished else ''}"
    )
    title = "This search would run"
    items: list[Item] = [*console.dry_run(title, "phase", cost.phases, "trials", facts)]
    document: dict[str, Any] = {
        "study": settings.name,
        "phases": [{"phase": name, **to_json(phase)} for name, phase in cost.phases],
        "finished": finished,
        "batched_trials": cost.per_job,
    }
    if cost.command:
        items += trial_command(settings, cost.command, at="at the defaults")
        document["command"] = cost.command
        document["losses"] = [
            {"key": each.key, "values": each.count, "facts": each.facts(), "doubts": each.doubts()}
            for each in cost.losses
        ]
    if cost.script:
        document["script"] = cost.script
        script = f"The batch script of the first {cost.jobs} jobs:\n{cost.script}"
        items.append(Verbatim(script, title="The batch script", detail=True))
    request = SearchRequest(new_setup=answer.request.new_setup)
    next_command = again(answer.invocation, request, settings, why="to train them")
    remains = f"{cost.remaining} of {cost.planned} trials are to be trained; nothing was written."
    return Shown(
        items=items,
        answer=(remains, *the_same(next_command)),
        document=document | {"next": [next_command.document]},
    )
