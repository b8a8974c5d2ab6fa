"""A diagnosis answered: what was changed one at a time, what it mended, and what comes next."""

from __future__ import annotations

from pathlib import Path

from sweeper.config.settings import Settings
from sweeper.config.studies import Invocation
from sweeper.decide.diagnosis import Diagnosis
from sweeper.errors import Text
from sweeper.records import to_json
from sweeper.report import console
from sweeper.report.next import Next, again, next_of
from sweeper.report.present import Shown
from sweeper.report.sentences import failure_notes, unfinished_notes
from sweeper.report.study_page import write_report
from sweeper.study.searched import read_searched
from sweeper.verbs.diagnose import DiagnosisAnswer, DiagnosisCostAnswer
from sweeper.verbs.requests import DiagnoseRequest, ExplainRequest, SearchRequest


def shown(answer: DiagnosisAnswer | DiagnosisCostAnswer, *, verbose: bool = False) -> Shown:
    """The changes and what they mended, or what they would train; the study's page is written."""
    if isinstance(answer, DiagnosisCostAnswer):
        return _cost(answer)
    settings, diagnosis = answer.settings, answer.diagnosis
    notes: list[str | Text] = [*answer.notes]
    notes += [*unfinished_notes(answer.unfinished), *failure_notes(answer.failures)]
    places: dict[str, Path] = {"report": write_report(settings.folder), "diagnosis": answer.record}
    return Shown(
        items=[console.ablation_table(diagnosis)] if diagnosis.results else [],
        notes=notes,
        answer=diagnosis.conclusion,
        places=places,
        document={"study": settings.name, "diagnosis": to_json(diagnosis)},
        next=[_next(settings, diagnosis, answer.invocation)],
        folder=settings.folder,
    )


def _cost(answer: DiagnosisCostAnswer) -> Shown:
    settings, verdict = answer.settings, answer.verdict
    costs = [("the transfer as it is", answer.as_it_is), *answer.changes]
    facts = (
        f"At {settings.base} and {answer.large}, {settings.transfer.seeds} seeds a learning rate; "
        "a curve whose lowest point is at its end grows there by up to "
        f"{settings.transfer.extend}."
    )
    if verdict is None:
        facts += " What is changed, one thing at a time, is chosen once the transfer is seen to "
        facts += "fail: each change costs the runs of a curve, or of two."
    elif verdict.answer != "fails":
        facts += f" The transfer there {verdict.answer}: there is nothing to diagnose."
    runs = sum(cost.trials for _, cost in costs)
    request = DiagnoseRequest(over=answer.axis, only=(*answer.only,))
    same = again(answer.invocation, request, settings, why="to find out why it fails")
    does_fail = verdict is None or verdict.answer == "fails"
    return Shown(
        items=console.dry_run("This would train", "change", costs, "runs", facts),
        notes=[*answer.notes, *unfinished_notes(answer.unfinished)],
        answer=f"{runs} run{'s' * (runs != 1)} are to be trained; nothing was written.",
        document={
            "study": settings.name,
            "changes": [{"change": name, **to_json(cost)} for name, cost in costs],
        },
        next=[same] if does_fail else [],
    )


def _next(settings: Settings, diagnosed: Diagnosis, invocation: Invocation) -> Next | None:
    """A search without the likeliest cause, in a study of its own; else what follows anyhow.

    Where the cause is in doubt, the same change with twice the seeds comes first.
    """
    if diagnosed.answer != "fails":
        return next_of(settings.folder)
    why = "to search without the likeliest cause"
    record = read_searched(settings.folder, [])
    searched = Next.recorded(record and record.command, why, SearchRequest)
    best = diagnosed.results[0] if diagnosed.results else None
    # The large size's, where anything was tried.
    width = max((result.before.size.width for result in diagnosed.results), default=0)
    there = width or settings.base.width
    explain = ExplainRequest(to_width=there, study=settings.name, root=settings.root)
    rules = Next(explain, "to see what every parameter gets there")
    if not searched or best is None or not best.is_cause:
        return next_of(settings.folder) or rules
    if best.doubtful:
        request = DiagnoseRequest(over=diagnosed.axis, only=(best.ablation.name,))
        seeds = f"transfer.seeds={2 * settings.transfer.seeds}"
        why = "to be surer of the likeliest cause"
        return again(invocation, request, settings, seeds, why=why)
    changes = best.ablation.overrides
    plain = all(isinstance(value, str | int | float | bool) for value in changes.values())
    if not changes or not plain:
        return next_of(settings.folder) or rules
    overrides = []
    for key, value in changes.items():
        group, _, name = key.partition(".")
        # A key that the configuration leaves at its default is added with a plus.
        plus = "" if name in (settings.raw.get(group) or {}) else "+"
        overrides.append(f"{plus}{key}={value}")
    study = f"{settings.name}-{best.ablation.name}".replace(" ", "-")
    return searched.as_new_study(study, *overrides, why=why)
